"""What a run did and found."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Report:
    """`did` counts actions by name, `faults` are what should never be."""

    seed: int
    seconds: float
    did: Counter[str] = field(default_factory=Counter[str])
    faults: list[str] = field(default_factory=list)
    pulse: str = ""

    def text(self) -> str:
        cells = {name: n for name, n in sorted(self.did.items()) if name.startswith("cell ")}
        acts = {name: n for name, n in sorted(self.did.items()) if name not in cells}
        lines = [
            f"seed {self.seed}, {self.seconds:g} s",
            f"{sum(cells.values())} cells: "
            + ", ".join(f"{n} {name.removeprefix('cell ')}" for name, n in cells.items()),
            "besides: " + ", ".join(f"{n} {name}" for name, n in acts.items()),
            self.pulse,
            f"{len(self.faults)} faults" if self.faults else "clean: no fault, no process and no file left",
        ]
        return "\n".join([*lines, *self.faults])
