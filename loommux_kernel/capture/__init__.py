"""Whatever becomes output: streams, descriptors, messages, notices, in one ordered queue.

Owns the way from what code says to the record store and to attached clients. `iopub` is the
one module that touches ipykernel's private names. Called by `app`, the kernel and `inside`.
"""
