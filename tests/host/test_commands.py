"""The subcommands: found by their word, described by their help, completed by the shell, free for a server's start."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from loommux_host import cli, commands

ROOT = Path(__file__).resolve().parent.parent.parent
#: What only commands need; a server that starts has none of it.
FOREIGN_TO_A_START = ("argcomplete", "tomlkit", "httpx2", "difflib", "loommux_host.commands.outcome")


@pytest.mark.parametrize("name", commands.COMMANDS)
def test_every_command_has_help_with_examples(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main([name, "--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert f"usage: loommux {name}" in shown and f"loommux {name}" in shown.partition("examples:")[2]


def test_a_word_that_is_no_command_is_told_with_one_that_is_near(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["instal"]) == 2
    assert "did you mean install?" in capsys.readouterr().err


def test_the_help_of_the_server_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    shown = capsys.readouterr().out
    assert all(f"\n  {name} " in shown for name in commands.COMMANDS)


@pytest.mark.parametrize("shell", commands.SHELLS)
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
    start = "import sys, loommux_host.cli, loommux_host.config"
    code = f"{start}; print([m for m in {FOREIGN_TO_A_START} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"
