"""The subcommands: found by their word, described by their help, completed by the shell, free for a server's start."""

from __future__ import annotations

import json
import os
import re
import runpy
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import pytest
import zmq

from loommux_host import cli
from loommux_host.command_line import catalogue, reach, server_options
from loommux_host.command_line.reporting import WORDS
from loommux_host.commands import kernels, logs, run
from loommux_host.facts import refusals, status_words
from loommux_host.processes.running_servers import Server
from loommux_host.usecases import inspection
from loommux_kernel.shared.api_client import DaemonError

ROOT = Path(__file__).resolve().parents[3]
#: What a command or a client may repeat of what its server says.
SERVERS_WORDS = set().union(refusals.REFUSALS, status_words.INTERRUPTS, status_words.KERNELS)
#: What only commands need; a server that starts has none of it.
FOREIGN_TO_A_START = ("argcomplete", "tomlkit", "httpx2", "difflib", "loommux_host.command_line.reach")


@pytest.mark.parametrize("name", catalogue.COMMANDS)
def test_every_command_has_help_with_examples(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main([name, "--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert f"usage: loommux {name}" in shown and f"loommux {name}" in shown.partition("examples:")[2]


def test_numbers_and_names_may_come_behind_options(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Namespace] = []
    for module in (logs, run):
        monkeypatch.setattr(module, "run", lambda options: seen.append(options) or 0)
    assert cli.main(["logs", "report", "--process", "1", "8"]) == 0
    assert cli.main(["logs", "--tail", "3", "report", "8"]) == 0
    assert [(o.kernel, o.execution, o.process, o.tail) for o in seen] == [
        ("report", 8, 1, None),
        ("report", 8, None, 3),
    ]
    for line in (["run", "--wait", "1", "x"], ["run", "x", "--wait", "1"], ["run", "--", "-x"], ["run", "-"], ["run"]):
        assert cli.main(line) == 0
    assert [options.code for options in seen[2:]] == ["x", "x", "-x", "-", "-"]


def test_a_server_that_has_ended_is_named_as_people_know_it(tmp_path: Path) -> None:
    url = f"http+unix://{quote(str(tmp_path / 'control.sock'), safe='')}"
    server = Server(
        pid=4242,
        version="1",
        started_at=0.0,
        uptime=0.0,
        workspace="/w",
        transport="stdio",
        control_url=url,
        python="p",
    )
    with pytest.raises(DaemonError, match=r"^unreachable: the server with the process id 4242 has ended") as refused:
        reach._Daemon(server).ask("GET", "/api/resources")
    assert refused.value.status == "unreachable"


def test_the_command_to_attach_is_one_that_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspection, "_has", lambda module: True)
    assert inspection.attach_command("/k.json") == f"{sys.executable} -m jupyter_console --existing /k.json"
    assert inspection.qtconsole_command("/k.json") == f"{sys.executable} -m qtconsole --existing /k.json"
    monkeypatch.setattr(inspection, "_has", lambda module: False)
    assert inspection.attach_command("/k.json") == "jupyter console --existing /k.json"
    assert inspection.qtconsole_command("/k.json") == "jupyter qtconsole --existing /k.json"


def test_a_word_that_is_no_command_is_told_with_one_that_is_near(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["instal"]) == 2
    assert "did you mean install?" in capsys.readouterr().err


def test_the_help_of_the_server_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    shown = capsys.readouterr().out
    assert all(f"\n  {name} " in shown for name in catalogue.COMMANDS)


@pytest.mark.parametrize("shell", server_options.SHELLS)
def test_a_shell_can_learn_to_complete_command_lines(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["--print-completion", shell])
    assert ended.value.code == 0
    assert "loommux" in capsys.readouterr().out


def completed(line: str) -> list[str]:
    """What bash is told may follow `line`."""
    asked = {"_ARGCOMPLETE": "1", "COMP_LINE": line, "COMP_POINT": str(len(line)), "_ARGCOMPLETE_IFS": "\n"}
    answer = {"_ARGCOMPLETE_STDOUT_FILENAME": os.devnull.replace("null", "stdout")}
    done = subprocess.run(
        [Path(sys.executable).with_name("loommux")], env=os.environ | asked | answer, capture_output=True, text=True,
        timeout=60, check=False,
    )  # fmt: skip
    return [word.strip() for word in done.stdout.splitlines()]


@pytest.mark.skipif(sys.platform == "win32", reason="bash")
def test_commands_flags_and_values_are_completed() -> None:
    assert completed("loommux ins") == ["install"]
    assert "--client" in completed("loommux install --cl")
    assert set(completed("loommux install --client c")) == {"claude-code", "codex", "cursor", "claude-desktop"}


def test_a_servers_start_pays_for_no_command() -> None:
    start = "import sys, loommux_host.cli, loommux_host.config, loommux_host.command_line.server_options"
    code = f"{start}; print([m for m in {FOREIGN_TO_A_START} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


@pytest.mark.case("X10")
def test_nothing_but_reporting_writes_to_a_terminal() -> None:
    """What it writes cannot act there; a line end is all that anybody else may say."""
    direct = re.compile(r"\bprint\(|sys\.std(?:out|err)\.(?:buffer\.)?write\((?!\"\\n\"\)|completion_code|visible)")
    folders = ("bridge", "command_line", "commands", "diagnosis", "jupyter")
    files = [path for folder in folders for path in (ROOT / "loommux_host" / folder).glob("*.py")]
    found = {path.name: direct.findall(path.read_text()) for path in [*files, ROOT / "loommux_host" / "cli.py"]}
    found["reporting.py"] = []
    assert {name: lines for name, lines in found.items() if lines} == {}


def test_every_status_word_of_a_command_is_in_the_reference_and_used() -> None:
    used: set[str] = set(run.TOOLS_NAMED)
    for folder in ("loommux_host", "loommux_kernel"):
        for path in (ROOT / folder).rglob("*.py"):
            used |= set(re.findall(r'\b(?:Refused|DaemonError)\(\s*"(\w+)"', path.read_text()))
    assert used - set(WORDS) <= SERVERS_WORDS
    assert set(WORDS) <= used | {"invalid_argument"}


def test_the_generated_pages_of_the_reference_are_up_to_date() -> None:
    pages: dict[str, Callable[[], str]] = runpy.run_path(str(ROOT / "docs" / "generate.py"))["PAGES"]
    for name, page in pages.items():
        assert (ROOT / "docs" / name).read_text() == page(), f"run `python docs/generate.py`: {name}"


def doctor(*flags: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, dict[str, str]]]:
    """The exit code, and what was found by its subject."""
    code = cli.main(["doctor", "--json", *flags])
    return code, {check["subject"]: check for check in json.loads(capsys.readouterr().out)["checks"]}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty one, which is the directory too."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_doctor_looks_at_everything_and_runs_a_cell(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = doctor(capsys=capsys)
    assert code == 0
    looked_at = {"interpreter", "packages", "configuration", "workspace", "runtime directory", "containment", "trial"}
    assert looked_at <= set(found)
    assert "first cell was done" in found["trial"]["text"]
    assert found["hosts"]["mend"].startswith("loommux install --client NAME, one of claude-code, ")


def test_doctor_looks_at_the_rest_of_a_refused_configuration(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / ".loommux").mkdir(mode=0o700)
    (home / ".loommux" / "config.py").write_text("max_kernel = 3")
    code, found = doctor(capsys=capsys)
    assert code == 1
    assert {"interpreter", "packages", "runtime directory", "hosts"} <= set(found)
    assert found["configuration"]["grade"] == "bad"
    assert found["configuration"]["text"].startswith("config_unknown_setting: ")
    assert "trial" not in found


@pytest.mark.case("X14")
@pytest.mark.parametrize(
    ("token", "mode", "said"), [("long-enough-to-be-one", 0o644, "chmod 600"), ("abcde", 0o600, "16")]
)
def test_doctor_says_what_is_wrong_with_a_token(
    home: Path, capsys: pytest.CaptureFixture[str], token: str, mode: int, said: str
) -> None:
    (home / ".loommux").mkdir(mode=0o700)
    (home / ".loommux" / "config.py").write_text("auth_token_file = 'token'")
    (home / ".loommux" / "token").write_text(token)
    (home / ".loommux" / "token").chmod(mode)
    code, found = doctor("--no-trial", capsys=capsys)
    assert code == 1
    assert said in found["configuration"]["text"]


@pytest.mark.case("X07")
def test_doctor_says_who_can_hear_kernels_that_are_reached_over_tcp(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "no kernel listens on a port" in doctor("--no-trial", capsys=capsys)[1]["transport"]["text"]
    (home / ".loommux").mkdir(mode=0o700)
    (home / ".loommux" / "config.py").write_text("kernel_transport = 'tcp'")
    assert "encrypted" in doctor("--no-trial", capsys=capsys)[1]["transport"]["text"]
    monkeypatch.setattr(zmq, "has", lambda capability: False)
    code, found = doctor("--no-trial", capsys=capsys)
    assert code == 1
    assert found["transport"]["grade"] == "bad"
    assert "every account of this machine can read all cells" in found["transport"]["text"]


def test_doctor_says_what_is_wrong_and_how_to_mend_it(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / ".loommux").mkdir(mode=0o700)
    (home / "python").write_text("#!/bin/sh\necho no module named ipykernel >&2; exit 1\n")
    (home / "python").chmod(0o700)
    (home / ".loommux" / "config.py").write_text(f"kernel_python = {str(home / 'python')!r}")
    (home / ".mcp.json").write_text('{"mcpServers": {"loommux": {"command": "/nowhere/loommux"}}}')
    code, found = doctor("--no-trial", capsys=capsys)
    assert code == 1
    assert "no module named ipykernel" in found["kernels' interpreter"]["text"]
    assert "set kernel_python to a CPython 3.11 or newer" in found["kernels' interpreter"]["mend"]
    assert found["Claude Code"]["grade"] == "bad" and "install --replace" in found["Claude Code"]["mend"]
    assert cli.main(["doctor", "--config", "nowhere"]) == 1


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0, "0 s"), (59.9, "59 s"), (200, "3 min 20 s"), (3_600, "1 h 0 min"), (90_061, "1 d 1 h"), (-1, "0 s")],
)
def test_a_table_of_kernels_shows_times_that_a_person_can_read(seconds: float, shown: str) -> None:
    assert kernels._seconds(seconds) == shown
