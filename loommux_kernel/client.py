"""The public client of a server's API: ``from loommux_kernel.client import Daemon`` (contract 8).

For programs outside of kernels; cells have it as `loommux`. It is defined in `shared.api_client`.
"""

from loommux_kernel.shared.api_client import Daemon, DaemonError, KernelHandle, Kernels

__all__ = ["Daemon", "DaemonError", "KernelHandle", "Kernels"]
