"""`SpawnedByInit` as a provisioner of jupyter_client, for any program that manages kernels.

With ``"metadata": {"kernel_provisioner": {"provisioner_name": "loommux-init"}}`` in a
kernel spec, that kernel and all that it starts end with their manager, however it dies.
The host itself does not import this: see `spawn`. POSIX only.
"""

from __future__ import annotations

from typing import Any

from jupyter_client.connect import KernelConnectionInfo
from jupyter_client.provisioning.local_provisioner import LocalProvisioner

from loommux_host.processes.spawn import SpawnedByInit


class InitProvisioner(SpawnedByInit, LocalProvisioner):
    """Launches, watches and ends a local kernel through an init; the rest is `LocalProvisioner`'s."""

    pid: int | None = None

    async def launch_kernel(self, cmd: list[str], **kwargs: Any) -> KernelConnectionInfo:
        """Launch a kernel; the keywords are jupyter_client's."""
        await super().launch_kernel(cmd, **kwargs)
        return self.connection_info

    async def cleanup(self, restart: bool = False) -> None:
        """Let the init go, give cached ports back."""
        await super().cleanup(restart=restart)
        await LocalProvisioner.cleanup(self, restart=restart)
