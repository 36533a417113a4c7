"""A server put together: over stdio or HTTP, from its start to its end.

Owns the order in which things start and end, the two HTTP apps and their sockets, and taking
kernels over from a server that died. Everything it is made of is in the packages below it.
Called by `cli`.
"""
