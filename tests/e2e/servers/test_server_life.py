"""Whoever ends, however suddenly: what belonged to a server does not outlive it, and it ends for nobody else."""

from __future__ import annotations

import asyncio
import os
import pty
import signal
import subprocess
import sys
import termios

import psutil
import pytest

from tests.e2e.driving import COMMAND, PATIENCE, Lines, Place, StartLines, until
from tests.e2e.oracle import is_alive, keeper_of, server_of, started_by

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(sys.platform != "linux", reason="the oracle reads /proc"),
]

#: Three programs, of which only the first is easy to find again.
PROGRAMS = """\
import os, subprocess
subprocess.Popen(["sleep", "1000"])
subprocess.Popen(["sleep", "1000"], start_new_session=True)
subprocess.run("nohup setsid sleep 1000 >/dev/null 2>&1 &", shell=True, env={"PATH": os.environ["PATH"]})
os.getpid()"""


class Family:
    """A server at work with everything below it; and what is left of that."""

    def __init__(self, place: Place, kernel: psutil.Process) -> None:
        self.place, self.kernel = place, kernel
        init, guard = kernel.parents()[:2]
        self.init, self.guard, self.server = init, guard, server_of(kernel)
        keeper = keeper_of(kernel)
        assert keeper is not None, "a server on Linux has one"
        self.keeper = keeper
        self.programs = started_by(kernel)
        assert len(self.programs) == 3
        assert place.files()

    @classmethod
    async def of(cls, server: Lines, place: Place) -> Family:
        await server.open()
        pid = int((await server.cell(PROGRAMS)).split()[-1])
        kernel = psutil.Process(pid)

        async def there() -> bool:
            return len([p for p in started_by(kernel) if p.name() == "sleep"]) == 3

        await until(there)
        return cls(place, kernel)

    def alive(self) -> list[psutil.Process]:
        everybody = [self.server, self.keeper, self.guard, self.init, self.kernel, *self.programs]
        return [p for p in everybody if is_alive(p)]

    async def is_gone(self) -> None:
        """Every process and every file, soon."""

        async def nothing() -> bool:
            return not self.alive() and not self.place.files()

        try:
            await until(nothing, 15)  # the contract says five seconds
        except TimeoutError:
            raise AssertionError(f"left: {self.alive()}, {self.place.files()}") from None


# -- how the server ends ---------------------------------------------------------------


def in_a_terminal(place: Place) -> subprocess.Popen[bytes]:
    """A server whose standard streams are its controlling terminal, raw; ours is the other end."""
    outer, inner = pty.openpty()
    raw = termios.tcgetattr(inner)
    raw[1] &= ~termios.OPOST
    raw[3] &= ~(termios.ECHO | termios.ICANON | termios.ISIG)
    termios.tcsetattr(inner, termios.TCSANOW, raw)
    # Whoever leads a session and opens a terminal gets it as its own.
    entering = "import os, sys; os.close(os.open(os.ttyname(0), os.O_RDWR)); os.execv(sys.argv[1], sys.argv[1:])"
    with place.errors.open("a") as errors:
        process = subprocess.Popen(
            [sys.executable, "-c", entering, *COMMAND],
            stdin=inner,
            stdout=inner,
            stderr=errors,
            cwd=place.workspace,
            env=os.environ | place.environment,
            start_new_session=True,
        )
    os.close(inner)
    process.stdin, process.stdout = os.fdopen(os.dup(outer), "wb"), os.fdopen(outer, "rb")
    return process


@pytest.mark.case("R12")
async def test_a_closed_terminal_ends_a_server_that_runs_in_it(place: Place) -> None:
    """As when somebody tries it by hand, or a host gives its servers a terminal."""
    process = in_a_terminal(place)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        family = await Family.of(Lines(process), place)
        assert family.server.terminal() is not None
        assert family.kernel.terminal() is None
        process.stdin.close()
        process.stdout.close()
        assert await asyncio.to_thread(process.wait, PATIENCE) == 0
        await family.is_gone()
    finally:
        process.kill()
        process.wait()


@pytest.mark.case("R13")
async def test_a_server_outlives_whoever_launched_it_and_ends_with_its_client(lines: StartLines, place: Place) -> None:
    launcher = lines(command=[sys.executable, "-c", f"import subprocess; subprocess.Popen({COMMAND!r})"])
    assert await launcher.exit_code() == 0
    family = await Family.of(launcher, place)
    assert "2" in await launcher.cell("1 + 1")
    launcher.stdin.close()
    await family.is_gone()


@pytest.mark.parametrize("end", ["eof", "SIGKILL"])
@pytest.mark.case("R13")
async def test_a_server_under_another_subreaper_leaves_nothing_either(
    lines: StartLines, place: Place, end: str
) -> None:
    """There an orphan's parent is never process 1, and nobody may be there to reap what ends."""
    above = (
        "import ctypes, subprocess, sys, time\n"
        "ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)\n"
        f"subprocess.Popen({COMMAND!r})\n"
        "sys.stdin.close(); sys.stdout.close(); time.sleep(1000)"
    )
    server = lines(command=[sys.executable, "-c", above])
    family = await Family.of(server, place)
    if end == "eof":
        server.stdin.close()
    else:
        family.server.kill()
    await family.is_gone()
    server.process.kill()


# -- who else may be killed -----------------------------------------------------------------


async def test_a_killed_keeper_takes_its_kernel_along_and_the_server_tells_and_has_another(
    lines: StartLines, place: Place
) -> None:
    server = lines()
    family = await Family.of(server, place)
    family.keeper.kill()
    await asyncio.to_thread(family.kernel.wait, PATIENCE)

    async def nothing_but_the_server() -> bool:
        return family.alive() == [family.server]

    await until(nothing_but_the_server, 15)
    said = await server.cell("1 + 1")
    assert said.startswith("kernel_died: process 1 of ")
    assert "ended by SIGKILL (the server's keeper of kernels, which had forked it, has died)" in said
    kernel = psutil.Process(int((await server.cell("import os; os.getpid()")).split()[-1]))
    keeper = keeper_of(kernel)
    assert keeper is not None and keeper != family.keeper


@pytest.mark.parametrize("whom", ["init", "guard"])
async def test_a_kernel_whose_guardian_is_killed_dies_with_everything_and_the_server_tells(
    lines: StartLines, place: Place, whom: str
) -> None:
    server = lines()
    family = await Family.of(server, place)
    getattr(family, whom).kill()
    await asyncio.to_thread(family.kernel.wait, PATIENCE)

    async def nothing_of_the_kernel() -> bool:
        return not any(map(is_alive, [family.init, family.kernel, *family.programs]))

    await until(nothing_of_the_kernel, 15)
    said = await server.cell("1 + 1")
    assert said.startswith("kernel_died: process 1 of ")
    assert "Out[1]: 2" in await server.cell("1 + 1")


@pytest.mark.parametrize(
    "whom", [["server", "init"], ["server", "guard"], ["server", "kernel"], ["server", "keeper"]], ids="+".join
)
async def test_several_killed_at_once_leave_nothing(lines: StartLines, place: Place, whom: list[str]) -> None:
    family = await Family.of(lines(), place)
    for name in whom:
        os.kill(getattr(family, name).pid, signal.SIGKILL)
    await family.is_gone()


async def test_a_cell_cannot_hold_up_the_end_of_its_server(lines: StartLines, place: Place) -> None:
    server = lines()
    family = await Family.of(server, place)
    server.begin_cell(
        "import ctypes, signal\n"
        "for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:\n"
        "    try: signal.signal(number, signal.SIG_IGN)\n"
        "    except (OSError, ValueError): pass\n"
        "ctypes.PyDLL(None).sleep(1000)"
    )
    await server.answer(server.request("ping"))
    server.stdin.close()
    assert await server.exit_code() == 0
    await family.is_gone()
