"""Starting, containing and ending operating system processes, and the files that go with them.

Owns the command, environment, directories and limits of a kernel's process on each system.
Knows nothing of cells and records. Called by `kernels`, `keeper`, `succession` and `server`; people's
programs find servers here.
"""
