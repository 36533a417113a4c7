"""The process that counts tokens: it says what is counted in one, ends with its server and when idle, is replaced."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from loommux_host.token_counting import exchange
from loommux_host.token_counting.counter import COMMAND, CountingProcess
from loommux_host.token_counting.vocabulary import SHIPPED, VocabularyUnavailable
from tests.host.real_processes import until

TEXTS = ["hello world", "", "naïve 中文 😀\n", "lone \ud800", "a\r\nb"]


@pytest.fixture
def counting() -> Iterator[CountingProcess]:
    made = CountingProcess()
    yield made
    made.close()


def pid(counting: CountingProcess) -> int:
    assert counting._process is not None
    return counting._process.pid


def test_it_says_what_the_vocabulary_says(counting: CountingProcess) -> None:
    assert counting.counts(TEXTS) == SHIPPED.counts(TEXTS)
    text = "word " * 400
    total = SHIPPED.count(text)
    assert [counting.within_limit(text, limit) for limit in (total - 1, total)] == [False, True]


def test_what_bounds_decide_starts_nothing(counting: CountingProcess) -> None:
    assert counting.within_limit("x" * 5_000)
    assert not counting.within_limit("x" * 1_000_000)
    assert counting._process is None


def test_one_that_was_killed_is_replaced_without_a_word(counting: CountingProcess) -> None:
    assert counting.counts(["a b"]) == [2]
    first = pid(counting)
    psutil.Process(first).kill()
    assert counting.counts(["a b c"]) == [3]
    assert pid(counting) != first


def test_it_ends_when_nothing_is_asked_and_is_started_again() -> None:
    quick = "import loommux_host.token_counting.counter as counting; counting.IDLE_SECONDS = 0.2; counting.main()"
    counting = CountingProcess([sys.executable, "-c", quick])
    assert counting.counts(["a b"]) == [2]
    process = counting._process
    assert process is not None
    until(lambda: process.poll() == 0)
    assert counting.counts(["a b c"]) == [3]
    counting.close()


@pytest.mark.case("X06")
@pytest.mark.skipif(sys.platform == "win32", reason="no process is stopped there")
@pytest.mark.parametrize("words", [300, 100_000])  # the second question does not fit into a pipe
def test_one_that_was_stopped_is_given_up_and_replaced(counting: CountingProcess, words: int) -> None:
    assert counting.counts(["a b"]) == [2]
    first = psutil.Process(pid(counting))
    first.suspend()
    with pytest.raises(VocabularyUnavailable, match="did not answer; the next count starts another"):
        counting.counts(["word " * words])
    assert not first.is_running()
    assert counting.counts(["a b c"]) == [3]


@pytest.mark.case("X06")
def test_one_that_uses_no_processor_time_is_given_up() -> None:
    counting = CountingProcess([sys.executable, "-c", "import time; time.sleep(60)"])
    with pytest.raises(VocabularyUnavailable, match="did not answer"):
        counting.counts(["a b"])


def test_one_that_works_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "PATIENCE_SECONDS", 1.0)
    slow = (
        "import sys, time; sys.stdin.readline()\nwhile time.process_time() < 2.5: pass\n"
        "print('{\"answer\": [7]}', flush=True)"
    )
    counting = CountingProcess([sys.executable, "-c", slow])
    assert counting.counts(["a b"]) == [7]
    counting.close()


@pytest.mark.case("X06")
def test_a_question_is_over_when_the_process_is_ended_here() -> None:
    counting = CountingProcess([sys.executable, "-c", "while True: pass"])
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(counting.counts, ["a b"])
        until(lambda: counting._process is not None)
        counting.close()
        with pytest.raises(VocabularyUnavailable):
            asked.result(10)
    assert counting._process is None


@pytest.mark.parametrize(
    ("command", "reason"), [(["/nowhere/python"], "cannot be started"), ([sys.executable, "-c", ""], "ends at once")]
)
def test_one_that_cannot_be_is_told_as_what_it_is(command: list[str], reason: str) -> None:
    with pytest.raises(VocabularyUnavailable, match=reason):
        CountingProcess(command).counts(["a b"])


def test_it_never_outlives_its_server_nor_takes_modules_from_the_workspace(tmp_path: Path) -> None:
    (tmp_path / "tiktoken.py").write_text("raise RuntimeError('not this one')")
    source = (
        "import sys; sys.path.remove(''); from loommux_host.token_counting.counter import COUNTING\n"
        "print(COUNTING.counts(['a b']), 'tiktoken' in sys.modules, COUNTING._process.pid, flush=True)\n"
        "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", source], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    counted, imported, process = done.stdout.rsplit(" ", 2)
    assert (counted, imported) == ("[2]", "False")
    until(lambda: not psutil.pid_exists(int(process)))
    assert "-P" in COMMAND
