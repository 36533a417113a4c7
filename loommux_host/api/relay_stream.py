"""Handing out what a forwarded cell says, to the cell that forwards it (contract 8.2).

Owns no state: the lines are in the `relay` that a life keeps, the wake-up is `activity`'s
news. The lines themselves are an agreement between the two kernels; here they are bytes.
Called by `api`.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass

from loommux_host.api.activity import News
from loommux_host.facts.refusals import Refused, execution_not_found
from loommux_host.kernels.kernel import Kernel
from loommux_host.kernels.mirror import View
from loommux_host.kernels.process_life import Life
from loommux_host.kernels.record_reads import in_thread
from loommux_host.kernels.relay_file import MOST_BYTES, Relay
from loommux_host.rendering.sentences import killed
from loommux_host.sessions.callers import Caller, Sessions
from loommux_host.sessions.envelope import Shown
from loommux_kernel.shared.protocol import State


@dataclass(frozen=True)
class RelayStream:
    """The relays of a server's kernels."""

    news: News
    sessions: Sessions

    async def lines(
        self, caller: Caller, kernel: Kernel, number: int, process: int | None, after: int, seconds: float
    ) -> bytes:
        """Whole lines from byte `after` on, and one more that says how far they go and what the cell does.

        Answers at once when there are any or the cell has ended, else after `seconds`. Its state is
        given as ended only with the last lines; then the relay is over, and the caller knows of the
        end. Raises `Refused`.
        """
        life, view, relay = _find(kernel, number, process)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        relay.asked()
        with self.news.listening(kernel) as news:
            while True:
                news.clear()
                ended = not view.running
                lines = await in_thread(relay.read, after)
                left = deadline - loop.time()
                if lines or ended or left <= 0 or self.news.over:
                    break
                await self.news.heard(news, left)
        over = ended and len(lines) < MOST_BYTES
        if over:
            relay.close()
            life.relays.pop(view.serial, None)
            number = life.process.process
            dead = frozenset({number}) if view.state is State.KILLED else frozenset[int]()
            self.sessions.saw(caller, kernel, Shown((number, view.serial), True, dead))
        return lines + _last(kernel, life, view, after + len(lines), over) + b"\n"


def _find(kernel: Kernel, number: int, process: int | None) -> tuple[Life, View, Relay]:
    for life in kernel.lives():
        for view, relay in life.relays.values():
            if view.number == number and not relay.closed and process in (None, life.process.process):
                return life, view, relay
    newest = kernel.life.mirror.recent if kernel.life else None
    raise Refused(execution_not_found(number, newest.number if newest else None, None, process))


def _last(kernel: Kernel, life: Life, view: View, reached: int, over: bool) -> bytes:
    dead = over and view.state is State.KILLED and life.death is not None
    said = {
        "next": reached,
        "state": view.state if over else State.RUNNING,
        "ename": view.ename if over else None,
        "evalue": view.evalue if over else None,
        "message": killed(life.death, kernel.facts()) if dead and life.death else None,
    }
    return json.dumps(said).encode()
