"""Which servers live, as far as the system shows it."""

from __future__ import annotations

import os
import subprocess
import sys

import psutil
import pytest

from loommux_host.processes.running_servers import Server, boot_id


def server(pid: int) -> Server:
    return Server(
        pid=pid,
        version="1",
        started_at=0,
        uptime=1e12,
        workspace="/",
        transport="stdio",
        control_url="",
        python="",
        boot=boot_id(),
    )


@pytest.mark.case("X04")
@pytest.mark.skipif(sys.platform == "win32", reason="processes are not hidden there")
def test_a_server_that_the_system_hides_from_its_own_account_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    assert server(os.getpid()).alive
    assert not server(ended.pid).alive

    def hidden(pid: int) -> psutil.Process:  # as with hidepid=2
        raise psutil.NoSuchProcess(pid)

    monkeypatch.setattr(psutil, "Process", hidden)
    assert server(os.getpid()).alive
    assert not server(ended.pid).alive
