"""What one server leaves for the next, and how the next one makes kernels of it.

Owns the shapes and files of the notes, finding a dead server's, and becoming their owner.
When they are written, and in which order a server comes back, is `server`'s. Called by
`server`, `sessions` and `command_line`.
"""
