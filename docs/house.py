"""Draw the packages and their arrows, from the table that tests/test_architecture.py holds, as SVG.

A package stands above all that it imports. Of its arrows only those are drawn that do not follow
from others: whoever imports `api` reaches what `api` imports.
"""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from itertools import pairwise

WIDTH, BOX, ROW, CHARACTER, GAP, MARGIN = 920, 30, 76, 7.6, 16, 20
STYLE = (
    ".b{fill:#fff;stroke:#4051b5;stroke-width:1.5}.m{fill:#eef0fb;stroke-dasharray:4 3}"
    ".l{stroke:#8a96d8;stroke-width:1.2;fill:none;marker-end:url(#a)}.t{fill:#1d2440;text-anchor:middle}"
)
ARROW = (
    '<defs><marker id="a" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="6" markerHeight="6" orient="auto">'
    '<path d="M0 0 8 4 0 8z" fill="#8a96d8"/></marker></defs>'
)
Arrows = dict[str, set[str]]
#: Where an arrow passes a row on its way: from, to, and the row.
Pass = tuple[str, str, int]


def svg(table: Mapping[str, str], packages: set[str], label: str) -> str:
    """The picture of one table; rows that are no package are modules of the root."""
    arrows = {row: set(names.split()) for row, names in table.items()}
    below = {row: _below(row, arrows) for row in arrows}
    drawn = [
        (row, name)
        for row, names in arrows.items()
        for name in sorted(names)
        if not any(name in below[other] for other in names)
    ]
    heights = _heights(arrows)
    top = max(heights.values())
    levels: list[list[str | Pass]] = [
        [row for row in arrows if heights[row] == top - depth] for depth in range(top + 1)
    ]
    ways: list[list[str | Pass]] = []
    for row, name in drawn:
        passes: list[str | Pass] = [(row, name, depth) for depth in range(top - heights[row] + 1, top - heights[name])]
        for one in passes:
            levels[one[2]].append(one)  # pyright: ignore[reportArgumentType, reportCallIssue]
        ways.append([row, *passes, name])
    _order(levels, ways)
    places: dict[str | Pass, tuple[float, float]] = {}
    for depth, names in enumerate(levels):
        space = (WIDTH - 2 * MARGIN - sum(map(_width, names))) / (len(names) + 1)
        x = MARGIN + space
        for name in names:
            places[name] = (x + _width(name) / 2, MARGIN + depth * ROW)
            x += _width(name) + space
    height = 2 * MARGIN + ROW * top + BOX
    lines = [_line([places[step] for step in way]) for way in ways]
    boxes = [_box(row, places[row], row in packages) for row in arrows]
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="system-ui, sans-serif"'
        f' font-size="13" role="img" aria-label="{escape(label)}">',
        f"<style>{STYLE}</style>", ARROW, f'<rect width="{WIDTH}" height="{height}" fill="#fafbff"/>',
        *lines, *boxes, "</svg>\n",
    ])  # fmt: skip


def _below(row: str, arrows: Arrows) -> set[str]:
    return arrows[row].union(*(_below(name, arrows) for name in arrows[row]))


def _heights(arrows: Arrows) -> dict[str, int]:
    """Each row stands just above the highest that it imports; what imports nothing is lowest."""
    heights: dict[str, int] = {}
    for row in reversed(arrows):
        heights[row] = max((heights[name] + 1 for name in arrows[row]), default=0)
    return heights


def _order(levels: list[list[str | Pass]], ways: list[list[str | Pass]]) -> None:
    """Sort each level so that arrows are short: by the middle of what it is joined with, a few times over."""
    # Lists, not sets: the picture has to be the same each time.
    joined: dict[str | Pass, list[str | Pass]] = {name: [] for level in levels for name in level}
    for way in ways:
        for one, other in pairwise(way):
            joined[one].append(other)
            joined[other].append(one)
    places = {name: (i + 1) / (len(level) + 1) for level in levels for i, name in enumerate(level)}
    for _ in range(40):
        for level in levels:
            level.sort(
                key=lambda name: sum(places[j] for j in joined[name]) / len(joined[name]) if joined[name] else 1.0
            )
            places |= {name: (i + 1) / (len(level) + 1) for i, name in enumerate(level)}


def _width(name: str | Pass) -> float:
    return max(64.0, len(name) * CHARACTER + 2 * GAP) if isinstance(name, str) else 12.0


def _box(name: str, place: tuple[float, float], package: bool) -> str:
    (x, y), width = place, _width(name)
    kind = "b" if package else "b m"
    return (
        f'<rect class="{kind}" x="{x - width / 2:.0f}" y="{y:.0f}" width="{width:.0f}" height="{BOX}" rx="7"/>'
        f'<text class="t" x="{x:.0f}" y="{y + 20:.0f}">{escape(name)}</text>'
    )


def _line(way: list[tuple[float, float]]) -> str:
    """A curve from the bottom of one box to the top of another, straight down where it passes a level."""
    x, y = way[0][0], way[0][1] + BOX
    parts = [f"M{x:.0f} {y:.0f}"]
    for step, (to, level) in enumerate(way[1:], 1):
        bend = (level - y) / 2
        parts.append(f"C{x:.0f} {y + bend:.0f} {to:.0f} {level - bend:.0f} {to:.0f} {level:.0f}")
        x, y = to, level
        if step < len(way) - 1:
            y += BOX
            parts.append(f"V{y:.0f}")
    return f'<path class="l" d="{" ".join(parts)}"/>'
