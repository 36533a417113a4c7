"""The terms of leases: immutable generations of the server's lease policy.

Owns the settings a lease is measured by and the numbering of their changes. Knows
no kernel, no caller and no clock. `rules` reads a `Policy` for every lease;
the HTTP face changes the current one and finds the one a client has pinned.
All durations are seconds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from enum import StrEnum


class Mode(StrEnum):
    """What proves that a caller is there (contract 9.4)."""

    ACTIVITY = "activity"
    HEARTBEAT = "heartbeat"
    CONNECTION = "connection"


class Scope(StrEnum):
    """Whether a main kernel was opened for one session, or by name for all that name it."""

    PRIVATE = "private"
    NAMED = "named"


#: The shortest window that can be told from none, in seconds.
LEAST_WINDOW = 1e-3


class InvalidPolicy(ValueError):
    """A policy with values that cannot work; the message names the setting and what is allowed."""


class UnknownGeneration(LookupError):
    """A client pinned a generation that this server never had."""


@dataclass(frozen=True)
class Policy:
    """One generation of the lease settings of ``config.py`` (contract 9.5), which has their defaults."""

    generation: int
    lease_mode: Mode
    private_activity_timeout_seconds: float
    named_activity_timeout_seconds: float
    heartbeat_interval_seconds: float
    heartbeat_timeout_seconds: float
    connection_grace_seconds: float
    orphan_grace_seconds: float

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not field.name.endswith("_seconds"):
                continue
            if not _is_number(value) or value < LEAST_WINDOW:
                words = f"must be a number of seconds of at least {LEAST_WINDOW:g}, not {value!r}"
                raise InvalidPolicy(f"{field.name} {words}")
        if self.lease_mode not in set(Mode):
            raise InvalidPolicy(f"lease_mode must be one of {', '.join(Mode)}, not {self.lease_mode!r}")
        if self.heartbeat_timeout_seconds <= self.heartbeat_interval_seconds:
            raise InvalidPolicy(
                "heartbeat_timeout_seconds must be greater than heartbeat_interval_seconds "
                f"({self.heartbeat_interval_seconds:g}), not {self.heartbeat_timeout_seconds:g}"
            )
        object.__setattr__(self, "lease_mode", Mode(self.lease_mode))

    @classmethod
    def of(cls, settings: object) -> Policy:
        """The first generation, from an object that has the settings as attributes."""
        return cls(generation=1, **{name: getattr(settings, name) for name in SETTINGS})

    def window(self, scope: Scope) -> float:
        """How long a kernel of that scope outlives the last sign of an activity lease."""
        if scope is Scope.NAMED:
            return self.named_activity_timeout_seconds
        return self.private_activity_timeout_seconds


#: What a change of the policy may name.
SETTINGS = tuple(field.name for field in fields(Policy) if field.name != "generation")


class Policies:
    """All generations so far; the last one is what new leases begin with.

    Generations are kept for as long as the server runs: they are few (a person
    makes each one) and a lease or a pinned client may refer to any of them.
    """

    def __init__(self, first: Policy) -> None:
        self._generations = [replace(first, generation=1)]

    @property
    def current(self) -> Policy:
        return self._generations[-1]

    @property
    def generations(self) -> list[Policy]:
        return list(self._generations)

    def recall(self, generations: list[Policy]) -> None:
        """Go on from another server's generations; other settings than its first are one more."""
        configured = self._generations[0]
        if not generations:
            return
        self._generations = list(generations)
        if replace(configured, generation=1) != generations[0]:
            self.change({name: getattr(configured, name) for name in SETTINGS})

    def change(self, settings: dict[str, object]) -> Policy:
        """The generation with these settings changed; the current one when nothing differs.

        Raises InvalidPolicy for a name or a value that is not allowed.
        """
        for name in settings:
            if name not in SETTINGS:
                raise InvalidPolicy(f"{name} is no lease setting; there are {', '.join(SETTINGS)}")
        changed = replace(self.current, **settings)  # type: ignore[arg-type]  # __post_init__ checks each
        if changed == self.current:
            return self.current
        self._generations.append(replace(changed, generation=self.current.generation + 1))
        return self.current

    def pinned(self, generation: int | str | None) -> Policy:
        """The policy a client asked for by number, or the current one without a number."""
        if generation is None:
            return self.current
        if isinstance(generation, str) or not 1 <= generation <= len(self._generations):
            raise UnknownGeneration(
                f"lease policy generation {generation} does not exist; the current one is {self.current.generation}"
            )
        return self._generations[generation - 1]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
