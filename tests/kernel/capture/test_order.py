"""Where output goes and in which order: a matrix of writers, each with its expected place."""

from __future__ import annotations

import psutil
import pytest
import zmq

from loommux_kernel.shared.protocol import Counts, NoticeGiven, OutputArrived, State, Stream
from tests.kernel.kernel_process import Client, KernelProcess
from tests.kernel.reading import text, wait_text

#: Python 3.12 and later warn in the cell that forks, as every kernel has threads.
FORKS_QUIETLY = "import warnings; warnings.filterwarnings('ignore', message='.*multi-threaded')\n"

#: How to write "b" between Python's "a" and "c": name → (setup, code, stream it belongs to).
WRITERS = {
    "print": ("", "print('b')", Stream.STDOUT),
    "print to stderr": ("", "print('b', file=sys.stderr)", Stream.STDERR),
    "a handler of an earlier cell": (
        "import logging; log = logging.getLogger('old'); log.propagate = False\n"
        "log.addHandler(logging.StreamHandler())",
        "log.error('b')",
        Stream.STDERR,
    ),
    "sys.__stdout__": ("", "sys.__stdout__.write('b\\n')", Stream.STDOUT),
    "bytes through sys.stdout.buffer": ("", "sys.stdout.buffer.write(b'b\\n')", Stream.STDOUT),
    "os.write": ("", "os.write(1, b'b\\n')", Stream.STDOUT),
    "os.write to fd 2": ("", "os.write(2, b'b\\n')", Stream.STDERR),
    "C's printf": ("import ctypes; libc = ctypes.CDLL(None)", "libc.printf(b'b\\n')", Stream.STDOUT),
    "a file on fd 1": ("", "os.fdopen(1, 'w', closefd=False).write('b\\n')", Stream.STDOUT),
    "os.system": ("", "os.system('echo b')", Stream.STDOUT),
    "subprocess": ("", "subprocess.run(['echo', 'b'])", Stream.STDOUT),
    "subprocess to its caller's stderr": ("", "subprocess.run(['echo', 'b'], stdout=sys.stderr)", Stream.STDERR),
    "a shell command": ("", "get_ipython().system('echo b')", Stream.STDOUT),
    "a bash script": ("", "get_ipython().run_cell_magic('bash', '', 'echo b')", Stream.STDOUT),
    "a thread that is waited for": (
        "import threading",
        "t = threading.Thread(target=print, args=('b',)); t.start(); t.join()",
        Stream.STDOUT,
    ),
    "a pool's worker": (
        "from concurrent.futures import ThreadPoolExecutor; pool = ThreadPoolExecutor(1); pool.submit(int).result()",
        "pool.submit(print, 'b').result()",
        Stream.STDOUT,
    ),
    "a task that is awaited": (
        "import asyncio\nasync def say(): print('b')",
        "await asyncio.create_task(say())",
        Stream.STDOUT,
    ),
    "a fork": (
        "",
        "pid = os.fork()\nif pid == 0:\n    print('b')\n    os._exit(0)\nos.waitpid(pid, 0)",
        Stream.STDOUT,
    ),
    "multiprocessing by fork": (
        "import multiprocessing",
        "p = multiprocessing.get_context('fork').Process(target=print, args=('b',)); p.start(); p.join()",
        Stream.STDOUT,
    ),
    "multiprocessing by spawn": (
        "import multiprocessing",
        "p = multiprocessing.get_context('spawn').Process(target=print, args=('b',)); p.start(); p.join()",
        Stream.STDOUT,
    ),
    "multiprocessing by forkserver": (
        "import multiprocessing",
        "p = multiprocessing.get_context('forkserver').Process(target=print, args=('b',)); p.start(); p.join()",
        Stream.STDOUT,
    ),
}


@pytest.mark.parametrize("writer", WRITERS)
def test_what_is_written_stands_where_it_was_written(kernel: KernelProcess, server: Client, writer: str) -> None:
    setup, code, stream = WRITERS[writer]
    server.run(f"import os, sys, subprocess\n{FORKS_QUIETLY}{setup}")
    reply = server.run(f"print('a')\n{code};\nprint('c')", timeout=60)
    assert reply.state is State.COMPLETED, text(kernel, reply.serial)
    assert text(kernel, reply.serial) == "a\nb\nc\n"
    assert text(kernel, reply.serial, stream) == ("a\nb\nc\n" if stream is Stream.STDOUT else "b\n")


LATE_WRITERS = {
    "a thread": "import threading, time\nthreading.Thread(target=lambda: (time.sleep(0.3), print('late'))).start()",
    "a timer": "import threading\nthreading.Timer(0.3, print, ['late']).start()",
    "a child that outlives its cell": "import subprocess\np = subprocess.Popen('sleep 0.3; echo late', shell=True)",
    "a background shell command": "!(sleep 0.3; echo late) &",
    "a script's background": "%%bash\n(sleep 0.3; echo late) &",
    "an asyncio task": "import asyncio\nasync def later():\n    await asyncio.sleep(0.3)\n    print('late')\n"
    "task = asyncio.create_task(later())",
    "a callback": "import asyncio\nasyncio.get_running_loop().call_later(0.3, print, 'late');",
    "a forked child": "import os, time\nif os.fork() == 0:\n    time.sleep(0.3); print('late'); os._exit(0)",
}


@pytest.mark.parametrize("writer", LATE_WRITERS)
def test_late_output_belongs_to_the_cell_that_started_its_writer(
    kernel: KernelProcess, server: Client, writer: str
) -> None:
    server.run(FORKS_QUIETLY)
    starter = server.run(LATE_WRITERS[writer])
    next_one = server.run("print('next')")
    assert wait_text(kernel, starter.serial, "late") == "late\n"
    assert text(kernel, next_one.serial) == "next\n"
    event = server.wait_event(OutputArrived, serial=starter.serial, late_lines=1)
    assert event.last_line == "late"


def test_work_given_to_a_pool_of_an_earlier_cell_belongs_to_the_cell_that_gave_it(
    kernel: KernelProcess, server: Client
) -> None:
    server.run("from concurrent.futures import ThreadPoolExecutor; pool = ThreadPoolExecutor(2)")
    first = server.run("pool.submit(print, 'one').result()")
    second = server.run("list(pool.map(print, ['two']));")
    assert [text(kernel, r.serial) for r in (first, second)] == ["one\n", "two\n"]


def test_both_streams_keep_their_order_to_the_character(kernel: KernelProcess, server: Client) -> None:
    reply = server.run(
        "import sys\nfor i in range(20000):\n"
        "    print('o', i)\n    sys.stderr.write('e'); sys.stderr.write(f' {i}\\n')",
        timeout=60,
    )
    lines = text(kernel, reply.serial).splitlines()
    assert lines == [f"{kind} {i}" for i in range(20000) for kind in "oe"]
    assert reply.counts.lines == 40000
    assert text(kernel, reply.serial, Stream.STDERR).splitlines() == lines[1::2]


def test_a_character_split_over_two_writes_is_one_character(kernel: KernelProcess, server: Client) -> None:
    reply = server.run(
        "import os, sys, time\n"
        "sys.stdout.buffer.write(b'\\xe2\\x82'); sys.stdout.buffer.write(b'\\xac')\n"
        "os.write(1, b'\\xe2'); time.sleep(0.1); os.write(1, b'\\x82\\xac\\n');"
    )
    assert text(kernel, reply.serial) == "€€\n"


def test_what_is_not_utf8_is_visible(kernel: KernelProcess, server: Client) -> None:
    reply = server.run(
        "import os, sys; os.write(1, b'\\xff|'); print('\\udce9|'); sys.stdout.buffer.write(b'\\xfe\\n');"
    )
    assert text(kernel, reply.serial, Stream.STDOUT) == "\\xff|\\udce9|\n\\xfe\n"


def test_a_forked_childs_print_is_not_lost_at_its_exit_and_not_repeated(kernel: KernelProcess, server: Client) -> None:
    reply = server.run(
        FORKS_QUIETLY + "import os\nprint('before')\n"
        "for n in range(3):\n"
        "    pid = os.fork()\n"
        "    if pid == 0:\n        print('child', n, end='')\n        os._exit(0)\n"
        "    os.waitpid(pid, 0)\n"
        "    print('')\n"
        "print('after')"
    )
    assert text(kernel, reply.serial) == "before\nchild 0\nchild 1\nchild 2\nafter\n"


#: How it ends, the last that it says, its exit code: as a script.
ENDS_OF_CHILDREN = (
    ("raise SystemExit(3)", "", 3),
    ("import sys; sys.exit()", "", 0),
    ("raise SystemExit('no luck')", "no luck\n", 1),
    ("1 / 0", "\nZeroDivisionError: division by zero\n", 1),
)


def test_a_child_that_falls_out_of_its_cell_ends_and_the_kernel_goes_on(kernel: KernelProcess, server: Client) -> None:
    code = "import os\npid = os.fork()\nif pid == 0:\n    {}\nos.waitpid(pid, 0)[1] >> 8"
    for end, said, status in ENDS_OF_CHILDREN:
        reply = server.run(code.format(end))
        shown = text(kernel, reply.serial)
        assert reply.state is State.COMPLETED
        assert shown.endswith(f"{said}Out[{reply.number}]: {status}\n"), shown
        assert text(kernel, reply.serial, Stream.TRACEBACK) == ""
        assert bool(said) == bool(text(kernel, reply.serial, Stream.STDERR))


def test_a_client_is_told_of_no_error_when_a_forked_child_fails(kernel: KernelProcess, server: Client) -> None:
    client = kernel.foreign()
    request = client.execute("import os\npid = os.fork()\nif pid == 0:\n    1 / 0\nos.waitpid(pid, 0)[1] >> 8")
    kinds = {message["header"]["msg_type"] for message in client.wait_idle(request)}
    assert "execute_result" in kinds and "error" not in kinds
    server.seen = server.ask("status")["last_serial"]


def test_displays_of_a_forked_child_are_recorded(kernel: KernelProcess, server: Client) -> None:
    reply = server.run(
        "import os\nfrom IPython.display import display\n"
        "if os.fork() == 0:\n    display('from the child')\n    os._exit(0)\nos.wait();"
    )
    wait_text(kernel, reply.serial, "'from the child'")


@pytest.mark.case("X01")
def test_no_port_is_open_for_forked_children_and_what_is_not_theirs_gets_into_no_record(
    kernel: KernelProcess, server: Client
) -> None:
    listening = [
        c for c in psutil.Process(kernel.process.pid).net_connections("inet") if c.status == psutil.CONN_LISTEN
    ]
    assert not listening
    context = zmq.Context()
    push = context.socket(zmq.PUSH)
    push.connect(f"ipc://{kernel.directory / 'p'}")
    push.send_multipart([b"x", b"please run this"])
    while "was not theirs" not in kernel.log():
        server.ask("status")
    reply = server.run("1")
    context.destroy()
    for serial in range(1, reply.serial + 1):
        assert "please run this" not in text(kernel, serial)


def test_native_code_that_holds_the_interpreter_can_write_any_amount(kernel: KernelProcess, server: Client) -> None:
    reply = server.run(
        "import ctypes\nlibc = ctypes.PyDLL(None)\n"
        "line = b'x' * 99 + b'\\n'\nbuffer = line * 20000\n"
        "print(libc.write(1, buffer, len(buffer)))",
        timeout=60,
    )
    lines = text(kernel, reply.serial).splitlines()
    assert lines == ["x" * 99] * 20000 + ["2000000"]


def test_closing_and_replacing_the_streams_breaks_no_later_cell(kernel: KernelProcess, server: Client) -> None:
    for code in (
        "import sys; sys.stdout.close()",
        "import sys, io; sys.stdout = io.StringIO(); print('gone')",
        "import sys; sys.stdout = sys.stderr = None",
        "import sys; sys.__stdout__ = sys.__stderr__ = None",
        "import os; os.close(1); os.close(2)",
        "import os; os.dup2(os.open('/dev/null', os.O_WRONLY), 1);",
    ):
        server.run(f"{code}\nkept = 1")
        reply = server.run("print('a'); import os, sys; os.write(1, b'b\\n'); print('c', file=sys.stderr); kept")
        assert text(kernel, reply.serial) == f"a\nb\nc\nOut[{reply.number}]: 1\n", code


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("import sys, io; sys.stdout = io.StringIO()", "sys.stdout was replaced; put back for later cells"),
        ("import sys; sys.stderr.close()", "sys.stderr was closed; put back for later cells"),
        ("import os; os.close(1); os.close(0)", "fd 1 was closed, fd 0 was closed; put back for later cells"),
        ("import os; os.dup2(os.open('/dev/null', 1), 2);", "fd 2 was redirected; put back for later cells"),
    ],
)
def test_a_cell_that_took_the_streams_away_is_told_of_it(
    kernel: KernelProcess, server: Client, code: str, told: str
) -> None:
    reply = server.run(code)
    assert server.wait_event(NoticeGiven, serial=reply.serial).text == told


def test_a_display_stands_where_it_was_among_what_native_code_writes(kernel: KernelProcess, server: Client) -> None:
    code = "from IPython.display import display\nimport os\nfor i in range(50): os.write(1, b'o\\n'); display(i)"
    assert text(kernel, server.run(code).serial) == "".join(f"o\n{i}\n" for i in range(50))


def test_a_bundle_is_recorded_as_it_was_when_it_was_displayed(kernel: KernelProcess, server: Client) -> None:
    code = (
        "from IPython.display import display\nbundle = {}\n"
        "for i in range(50): bundle['text/plain'] = str(i); display(bundle, raw=True)"
    )
    assert text(kernel, server.run(code).serial) == "".join(f"{i}\n" for i in range(50))


def test_a_fork_servers_children_write_to_the_cell_that_started_them(kernel: KernelProcess, server: Client) -> None:
    start = "p = context.Process(target=print, args=({!r},)); p.start(); p.join(30); print(p.exitcode)"
    server.run(f"import multiprocessing\ncontext = multiprocessing.get_context('forkserver')\n{start.format('one')}")
    for word in ("two", "three"):
        assert text(kernel, server.run(start.format(word)).serial) == f"{word}\n0\n"


def test_a_closed_stream_refuses_in_its_own_cell(kernel: KernelProcess, server: Client) -> None:
    reply = server.run("import sys; sys.stdout.close(); print('x')")
    assert (reply.ename, reply.evalue) == ("ValueError", "I/O operation on closed file.")


def test_a_program_that_truncates_the_file_behind_its_output_does_not_stop_the_record(
    kernel: KernelProcess, server: Client
) -> None:
    reply = server.run(
        "import subprocess, time\nprint('a')\n"
        "for word in ['a longer one', 'b']:\n"
        "    subprocess.run(f'echo {word} > /dev/stdout', shell=True)\n    print('c')\n"
        "subprocess.run('echo d', shell=True);"
    )
    assert text(kernel, reply.serial) == "a\na longer one\nc\nb\nc\nd\n"


def test_text_of_a_task_that_fails_after_its_cell_is_that_cells_traceback(
    kernel: KernelProcess, server: Client
) -> None:
    reply = server.run(
        "import asyncio\nasync def fails():\n    await asyncio.sleep(0.1)\n    raise ValueError('too late')\n"
        "task = asyncio.create_task(fails())"
    )
    notice = server.wait_event(NoticeGiven, serial=reply.serial)
    assert notice.text == "the task fails failed after the cell ended: ValueError: too late"
    found = text(kernel, reply.serial, Stream.TRACEBACK)
    assert f"Cell In[{reply.number}], line 4" in found
    assert found.endswith("ValueError: too late\n")


def test_a_task_whose_failure_is_awaited_is_told_once(kernel: KernelProcess, server: Client) -> None:
    first = server.run(
        "import asyncio\nasync def fails():\n    await asyncio.sleep(0.05)\n    raise ValueError('awaited')\n"
        "async def handles():\n    try:\n        await asyncio.create_task(fails())\n"
        "    except ValueError as error:\n        print('handled', error)\n"
        "task = asyncio.create_task(handles())"
    )
    assert wait_text(kernel, first.serial, "handled") == "handled awaited\n"
    server.run("await asyncio.sleep(0.3)")
    assert text(kernel, first.serial) == "handled awaited\n"
    server.take_published()
    assert not [e for e in server.events if isinstance(e, NoticeGiven) and e.serial == first.serial]


def test_an_output_widget_is_recorded_and_its_clear_is_its_own(kernel: KernelProcess, server: Client) -> None:
    pytest.importorskip("ipywidgets")
    reply = server.run(
        "import ipywidgets\nout = ipywidgets.Output()\nprint('before')\n"
        "with out:\n    print('inside')\n    from IPython.display import clear_output; clear_output()\n"
        "out.append_stdout('appended\\n')"
    )
    assert text(kernel, reply.serial) == "before\nappended\n"


def test_counts_are_those_of_the_record(kernel: KernelProcess, server: Client) -> None:
    reply = server.run("print('ä' * 3); 5")
    assert reply.counts == Counts(2, 4 + len(f"Out[{reply.number}]: 5\n"), 7 + len(f"Out[{reply.number}]: 5\n"))
    assert reply.body == text(kernel, reply.serial)
