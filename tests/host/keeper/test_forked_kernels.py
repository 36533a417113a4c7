"""A kernel that a keeper forked is what a spawned one is, and no two are the same where they must not be.

One spawned and two forked kernels run the same cells; each test compares one thing that a
process inherits or remembers (`process_facts`).
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from loommux_host.keeper.provisioner import ForkedByKeeper
from loommux_host.keeper.supervisor import KeeperSupervisor
from loommux_host.processes.launcher import Launcher
from loommux_host.processes.runtime_files import KernelFiles, create_server_directory
from tests.host.real_cells import Cells
from tests.host.real_processes import Settings

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has a keeper")
HERE = Path(__file__).resolve().parent.parent
FACTS = f"import sys; sys.path.append({str(HERE)!r}); import process_facts"


class Three:
    """What the cells gave: in a spawned kernel, and in two forked ones."""

    def __init__(self) -> None:
        self.facts: list[dict[str, Any]] = []
        self.modules: list[set[str]] = []
        self.modes: list[str] = []
        self.ids: list[str] = []
        self.tasks_of_keeper = 0

    def same(self, name: str) -> Any:
        spawned, forked, other = (facts[name] for facts in self.facts)
        assert forked == spawned
        assert other == spawned
        return forked

    def different(self, name: str) -> None:
        values = [facts[name] for facts in self.facts]
        for parts in zip(*([v] if isinstance(v, str) else v for v in values), strict=True):
            assert len(set(parts)) == 3, parts


async def compare(workspace: Path) -> Three:
    found = Three()
    server = create_server_directory()
    keeping = KeeperSupervisor(server, lambda: Path(sys.executable), workspace, None, ())
    made: list[ForkedByKeeper] = []

    def kept(files: KernelFiles, process: int) -> ForkedByKeeper:
        made.append(keeping.provisioner(files, process))
        return made[-1]

    for launcher in (
        Launcher(Settings()),
        Launcher(Settings(), provisioner=kept),
        Launcher(Settings(), provisioner=kept),
    ):
        kernel = Cells(launcher, KernelFiles(server, uuid.uuid4().hex, "k"), workspace)
        found.ids.append(kernel.files.kernel_id)
        await kernel.start()
        found.modules.append(set(await kernel.tell("import sys", "list(sys.modules)")))
        found.facts.append(await kernel.tell(FACTS, "await process_facts.collect()"))
        if keeping.pid is not None:
            found.tasks_of_keeper = psutil.Process(keeping.pid).num_threads()
        await kernel.end()
        await launcher.retire(kernel.files)
    found.modes = [one.mode for one in made]
    await keeping.close()
    server.remove()
    return found


@pytest.fixture(scope="module")
def three() -> Iterator[Three]:
    short = Path(tempfile.mkdtemp(prefix="lm-", dir="/tmp"))
    (short / "workspace").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JUPYTER_RUNTIME_DIR", str(short / "runtime"))
        patch.setenv("TMPDIR", str(short))
        patch.setattr(tempfile, "tempdir", None)
        before = os.umask(0o027)
        found = asyncio.run(compare(short / "workspace"))
        os.umask(before)
    yield found
    shutil.rmtree(short)


def test_both_were_forked_from_a_process_with_one_thread(three: Three) -> None:
    assert three.modes == ["fork", "fork"]
    assert three.tasks_of_keeper == 1


@pytest.mark.parametrize("name", ["random", "uuid", "secrets", "tempfile names", "authkey", "numpy"])
def test_no_two_kernels_draw_the_same(three: Three, name: str) -> None:
    three.different(name)


@pytest.mark.parametrize(
    "name",
    [
        "temporary directory", "directory", "umask", "handlers", "signals", "descriptors", "faulthandler",
        "multiprocessing", "threads", "main thread", "loop", "interpreter", "collector", "warnings", "limits",
        "session", "oom", "name", "zone", "matplotlib", "exit handlers", "first frame", "ours",
    ],
)  # fmt: skip
def test_it_is_as_after_a_spawn(three: Three, name: str) -> None:
    three.same(name)


def test_its_environment_is_its_own_also_for_children(three: Three) -> None:
    for facts, id in zip(three.facts, three.ids, strict=True):
        environment = facts["environment"]
        assert environment["LOOMMUX_KERNEL_ID"] == id
        assert f"LOOMMUX_KERNEL_ID={id}" in facts["environment of children"]
        assert facts["mark"] == [f"LOOMMUX_KERNEL_ID={id}"], "by this a next server finds what was left"
    own = {"LOOMMUX_KERNEL_ID", "PATH"}
    spawned, forked, _ = ({k: v for k, v in f["environment"].items() if k not in own} for f in three.facts)
    assert forked == spawned


def test_ps_shows_it_as_what_it_is(three: Three) -> None:
    for facts, id in zip(three.facts, three.ids, strict=True):
        python, script, launch = facts["ps"].split()
        assert (python, Path(script).name) == (sys.executable, "enter.py")
        assert f"/k-{id[:8]}/1/launch.json" in launch


def test_it_imports_nothing_more_before_its_first_reply_and_has_nothing_more(three: Three) -> None:
    spawned, forked, _ = three.modules
    code = (
        f"import sys; sys.path[:0] = [{str(HERE.parent.parent)!r}]; from loommux_host.keeper.preload import Preloaded\n"
        "p = Preloaded(); p.run(); print(p.obstacle()); print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    obstacle, modules = done.stdout.splitlines()
    assert obstacle == "None"
    assert forked - set(modules.split()) <= {"runpy"}, "which the way into a keeper has imported"
    assert {m for m in forked - spawned if not m.startswith("loommux_")} <= {"gc"}, "which is built in"
    assert "debugpy" not in modules.split()


# -- when a fork would not be the same ---------------------------------------------------------


class Kept:
    """A real kernel below a keeper of its own."""

    def __init__(self, short: Path, grace: float | None = None) -> None:
        self.server = create_server_directory()
        self.keeping = KeeperSupervisor(self.server, lambda: Path(sys.executable), short, grace, ())
        self.made: list[ForkedByKeeper] = []
        launcher = Launcher(Settings(), provisioner=self._provisioner)
        self.kernel = Cells(launcher, KernelFiles(self.server, uuid.uuid4().hex, "k"), short)

    def _provisioner(self, files: KernelFiles, process: int) -> ForkedByKeeper:
        self.made.append(self.keeping.provisioner(files, process))
        return self.made[-1]

    async def close(self) -> None:
        await self.kernel.end()
        await self.kernel.launcher.retire(self.kernel.files)
        await self.keeping.close()
        self.server.remove()


@pytest.fixture
def short(private_jupyter: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="lm-", dir="/tmp"))
    monkeypatch.setenv("TMPDIR", str(path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    yield path
    shutil.rmtree(path)


def a_wheel(directory: Path, version: str) -> Path:
    """The package `comm`, which every kernel imports, with that version."""
    import comm

    path = directory / f"comm-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for file in Path(comm.__file__).parent.glob("*.py"):
            text = re.sub("__version__ = .*", f'__version__ = "{version}"', file.read_text())
            wheel.writestr(f"comm/{file.name}", text)
        info = f"comm-{version}.dist-info"
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: comm\nVersion: {version}\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    return path


def pip_install(target: Path, wheel: Path) -> None:
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--upgrade", "--no-deps", "--no-index"]
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    subprocess.run([*command, "--target", str(target), str(wheel)], check=True, timeout=60, env=environment)


def test_after_pip_install_of_something_imported_a_restart_has_the_new_version(
    short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = short / "site-packages"
    pip_install(target, a_wheel(short, "90.1"))
    monkeypatch.setenv("PYTHONPATH", str(target))

    async def upgrade() -> None:
        kept = Kept(short)
        await kept.kernel.start()
        assert await kept.kernel.tell("import comm", "comm.__version__") == "90.1"
        assert kept.made[-1].mode == "fork"
        pip_install(target, a_wheel(short, "90.2"))
        await kept.kernel.end()
        await kept.kernel.start()
        assert await kept.kernel.tell("import comm", "comm.__version__") == "90.2"
        assert kept.made[-1].mode == "exec"
        assert "comm" in (kept.made[-1].why or "") and "has changed" in (kept.made[-1].why or "")
        await kept.close()

    asyncio.run(upgrade())


def test_a_variable_that_an_interpreter_reads_at_its_start_gets_one_of_its_own(
    short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def change() -> None:
        kept = Kept(short)
        await kept.keeping.client()
        monkeypatch.setenv("PYTHONHASHSEED", "7")
        await kept.kernel.start()
        assert await kept.kernel.tell("", "hash('a')") == _hash_of_a("7")
        assert kept.made[-1].why == "other environment: PYTHONHASHSEED"
        await kept.close()

    asyncio.run(change())


def _hash_of_a(seed: str) -> int:
    command = [sys.executable, "-c", "print(hash('a'))"]
    return int(subprocess.check_output(command, env=os.environ | {"PYTHONHASHSEED": seed}, timeout=60))


@pytest.mark.parametrize("grace", [None, 60.0])
def test_a_keeper_that_does_not_answer_holds_up_no_start_for_long(
    short: Path, monkeypatch: pytest.MonkeyPatch, grace: float | None
) -> None:
    monkeypatch.setattr("loommux_host.keeper.client.ANSWER_SECONDS", 0.3)

    async def stop() -> None:
        kept = Kept(short, grace)
        await kept.keeping.client()
        pid = kept.keeping.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        await kept.kernel.start()
        assert (kept.made[-1].mode, await kept.kernel.tell("", "1 + 1")) == ("spawn", 2)
        os.kill(pid, signal.SIGCONT)
        # What it was asked for meanwhile it comes to now, and leaves: the kernel there is stays the only one.
        client = await kept.keeping.client()
        assert await client.kernels() == []
        assert await kept.kernel.tell("", "2 + 2") == 4
        await kept.close()

    asyncio.run(stop())


def test_an_idle_keeper_uses_no_processor(short: Path) -> None:
    async def idle() -> None:
        kept = Kept(short)
        await kept.kernel.start()
        assert kept.keeping.pid is not None
        keeper = psutil.Process(kept.keeping.pid)
        before, switched = keeper.cpu_times(), keeper.num_ctx_switches().voluntary
        await kept.kernel.tell("import time", "time.sleep(1)")
        assert keeper.cpu_times()[:2] == before[:2]
        assert keeper.num_ctx_switches().voluntary == switched
        await kept.close()

    asyncio.run(idle())
