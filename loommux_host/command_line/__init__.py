"""From words on a command line to what they mean, for the server and for the subcommands.

Owns the server's options, the table of commands, exit codes and how a command speaks, and how
a kernel is named there. Knows no command's work: `commands` has that. Called by `cli`, by every
command and by what commands are made of.
"""
