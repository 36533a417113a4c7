"""The settings of ``config.py`` (contract 9.5): what they are, what they may be, and who may write them.

Owns the defaults, the check of every value, the reading of a configuration directory
and the trust in it. Knows nothing of the command line or the workspace: `config` puts
the three together, and is the only caller.
"""

from __future__ import annotations
import __future__

import math
import os
import stat
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any, Literal

CONFIG_FILE = "config.py"
STARTUP_DIRECTORY = "startup"
STARTUP_SUFFIXES = {".py", ".ipy"}

#: A token is guessed as often as somebody likes; so many random letters and digits are beyond that.
LEAST_TOKEN_CHARACTERS = 16
#: A kernel that does nothing needs half of it.
LEAST_MEMORY_BYTES = 128 << 20

LeaseMode = Literal["activity", "heartbeat", "connection"]
Transport = Literal["ipc", "tcp"]
Overlay = Literal["download", "local", "none"]


class ConfigError(Exception):
    """A start that cannot work. `status` is a word of contract 2; the text says what to change."""

    def __init__(self, status: str, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status
        self.message = message


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Every setting with its default. Times are seconds, sizes bytes."""

    lease_mode: LeaseMode = "activity"
    private_activity_timeout_seconds: float = 4800
    named_activity_timeout_seconds: float = 86400
    heartbeat_interval_seconds: float = 15
    heartbeat_timeout_seconds: float = 60
    connection_grace_seconds: float = 60
    sweep_interval_seconds: float = 10
    orphan_grace_seconds: float = 30
    adopt_grace_seconds: float = 120
    #: Output that one kernel keeps, over all its processes.
    records_budget_bytes: int = 1 << 30
    omission_tail_lines: int = 20
    #: One message as sent, everything included.
    max_result_bytes: int = 1_000_000
    max_kernels: int = 64
    #: As it was named, None to look for the project's own; `config` finds what is meant.
    kernel_python: Path | None = None
    #: Where packages come from that a kernel's interpreter lacks.
    kernel_overlay: Overlay = "download"
    kernel_transport: Transport = "tcp" if sys.platform == "win32" else "ipc"
    #: This and the next hold where control groups can see to it; see `processes.resource_limits`.
    kernel_memory_limit_bytes: int | None = None
    #: In cores; 1.5 is one and a half.
    kernel_cpu_limit: float | None = None
    auth_token_file: Path | None = None
    #: Names besides the bound address that a Host header may carry.
    allowed_hosts: tuple[str, ...] = ()
    activity_feed: bool = True


ResolveWorkspace = Callable[[Path], object]


@dataclass(frozen=True)
class ConfigDirectory:
    """A configuration directory that was read. `settings` holds the values it sets, checked."""

    path: Path
    startup: Path | None
    settings: Mapping[str, Any]
    resolve_workspace: ResolveWorkspace | None


# -- what a value may be ---------------------------------------------------------


def _number(value: object, minimum: float, words: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < minimum:
        raise ValueError(words)
    return value


def _seconds(value: object, _: Path) -> float:
    return _number(value, 1e-3, "a positive number of seconds")


def _integer(minimum: int, maximum: int | None = None) -> Callable[[object, Path], int]:
    words = f"an integer of at least {minimum:,}" if maximum is None else f"an integer from {minimum:,} to {maximum:,}"

    def check(value: object, _: Path) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(words)
        if value < minimum or (maximum is not None and value > maximum):
            raise ValueError(words)
        return value

    return check


def _one_of(*allowed: str) -> Callable[[object, Path], str]:
    def check(value: object, _: Path) -> str:
        if value not in allowed:
            raise ValueError("one of " + ", ".join(repr(word) for word in allowed))
        return str(value)

    return check


def _optional(check: Callable[[object, Path], Any]) -> Callable[[object, Path], Any]:
    return lambda value, directory: None if value is None else check(value, directory)


def _boolean(value: object, _: Path) -> bool:
    if not isinstance(value, bool):
        raise ValueError("True or False")
    return value


def _cores(value: object, _: Path) -> float:
    return _number(value, 0.01, "a number of processors of at least 0.01, or None")


def _path(value: object, directory: Path, words: str) -> Path:
    if not isinstance(value, str | os.PathLike) or not os.fspath(value):
        raise ValueError(words)
    # No resolve(): the python of a virtual environment is a link that must stay one.
    return directory / Path(os.fspath(value)).expanduser()


def _python(value: object, _: Path) -> str:
    if not isinstance(value, str | os.PathLike) or not os.fspath(value):
        raise ValueError(
            "the path of an interpreter or of an environment, a name on PATH, a version like '3.12', or None"
        )
    return os.fspath(value)  # as it was written: a / at its end says that it is a path


def _token_file(value: object, directory: Path) -> Path:
    words = "the path of a file that exists, or None"
    path = _path(value, directory, words)
    if not path.is_file():
        raise ValueError(words)
    read_token(path)
    return path


def _names(value: object, _: Path) -> tuple[str, ...]:
    words = 'host names as a list of strings, like ["lab.example.org"]'
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise ValueError(words)
    if not all(isinstance(name, str) and name and name == name.strip() for name in value):
        raise ValueError(words)
    return tuple(value)


CHECKS: Mapping[str, Callable[[object, Path], Any]] = {
    "lease_mode": _one_of("activity", "heartbeat", "connection"),
    "private_activity_timeout_seconds": _seconds,
    "named_activity_timeout_seconds": _seconds,
    "heartbeat_interval_seconds": _seconds,
    "heartbeat_timeout_seconds": _seconds,
    "connection_grace_seconds": _seconds,
    "sweep_interval_seconds": _seconds,
    "orphan_grace_seconds": _seconds,
    "adopt_grace_seconds": _seconds,
    "records_budget_bytes": _integer(65_536),
    "omission_tail_lines": _integer(0, 20),
    "max_result_bytes": _integer(10_000),
    "max_kernels": _integer(1),
    "kernel_python": _optional(_python),
    "kernel_overlay": _one_of("download", "local", "none"),
    "kernel_transport": _one_of("tcp") if sys.platform == "win32" else _one_of("ipc", "tcp"),
    "kernel_memory_limit_bytes": _optional(_integer(LEAST_MEMORY_BYTES)),
    "kernel_cpu_limit": _optional(_cores),
    "auth_token_file": _optional(_token_file),
    "allowed_hosts": _names,
    "activity_feed": _boolean,
}
assert set(CHECKS) == {f.name for f in fields(Settings)}
KNOWN = (*CHECKS, "resolve_workspace")


def checked(values: Mapping[str, object], directory: Path) -> dict[str, Any]:
    """The values as `Settings` takes them; `config_invalid_setting` names the first that cannot be."""
    good: dict[str, Any] = {}
    for name, value in values.items():
        try:
            good[name] = CHECKS[name](value, directory)
        except ValueError as refused:
            raise ConfigError("config_invalid_setting", f"{name} is {value!r}; allowed: {refused}") from None
    both = Settings(**good)
    if both.heartbeat_timeout_seconds <= both.heartbeat_interval_seconds:
        raise ConfigError(
            "config_invalid_setting",
            f"heartbeat_timeout_seconds is {both.heartbeat_timeout_seconds!r}; allowed: more than"
            f" heartbeat_interval_seconds, which is {both.heartbeat_interval_seconds!r}",
        )
    return good


# -- reading a directory ---------------------------------------------------------


def read_directory(path: Path) -> ConfigDirectory:
    """Trust `path`, run its ``config.py`` if there is one, check what it sets.

    Raises `ConfigError` with `config_untrusted`, `config_load_failed`,
    `config_unknown_setting` or `config_invalid_setting`.
    """
    require_trusted(path)
    names = _run(path / CONFIG_FILE)
    startup = path / STARTUP_DIRECTORY
    if startup.is_dir():
        require_trusted(startup)
        for file in sorted(startup.iterdir()):
            if file.suffix in STARTUP_SUFFIXES:
                require_trusted(file)
    resolve = names.pop("resolve_workspace", None)
    if resolve is not None and not callable(resolve):
        raise ConfigError(
            "config_invalid_setting",
            f"resolve_workspace is {resolve!r}; allowed: a function resolve_workspace(launch_cwd: Path) -> Path | str",
        )
    values = {name: value for name, value in names.items() if name in CHECKS}
    unknown = [name for name, value in names.items() if name not in CHECKS and not _is_own(name, value)]
    if unknown:
        raise ConfigError(
            "config_unknown_setting",
            f"{path / CONFIG_FILE} sets {', '.join(map(_meant, unknown))}; known: {', '.join(KNOWN)}."
            " Names of its own begin with an underscore.",
        )
    try:
        good = checked(values, path)
    except ConfigError as error:
        raise ConfigError(error.status, f"{path / CONFIG_FILE}: {error.message}") from None
    return ConfigDirectory(path, startup if startup.is_dir() else None, good, resolve)


def _meant(name: str) -> str:
    """A name that is no setting, with the one that it resembles."""
    from difflib import get_close_matches  # a good configuration does not need it

    near = get_close_matches(name, KNOWN, 1)
    return f"{name} (did you mean {near[0]}?)" if near else name


def _is_own(name: str, value: object) -> bool:
    """Modules, functions, classes and `_names` are a config file's own; so is what ``from typing import`` brings."""
    own = (ModuleType, FunctionType, BuiltinFunctionType, type, __future__._Feature)
    return name.startswith("_") or isinstance(value, own) or type(value).__module__ == "typing"


def _run(path: Path) -> dict[str, Any]:
    """The names that the file defines; none when there is no file."""
    try:
        with path.open("rb") as file:
            # The file that is open is the one that is checked and run: no swap in between.
            require_trusted(path, os.fstat(file.fileno()))
            source = file.read()
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ConfigError("config_load_failed", f"{path}: {error.strerror or error}") from error
    names: dict[str, Any] = {"__name__": "loommux_config", "__file__": str(path)}
    try:
        exec(compile(source, path, "exec"), names)
    except (Exception, SystemExit) as error:
        raise ConfigError("config_load_failed", f"{path}{_where(error, path)}: {described(error)}") from error
    return names


def _where(error: BaseException, path: Path) -> str:
    """``:12``, the line of the config file that failed, as far as it is known."""
    if isinstance(error, SyntaxError):
        return f":{error.lineno}"
    line, frame = "", error.__traceback__
    while frame is not None:
        if frame.tb_frame.f_code.co_filename == str(path):
            line = f":{frame.tb_lineno}"
        frame = frame.tb_next
    return line


def described(error: BaseException) -> str:
    """An exception on one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def require_trusted(path: Path, status: os.stat_result | None = None) -> None:
    """Only this account, and root, may own what runs in the server's name or may write it.

    Not on Windows, where permissions are not in the mode.
    """
    if sys.platform == "win32":
        return
    status = path.stat() if status is None else status
    if status.st_uid not in (os.geteuid(), 0):
        raise ConfigError(
            "config_untrusted", f"{path} belongs to user {status.st_uid}, not to you; it would run as you"
        )
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        what = f"-R go-w {path}" if path.is_dir() else f"go-w {path}"  # what is in it is looked at too
        raise ConfigError("config_untrusted", f"others may write {path}; chmod {what}")


# -- the token -------------------------------------------------------------------


def read_token(path: Path) -> str:
    """The token in a file of this account alone. Raises `ConfigError`."""
    try:
        with path.open() as file:
            require_private(path, os.fstat(file.fileno()))
            token = file.read().strip()
    except (OSError, UnicodeError) as error:
        raise ConfigError("config_invalid_setting", f"auth_token_file {path} cannot be read: {error}") from None
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigError("config_invalid_setting", f"auth_token_file {path} has to hold one printable ASCII word")
    if len(token) < LEAST_TOKEN_CHARACTERS:
        raise ConfigError(
            "config_invalid_setting",
            f"the token in {path} has {len(token)} characters; allowed: at least {LEAST_TOKEN_CHARACTERS},"
            " best random ones: python -c 'import secrets; print(secrets.token_urlsafe(32))'",
        )
    return token


def require_private(path: Path, status: os.stat_result) -> None:
    """Only this account, and root, may own a secret; nobody else may read or write it (not looked at on Windows).

    A file of root's may let a group read it: there is no other way to hand it to an account.
    """
    if sys.platform == "win32":
        return
    if status.st_uid not in (os.geteuid(), 0):
        raise ConfigError("config_untrusted", f"{path} belongs to user {status.st_uid}, not to you; it holds a secret")
    closed = stat.S_IRWXG | stat.S_IRWXO
    if status.st_uid == 0 and os.geteuid() != 0:
        closed &= ~stat.S_IRGRP
    if status.st_mode & closed:
        raise ConfigError(
            "config_untrusted", f"others may read or write {path}, which holds a secret; chmod 600 {path}"
        )
