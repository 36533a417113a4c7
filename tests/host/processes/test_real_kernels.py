"""Real kernels through the launcher: what their cells find themselves in, how they start, die and end."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import sysconfig
import uuid
import venv
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest

from loommux_host.processes.launcher import Launcher, StartFailed
from loommux_host.processes.runtime_files import KernelFiles, create_server_directory
from tests.host.real_cells import Cells
from tests.host.real_processes import Settings, gone

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(sys.platform == "win32", reason="inits are POSIX's")]


@pytest.fixture
async def cells(private_jupyter: Path, tmp_path: Path) -> AsyncIterator[Cells]:
    before = {p.pid for p in psutil.Process().children(recursive=True)}
    server = create_server_directory()
    workspace = tmp_path / "a workspace ü"
    workspace.mkdir()
    made = Cells(Launcher(Settings()), KernelFiles(server, uuid.uuid4().hex, "real"), workspace)
    await made.start()
    yield made
    await made.close()
    server.remove()
    left = [p for p in psutil.Process().children(recursive=True) if p.pid not in before]
    assert not left, f"processes left: {left}"


async def test_a_cell_finds_an_ordinary_interpreter_in_the_workspace(cells: Cells) -> None:
    (cells.workspace / "of_the_workspace.py").write_text("here = 1")
    (cells.workspace / "json.py").write_text("raise ImportError('not the standard one')")
    (cells.workspace / "loommux_kernel").mkdir()
    assert await cells.run("import os; print(os.getcwd())") == str(cells.workspace)
    assert await cells.run("import of_the_workspace, json; print(json.dumps(of_the_workspace.here))") == "1"
    path = json.loads(await cells.run("import sys, json; print(json.dumps(sys.path))"))
    assert not [p for p in path if p.endswith("loommux_host")]
    assert await cells.run("print(__name__, sys.argv[1:] if 0 else '')") == "__main__"


async def test_programs_in_a_cell_are_the_kernels_own_and_do_not_wait(cells: Cells) -> None:
    said = await cells.run("!python -c 'import sys; print(sys.prefix)'")
    assert said == sys.prefix
    assert sys.prefix in await cells.run("!pip --version") or "No module named pip" in await cells.run("!pip --version")
    await cells.run("import subprocess; subprocess.run(['cat'], check=True)")
    assert "nothing" in await cells.run("try: open('/dev/tty')\nexcept OSError: print('nothing')")


@pytest.mark.skipif(sys.platform != "linux", reason="read from /proc")
async def test_no_descriptor_of_the_server_is_open_in_a_kernel(cells: Cells) -> None:
    assert not pipes_and_sockets(os.getpid()) & pipes_and_sockets(cells.process.pid)


def pipes_and_sockets(pid: int) -> set[str]:
    found: set[str] = set()
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            found.add(str(path.readlink()))
    return {name for name in found if name.startswith(("pipe:", "socket:"))}


@pytest.mark.parametrize(
    ("source", "code", "name"),
    [
        ("import os; os._exit(4)", 4, None),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", None, "SIGKILL"),
        ("import ctypes; ctypes.string_at(0)", None, "SIGSEGV"),
        ("import os; os.abort()", None, "SIGABRT"),
    ],
)
async def test_a_death_in_a_cell_is_told_as_it_was(
    cells: Cells, source: str, code: int | None, name: str | None
) -> None:
    await cells.run("import subprocess; subprocess.Popen(['sleep', '60']); None")
    await cells.dies(source)
    told = await cells.process.wait()
    assert (told.code, told.signal, told.ended_processes) == (code, name, 1)
    assert told.max_rss_bytes is not None
    assert told.max_rss_bytes > 20 << 20
    if name in ("SIGSEGV", "SIGABRT"):
        assert told.faults is not None
        assert told.faults.startswith("Fatal Python error")
        assert "Cell, line 1 in <module>" in told.faults
    else:
        assert told.faults is None


async def test_the_memory_told_is_what_a_child_had_too(cells: Cells) -> None:
    child = "x = b'x' * (200 << 20)"
    await cells.run(f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}], check=True); None")
    await cells.dies("import os; os._exit(1)")
    told = await cells.process.wait()
    assert told.max_rss_bytes is not None
    assert told.max_rss_bytes > 200 << 20


async def test_memory_exhaustion_under_a_limit_is_an_error_or_a_death_but_told(cells: Cells) -> None:
    await cells.run("import resource; resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))")
    reply = await cells.send("x = b'x' * (8 << 30)")
    assert reply.ename == "MemoryError"
    assert await cells.run("print('alive')") == "alive"


async def test_an_idle_kernel_that_is_asked_to_quit_runs_its_atexit_handlers(cells: Cells, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    await cells.run(f"import atexit, pathlib; atexit.register(pathlib.Path({str(mark)!r}).touch); None")
    await cells.channel.request("quit", deadline=10)
    told = await cells.process.end(grace=30)
    assert told.code == 0
    assert mark.exists()


async def test_a_connection_file_serves_every_process_of_a_kernel(cells: Cells) -> None:
    first = cells.files.connection_file.read_text()
    await cells.run("x = 1")
    await cells.end()
    await cells.start()
    assert cells.files.connection_file.read_text() == first
    assert await cells.run("print('x' in globals())") == "False"


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
async def test_workers_of_multiprocessing_end_with_the_process(cells: Cells, method: str) -> None:
    source = (
        "import multiprocessing as mp, os, time\n"
        f"ctx = mp.get_context({method!r})\n"
        "pool = ctx.Pool(3)\n"
        "print(sorted(set(pool.map(abs, [-1, -2, -3]))))"
    )
    assert await cells.run(source) == "[1, 2, 3]"
    workers = json.loads(await cells.run("print([p.pid for p in pool._pool])"))
    assert not any(map(gone, workers))
    told = await cells.process.end(grace=0)
    assert told.ended_processes >= 3
    assert all(map(gone, workers))


# -- another interpreter ---------------------------------------------------------------


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """A virtual environment that has everything of this one but loommux, and a module of its own."""
    path = tmp_path / "environment b"
    venv.create(path, symlinks=True)
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(path), "platbase": str(path)}))
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if not entry.name.startswith(("loommux", "_loommux", "__editable__", "_editable")):
            (packages / entry.name).symlink_to(entry)
    (packages / "only_in_b.py").write_text("here = True")
    return path / "bin" / "python"


async def test_a_kernel_runs_with_an_interpreter_that_does_not_have_loommux(
    other: Path, tmp_path: Path, private_jupyter: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", sysconfig.get_path("purelib"))
    monkeypatch.setenv("VIRTUAL_ENV", sys.prefix)
    server = create_server_directory()
    cells = Cells(
        Launcher(Settings(), choose=lambda: (other, "")), KernelFiles(server, uuid.uuid4().hex, "b"), tmp_path
    )
    await cells.start()
    assert await cells.run("import only_in_b, sys; print(only_in_b.here, sys.executable)") == f"True {other}"
    found = await cells.run("import importlib.util; print(importlib.util.find_spec('loommux_host'))")
    assert found == "None"
    assert sysconfig.get_path("purelib") not in await cells.run("print(sys.path)")
    assert await cells.run("!python -c 'import only_in_b; print(only_in_b.here)'") == "True"
    assert await cells.run("import os; print(os.environ['VIRTUAL_ENV'])") == str(other.parent.parent)
    await cells.close()
    server.remove()


async def test_an_interpreter_without_ipykernel_is_refused_with_what_to_install(
    tmp_path: Path, private_jupyter: Path
) -> None:
    venv.create(tmp_path / "bare", symlinks=True)
    python = tmp_path / "bare" / "bin" / "python"
    server = create_server_directory()
    cells = Cells(
        Launcher(Settings(), choose=lambda: (python, "")), KernelFiles(server, uuid.uuid4().hex, "b"), tmp_path
    )
    with pytest.raises(StartFailed, match=f"{python} has no .*; run: {python} -m pip install '.*'"):
        await cells.start()
    await cells.close()
    server.remove()
