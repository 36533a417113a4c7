"""Every option is normalised once; a start that cannot work says why before anything starts."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest

from loommux_host.command_line.server_options import parse
from loommux_host.config import Config, ConfigError
from loommux_host.config import load as load_parsed
from loommux_host.settings import CHECKS, Settings, checked


@pytest.fixture
def start(tmp_path: Path) -> Path:
    directory = tmp_path / "project" / "deep"
    directory.mkdir(parents=True)
    return directory


def load(arguments: list[str], start: Path) -> Config:
    return load_parsed(parse(arguments), start)


def write_config(directory: Path, text: str) -> Path:
    directory.mkdir(exist_ok=True)
    (directory / "config.py").write_text(text)
    return directory


def refusal(arguments: list[str], start: Path) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load(arguments, start)
    assert "\n" not in str(caught.value)
    return caught.value


# -- what stands without a configuration ---------------------------------------


def test_without_anything_the_workspace_is_the_start_directory(start: Path) -> None:
    config = load([], start)
    assert (config.workspace, config.workspace_resolution) == (start, "launch_cwd")
    assert config.config_dir is None
    assert config.startup_dir is None
    assert (config.server, config.host, config.port, config.path) == (False, "127.0.0.1", 8801, "/mcp")
    assert config.protocol == "both"
    assert not config.structured
    assert config.auth
    assert not config.spawn
    assert config.kernel_python is None, "the project's own is looked for at each start of a kernel"


def test_a_configuration_cannot_be_changed(start: Path) -> None:
    with pytest.raises(FrozenInstanceError):
        load([], start).port = 1  # pyright: ignore[reportAttributeAccessIssue]


def test_the_environment_configures_nothing(start: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOOMMUX_CONFIG", "LOOMMUX_PORT", "LOOMMUX_MAX_KERNELS"):
        monkeypatch.setenv(name, "7")
    assert load([], start) == load([], start)
    assert load([], start).max_kernels == 64


# -- command line ----------------------------------------------------------------


def test_flags_of_the_http_server_are_taken(start: Path) -> None:
    config = load(["--server", "--host", "0.0.0.0", "--port", "0", "--path", "/agents", "--no-auth", "--spawn"], start)
    assert (config.server, config.host, config.port, config.path) == (True, "0.0.0.0", 0, "/agents")
    assert not config.auth
    assert config.spawn


def test_a_unix_socket_is_relative_to_the_start_directory(start: Path) -> None:
    assert load(["--server", "--uds", "s"], Path("/srv")).uds == Path("/srv/s")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--port", "9"], "--port needs --server"),
        (["--no-auth"], "--no-auth needs --server"),
        (["--server", "--port", "65536"], "--port is 65536; allowed: 0 to 65535"),
        (["--server", "--port", "http"], "invalid int value"),
        (["--server", "--uds", "s", "--port", "9"], "--uds takes the place of"),
        (["--server", "--uds", "/" + "x" * 107], "at most 107 bytes"),
        (["--server", "--path", "mcp"], "--path is 'mcp'"),
        (["--server", "--path", ""], "--path is ''"),
        (["--server", "--path", "/"], "--path is '/'"),
        (["--server", "--path", "/api"], "--path is '/api'"),
        (["--server", "--path", "/api/mcp"], "--path is '/api/mcp'"),
        (["--result-mode", "json"], "invalid choice"),
        (["--protocol", "modern"], "invalid choice"),
        (["--res", "structured"], "unrecognized arguments"),
        (["doctr"], "unrecognized arguments"),
    ],
)
def test_bad_flags_end_the_start_with_exit_code_2(
    arguments: list[str], says: str, start: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        load(arguments, start)
    assert ended.value.code == 2
    assert says in capsys.readouterr().err


def test_a_path_that_only_begins_like_the_api_is_allowed(start: Path) -> None:
    assert load(["--server", "--path", "/apis"], start).path == "/apis"


# -- the configuration directory -------------------------------------------------


def test_the_nearest_directory_at_or_above_the_start_counts(start: Path) -> None:
    write_config(start.parent / ".loommux", "max_kernels = 3")
    assert load([], start).max_kernels == 3
    near = write_config(start / ".loommux", "max_kernels = 4")
    config = load([], start)
    assert (config.max_kernels, config.config_dir) == (4, near)


def test_a_directory_that_is_named_takes_the_place_of_the_nearest(start: Path) -> None:
    write_config(start / ".loommux", "max_kernels = 3")
    named = write_config(start / "other", "max_kernels = 5")
    assert load(["--config", "other"], start).config_dir == named
    assert load(["--config", str(named)], start).max_kernels == 5


def test_a_directory_needs_no_config_file_and_may_hold_startup_files(start: Path) -> None:
    startup = start / ".loommux" / "startup"
    startup.mkdir(parents=True)
    assert load([], start).startup_dir == startup


def test_a_named_directory_that_is_missing_or_is_a_file_ends_the_start(start: Path) -> None:
    (start / "file").touch()
    assert refusal(["--config", "nowhere"], start).status == "config_not_found"
    assert refusal(["--config", "file"], start).status == "config_not_directory"


# -- trust -----------------------------------------------------------------------


@pytest.mark.skipif(sys.platform == "win32", reason="permissions are not in the mode")
@pytest.mark.parametrize("name", [".", "config.py", "startup", "startup/10-a.py", "startup/20-b.ipy"])
@pytest.mark.parametrize("mode", [0o020, 0o002])
def test_what_others_may_write_is_not_run(start: Path, name: str, mode: int) -> None:
    directory = write_config(start / ".loommux", "raise SystemExit('this must not run')" if name == "config.py" else "")
    (directory / "startup").mkdir()
    for file in ("10-a.py", "20-b.ipy"):
        (directory / "startup" / file).touch()
    target = directory / name
    target.chmod(target.stat().st_mode | mode)
    error = refusal([], start)
    assert error.status == "config_untrusted"
    assert str(target) in error.message


@pytest.mark.skipif(sys.platform == "win32", reason="permissions are not in the mode")
def test_what_others_own_is_not_run(start: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_config(start / ".loommux", "")
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    if os.getuid() == 0:
        os.chown(start / ".loommux" / "config.py", 12, -1)
    assert refusal([], start).status == "config_untrusted"


@pytest.mark.case("X14")
@pytest.mark.skipif(sys.platform == "win32", reason="permissions are not in the mode")
@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o620, 0o602])
def test_a_token_that_others_may_read_or_write_is_refused(start: Path, mode: int) -> None:
    directory = write_config(start / ".loommux", "auth_token_file = 'token'")
    (directory / "token").write_text("long-enough-to-be-one")
    (directory / "token").chmod(mode)
    error = refusal([], start)
    assert error.status == "config_untrusted"
    assert f"chmod 600 {directory / 'token'}" in error.message


@pytest.mark.case("X14")
@pytest.mark.skipif(sys.platform == "win32" or os.getuid() != 0, reason="needs a file of root's")
def test_a_token_of_roots_may_be_read_by_the_group_that_root_has_given_it_to(
    start: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = write_config(start / ".loommux", "auth_token_file = 'token'")
    (directory / "token").write_text("long-enough-to-be-one")
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    (directory / "token").chmod(0o640)
    assert load([], start).auth_token_file == directory / "token"
    (directory / "token").chmod(0o644)
    assert refusal([], start).status == "config_untrusted"


@pytest.mark.case("X14")
def test_a_token_that_can_be_guessed_is_refused_with_what_is_allowed(start: Path) -> None:
    directory = write_config(start / ".loommux", "auth_token_file = 'token'")
    (directory / "token").write_text("abcde\n")
    (directory / "token").chmod(0o600)
    error = refusal([], start)
    assert error.status == "config_invalid_setting"
    assert "has 5 characters; allowed: at least 16" in error.message
    assert "abcde" not in error.message


# -- config.py -------------------------------------------------------------------


def test_ordinary_python_is_the_config_files_own(start: Path) -> None:
    write_config(
        start / ".loommux",
        "from __future__ import annotations\n"
        "import os.path, math\n"
        "from pathlib import Path\n"
        "from typing import Optional\n"
        "from os import getpid\n"
        "_hours = 3600\n"
        "def double(x): return 2 * x\n"
        "triple = lambda x: 3 * x\n"
        "class Thing: pass\n"
        "orphan_grace_seconds = double(15)\n"
        "private_activity_timeout_seconds = 2 * _hours\n",
    )
    config = load([], start)
    assert (config.orphan_grace_seconds, config.private_activity_timeout_seconds) == (30, 7200)


def test_an_unknown_setting_ends_the_start_and_names_the_known_ones(start: Path) -> None:
    write_config(start / ".loommux", "max_kernel = 3")
    error = refusal([], start)
    assert error.status == "config_unknown_setting"
    assert "config.py sets max_kernel (did you mean max_kernels?); known: " in error.message
    assert "max_kernels" in error.message


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("def broken(:", ":1: SyntaxError"),
        ("x = 1\n1 / 0", ":2: ZeroDivisionError: division by zero"),
        ("import sys; sys.exit(3)", ":1: SystemExit: 3"),
        ("raise RuntimeError('two\\nlines')", "RuntimeError: two lines"),
        ("import a_module_that_is_nowhere", ":1: ModuleNotFoundError"),
    ],
)
def test_a_config_file_that_fails_ends_the_start_with_its_line(start: Path, text: str, says: str) -> None:
    write_config(start / ".loommux", text)
    error = refusal([], start)
    assert error.status == "config_load_failed"
    assert says in error.message


def test_a_config_file_that_is_a_directory_ends_the_start(start: Path) -> None:
    (start / ".loommux" / "config.py").mkdir(parents=True)
    assert refusal([], start).status == "config_load_failed"


BAD = {
    "lease_mode": "always",
    "private_activity_timeout_seconds": 0,
    "named_activity_timeout_seconds": float("inf"),
    "heartbeat_interval_seconds": "15",
    "heartbeat_timeout_seconds": float("nan"),
    "connection_grace_seconds": 0.0,
    "sweep_interval_seconds": True,
    "orphan_grace_seconds": None,
    "adopt_grace_seconds": 0,
    "records_budget_bytes": 1.5e9,
    "omission_tail_lines": 21,
    "max_result_bytes": 9_999,
    "max_kernels": 0,
    "kernel_python": 3.12,
    "kernel_overlay": "maybe",
    "kernel_transport": "udp",
    "kernel_memory_limit_bytes": 1 << 20,
    "kernel_cpu_limit": 0,
    "auth_token_file": "no-such-file",
    "allowed_hosts": "example.org",
    "activity_feed": 1,
}


def test_every_setting_refuses_what_it_cannot_be(tmp_path: Path) -> None:
    assert set(BAD) == set(CHECKS)
    for name, value in BAD.items():
        with pytest.raises(ConfigError, match=f"config_invalid_setting: {name} is .*; allowed: "):
            checked({name: value}, tmp_path)


def test_the_defaults_are_allowed_values(tmp_path: Path) -> None:
    defaults = Settings()
    values = {name: getattr(defaults, name) for name in CHECKS}
    assert checked(values, tmp_path) == values


def test_the_heartbeat_times_out_after_its_interval(start: Path) -> None:
    write_config(start / ".loommux", "heartbeat_interval_seconds = 60")
    error = refusal([], start)
    assert error.status == "config_invalid_setting"
    assert "heartbeat_timeout_seconds is 60" in error.message


def test_paths_in_a_config_file_are_relative_to_its_directory(start: Path) -> None:
    directory = write_config(
        start / ".loommux", "auth_token_file = 'token'\nallowed_hosts = ['a.example', 'b.example']"
    )
    (directory / "token").write_text("secret-0123456789")
    (directory / "token").chmod(0o600)
    config = load([], start)
    assert config.auth_token_file == directory / "token"
    assert config.allowed_hosts == ("a.example", "b.example")


def test_the_interpreter_of_a_virtual_environment_stays_a_link(start: Path) -> None:
    link = start / "python"
    link.symlink_to(sys.executable)
    write_config(start / ".loommux", f"kernel_python = {str(link)!r}")
    assert load([], start).kernel_python == link


def test_an_interpreter_that_was_named_is_found_from_the_workspace_or_the_start_is_refused(start: Path) -> None:
    python = environment(start / "env")
    write_config(start / ".loommux", "kernel_python = 'env/'")
    assert (load([], start).kernel_python, load([], start).python_named_by) == (python, "config.py")
    assert load(["--python", "./env/bin/python"], start).python_named_by == "--python"
    write_config(start / ".loommux", "kernel_python = '../nowhere'")
    with pytest.raises(ConfigError, match=r"config_invalid_setting: kernel_python is '../nowhere': /.*/nowhere is no "):
        load([], start)
    with pytest.raises(ConfigError, match="python_not_found: --python no-such-program: no program 'no-such-program'"):
        load(["--python", "no-such-program"], start)
    with pytest.raises(ConfigError, match=r"python_not_found: --python 3\.99: no Python 3\.99 is on PATH, nor among "):
        load(["--python", "3.99"], start)


def environment(path: Path) -> Path:
    """An environment, as far as it is looked at; returns its interpreter."""
    (path / "bin").mkdir(parents=True)
    python = path / "bin" / "python"
    python.symlink_to(sys.executable)
    return python


# -- the workspace ---------------------------------------------------------------


@pytest.mark.parametrize("answer", ["launch_cwd.parent", "str(launch_cwd.parent)", "'..'"])
def test_a_config_file_may_choose_the_workspace(start: Path, answer: str) -> None:
    write_config(start / ".loommux", f"def resolve_workspace(launch_cwd): return {answer}")
    config = load([], start)
    assert (config.workspace, config.workspace_resolution) == (start.parent, "explicit_config")


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("resolve_workspace = 'here'", "config_invalid_setting"),
        ("def resolve_workspace(launch_cwd): return 1 / 0", "workspace_config_load_failed"),
        ("def resolve_workspace(): return '.'", "workspace_config_load_failed"),
        ("def resolve_workspace(launch_cwd): raise SystemExit", "workspace_config_load_failed"),
        ("def resolve_workspace(launch_cwd): return None", "workspace_config_invalid_return"),
        ("def resolve_workspace(launch_cwd): return ''", "workspace_config_invalid_return"),
        ("def resolve_workspace(launch_cwd): return launch_cwd / 'gone'", "workspace_not_found"),
        ("def resolve_workspace(launch_cwd): return __file__", "workspace_not_directory"),
    ],
)
def test_a_workspace_that_cannot_be_ends_the_start(start: Path, text: str, status: str) -> None:
    write_config(start / ".loommux", text)
    assert refusal([], start).status == status


def test_a_start_in_a_directory_that_is_gone_is_refused(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    code = (
        "import os; os.rmdir(os.getcwd())\n"
        "from loommux_host.command_line.server_options import parse\nfrom loommux_host.config import *\n"
        "try: load(parse([]))\n"
        "except ConfigError as e: print(e.status)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=gone, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "workspace_not_found", done.stderr


def test_a_configuration_can_be_made_without_a_command_line() -> None:
    assert Config(max_kernels=2).max_kernels == 2
