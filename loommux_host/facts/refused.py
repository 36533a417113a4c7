"""The exception by which a use-case is left when nothing was done.

Its text and facts are a `Refusal`; `status_words` makes them. Raised by everything between
`usecases.service` and `registry`, translated into an answer by `usecases.service` alone.
"""

from __future__ import annotations

from loommux_host.facts.results import Refusal


class Refused(Exception):
    """Nothing was done; `refusal` says why."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(f"{refusal.status}: {refusal.message}")
        self.refusal = refusal
