"""The JSON API: what people's programs, the console and code in kernels are answered.

Owns the table of endpoints, what each does with the use-cases, and the feed of events.
Called by `server`, which serves it at ``/api`` and on the private socket.
"""
