"""`loommux install` writes what each host reads, keeps everything else, and repeats without change."""

from __future__ import annotations

import json
import stat
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from loommux_host import cli
from loommux_host.installation.mcp_hosts import HOSTS

LOOMMUX = str(Path(sys.executable).with_name("loommux"))
URL = "http://127.0.0.1:8801/mcp"
CODEX = """\
# mine
model = "x"   # kept

[mcp_servers.other]
command = "y"
args = [ "a","b" ]
"""


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of this test's own, and a project in it to work in."""
    for name in ("CLAUDE_CONFIG_DIR", "CODEX_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    made = tmp_path / "report"
    made.mkdir()
    monkeypatch.chdir(made)
    return made


def install(*flags: str) -> int:
    return cli.main(["install", *flags])


def written(client: str, scope: str) -> Any:
    path = HOSTS[client].files[scope]()  # pyright: ignore[reportArgumentType]
    return (tomllib.loads if client == "codex" else json.loads)(path.read_text())[HOSTS[client].container]["loommux"]


def test_a_host_is_told_to_start_this_installation() -> None:
    for client, host in HOSTS.items():
        for scope in host.files:
            assert install("--client", client, "--scope", scope, "--", "--spawn") == 0
            entry = written(client, scope)
            assert [entry["command"], *entry["args"]][-2:] == [LOOMMUX, "--spawn"]


def test_over_http_the_kernel_to_share_goes_into_the_hosts_headers() -> None:
    expected = {
        "claude-code": {"type": "http", "url": URL, "headers": {"X-Loommux-Resource": "report%20Q1"}},
        "codex": {"url": URL, "http_headers": {"X-Loommux-Resource": "report%20Q1"}},
        "cursor": {"url": URL, "headers": {"X-Loommux-Resource": "report%20Q1"}},
        "vscode": {"type": "http", "url": URL, "headers": {"X-Loommux-Resource": "report%20Q1"}},
    }
    for client, entry in expected.items():
        assert install("--client", client, "--http", "http://127.0.0.1:8801", "--resource", "report Q1") == 0
        assert written(client, "user") == entry


def test_a_host_that_only_starts_programs_and_a_server_with_a_token_are_reached_through_connect(project: Path) -> None:
    token = project / "token"
    token.write_text("secret")
    token.chmod(0o644)
    assert install("--client", "codex", "--http", URL, "--token-file", "token") == 2
    token.chmod(0o600)
    assert install("--client", "claude-desktop", "--http", URL) == 0
    assert written("claude-desktop", "user")["args"][-5:] == [LOOMMUX, "connect", URL, "--resource", "report"]
    assert install("--client", "codex", "--http", URL, "--token-file", "token") == 0
    assert written("codex", "user")["args"] == ["connect", URL, "--resource", "report", "--token-file", str(token)]


def test_everything_else_in_a_file_stays_to_the_byte_with_its_mode(project: Path) -> None:
    path = project.parent / ".codex" / "config.toml"
    path.parent.mkdir()
    path.write_text(CODEX)
    path.chmod(0o640)
    assert install("--client", "codex") == 0
    assert path.read_text().startswith(CODEX)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    once = path.read_bytes()
    assert install("--client", "codex") == 0
    assert path.read_bytes() == once
    assert install("--client", "codex", "--http", URL, "--replace") == 0
    assert path.read_text().startswith(CODEX)
    assert written("codex", "user")["url"] == URL


def test_a_file_that_a_link_leads_to_is_changed_and_the_link_stays(project: Path) -> None:
    real, link = project / "dotfiles.json", project.parent / ".claude.json"
    real.write_text("{}")
    link.symlink_to(real)
    assert install("--client", "claude-code") == 0
    assert link.is_symlink() and "loommux" in real.read_text()


def test_another_entry_is_replaced_only_when_asked_to(capsys: pytest.CaptureFixture[str]) -> None:
    assert install("--client", "cursor", "--client", "codex") == 0
    before = HOSTS["cursor"].files["user"]().read_bytes()
    assert install("--client", "vscode", "--client", "cursor", "--http", URL) == 3
    assert HOSTS["cursor"].files["user"]().read_bytes() == before
    assert not HOSTS["vscode"].files["user"]().exists(), "a refusal leaves every file as it was"
    assert "entry_differs" in capsys.readouterr().err
    assert install("--client", "cursor", "--http", URL, "--replace") == 0
    assert written("cursor", "user")["url"] == URL


def test_a_dry_run_shows_the_difference_and_changes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert install("--client", "codex", "--dry-run", "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["ok"] and answer["changes"][0]["changed"]
    assert "+[mcp_servers.loommux]" in answer["changes"][0]["difference"]
    assert not HOSTS["codex"].files["user"]().exists()


def test_without_a_client_the_hosts_that_are_there_are_set_up(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert install() == 3
    assert "host_not_found" in capsys.readouterr().err
    (project.parent / ".cursor").mkdir()
    assert install("--json") == 0
    assert [change["client"] for change in json.loads(capsys.readouterr().out)["changes"]] == ["cursor"]


@pytest.mark.parametrize("text", ["{", "[]", '{"mcpServers": 1}', "\udcff"])
def test_a_file_that_is_not_understood_is_left_as_it_is(project: Path, text: str) -> None:
    path = project / ".mcp.json"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    assert install("--client", "claude-code", "--scope", "project") == 3
    assert path.read_bytes() == text.encode("utf-8", "surrogateescape")


@pytest.mark.parametrize(
    "flags",
    [
        ["--http", "127.0.0.1:8801"],
        ["--resource", "x"],
        ["--token-file", "x", "--http", URL],
        ["--http", URL, "--", "--spawn"],
        ["--client", "claude-desktop", "--scope", "project"],
    ],
)
def test_a_command_line_that_cannot_be_meant_is_exit_code_2(flags: list[str]) -> None:
    client = [] if "--client" in flags else ["--client", "codex"]
    assert install(*client, *flags) == 2
