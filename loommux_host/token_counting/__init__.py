"""Counting tokens: the shipped vocabulary, bounds that need no count, a process that counts.

Knows nothing of results. Called by `usecases` and `rendering`.
"""
