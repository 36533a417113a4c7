"""A host's configuration file: read, one entry put in, shown as a difference, written whole or not at all.

Owns the file; `jsonc` and tomlkit own the text, `mcp_hosts` the place and the shape. Called by `commands.install`.
"""

from __future__ import annotations

import difflib
import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import tomlkit
from tomlkit.exceptions import TOMLKitError

from loommux_host.command_line.reporting import Refused
from loommux_host.installation import jsonc
from loommux_host.installation.mcp_hosts import Format

NEW_MODE = 0o600


class SettingsFile:
    """The text of a file as it was read; a missing file is an empty one."""

    def __init__(self, path: Path, format: Format, container: str) -> None:
        #: What a link leads to: the link stays.
        self.path = Path(os.path.realpath(path))
        self._format, self._container = format, container
        try:
            self.text = self.path.read_bytes().decode()
        except FileNotFoundError:
            self.text = ""
        except (OSError, UnicodeError) as error:
            raise Refused("file_unreadable", f"{path}: {error}") from error

    def entry(self, name: str) -> Any | None:
        """The entry of that name, None where there is none. Raises `Refused`."""
        held = self._parsed(self.text)
        servers = held.get(self._container, {}) if isinstance(held, dict) else None
        if not isinstance(servers, dict):
            raise self._refused(f"its {self._container} is no table of servers")
        return servers.get(name)

    def with_entry(self, name: str, value: dict[str, Any]) -> str:
        """The file's text with that entry. Everything else is as it was."""
        meant = self._parsed(self.text)
        meant.setdefault(self._container, {})[name] = value
        put = jsonc.put if self._format == "jsonc" else _put_toml
        try:
            text = put(self.text, self._container, name, value)
        except jsonc.NotUnderstood as error:
            raise self._refused(str(error)) from error
        if self._parsed(text) != meant:
            raise self._refused("it cannot be changed without changing more than the entry")
        return text

    def difference(self, text: str) -> str:
        """What `write` would change, as ``diff -u`` shows it."""
        old, new = self.text.splitlines(keepends=True), text.splitlines(keepends=True)
        name = str(self.path)
        lines = difflib.unified_diff(old, new, name if old else os.devnull, name)
        return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)

    def write(self, text: str) -> None:
        """Replace the file in one step; its mode stays. Raises `Refused` when someone wrote to it meanwhile."""
        data = text.encode()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            fd, beside = tempfile.mkstemp(dir=self.path.parent, prefix=f".{self.path.name}.")
        except OSError as error:
            raise Refused("file_not_writable", f"{self.path}: {error.strerror}") from error
        try:
            with os.fdopen(fd, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            Path(beside).chmod(self._mode())
            if self._now() != self.text.encode():
                raise Refused("file_changed", f"{self.path} was changed by another program just now; try again")
            Path(beside).replace(self.path)
        except OSError as error:
            raise Refused("file_not_writable", f"{self.path}: {error.strerror}") from error
        finally:
            with suppress(OSError):
                Path(beside).unlink()

    def _mode(self) -> int:
        try:
            return stat.S_IMODE(self.path.stat().st_mode)
        except FileNotFoundError:
            return NEW_MODE

    def _now(self) -> bytes:
        try:
            return self.path.read_bytes()
        except FileNotFoundError:
            return b""

    def _parsed(self, text: str) -> dict[str, Any]:
        try:
            held = jsonc.loads(text) if self._format == "jsonc" else tomlkit.parse(text).unwrap()
        except (jsonc.NotUnderstood, TOMLKitError) as error:
            raise self._refused(str(error)) from error
        if not isinstance(held, dict):
            raise self._refused("it does not hold an object")
        return held

    def _refused(self, why: str) -> Refused:
        return Refused("file_not_understood", f"{self.path}: {why}. It was left as it is; fix it, or add the entry")


def _put_toml(text: str, container: str, name: str, value: dict[str, Any]) -> str:
    """A new table goes behind everything else, which then stays to the byte; only one that is there is edited."""
    document = tomlkit.parse(text)
    newline = "\r\n" if "\r\n" in text else "\n"
    held = document.unwrap().get(container, {})
    if name not in held:
        fresh = tomlkit.dumps({container: {name: value}}).replace("\n", newline)
        gap = newline if text.strip() else ""
        end = "" if not text or text.endswith("\n") else newline
        appended = f"{text}{end}{gap}{fresh}"
        with suppress(TOMLKitError):
            if tomlkit.parse(appended).unwrap().get(container) == {**held, name: value}:
                return appended
    table: Any = document.setdefault(container, tomlkit.table(is_super_table=True))
    table[name] = value
    return tomlkit.dumps(document)
