"""The configuration files of MCP hosts, into which ``loommux install`` writes an entry.

Owns which hosts there are, and how a file of theirs is changed with every other byte kept.
Knows nothing of servers and kernels. Called by `commands.install` and `diagnosis`.
"""
