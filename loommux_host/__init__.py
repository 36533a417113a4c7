"""The host: a small process that manages kernels' life, callers and the faces. Its root has the ways in.

Each package here owns one part and says in its `__init__` what that is and who calls it;
docs/design.md shows them as a map. What a package may import stands in
tests/test_architecture.py. Nothing here imports ipykernel or IPython, and of `loommux_kernel`
only `shared` is used.
"""
