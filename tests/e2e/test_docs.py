"""What README and docs show works: every command is run, every example parsed or run in a kernel.

Blocks fenced as ``sh`` are run here, line by line; ``bash`` is for what needs another machine, the index or a client
that others write: `ELSEWHERE` says which test runs it. Commands and cells in sentences are read by our own parsers.
"""

from __future__ import annotations

import ast
import asyncio
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tomllib
from argparse import ArgumentParser
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from loommux_host import cli, settings
from loommux_host.command_line import server_options
from loommux_host.command_line.catalogue import COMMANDS, fill
from loommux_host.command_line.dispatch import everything
from loommux_kernel.shared.header import USAGE, parse
from tests.e2e.driving import PATIENCE, Agent, Place
from tests.e2e.http_driving import Web

ROOT = Path(__file__).resolve().parent.parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
SNIPPET = re.compile(r'--8<-- "(.+)"')

#: What begins a line for elsewhere, and the test that runs what it shows.
ELSEWHERE = {
    "python -m venv": "tests/clients/test_package.py::test_the_installed_command_serves_a_client",
    "python -m pip install": "tests/clients/test_package.py::test_the_installed_command_serves_a_client",
    "npx @modelcontextprotocol/inspector": "tests/clients/test_typescript.py"
    "::test_inspector_lists_the_tools_and_runs_a_cell_over_http",
    "ssh -L": "tests/clients/test_docs_remote.py"
    "::test_the_port_that_ssh_brings_here_leads_to_the_server_and_install_names_it",
    "loommux install": "tests/clients/test_docs_remote.py"
    "::test_the_port_that_ssh_brings_here_leads_to_the_server_and_install_names_it",
}
#: What is shown and not run, by the language of its block; anything else would be a command that nobody runs.
SHOWN = {"text", "nginx", ""}
#: What needs a terminal of its own, or an environment to change: read here, run by tests of its own.
ONLY_READ = ("loommux attach", "loommux kernelspec remove")
#: What goes on until Ctrl+C, and what it says first.
GOES_ON = {"loommux --server": "listening on", "loommux console": "console for one browser"}
#: What examples speak of as given.
BEFORE = """\
lab = loommux.create("lab")
lab.wait(lab.run_cell("def train(): print('loss 1')")["execution"])
async def run_build(): pass
def poll_until_green(): pass
"""

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(sys.platform == "win32", reason="a POSIX shell")]


def blocks(*languages: str) -> Iterator[tuple[str, str]]:
    """The page and the text of every block in one of the languages."""
    for page in PAGES:
        for language, text in FENCE.findall(page.read_text()):
            if language in languages:
                yield page.name, text


def commands() -> list[str]:
    """Every command that a reader may type, once, without its comment."""
    lines = (line.partition("  #")[0].strip() for _, text in blocks("sh") for line in text.splitlines())
    return list(dict.fromkeys(line for line in lines if line and not line.startswith("#")))


@pytest.fixture
async def report(server: Web) -> AsyncIterator[Agent]:
    """An agent in the kernel that the docs speak of."""
    async with server.agent(**{"X-Loommux-Resource": "report"}) as one:
        yield one


class Reader:
    """Types commands as a reader would, in a home of its own; the server's port stands for the documented one."""

    def __init__(self, server: Web, place: Place, home: Path) -> None:
        self._port, self._place, self._home = server.base.rpartition(":")[2], place, home
        self._pid = server.process.pid
        (home / ".config" / "loommux").mkdir(parents=True)
        (home / ".config" / "loommux" / "token").write_text("secret")
        (home / ".config" / "loommux" / "token").chmod(0o600)
        (place.workspace / ".loommux").mkdir(mode=0o700, exist_ok=True)
        (place.workspace / "check.py").write_text("print('checked')")

    def begin(self, line: str) -> subprocess.Popen[str]:
        # Whoever runs the tests may have servers of their own, with a kernel of the same name.
        line = re.sub(r"\bloommux (run|logs|interrupt|restart|recycle|export)\b", rf"\g<0> --server {self._pid}", line)
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        environment = os.environ | self._place.environment | {"HOME": str(self._home), "PATH": path, "BROWSER": "true"}
        # `exec`: a signal is for the command, not for the shell around it.
        return subprocess.Popen(
            ["bash", "-c", f"set -o pipefail; {line.replace('8801', self._port)}" if "|" in line else f"exec {line}"],
            cwd=self._place.workspace, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    async def type(self, line: str) -> str:
        """Run to the end; what it wrote."""
        process = self.begin(line.replace("8801", self._port))
        out, err = await asyncio.to_thread(process.communicate, None, PATIENCE)
        assert process.returncode == 0, f"{line}: {process.returncode}\n{out}{err}"
        return out + err

    async def start(self, line: str, until: str) -> None:
        """Run until it says something; Ctrl+C ends it."""
        process = self.begin(line)
        assert process.stderr is not None
        said = ""
        while until not in said:
            heard = await asyncio.to_thread(process.stderr.readline)
            assert heard, f"{line}: {said}"
            said += heard
        process.send_signal(signal.SIGINT)
        await asyncio.to_thread(process.communicate, None, PATIENCE)


async def test_every_command_works_as_it_stands(
    server: Web, report: Agent, common_place: Place, tmp_path: Path
) -> None:
    reader = Reader(server, common_place, tmp_path)
    typed = [line for line in commands() if not line.startswith("loommux install")]
    assert len(typed) > 15
    await report.run("rows = [1]\ndef fit(): return 1")
    for line in typed:
        says = next((says for begins, says in GOES_ON.items() if line.startswith(begins)), None)
        if line.startswith(ONLY_READ):
            everything().parse_args(shlex.split(line)[1:])
        elif says is not None:
            await reader.start(line if "--uds" in line or "--port" in line else f"{line} --port 0", says)
        elif line.endswith("--follow"):
            await reader.start(line, "In [")
        elif line.startswith("loommux interrupt"):
            await asleep(report)
            await reader.type(re.sub(r"--execution \d+", f"--execution {await running(report)}", line))
        else:
            for file in re.findall(r"[\w.]+\.ipynb", line):
                (common_place.workspace / file).unlink(missing_ok=True)
            number = await latest(report)
            await reader.type(re.sub(r"(logs \w+) 7", rf"\1 {number}", line))
        if "recycle" in line or "restart" in line:
            await report.run("rows = [1]\ndef fit(): return 1")


async def asleep(agent: Agent) -> None:
    assert "Running" in await agent.run("%%loommux --wait 0.5\nimport time; time.sleep(60)")


async def running(agent: Agent) -> str:
    found = re.search(r"In \[(\d+)\]", await agent.text("execution_status"))
    assert found
    return found[1]


async def latest(agent: Agent) -> str:
    result = await agent.call("execution_status")
    found = re.search(r"In \[(\d+)\]", "".join(block.text for block in result.content if block.type == "text"))
    return found[1] if found else "1"


async def test_every_install_line_writes_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = tmp_path / "project"
    project.mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(project)
    typed = [line for line in commands() if line.startswith("loommux install")]
    assert len(typed) > 8
    for line in typed:
        # The docs show one way after another for the same host.
        assert cli.main([*shlex.split(line)[1:2], "--replace", *shlex.split(line)[2:]]) == 0, line


def test_every_command_for_elsewhere_is_run_by_a_test_of_its_own() -> None:
    lines = [line for _, text in blocks("bash") for line in text.splitlines()]
    assert lines
    for line in lines:
        begins = next((begins for begins in ELSEWHERE if line.startswith(begins)), None)
        assert begins, f"{line!r} is run by no test: fence it as sh, or name its test"
        path, _, name = ELSEWHERE[begins].partition("::")
        assert f"def {name}(" in (ROOT / path).read_text(), ELSEWHERE[begins]
    for page, text in blocks("bash"):
        done = subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True, check=False)
        assert done.returncode == 0, f"{page}: {done.stderr}"


def test_no_command_hides_in_a_block_that_is_only_shown() -> None:
    languages = {
        language for page in PAGES for language in re.findall(r"^```(\w*)\n.*?^```$", page.read_text(), re.M | re.S)
    }
    assert languages - SHOWN == {"sh", "bash", "python", "json", "toml"}
    for page in PAGES:
        if page.name == "commands.md":  # how each is used, written by docs/generate.py and compared by a test
            continue
        for language, text in re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(), re.M | re.S):
            hidden = [
                line for line in text.splitlines() if line.startswith(("loommux ", "$ ", "ssh ", "pip ", "make "))
            ]
            assert language not in SHOWN or not hidden, f"{page.name}: {hidden}"


def test_every_command_in_a_sentence_is_one_that_there_is() -> None:
    found = [(page.name, words) for page in PAGES for words in re.findall(r"`loommux ([^`\n]+)`", page.read_text())]
    assert len(found) > 30
    flags = {"": flags_of(server_options.parser().format_help())}
    for name in COMMANDS:
        parser = ArgumentParser()
        fill(name, parser)
        flags[name] = flags_of(parser.format_help())
    for page, words in found:
        command = words.split()[0]
        of = "" if command.startswith("-") else command
        assert of in flags, f"{page}: loommux {words}"
        assert flags_of(words) <= flags[of], f"{page}: loommux {words}"


def flags_of(text: str) -> set[str]:
    return set(re.findall(r"(?<![\w-])--[a-z][\w-]*", text))


def test_every_cell_that_is_shown_begins_with_a_header_that_a_kernel_reads() -> None:
    fences = [text for page in PAGES for _, text in FENCE.findall(page.read_text())]
    headers = [line for text in fences for line in text.splitlines() if line.startswith("%%loommux") and line != USAGE]
    assert len(headers) > 4
    for line in headers:
        header = parse(re.split(r" {3,}", line)[0] + "\n1\n")
        assert header is not None, line


def test_every_configuration_is_one_that_its_reader_can_read() -> None:
    for page, text in blocks("json"):
        assert json.loads(text) is not None, page
    for page, text in blocks("toml"):
        assert tomllib.loads(text), page
    for _, text in blocks("python"):
        for path in SNIPPET.findall(text):
            ast.parse((ROOT / path).read_text())


async def test_every_python_example_runs(server: Web, report: Agent) -> None:
    shown = [(page, text) for page, text in blocks("python") if not SNIPPET.search(text)]
    assert len(shown) > 3
    for page, text in shown:
        text = text.replace("8801", server.base.rpartition(":")[2])
        if "loommux." in text or "lab." in text:
            await report.text("run_cell", freeform=f"%%loommux --wait 60 --silence 60\n{BEFORE}")
            ended = await report.text("run_cell", freeform=f"%%loommux --wait 60 --silence 60\n{text}")
            assert "Traceback" not in ended and "Running" not in ended, f"{page}: {ended}"
            continue
        names: dict[str, Any] = {}
        exec(compile(text, page, "exec"), names)
        if "first_cell" in names:
            assert "Out[1]: 42" in await names["first_cell"](f"{server.base}/mcp")
        elif "Daemon" not in names:
            assert {name for name in names if name != "__builtins__"} <= set(settings.CHECKS), page


async def test_the_tutorials_environment_is_as_it_says() -> None:
    command = [sys.executable, str(ROOT / "examples" / "environment_tour.py")]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert "Out[2]: 4\n" in done.stdout and "Startup · memory" in done.stdout and "Out[1]: 2\n" in done.stdout


def test_every_page_is_in_the_sites_navigation() -> None:
    listed = re.findall(r": ([\w-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.M)
    assert sorted(listed) == sorted(page.name for page in PAGES[1:])
