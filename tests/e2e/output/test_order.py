"""Where and in whose record each writer's output stands (contract 3.5): a matrix of writers, each with its place."""

from __future__ import annotations

import sys

import pytest

from tests.e2e.driving import Agent, Start, attached, until
from tests.e2e.shown import body, failed, lines_of, notices, number_of, printed

pytestmark = pytest.mark.anyio

SETUP = """\
import asyncio, concurrent.futures, ctypes, logging, multiprocessing, os, subprocess, sys, threading, time, warnings
warnings.filterwarnings('ignore', 'This process .* is multi-threaded')  # of a fork, from Python 3.12 on
libc = ctypes.CDLL(None)
old = logging.getLogger('old'); old.handlers = [logging.StreamHandler()]; old.setLevel(logging.INFO)
pool = concurrent.futures.ThreadPoolExecutor(1)
pool.submit(int).result()
def forked(word):
    pid = os.fork()
    if pid == 0: print(word); os._exit(0)
    os.waitpid(pid, 0)
def in_process(method, word):
    process = multiprocessing.get_context(method).Process(target=print, args=(word,))
    process.start(); process.join()
"""
#: What writes the word `{0}` and returns when that is done; it stands where it was written, in the stream named.
WRITERS = {
    "print": ("print({0!r})", "stdout"),
    "print to stderr": ("print({0!r}, file=sys.stderr)", "stderr"),
    "an old logging handler": ("old.info({0!r})", "stderr"),
    "sys.__stdout__": ("sys.__stdout__.write({0!r} + '\\n')", "stdout"),
    "sys.stdout.buffer": ("sys.stdout.buffer.write({0!r}.encode() + b'\\n')", "stdout"),
    "os.write to 1": ("os.write(1, {0!r}.encode() + b'\\n')", "stdout"),
    "os.write to 2": ("os.write(2, {0!r}.encode() + b'\\n')", "stderr"),
    "C's printf": ("libc.printf(b'%s\\n', {0!r}.encode())", "stdout"),
    "os.system": ("os.system('echo ' + {0!r})", "stdout"),
    "subprocess": ("subprocess.run(['echo', {0!r}])", "stdout"),
    "subprocess to stderr": ("subprocess.run(['sh', '-c', 'echo $0 >&2', {0!r}])", "stderr"),
    "!": ("get_ipython().system('echo ' + {0!r})", "stdout"),
    "%%bash": ("get_ipython().run_cell_magic('bash', '', 'echo ' + {0!r})", "stdout"),
    "a display": ("display({{'text/plain': {0!r}}}, raw=True)", "result"),
    "a thread": ("thread = threading.Thread(target=print, args=({0!r},)); thread.start(); thread.join()", "stdout"),
    "a worker of an earlier pool": ("pool.submit(print, {0!r}).result()", "stdout"),
    "a task": ("await asyncio.create_task(asyncio.to_thread(print, {0!r}))", "stdout"),
    "a fork": ("forked({0!r})", "stdout"),
    "multiprocessing by fork": ("in_process('fork', {0!r})", "stdout"),
    "multiprocessing by spawn": ("in_process('spawn', {0!r})", "stdout"),
    "multiprocessing by forkserver": ("in_process('forkserver', {0!r})", "stdout"),
}  # fmt: skip


async def test_all_that_a_cell_waits_for_stands_where_it_was_written(agent: Agent) -> None:
    await agent.run(SETUP)
    words = {f"w{index}": (code, stream) for index, (code, stream) in enumerate(WRITERS.values())}
    # What Python prints in between keeps what is written to two descriptors in order.
    source = "\n".join(f"{code.format(word)}; print('|')" for word, (code, _) in words.items())
    text = await agent.run(f"%%loommux --wait 60 --silence 60\n{source}")
    assert body(text).split("\n") == [line for word in words for line in (word, "|")]
    for stream in ("stdout", "stderr", "result"):
        own = [line for line in await lines_of(agent, stream=stream) if line != "|"]
        assert own == [word for word, (_, of) in words.items() if of == stream]


async def test_what_c_code_has_not_flushed_is_in_its_own_cell(agent: Agent) -> None:
    assert (
        await printed(agent, "import ctypes; libc = ctypes.CDLL(None)\nlibc.printf(b'half a line');") == "half a line"
    )
    assert await printed(agent, "print('next')") == "next"


async def test_a_fork_servers_children_write_to_the_cell_that_asked_for_them(agent: Agent) -> None:
    await agent.run(SETUP)
    for word in ("first", "second"):
        assert await printed(agent, f"in_process('forkserver', {word!r})") == word


#: Whole lines in one piece each: what `print` writes in two may have another process's line between.
LATE = """\
def say(word): print(word + '\\n', end='')
def wait_and(say, *words): time.sleep(0.6); say(*words)
threading.Thread(target=wait_and, args=(say, 'thread')).start()
pool.submit(wait_and, say, 'pool worker')
async def task(): await asyncio.sleep(0.6); say('task'); old.info('old handler of a task'); 1 / 0
warnings.filterwarnings('ignore', 'This process .* is multi-threaded')
kept = asyncio.create_task(task())
child = subprocess.Popen('sleep 0.6; echo child; echo child error >&2', shell=True)
def timed(): say('callback')
asyncio.get_running_loop().call_later(0.6, timed);
if os.fork() == 0: time.sleep(0.6); say('forked child'); os._exit(0)
print('started')
"""
LATE_LINES = {
    "thread", "pool worker", "task", "old handler of a task", "child", "child error", "callback", "forked child",
}  # fmt: skip


@pytest.mark.case("M01", "M02")
async def test_what_comes_after_a_cells_end_is_in_its_record_and_told(agent: Agent) -> None:
    await agent.run(SETUP)
    assert await printed(agent, LATE) == "started"
    first = await number_of(agent)
    told: list[str] = []
    for _ in range(2):
        text = await agent.run(
            "time.sleep(0.5); print('mine'); await asyncio.sleep(0.5); subprocess.run(['echo', 'mine too']);"
        )
        assert body(text) == "mine\nmine too"
        told += notices(text)

    async def all_there() -> bool:
        return set(await lines_of(agent, first)) >= LATE_LINES

    await until(all_there)
    told += notices(await agent.run("pass"))
    late = [line for line in told if "after its end" in line]
    assert late
    assert all(line.startswith(f"In [{first}] · ") for line in late)
    failure = f"In [{first}] · the task task failed after the cell ended: ZeroDivisionError: division by zero"
    assert told.count(failure) == 1
    traceback = await lines_of(agent, first, stream="traceback")
    assert traceback[-1] == "ZeroDivisionError: division by zero"
    lines = await lines_of(agent, first)
    assert lines[0] == "started"
    assert sorted(line for line in lines if line in LATE_LINES) == sorted(LATE_LINES)


async def test_a_child_that_outlives_its_cell_writes_there_beside_those_of_later_cells(agent: Agent) -> None:
    source = (
        "import subprocess, time\nold = subprocess.Popen('for i in 1 2 3; do sleep 0.3; echo old $i; done', shell=True)"
    )
    await agent.run(source)
    first = await number_of(agent)
    assert (
        await printed(
            agent, "subprocess.run('for i in 1 2 3; do echo new $i; sleep 0.3; done', shell=True); old.wait();"
        )
        == "new 1\nnew 2\nnew 3"
    )
    assert await lines_of(agent, first) == ["old 1", "old 2", "old 3"]


async def test_python_keeps_its_order_across_both_streams_to_the_character(agent: Agent) -> None:
    source = (
        "import sys, threading\nfor i in range(3000):\n    print(f'{i} out'); print(f'{i} err', file=sys.stderr)\n"
        "    if i % 100 == 0: print('a', end=''); print('b', end='', file=sys.stderr); print('c')"
    )
    await agent.run(source)
    wanted = [line for i in range(3000) for line in [f"{i} out", f"{i} err", *["abc"] * (i % 100 == 0)]]
    assert await lines_of(agent) == wanted
    assert await lines_of(agent, stream="stderr", range="1:2") == ["0 err", "b1 err"]


async def test_what_a_script_writes_to_dev_stderr_is_there_or_it_is_said_that_it_may_not_be(agent: Agent) -> None:
    script = 'log() { echo "[log] $1" > /dev/stderr; }; log start; log middle; log "disk full"; log end'
    lines = (await printed(agent, f"import subprocess; subprocess.run({script!r}, shell=True);")).splitlines()
    assert "[log] end" in lines
    said = [line for line in lines if line.startswith("[lines may be missing here: a program truncated fd 2; ")]
    assert said or len(lines) == 4
    slow = "import time\nfor n in range(5):\n    with open('/dev/stdout', 'w') as file: print('line', n, file=file)"
    assert await printed(agent, f"{slow}\n    print('next')") == "".join(f"line {n}\nnext\n" for n in range(5)).rstrip()


@pytest.mark.case("P02")
async def test_nothing_is_lost_when_a_subscriber_is_slow(agent: Agent) -> None:
    await agent.run("1")
    async with attached(agent):  # its client never reads what it has subscribed to
        text = await agent.run("%%loommux --wait 60 --silence 60\nfor i in range(20000): print('chunk', i, flush=True)")
    assert "Output omitted: 20,000 lines" in text
    for range, wanted in (("1:2", [0, 1]), ("10001:10001", [10000]), ("-1:", [19999])):
        assert await lines_of(agent, range=range) == [f"chunk {i}" for i in wanted]


@pytest.mark.case("R02")
async def test_native_code_that_holds_the_interpreter_writes_any_amount(agent: Agent) -> None:
    source = (
        "import ctypes\nlibc = ctypes.PyDLL(None)\nlibc.printf(b'%s\\n', b'1' * 200000)\n"
        "libc.write(1, b'z' * 2_000_000, 2_000_000); print()"
    )
    assert "Output omitted: 2 lines, 2,200,002 characters" in await agent.run(source)
    assert await lines_of(agent, range="1:1") == ["1" * 200_000]
    (found,) = [await agent.text("search_output", query=f"^z{{{2_000_000}}}$", max_chars=5)]
    assert body(found) == "M 2:1 | zzzzz…"


SPAWNED = """\
import concurrent.futures, multiprocessing
def square(x): return x * x
with concurrent.futures.ProcessPoolExecutor(2, mp_context=multiprocessing.get_context('spawn')) as pool:
    print(list(pool.map(square, range(3))))"""


async def test_a_spawned_worker_that_lacks_a_cells_function_is_an_error_that_shows_why(agent: Agent) -> None:
    for _ in range(2):
        shown, named = await failed(agent, f"%%loommux --wait 60 --silence 60\n{SPAWNED}")
        assert named.startswith("BrokenProcessPool: ")
        assert "AttributeError: Can't get attribute 'square'" in shown
        assert any("Can't get attribute 'square'" in line for line in await lines_of(agent, stream="stderr"))
        left = "import multiprocessing, psutil\nmultiprocessing.active_children()"
        assert (await printed(agent, left)).endswith(": []")
        await agent.run("%reset -f")


@pytest.mark.skipif(sys.platform == "win32", reason="SIGABRT")
async def test_the_last_words_before_an_abort_are_in_the_record(start: Start) -> None:
    source = (
        "import ctypes, os, time\nprint('printed', flush=True)\nos.write(1, b'raw\\n')\n"
        "ctypes.CDLL(None).printf(b'from C\\n')\nos.system('echo from a child')\nos.abort()"
    )
    words = ["printed", "raw", "from C", "from a child"]
    async with start() as agent:
        text = await agent.run(source)
        assert body(text).split("\n")[:4] == words
        assert "ended by SIGABRT" in text
        assert await lines_of(agent) == words
        assert await printed(agent, "print('on')") == "on"
