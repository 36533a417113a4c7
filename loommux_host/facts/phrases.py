"""How single facts are worded: durations, sizes, counts, times, who sent a cell, how a process ended.

Pure functions from facts to short pieces of text, the same wherever they stand. Whole
sentences are in `rendering.sentences` and `refusals`, which call this.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

from loommux_host.facts.results import Death, ExecutionFacts
from loommux_kernel.shared.protocol import Counts, Origin, OriginKind

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
#: A handle is that and random bytes in URL-safe base64. It opens a private kernel, so it is told to its caller alone.
HANDLE_MARK, HANDLE_BYTES = "k_", 16
_HANDLE = re.compile(rf"{HANDLE_MARK}[A-Za-z0-9_-]{{{-(-HANDLE_BYTES * 4 // 3)}}}")
#: What acts on a terminal, ends a line in some programs or reorders the text around it; surrogates cannot be sent.
_ACTS = r"\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
_ACTING = re.compile(f"[{_ACTS}]")
#: The same and what would end the line, or hide in a name, in a text that has to stay on one line.
_UNPRINTABLE = re.compile(rf"[{_ACTS}\t\n\u200b\u2060-\u2064\ufeff]")


def duration(seconds: float) -> str:
    """Whole milliseconds below one second, then seconds with one decimal: ``270 ms``, ``1.0 s``."""
    milliseconds = round(max(seconds, 0.0) * 1000)
    return f"{milliseconds} ms" if milliseconds < 1000 else f"{max(seconds, 1.0):.1f} s"


def silence(seconds: float) -> str:
    """How long nothing came: whole seconds from one second on, ``35 s``."""
    return duration(seconds) if round(max(seconds, 0.0) * 1000) < 1000 else f"{int(max(seconds, 1.0))} s"


def size(count: float) -> str:
    """Bytes in the largest binary unit of which there is at least one: ``881.9 KiB``, ``17 B``."""
    value = float(count)
    for unit in _UNITS:
        if round(value, 1) < 1024 or unit == _UNITS[-1]:
            return f"{int(value)} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    raise AssertionError("unreachable")


def plural(count: int, noun: str, many: str | None = None) -> str:
    """``1 line``, ``12,044 lines``."""
    return f"{count:,} {noun if count == 1 else many or noun + 's'}"


def amount(counts: Counts) -> str:
    """``12,044 lines, 903,112 characters, 881.9 KiB``."""
    return f"{plural(counts.lines, 'line')}, {plural(counts.characters, 'character')}, {size(counts.utf8_bytes)}"


def clock(at: float, *, seconds: bool = False) -> str:
    """Local time of day, ``14:02`` or ``14:02:11``."""
    return time.strftime("%H:%M:%S" if seconds else "%H:%M", time.localtime(at))


def visible(text: str) -> str:
    """`text` with everything that acts on a terminal as a visible escape; lines and tabs stay."""
    return _ACTING.sub(lambda m: _escaped(m[0]), text)


def one_line(text: object, limit: int = 200) -> str:
    """`text` without line ends and controls, cut to `limit` characters, the last of them ``…`` if cut."""
    plain = _UNPRINTABLE.sub(lambda m: " " if m[0] in "\n\r\t\u2028\u2029" else _escaped(m[0]), str(text)[: limit * 4])
    return plain if len(plain) <= limit else plain[: limit - 1] + "…"


def without_handles(text: str) -> str:
    """A text for others than the caller that it was made for; before it is cut."""
    return _HANDLE.sub(f"{HANDLE_MARK}…", text)


def first_line(source: str, limit: int = 80) -> str:
    """The first line of a cell that is neither blank nor a header; the header when there is nothing else."""
    lines = [line for line in source.splitlines() if line.strip()]
    body = next((line for line in lines if not line.lstrip().startswith("%%loommux")), lines[0] if lines else "")
    return one_line(body.strip(), limit)


def cell(number: int | None) -> str:
    """``In [7]``; ``In [ ]`` for a cell that IPython did not count."""
    return f"In [{' ' if number is None else number}]"


def sender(origin: Origin) -> str:
    """Who sent a cell, as a sentence names them: ``session claude-1a2b3c4d``, ``qtconsole``."""
    label = one_line(origin.label, 100)
    if origin.kind is OriginKind.STARTUP:
        return f"startup file {label}" if label else "a startup file"
    if origin.kind is OriginKind.CLIENT:
        return label or "an attached client"
    if origin.kind is OriginKind.CONSOLE:
        return label or "the console"
    kind = {OriginKind.SESSION: "session", OriginKind.KERNEL: "kernel"}[origin.kind]
    return kind if not label or label.startswith(kind) else f"{kind} {label}"


def attached(client: Mapping[str, Any]) -> str:
    """An attached client as its kernel knows it: by name and last sign."""
    return f"{one_line(client['label'], 100)} (last sign {duration(client['heard_seconds'])} ago)"


def how_ended(death: Death, *, by_whom: bool = True) -> str:
    """``ended by SIGKILL``, ``ended by SIGKILL (its keeper died)``, ``exited with code 4``, ``ended by restart``."""
    if death.cause == "signal":
        reason = f" ({death.reason})" if death.reason else ""
        return f"ended by {death.signal or 'a signal'}{reason}"
    if death.cause == "exit":
        return "exited" if death.code is None else f"exited with code {death.code}"
    by = f" ({one_line(death.by, 100)})" if death.by and by_whom else ""
    return f"ended by {death.cause}{by}"


def memory(death: Death) -> str:
    """For a process that the system may have killed for its memory: how far that had grown."""
    if death.cause != "signal" or death.signal != "SIGKILL" or not death.max_rss_bytes:
        return ""
    return f"; its memory had reached {size(death.max_rss_bytes)}"


def company(death: Death) -> str:
    """What became of the processes it had started, as sentences that follow one; empty when there were none."""
    ended = ""
    if death.ended_processes:
        were = "process it had started was" if death.ended_processes == 1 else "processes it had started were"
        ended = f" {death.ended_processes:,} {were} ended with it."
    left = not_ended(death.left)
    return f"{ended} {left}" if left else ended


def not_ended(left: Sequence[tuple[int, str]]) -> str:
    """``Not ended, because they run as another user: 99 (ping host).``"""
    return f"Not ended, because they run as another user: {programs(left)}." if left else ""


def programs(named: Sequence[tuple[int, str]]) -> str:
    """Pids with their commands: ``99 (sleep 60), 100 (sh)``."""
    return ", ".join(f"{pid} ({one_line(command, 80)})" for pid, command in named)


def error(facts: ExecutionFacts, limit: int = 500) -> str:
    """``ValueError: bad value``, on one line."""
    name = one_line(facts.ename or "error", 200)
    value = one_line(facts.evalue or "", limit).strip()
    return f"{name}: {value}" if value else name


def _escaped(char: str) -> str:
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
