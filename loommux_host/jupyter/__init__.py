"""Jupyter's own programs at a kernel of ours: JupyterLab's proxy, and the clients of ``attach``.

Owns how such a program finds a kernel and reaches it. Each runs in a process of its own and
knows no server. Called by the kernelspec, `commands.attach` and `commands.kernelspec`.
"""
