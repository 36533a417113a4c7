"""What runs in each kernel process: `GatedKernel`, which records everything and answers for itself.

The root has the process (`app`), its kernel (`kernel`) and the public `client`; each package
says in its `__init__` what it owns. The host uses `shared` alone. Nothing here imports `mcp`,
starlette, uvicorn, tiktoken or the host.
"""
