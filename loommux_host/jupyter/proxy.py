"""The kernel that Jupyter starts for a notebook: none of its own, but the way to one that an agent works in.

``python -m loommux_host.jupyter.proxy -f FILE`` is what the kernelspec *loommux session* runs. Owns
which kernel is behind it (the one that ``LOOMMUX_SESSION`` names, else the newest that
answers), what is forwarded, and what a client is told while nothing can be. It follows
its kernel over restarts; a kernel that has ended is replaced by another only after the
client has been told. A shutdown or restart from Jupyter ends this process alone. Needs
nothing but what the server itself needs.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from time import monotonic
from typing import Any

import zmq

from loommux_host.facts.phrases import visible
from loommux_host.jupyter.kernel_finder import NotFound, find, living
from loommux_host.jupyter.proxy_sockets import REQUESTS, Asked, Back, Front
from loommux_host.kernels.jupyter_messages import BadMessage
from loommux_host.version import VERSION

#: How long requests wait for a kernel's next process; a restart takes two seconds, startup files not counted.
HOLD_SECONDS = 20.0
#: How long a process that is connected may take to confirm that its output is heard.
HEARD_SECONDS = 1.0
#: After how many milliseconds it is looked whether something waits no longer, and whether Jupyter is still there.
HELD_TICK, IDLE_TICK = 100, 2000

DESCRIPTION = "The kernel that Jupyter starts for a notebook with the kernelspec of loommux."

#: What a client must know of a kernel to show an error.
NOBODY = {
    "protocol_version": "5.3",
    "implementation": "loommux",
    "implementation_version": VERSION,
    "language_info": {
        "name": "python",
        "version": "3",
        "mimetype": "text/x-python",
        "file_extension": ".py",
        "pygments_lexer": "ipython3",
        "codemirror_mode": {"name": "ipython", "version": 3},
        "nbconvert_exporter": "python",
    },
    "help_links": [],
}


class Proxy:
    """One notebook's way to its kernel."""

    def __init__(self, info: dict[str, Any], wanted: str | None, directory: Path) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._wanted, self._directory = wanted, directory
        self._front = Front(self._context, info)
        self._back: Back | None = None
        self._poller = zmq.Poller()
        for socket in self._front.sockets.values():
            self._poller.register(socket, zmq.POLLIN)
        #: Since when the kernel behind cannot be spoken to, or since when its process is connected.
        self._since = 0.0
        self._held: list[Asked] = []
        #: What the kernel has not answered yet, by message id.
        self._pending: dict[str, Asked] = {}
        #: The kernel that has ended without the client having been told.
        self._lost: str | None = None
        self._ended = False

    def run(self) -> None:
        """Until Jupyter wants its end, or is gone itself."""
        parent = os.getppid() if "JPY_PARENT_PID" in os.environ else None
        while not self._ended and parent in (None, os.getppid()):
            waiting = self._back is not None and not self._ready()
            self._poller.poll(HELD_TICK if waiting else IDLE_TICK)
            self._turn()
        self._context.destroy(linger=1000)

    def _turn(self) -> None:
        """Take what has arrived on every socket."""
        if self._back is not None:
            self._from_kernel(self._back)
        self._front.welcome()
        for channel in ("control", "stdin", "shell"):
            for frames in self._front.take(channel):
                self._from_client(channel, frames)
        for frames in self._front.take("hb"):
            (self._back if self._back is not None and self._ready() else self._front).send("hb", frames)
        if self._back is not None:
            self._look_after(self._back)

    # -- from Jupyter's clients --------------------------------------------------------

    def _from_client(self, channel: str, frames: list[bytes]) -> None:
        try:
            asked = Asked(channel, frames, self._front.wire.read(frames))
        except BadMessage as error:
            say(f"a message on {channel} was not forwarded: {error}")
            return
        if asked.message.kind == "shutdown_request":
            self._shut_down(asked)
        elif channel == "stdin":
            if self._back is not None and self._ready():
                self._forward(self._back, asked)
        elif self._back is None and not self._attach(asked):
            return
        elif self._back is not None and self._ready() and not self._held:
            self._forward(self._back, asked)
        elif self._back is not None and self._back.connected is False and self._waited():
            self._refuse(asked, no_process(self._back.kernel.name))
        else:
            self._held.append(asked)

    def _attach(self, asked: Asked) -> bool:
        """Find a kernel; False when the request was answered with why there is none."""
        if self._lost is not None and asked.message.kind == "execute_request":
            lost, self._lost = self._lost, None
            self._refuse(asked, ended(lost))
            return False
        try:
            kernel = find(self._wanted, living([self._directory]))
        except NotFound as error:
            self._refuse(asked, str(error))
            return False
        self._back = Back(self._context, kernel)
        self._since = monotonic()
        for socket in (*self._back.sockets.values(), self._back.monitor):
            self._poller.register(socket, zmq.POLLIN)
        return True

    def _forward(self, back: Back, asked: Asked) -> None:
        if asked.message.kind.endswith("_request"):
            self._pending[asked.message.id] = asked
        back.send(asked.channel, back.wire.resigned(asked.frames, self._front.wire))

    def _shut_down(self, asked: Asked) -> None:
        """Ours is this process; the kernel goes on."""
        content = {"status": "ok", "restart": bool(asked.message.content.get("restart", False))}
        self._front.reply(asked, "shutdown_reply", content)
        self._front.publish("shutdown_reply", content, asked.message.header)
        self._ended = True

    def _refuse(self, asked: Asked, why: str) -> None:
        """Answer that it cannot be done, as a kernel would."""
        kind, front, parent = asked.message.kind, self._front, asked.message.header
        error = {"ename": "LoommuxError", "evalue": why, "traceback": [f"loommux: {why}"]}
        front.publish("status", {"execution_state": "busy"}, parent)
        content: dict[str, Any] = {"status": "error", **error}
        if kind == "execute_request":
            if not asked.message.content.get("silent"):
                front.publish("error", error, parent)
            content |= {"execution_count": 0, "user_expressions": {}, "payload": []}
        elif kind == "kernel_info_request":
            content |= NOBODY | {"banner": f"loommux: {why}"}
        if kind.endswith("_request"):
            front.reply(asked, kind.removesuffix("request") + "reply", content)
        front.publish("status", {"execution_state": "idle"}, parent)

    # -- from the kernel ------------------------------------------------------------------

    def _from_kernel(self, back: Back) -> None:
        for channel in (*REQUESTS, "iopub"):
            for frames in back.take(channel):
                try:
                    message = back.wire.read(frames)
                    resigned = self._front.wire.resigned(frames, back.wire)
                except BadMessage as error:
                    say(f"a message of {back.kernel.name} on {channel} was not forwarded: {error}")
                    continue
                if channel == "iopub":
                    back.heard = True
                elif channel != "stdin":
                    self._pending.pop(message.parent, None)
                if message.kind != "iopub_welcome":  # meant for this subscriber
                    self._front.send(channel, resigned)
        for frames in back.take("hb"):
            self._front.send("hb", frames)

    # -- the kernel's processes ------------------------------------------------------------

    def _ready(self) -> bool:
        """Whether the kernel's process is connected and heard."""
        back = self._back
        return back is not None and back.connected and (back.heard or monotonic() - self._since > HEARD_SECONDS)

    def _waited(self) -> bool:
        return monotonic() - self._since > HOLD_SECONDS

    def _look_after(self, back: Back) -> None:
        for connected in back.changes():
            self._since = monotonic()
            if not connected:
                self._from_kernel(back)  # its last words come first
                unanswered, self._pending = list(self._pending.values()), {}
                for asked in unanswered:
                    self._refuse(asked, f"the process of kernel {back.kernel.name!r} ended before it had answered.")
        if self._ready():
            held, self._held = self._held, []
            for asked in held:
                self._forward(back, asked)
        elif not back.connected and back.gone:
            self._lose(back)
        elif not back.connected and self._waited():
            self._refuse_held(no_process(back.kernel.name))

    def _lose(self, back: Back) -> None:
        """The kernel has ended; whoever is told is told once."""
        self._back = None
        for socket in (*back.sockets.values(), back.monitor):
            self._poller.unregister(socket)
        back.close()
        told = any(asked.message.kind == "execute_request" for asked in self._held)
        self._lost = None if told else back.kernel.name
        self._refuse_held(ended(back.kernel.name))

    def _refuse_held(self, why: str) -> None:
        held, self._held = self._held, []
        for asked in held:
            self._refuse(asked, why)


def ended(name: str) -> str:
    return (
        f"kernel {name!r} has ended, and its variables with it."
        " Run this again to work in the newest kernel that there is; LOOMMUX_SESSION names another."
    )


def no_process(name: str) -> str:
    return (
        f"kernel {name!r} has no process at the moment; the agent's next cell starts one."
        " Nothing was run. Run this again then."
    )


def say(text: str) -> None:
    """A line in the log of whoever started this."""
    sys.stderr.write(visible(f"loommux proxy: {text}\n"))
    sys.stderr.flush()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m loommux_host.jupyter.proxy", description=DESCRIPTION)
    parser.add_argument("-f", dest="connection_file", metavar="FILE", required=True, help="Jupyter's connection file")
    file = Path(parser.parse_args(arguments).connection_file)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # interrupts come as messages
    Proxy(json.loads(file.read_text()), os.environ.get("LOOMMUX_SESSION"), file.parent).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
