"""A server answers before anything else of it is ready; one that cannot work says why and ends."""

from __future__ import annotations

import shlex
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.driving import Place, Start, StartLines, interpreter, until

pytestmark = pytest.mark.anyio


@pytest.mark.case("P06")
async def test_initialize_and_the_tools_are_answered_before_any_kernel_is_ready(
    lines: StartLines, place: Place
) -> None:
    # An interpreter that never becomes a kernel: whatever is answered, no kernel was needed for it.
    interpreter(place, "exec sleep 1000")
    server = await lines().open()
    assert len((await server.ask("tools/list"))["result"]["tools"]) == 8
    status = await server.ask("tools/call", {"name": "status", "arguments": {}})
    assert "starting" in status["result"]["content"][0]["text"]


@pytest.mark.case("P06")
async def test_a_kernel_that_cannot_start_is_an_error_of_the_call_with_its_log(lines: StartLines, place: Place) -> None:
    interpreter(place, "echo no such module >&2\nexit 3")
    server = await lines().open()
    for _ in range(2):
        text = await server.cell("1")
        assert text.startswith("kernel_start_failed")
        assert "no such module" in text
    interpreter(place, f'exec {sys.executable} "$@"')
    assert "Out[1]: 1" in await server.cell("1")


@pytest.mark.parametrize("flags", [(), ("--spawn",)])
async def test_a_kernel_that_fails_when_its_output_is_captured_already_says_why(
    lines: StartLines, place: Place, flags: tuple[str, ...]
) -> None:
    (place.workspace / "sitecustomize.py").write_text(
        "import IPython.core.interactiveshell as of\n"
        "def broken(self): raise ImportError('this IPython is another one')\n"
        "of.InteractiveShell.init_history = broken\n"
    )
    interpreter(place, f'PYTHONPATH={shlex.quote(str(place.workspace))} exec {sys.executable} "$@"')
    text = await (await lines(*flags).open()).cell("1")
    assert text.startswith("kernel_start_failed") and "exited with code 1 " in text
    assert "ImportError: this IPython is another one" in text


async def _line(lines: StartLines, place: Place, *flags: str) -> str:
    server = lines(*flags)
    assert await server.exit_code() == 2
    assert await server.rest() == b""
    text = place.log()
    assert text.startswith("loommux: ")
    assert text.count("\n") == 1
    return text


def _config(text: str) -> Callable[[Path], None]:
    def write(workspace: Path) -> None:
        (workspace / ".loommux").mkdir()
        (workspace / ".loommux" / "config.py").write_text(text)

    return write


def _untrusted(workspace: Path) -> None:
    _config("")(workspace)
    (workspace / ".loommux").chmod(0o777)


def _file(workspace: Path) -> None:
    (workspace / "file").touch()


REFUSED = {
    "config_not_found": (lambda workspace: None, ["--config", "nowhere"]),
    "config_not_directory": (_file, ["--config", "file"]),
    "config_untrusted": (_untrusted, []),
    "config_load_failed": (_config("1 / 0"), []),
    "config_unknown_setting": (_config("max_kernel = 1"), []),
    "config_invalid_setting": (_config("max_kernels = 0"), []),
    "workspace_config_load_failed": (_config("def resolve_workspace(launch_cwd): 1 / 0"), []),
    "workspace_config_invalid_return": (_config("def resolve_workspace(launch_cwd): pass"), []),
    "workspace_not_found": (_config("def resolve_workspace(launch_cwd): return 'gone'"), []),
    "workspace_not_directory": (_config("def resolve_workspace(launch_cwd): return __file__"), []),
}


@pytest.mark.parametrize("status", REFUSED)
async def test_a_start_that_cannot_work_gives_one_line_and_exit_code_2(
    lines: StartLines, place: Place, status: str
) -> None:
    prepare, flags = REFUSED[status]
    prepare(place.workspace)
    assert f"loommux: {status}: " in await _line(lines, place, *flags)


async def test_it_is_said_which_configuration_directory_is_in_use(lines: StartLines, place: Place) -> None:
    await lines().open()
    assert "loommux: configuration directory: none, the defaults hold\n" in place.log()
    _config("")(place.workspace)
    await lines().open()
    assert f"loommux: configuration directory: {place.workspace / '.loommux'}\n" in place.log()


async def test_what_config_py_prints_does_not_reach_the_client(start: Start, place: Place) -> None:
    _config("import os; print('hello'); os.write(1, b'hello')")(place.workspace)
    async with start() as agent:
        assert "Out[1]: 2" in await agent.run("1 + 1")


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
async def test_a_signal_prints_every_threads_stack(lines: StartLines, place: Place) -> None:
    server = await lines().open()
    server.process.send_signal(signal.SIGUSR1)
    assert "result" in await server.ask("ping")

    async def printed() -> bool:
        return "most recent call first" in place.log()

    await until(printed)
    assert "serve_stdio" in place.log() or "run_forever" in place.log()


async def test_help_and_version_are_for_people(lines: StartLines) -> None:
    assert b"Not a sandbox" in await lines("--help").rest()
    assert (await lines("--version").rest()).startswith(b"loommux ")
