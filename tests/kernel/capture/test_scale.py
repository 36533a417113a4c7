"""Output at scale: complete, in bounded memory, whoever listens and whatever the main thread does.

Times are measured by the benchmark; here they are only bounded.
"""

from __future__ import annotations

import psutil
import pytest

from loommux_kernel.shared.protocol import Stream
from tests.kernel.kernel_process import Client, KernelProcess
from tests.kernel.reading import displays, execution, text

MEGABYTE = 1_000_000


def _grown(kernel: KernelProcess, before: int) -> float:
    return (psutil.Process(kernel.process.pid).memory_info().rss - before) / MEGABYTE


@pytest.fixture
def resident(kernel: KernelProcess, server: Client) -> int:
    server.run("print('warm')")
    return psutil.Process(kernel.process.pid).memory_info().rss


@pytest.mark.timeout(240)
def test_lines_printed_one_by_one_are_all_there_and_stay_out_of_memory(
    kernel: KernelProcess, server: Client, resident: int
) -> None:
    reply = server.run("for i in range(200_000): print('line', i)", timeout=200)
    assert reply.counts.lines == 200_000
    assert text(kernel, reply.serial).splitlines() == [f"line {i}" for i in range(200_000)]
    assert _grown(kernel, resident) < 64


@pytest.mark.timeout(240)
def test_lines_on_both_streams_by_turns_stay_out_of_memory(
    kernel: KernelProcess, server: Client, resident: int
) -> None:
    code = "import sys\nfor i in range(50_000):\n    print(i)\n    print(i, file=sys.stderr)"
    server.run(code, timeout=200)
    reply = server.run(code, timeout=200)
    assert text(kernel, reply.serial, Stream.STDERR).splitlines() == [str(i) for i in range(50_000)]
    assert _grown(kernel, resident) < 64


@pytest.mark.timeout(240)
def test_big_prints_are_all_there(kernel: KernelProcess, server: Client, resident: int) -> None:
    reply = server.run(
        "for c in range(300): print('\\n'.join(f'line {i}' for i in range(c * 1000, c * 1000 + 1000)))", timeout=200
    )
    assert reply.counts.lines == 300_000
    assert text(kernel, reply.serial).splitlines()[::100_000] == ["line 0", "line 100000", "line 200000"]
    assert _grown(kernel, resident) < 64


@pytest.mark.timeout(240)
def test_one_very_long_line_is_all_there(kernel: KernelProcess, server: Client, resident: int) -> None:
    reply = server.run("print('x' * 10_000_000 + 'the end')", timeout=200)
    assert (reply.counts.lines, reply.counts.characters) == (1, 10_000_008)
    assert text(kernel, reply.serial).endswith("xxthe end\n")
    assert _grown(kernel, resident) < 64


@pytest.mark.timeout(240)
def test_a_client_that_does_not_read_costs_the_record_nothing(kernel: KernelProcess, server: Client) -> None:
    kernel.foreign()  # subscribes, and never looks
    reply = server.run("for i in range(100_000): print('line', i)", timeout=200)
    assert text(kernel, reply.serial).splitlines() == [f"line {i}" for i in range(100_000)]


@pytest.mark.timeout(240)
def test_displays_beside_a_loop_that_never_rests_are_all_recorded(kernel: KernelProcess, server: Client) -> None:
    reply = server.run(
        "import threading, time\nfrom IPython.display import display\ndone = False\n"
        "def show():\n    global done\n    for i in range(200):\n        display(i)\n        time.sleep(0.01)\n"
        "    done = True\n"
        "threading.Thread(target=show).start()\nwhile not done:\n    pass",
        timeout=200,
    )
    assert [d.bundle["text/plain"] for d in displays(kernel, reply.serial)] == [str(i) for i in range(200)]
    assert text(kernel, reply.serial).splitlines() == [str(i) for i in range(200)]


@pytest.mark.timeout(240)
def test_a_progress_bar_that_flushes_at_every_step_is_its_last_state(kernel: KernelProcess, server: Client) -> None:
    reply = server.run(
        "import sys\nfor i in range(20_001):\n    sys.stderr.write(f'\\r{i}/20000'); sys.stderr.flush()\nprint()",
        timeout=200,
    )
    assert text(kernel, reply.serial, Stream.STDERR) == "20000/20000"
    assert execution(kernel, reply.serial).counts[Stream.COMBINED].lines <= 2


@pytest.mark.timeout(240)
def test_many_threads_that_print_lose_no_line(kernel: KernelProcess, server: Client) -> None:
    reply = server.run(
        "import sys, threading\n"
        "def say(n):\n    for i in range(5000): sys.stdout.write(f'{n} {i}\\n')\n"
        "threads = [threading.Thread(target=say, args=(n,)) for n in range(8)]\n"
        "for t in threads: t.start()\nfor t in threads: t.join()",
        timeout=200,
    )
    lines = [line.split() for line in text(kernel, reply.serial).splitlines()]
    for n in range(8):
        assert [int(i) for who, i in lines if who == str(n)] == list(range(5000))
