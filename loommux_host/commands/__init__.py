"""The subcommands for people, one module for each, named as the command is.

Every module has ``arguments(parser)`` and ``run(options) -> int``, and its docstring is the
command's help. What they share is in `command_line`; what a command has of its own besides
is in `installation`, `bridge`, `diagnosis` and `console`. Loaded by `command_line.catalogue` by
name, so that a server's start imports none of them.
"""
