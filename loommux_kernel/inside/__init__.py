"""The `loommux` object that cells have, and what it starts: watches and forwarded cells.

How a server is asked is `shared`'s (`shared.api_client`). Called by the kernel and `running`.
"""
