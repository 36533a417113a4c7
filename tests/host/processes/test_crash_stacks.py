"""The stacks of a process that died of a fatal signal, cut down to what concerns a cell."""

from __future__ import annotations

from loommux_host.processes.crash_stacks import FRAMES, shown

CELL = '  File "/tmp/x/ipykernel_22337/2829193456.py", line {line} in {name}'
OWN = '  File "/venv/lib/IPython/core/interactiveshell.py", line 3823 in run_code'
IDLE = 'Thread 0x00007fc7427fc6c0 (most recent call first):\n  File "/usr/lib/selectors.py", line 468 in select'
EXTENSIONS = "Extension modules: zmq.backend.cython._zmq, psutil (total: 2)"


def text(*threads: str) -> str:
    return "\n\n".join(["Fatal Python error: Segmentation fault", *threads, EXTENSIONS])


def thread(*frames: str, current: bool = True) -> str:
    name = "Current thread" if current else "Thread"
    return "\n".join([f"{name} 0x00007fc74c610b80 (most recent call first):", *frames])


def test_the_thread_that_died_comes_first_down_to_the_cell() -> None:
    string_at = '  File "/usr/lib/ctypes/__init__.py", line 519 in string_at'
    died = thread(string_at, CELL.format(line=1, name="deep"), CELL.format(line=2, name="<module>"), OWN, OWN)
    assert shown(text(IDLE, IDLE, died)).splitlines() == [
        "Fatal Python error: Segmentation fault",
        "Current thread (most recent call first):",
        string_at,
        "  Cell, line 1 in deep",
        "  Cell, line 2 in <module>",
        "  … 2 more frames of IPython and the kernel",
        "2 other threads ran no code of cells.",
        EXTENSIONS,
    ]


def test_other_threads_that_ran_a_cells_code_are_shown_too() -> None:
    worker = thread(CELL.format(line=3, name="work"), '  File "/usr/lib/threading.py", line 982 in run', current=False)
    said = shown(text(worker, thread(CELL.format(line=1, name="<module>"))))
    assert said.index("line 1 in <module>") < said.index("Thread (most recent call first):\n  Cell, line 3 in work")
    assert "other thread" not in said


def test_without_a_cell_the_innermost_frames_are_shown() -> None:
    said = shown(text(thread(*[OWN] * 20)))
    assert said.count("run_code") == 5
    assert "… 15 more frames\n" in said


def test_a_deep_recursion_is_cut() -> None:
    said = shown(text(thread(*[CELL.format(line=9, name="f")] * 99, "  ...")))
    assert said.count("Cell, line 9 in f") == FRAMES
    assert f"… {100 - FRAMES} more frames\n" in said


def test_a_long_list_of_modules_is_cut_and_what_is_not_understood_is_kept() -> None:
    assert len(shown(text(thread(OWN)).replace("psutil", "x" * 5000)).splitlines()[-1]) == 500
    assert shown("Fatal Python error: something new\n<no threads>") == "Fatal Python error: something new\n<no threads>"
