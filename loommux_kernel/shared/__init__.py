"""What the host and a kernel have in common, and all that the host takes from here.

Owns the protocol, the header's grammar, the clock, lines and searching, and the client of a
server's API that commands and cells use. `records`, below it, is the record store, which the
kernel writes and the host reads and completes. Knows no ipykernel.
"""
