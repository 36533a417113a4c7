"""Init and guard: the two processes above a kernel that end all that it has started.

Owns the poll loop and the end routine. Standard library only, and little of it, run as
``python -I -S``: a kernel's start waits for them. Started by `processes.spawn` and `keeper`.
"""
