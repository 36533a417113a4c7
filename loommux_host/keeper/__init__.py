"""The keeper: a warm process that forks kernels, and the server's end of it.

Owns what is imported before a fork, when an interpreter of its own (exec) is needed instead,
and what is kept for a successor. `fork_server` and what it imports run in the keeper, the
others in the server. Called by `enter`, `server`, `succession` and `diagnosis`.
"""
