"""Interrupts (contract 4): they land in the execution they are meant for, or nowhere."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

from loommux_kernel.running import cell_processes
from loommux_kernel.running.cell_processes import Offspring, Process, Table
from loommux_kernel.shared.protocol import ExecutionEnded, ExecutionStarted, NoticeGiven, OutputArrived, Reply, State
from tests.kernel.kernel_process import Client, KernelProcess

CELLS = 120


def interrupted(server: Client, code: str, pause: float = 0.1) -> tuple[Reply, dict[str, object]]:
    """Run a cell, interrupt it a moment after its start; its reply and the interrupt's answer."""
    request = server.submit(code)
    serial = server.seen + 1
    server.wait_event(ExecutionStarted, serial=serial)
    time.sleep(pause)  # into the middle of the code; the result is the same at any moment
    answer = server.ask("interrupt", serial=serial)
    return server.reply(request), answer


@pytest.mark.parametrize(
    "code",
    [
        "import time; time.sleep(60)",
        "import time; time.sleep(60); never = 1",
        "while True: pass",
        "await __import__('asyncio').sleep(0)\nwhile True: pass",
        "await __import__('asyncio').Event().wait()",
        "import asyncio\nawait asyncio.gather(asyncio.sleep(60), asyncio.sleep(50))",
        "import asyncio\nasync with asyncio.TaskGroup() as g:\n    g.create_task(asyncio.sleep(60))",
        "import queue; queue.Queue().get()",
        "import threading; threading.Event().wait()",
        "exec('while True: pass')",
        "%timeit -n1 -r1 __import__('time').sleep(60)",
        "class R:\n    def __repr__(self):\n        while True: pass\nR()",
        "import asyncio\nasync def hog():\n    await asyncio.sleep(0)\n    while True: pass\n"
        "task = asyncio.create_task(hog())\nawait asyncio.sleep(60)",
    ],
)
def test_python_code_is_interrupted_wherever_it_is(server: Client, code: str) -> None:
    reply, answer = interrupted(server, code)
    assert answer["result"] == "sent"
    assert (reply.state, reply.ename, reply.evalue) == (State.INTERRUPTED, "KeyboardInterrupt", "")
    assert server.run("'untouched'").state is State.COMPLETED


@pytest.mark.parametrize(
    "code",
    [
        "import subprocess; subprocess.run(['sleep', '60'])",
        "import os; os.system('sleep 60'); never = 1",
        "import os\nwhile True: os.system('sleep 60')",
        "%%bash\nsleep 60\nsleep 60",
        "!sleep 60",
        "!sleep 60\nnever = 1",
        "never = !sleep 60",
        "import multiprocessing, time\nwith multiprocessing.Pool(2) as pool: pool.map(time.sleep, [60, 60])",
        "import subprocess, sys\nignoring = 'import signal, time; signal.signal(2, signal.SIG_IGN); time.sleep(60)'\n"
        "subprocess.run([sys.executable, '-c', ignoring])",
    ],
)
@pytest.mark.skipif(sys.platform == "win32", reason="POSIX programs")
def test_a_cell_and_the_processes_it_waits_for_are_interrupted(
    server: Client, kernel: KernelProcess, code: str
) -> None:
    before = descendants(kernel)
    reply, _ = interrupted(server, code, pause=0.3)
    assert reply.state is State.INTERRUPTED
    assert server.run("assert 'never' not in globals()").state is State.COMPLETED
    until(lambda: descendants(kernel) <= before)


def descendants(kernel: KernelProcess) -> set[int]:
    return {p.pid for p in Offspring(kernel.process.pid)._ours(cell_processes.read_table())}


def until(holds: Callable[[], bool], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it did not become true"
        time.sleep(0.02)


def test_an_interrupt_needs_no_thread(server: Client) -> None:
    code = (
        "import subprocess, threading, time\nstart = threading.Thread.start\n"
        'def none_left(self): raise RuntimeError("can\'t start new thread")\n'
        "program = subprocess.Popen(['sleep', '60'])\n"
        "threading.Thread.start = none_left\nprint('ready', flush=True)\n"
        "try:\n    while True: time.sleep(0.01)\nfinally: threading.Thread.start = start"
    )
    request = server.submit(code)
    server.wait_event(OutputArrived, last_line="ready")
    answer = server.ask("interrupt")
    assert answer["result"] == "sent" and len(answer["pending_children"]) == 1
    assert server.reply(request).state is State.INTERRUPTED
    assert server.run("program.wait()").state is State.COMPLETED


def test_a_cells_processes_are_signalled_however_long_the_last_look_at_them_takes(server: Client) -> None:
    # The cell is over before anybody has looked for its processes, and the main thread's own look is slow.
    code = (
        "import subprocess, threading, time\n"
        "offspring = get_ipython().kernel.interrupts.offspring\n"
        "look, start = offspring._table, threading.Thread.start\n"
        "def slow():\n"
        "    if threading.current_thread() is threading.main_thread(): time.sleep(0.4)\n"
        "    return look()\n"
        "def late(self):\n"
        "    if self.name == 'Interrupt': time.sleep(0.1)\n"
        "    start(self)\n"
        "offspring._table, threading.Thread.start = slow, late\n"
        "program = subprocess.Popen(['sleep', '60'])\n"
        "print('ready', flush=True)\n"
        "while True: time.sleep(0.01)"
    )
    request = server.submit(code)
    server.wait_event(OutputArrived, last_line="ready")
    answer = server.ask("interrupt")
    assert answer["result"] == "sent" and len(answer["pending_children"]) == 1
    assert server.reply(request).state is State.INTERRUPTED
    assert server.run("program.wait()").state is State.COMPLETED
    assert server.run("offspring._table, threading.Thread.start = look, start").state is State.COMPLETED


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX programs")
def test_a_pool_whose_making_is_interrupted_leaves_no_thread_that_starts_workers_again(
    server: Client, kernel: KernelProcess
) -> None:
    """The interrupt comes when the pool's threads are being started, before anybody could close the pool."""
    before = descendants(kernel)
    code = (
        "import multiprocessing.pool, threading, time\nstart = threading.Thread.start\n"
        "def slow(self):\n"
        "    start(self)\n"
        "    if threading.current_thread() is threading.main_thread():\n"
        "        print('ready', flush=True)\n"
        "        time.sleep(0.1)\n"
        "threading.Thread.start = slow\n"
        "with multiprocessing.Pool(2) as pool: pool.map(time.sleep, [60, 60])"
    )
    request = server.submit(code)
    server.wait_event(OutputArrived, last_line="ready")
    assert server.ask("interrupt")["result"] == "sent"
    assert server.reply(request).state is State.INTERRUPTED
    check = (
        "threading.Thread.start = start; assert not [t for t in threading.enumerate() if '_handle_workers' in t.name]"
    )
    assert server.run(check).state is State.COMPLETED
    until(lambda: descendants(kernel) <= before)


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX programs")
def test_a_background_server_of_an_earlier_cell_survives_and_so_do_its_children(
    server: Client, kernel: KernelProcess
) -> None:
    started = server.run("import subprocess\nserver = subprocess.Popen(['sh', '-c', 'while :; do sleep 1; done'])")
    assert started.state is State.COMPLETED
    orphan = server.run("%%bash\nsleep 300 &\ndisown\ntrue")
    assert orphan.state is State.COMPLETED
    kept = descendants(kernel)
    assert len(kept) >= 2
    reply, answer = interrupted(server, "import subprocess; subprocess.run(['sleep', '60'])", pause=0.3)
    assert reply.state is State.INTERRUPTED
    signalled = answer["pending_children"]
    assert isinstance(signalled, list)
    assert len(signalled) == 1
    check = "assert server.poll() is None; server.kill(); server.wait()"
    assert server.run(check).state is State.COMPLETED
    sleeper = next(p for p in cell_processes.read_table().values() if p.pid in kept and p.parent != kernel.process.pid)
    os.kill(sleeper.pid, signal.SIGKILL)


@pytest.mark.skipif(sys.platform == "win32", reason="sessions are POSIX")
def test_processes_that_left_the_session_are_listed_and_left_alone(server: Client) -> None:
    code = "import subprocess, time\naway = subprocess.Popen(['sleep', '60'], start_new_session=True)\ntime.sleep(60)"
    reply, answer = interrupted(server, code, pause=0.3)
    assert reply.state is State.INTERRUPTED
    check = f"assert away.poll() is None and [away.pid] == {answer['left_children']}; away.kill(); away.wait()"
    assert server.run(check).state is State.COMPLETED


def test_a_cell_that_swallows_the_interrupt_ends_as_it_does(server: Client) -> None:
    code = "import time\ntry:\n    time.sleep(60)\nexcept KeyboardInterrupt:\n    print('caught')"
    reply, answer = interrupted(server, code)
    assert (answer["result"], reply.state, reply.body) == ("sent", State.COMPLETED, "caught\n")


def test_a_cell_that_turns_the_interrupt_into_an_error_ends_as_that_error(server: Client) -> None:
    code = (
        "import time\ntry:\n    time.sleep(60)\nexcept KeyboardInterrupt:\n    raise RuntimeError('stopped') from None"
    )
    reply, _ = interrupted(server, code)
    assert (reply.state, reply.ename) == (State.ERROR, "RuntimeError")


def test_cleaning_up_after_an_interrupt_is_not_interrupted_again(server: Client) -> None:
    code = "import time\ntry:\n    time.sleep(60)\nfinally:\n    time.sleep(0.3)\n    cleaned = True"
    assert interrupted(server, code)[0].state is State.INTERRUPTED
    assert server.run("assert cleaned").state is State.COMPLETED


def test_a_traceback_of_an_interrupt_ends_in_the_users_code(server: Client) -> None:
    reply, _ = interrupted(server, "def outer():\n    while True: pass\nouter()")
    assert reply.body is not None
    assert "line 2" in reply.body
    assert "_strike" not in reply.body
    assert reply.body.rstrip().endswith("KeyboardInterrupt:")


@pytest.mark.parametrize("event", ["pre_run_cell", "post_run_cell"])
def test_a_hook_around_a_cell_is_interrupted_and_what_follows_it_does_not_run(server: Client, event: str) -> None:
    code = (
        "import time\n"
        "def slow(*_):\n"
        f"    get_ipython().events.unregister('{event}', slow)\n"
        "    time.sleep(60)\n"
        f"get_ipython().events.register('{event}', slow)"
    )
    before = event == "pre_run_cell"
    if before:
        assert server.run(code).state is State.COMPLETED
    reply, _ = interrupted(server, "reached = True" if before else f"reached = False\n{code}")
    assert reply.state is (State.INTERRUPTED if before else State.COMPLETED)
    assert server.run("assert not globals().get('reached')").state is State.COMPLETED


def test_a_completion_that_hangs_is_interrupted_by_its_client(server: Client, kernel: KernelProcess) -> None:
    foreign = kernel.foreign()
    code = (
        "import pathlib\n"
        "class Endless:\n"
        "    def __dir__(self):\n"
        "        pathlib.Path('hangs').touch()\n"
        "        while True: pass\n"
        "endless = Endless()"
    )
    server.run(code)
    request = foreign.send(foreign.shell, "complete_request", {"code": "endless.", "cursor_pos": 8})
    until(lambda: (kernel.workspace / "hangs").exists())
    while not any(m["content"].get("execution_state") == "idle" for m in published_for(foreign, request)):
        foreign.answer(foreign.control, foreign.send(foreign.control, "interrupt_request", {}))
        time.sleep(0.1)
    assert server.run("'fine'").state is State.COMPLETED


def published_for(client: Client, request: dict[str, Any]) -> list[dict[str, Any]]:
    client.take_published()
    return [m for m in client.published if m["parent_header"].get("msg_id") == request["header"]["msg_id"]]


def test_os_system_can_still_be_sent_to_other_processes(server: Client) -> None:
    code = (
        "import os, pickle; assert pickle.loads(pickle.dumps(os.system)) is os.system and os.system('exit 3') >> 8 == 3"
    )
    assert server.run(code).state is State.COMPLETED


def test_a_cell_that_stops_the_loop_does_not_end_the_kernel(server: Client) -> None:
    server.run("import asyncio; asyncio.get_running_loop().stop()")
    assert server.run("'still here'").state is State.COMPLETED


def test_an_idle_kernel_and_the_next_cell_are_left_alone(server: Client) -> None:
    assert server.ask("interrupt")["result"] == "idle"
    assert server.ask("interrupt", serial=server.seen)["result"] == "idle"
    assert server.run("'fine'").state is State.COMPLETED


def test_another_execution_than_the_running_one_is_not_running(server: Client) -> None:
    request = server.submit("import time; time.sleep(0.4)")
    server.wait_event(ExecutionStarted, serial=server.seen + 1)
    assert server.ask("interrupt", serial=server.seen)["result"] == "not_running"
    assert server.ask("interrupt", submission="other")["result"] == "not_running"
    assert server.reply(request).state is State.COMPLETED


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_a_signal_from_outside_reaches_the_running_cell_and_is_told(server: Client, kernel: KernelProcess) -> None:
    request = server.submit("import time; time.sleep(60)")
    server.wait_event(ExecutionStarted, serial=server.seen + 1)
    until(lambda: server.ask("status")["serial"] == server.seen + 1)
    time.sleep(0.1)
    os.kill(kernel.process.pid, signal.SIGINT)
    reply = server.reply(request)
    assert reply.state is State.INTERRUPTED
    assert "SIGINT" in server.wait_event(NoticeGiven, serial=reply.serial).text
    os.kill(kernel.process.pid, signal.SIGINT)
    assert server.run("'fine'").state is State.COMPLETED


def test_code_may_interrupt_itself(server: Client) -> None:
    reply = server.run("import signal, time\nsignal.raise_signal(signal.SIGINT)\ntime.sleep(1)")
    assert (reply.state, reply.ename) == (State.INTERRUPTED, "KeyboardInterrupt")


def test_a_signal_handler_of_the_users_own_lasts_for_its_cell(server: Client) -> None:
    code = (
        "import signal, time\nseen = []\nsignal.signal(signal.SIGINT, lambda *_: seen.append(1))\n"
        "while not seen: time.sleep(0.01)"
    )
    reply, _ = interrupted(server, code)
    assert reply.state is State.COMPLETED
    assert interrupted(server, "while True: pass")[0].state is State.INTERRUPTED


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize(
    ("ending", "status"),
    [("raise ValueError('in the child')", 1), ("import sys; sys.exit(7)", 7), ("pass", 0)],
)
def test_a_forked_child_that_leaves_its_cell_never_becomes_a_second_kernel(
    server: Client, ending: str, status: int
) -> None:
    server.run(f"import os\nchild = os.fork()\nif child == 0:\n    {ending}")
    check = f"assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == {status}"
    assert server.run(check).state is State.COMPLETED


def test_interrupts_at_random_moments_hit_only_what_they_aim_at(server: Client) -> None:
    kinds = [
        "done.append({i})",
        "for _ in range(3000): pass\ndone.append({i})",
        "await __import__('asyncio').sleep(0.002)\ndone.append({i})",
        "import time; time.sleep(0.003)\ndone.append({i})",
        "'a result'\ndone.append({i})",
    ]
    chance = random.Random(7)
    server.run("done = []")
    aimed: set[int] = set()
    replies: dict[int, Reply] = {}
    for i in range(CELLS):
        request = server.submit(kinds[i % len(kinds)].format(i=i))
        if i % 2:
            serial = server.seen + 1
            time.sleep(chance.random() * 0.01)
            if server.ask("interrupt", serial=serial)["result"] == "sent":
                aimed.add(i)
        replies[i] = server.reply(request)
    body = server.run("print(done)").body
    assert body is not None
    done = {int(n) for n in body.strip("[]\n").split(",")}
    assert [
        i for i in range(CELLS) if i not in aimed and (i not in done or replies[i].state is not State.COMPLETED)
    ] == []
    assert [i for i in aimed if (replies[i].state is State.INTERRUPTED) == (i in done)] == []
    server.take_published(0.1)
    started = {e.serial for e in server.events if isinstance(e, ExecutionStarted)}
    assert started == {e.serial for e in server.events if isinstance(e, ExecutionEnded)}


# -- the rule which processes are the cell's, without any ----------------------------------


def table(*processes: Process) -> Table:
    return {p.pid: p for p in processes}


KERNEL = Process(10, 1, 10, 1.0)


def test_the_cells_processes_are_the_kernels_descendants() -> None:
    child, grandchild, other = Process(11, 10, 10, 2.0), Process(12, 11, 10, 3.0), Process(99, 1, 99, 2.0)
    found = Offspring(10, lambda: table(KERNEL, child, grandchild, other)).of_cell()
    assert (found.inside, found.outside) == ([child, grandchild], [])


def test_orphans_stay_in_the_session_that_the_kernel_leads() -> None:
    orphan, away = Process(12, 1, 10, 3.0), Process(13, 10, 13, 3.0)
    found = Offspring(10, lambda: table(KERNEL, orphan, away)).of_cell()
    assert (found.inside, found.outside) == ([orphan], [away])


def test_strangers_of_a_session_that_the_kernel_does_not_lead_are_not_its_own() -> None:
    kernel, stranger = Process(10, 5, 5, 1.0), Process(6, 5, 5, 3.0)
    assert Offspring(10, lambda: table(kernel, stranger)).of_cell().inside == []


def test_what_existed_when_an_earlier_cell_ended_is_spared_and_what_comes_from_it_too() -> None:
    daemon, worker, own = Process(11, 10, 10, 2.0), Process(12, 11, 10, 9.0), Process(13, 10, 10, 9.0)
    now = table(KERNEL, daemon)
    known = Offspring(10, lambda: now)
    known.remember()
    now = table(KERNEL, daemon, worker, own)
    assert known.of_cell().inside == [own]


def test_a_reused_pid_is_another_process() -> None:
    now = table(KERNEL, Process(11, 10, 10, 2.0))
    known = Offspring(10, lambda: now)
    known.remember()
    now = table(KERNEL, Process(11, 10, 10, 8.0))
    assert [p.born for p in known.of_cell().inside] == [8.0]


def test_what_was_born_before_the_cell_is_not_its_own() -> None:
    old, new = Process(11, 10, 10, 2.0), Process(12, 10, 10, 9.0)
    assert Offspring(10, lambda: table(KERNEL, old, new)).of_cell(born_since=5.0).inside == [new]


def test_the_process_table_shows_this_process_and_its_child() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        seen = cell_processes.read_table()
        assert seen[child.pid].parent == os.getpid()
        assert cell_processes.alive([seen[child.pid]]) == [seen[child.pid]]
    finally:
        child.communicate()
    assert cell_processes.alive([seen[child.pid]]) == []
