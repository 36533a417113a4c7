"""What faulthandler wrote when a process died of a fatal signal, as an agent wants to read it.

Pure: from faulthandler's text to the thread that died and the frames of cells. What IPython
and the kernel have below a cell says nothing about the death, and neither do their own
threads; both are counted. Called by `kernel_process`.
"""

from __future__ import annotations

import re

#: Frames that are shown of one thread.
FRAMES = 20
#: And of the thread that died, when no cell's code is on it.
FRAMES_WITHOUT_CELL = 5
#: And of what else it says, such as which extension modules are loaded.
REST_CHARACTERS = 500

_THREAD = re.compile(r"(?:Current thread|Thread) 0x")
#: How IPython names the code of cells: no such file exists.
_CELL = re.compile(r'^  File "[^"]*ipykernel_\d+[/\\]\d+\.py", ')


def shown(text: str) -> str:
    """The text with its threads cut down; what is not understood is kept as it is."""
    paragraphs = text.rstrip().split("\n\n")
    threads = [p.splitlines() for p in paragraphs if _THREAD.match(p)]
    if not threads:
        return text
    kept = [lines for lines in threads if lines[0].startswith("Current") or any(map(_CELL.match, lines))]
    kept.sort(key=lambda lines: not lines[0].startswith("Current"))
    rest = [
        p if len(p) <= REST_CHARACTERS else p[: REST_CHARACTERS - 1] + "…" for p in paragraphs if not _THREAD.match(p)
    ]
    parts = [rest[0] if rest else "", *("\n".join(_cut(lines)) for lines in kept)]
    if others := len(threads) - len(kept):
        parts.append(f"{others} other {'thread' if others == 1 else 'threads'} ran no code of cells.")
    return "\n".join([*parts, *rest[1:]])


def _cut(lines: list[str]) -> list[str]:
    heading, *frames = lines
    cells = [i for i, frame in enumerate(frames) if _CELL.match(frame)]
    shown = frames[: min(cells[-1] + 1, FRAMES)] if cells else frames[:FRAMES_WITHOUT_CELL]
    cut = [f"{heading.split(' 0x')[0]} (most recent call first):", *(_CELL.sub("  Cell, ", line) for line in shown)]
    if left := len(frames) - len(shown):
        whose = " of IPython and the kernel" if cells and len(shown) > cells[-1] else ""
        cut.append(f"  … {left} more {'frame' if left == 1 else 'frames'}{whose}")
    return cut
