"""The `loommux` object that cells have, and what it starts: watches and forwarded cells.

How a server is asked is `shared`'s (`shared.daemon`). Called by the kernel and `running`.
"""
