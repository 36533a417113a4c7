"""Who calls: which kernel each caller works in, what it has been told, what it keeps alive.

Owns callers, the binding of sessions to kernels, and the lease rules of `leases` at work with
a clock. Knows no protocol. Called by `usecases`, `server` and the faces.
"""
