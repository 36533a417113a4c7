"""Counts tokens in a process of its own, which is started when a count is first needed.

tiktoken holds the interpreter for a third of a second while it takes in the vocabulary, and
keeps 48 MB: in a server, every call would wait for the one. Owns that process: a line of JSON
for each question and each answer, ended by the end of its input, so that it never outlives
its server, and by itself when nothing was asked for long. One that does not answer (it was stopped, its memory
is on a disk) is given up and replaced, so that no result waits for it. What bounds decide (`vocabulary.decided`)
never gets there. Asked by `rendering.message` and `usecases.result_bodies`, in threads.

Run as a module, it is that process.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

from loommux_host.facts.result_limits import TOKEN_LIMIT
from loommux_host.init.system_calls import close_process
from loommux_host.token_counting.exchange import NoAnswer, exchange
from loommux_host.token_counting.vocabulary import SHIPPED, VocabularyUnavailable, decided, encodable

#: After so long without a question the process ends, and its memory is free.
IDLE_SECONDS = 600.0
#: How long one that was killed is waited for.
REAP_SECONDS = 1.0
#: What is said of one that does not answer.
SILENT = "the process that counts tokens did not answer; the next count starts another"
#: Not from the working directory, which is a workspace with modules of its own.
COMMAND = (sys.executable, "-P", "-m", "loommux_host.token_counting.counter")


class Counter(Protocol):
    """Counts o200k_base tokens. Both raise `VocabularyUnavailable`, and may be called from any thread."""

    def counts(self, texts: Sequence[str]) -> list[int]: ...

    def within_limit(self, text: str, limit: int = TOKEN_LIMIT) -> bool: ...


class CountingProcess:
    """Asks the process, one question at a time; starts it when it is not there."""

    def __init__(self, command: Sequence[str] = COMMAND) -> None:
        self._command = command
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        #: How often it was ended here.
        self._closed = 0

    def counts(self, texts: Sequence[str]) -> list[int]:
        """The number of tokens of each text."""
        return self._asked({"texts": list(map(encodable, texts))})

    def within_limit(self, text: str, limit: int = TOKEN_LIMIT) -> bool:
        """Whether `text` has at most `limit` tokens; asked only when no bound decides."""
        known = decided(text, limit)
        return self._asked({"text": encodable(text), "limit": limit}) if known is None else known

    def close(self) -> None:
        """End the process; one that is being asked is not asked again, the next question starts another."""
        self._closed += 1
        if (process := self._process) is not None:
            process.kill()  # also while it is waited for
        with self._lock:
            self._drop()

    def _asked(self, question: dict[str, Any]) -> Any:
        line = json.dumps(question).encode() + b"\n"
        with self._lock:
            closed = self._closed
            try:
                answer = self._answer(line)
                if not answer and closed == self._closed:
                    answer = self._answer(line)  # it had ended just now, having been idle
            except NoAnswer:
                self._drop()
                raise VocabularyUnavailable(SILENT) from None
            except (OSError, RuntimeError, MemoryError) as error:
                raise VocabularyUnavailable(f"the process that counts tokens cannot be started: {error}") from error
        if not answer:
            raise VocabularyUnavailable("the process that counts tokens ends at once; its reason is in the log")
        said = json.loads(answer)
        if "error" in said:
            raise VocabularyUnavailable(said["error"])
        return said["answer"]

    def _answer(self, line: bytes) -> bytes:
        """What it answers; nothing when it has ended, and then it is dropped."""
        if self._process is None:
            # A group of its own: Ctrl+C at the server's terminal is for the server. In the server's session: what
            # left that and became the server's child was orphaned by a kernel, and is ended (`stray_processes`).
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, process_group=0
            )
            atexit.register(self.close)
        answer = exchange(self._process, line)
        if not answer:
            self._drop()
        return answer

    def _drop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            atexit.unregister(self.close)
            process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):  # it waits for a disk: it ends when that answers
                process.wait(REAP_SECONDS)
            for end in (process.stdin, process.stdout):
                try:
                    end.close()  # pyright: ignore[reportOptionalMemberAccess]
                except BrokenPipeError:
                    continue


COUNTING = CountingProcess()


def main() -> None:
    """Answer until the input ends, or until nothing has been asked for long."""
    close_process()
    idle = _alarm() if sys.platform != "win32" else _timer()
    for line in sys.stdin:
        idle(0)
        question = json.loads(line)
        try:
            answer = {"answer": SHIPPED.counts(**question) if "texts" in question else SHIPPED.within_limit(**question)}
        except VocabularyUnavailable as error:
            answer = {"error": str(error)}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
        idle(IDLE_SECONDS)


def _alarm() -> Callable[[float], object]:
    """Sets when this process ends; 0 is never. It needs no thread, which there may not be."""
    import signal

    signal.signal(signal.SIGALRM, lambda *_: os._exit(0))
    signal.setitimer(signal.ITIMER_REAL, IDLE_SECONDS)
    return partial(signal.setitimer, signal.ITIMER_REAL)


def _timer() -> Callable[[float], object]:
    """The same where there is no alarm."""
    timer: threading.Timer | None = None

    def idle(seconds: float) -> None:
        nonlocal timer
        if timer is not None:
            timer.cancel()
        timer = threading.Timer(seconds, os._exit, (0,)) if seconds else None
        if timer is not None:
            timer.daemon = True
            timer.start()

    idle(IDLE_SECONDS)
    return idle


if __name__ == "__main__":
    main()
