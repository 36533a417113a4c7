"""What the kernel takes for granted of ipykernel, IPython, jupyter_client and Python.

Each test pins one fact that is no promise of theirs. When a new release breaks one, the
module named in the test has to be looked at before anything else.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import signal
import subprocess
import sys
import uuid

import pytest
import zmq
from ipykernel.displayhook import ZMQShellDisplayHook
from ipykernel.ipkernel import IPythonKernel
from ipykernel.kernelapp import IPKernelApp
from ipykernel.kernelbase import Kernel
from ipykernel.zmqshell import ZMQInteractiveShell
from IPython.core.displayhook import DisplayHook
from IPython.core.events import EventManager
from IPython.core.inputtransformer2 import TransformerManager
from IPython.core.interactiveshell import ExecutionResult, InteractiveShell
from jupyter_client.session import Session

SHELL = """
import asyncio, json, sys, os, tempfile
os.environ["IPYTHONDIR"] = tempfile.mkdtemp()
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config
config = Config()
config.HistoryManager.enabled = False
config.HistoryManager.hist_file = ":memory:"
shell = InteractiveShell.instance(config=config)
def count(code, **options):
    before = shell.execution_count
    result = shell.run_cell(code, **{"store_history": True, **options})
    return shell.execution_count - before
"""


def in_a_shell(code: str) -> object:
    """Run code beside an IPython shell in a process of its own; what it puts into `found`."""
    script = f"{SHELL}\n{code}\nsys.stdout = sys.__stdout__\nprint(json.dumps(found))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    return json.loads(done.stdout.splitlines()[-1])


# -- kernel.py, running.py ------------------------------------------------------------------


def test_without_a_shell_channel_thread_there_are_no_subshells() -> None:
    assert isinstance(Kernel._supports_kernel_subshells, property)
    assert "self.shell_channel_thread = ShellChannelThread" in inspect.getsource(IPKernelApp.init_control)
    assert "if self.shell_channel_thread:" in inspect.getsource(IPKernelApp.init_kernel)


def test_ipykernel_takes_sigint_around_every_request_in_these_hooks() -> None:
    for hook in (Kernel.pre_handler_hook, Kernel.post_handler_hook):
        assert "signal(SIGINT" in inspect.getsource(hook)


def test_ipykernel_sleeps_before_a_reply_for_as_long_as_this_says() -> None:
    assert Kernel._execute_sleep.default_value > 0


def test_what_ipykernel_asks_of_a_kernel_around_a_message() -> None:
    source = inspect.getsource(Kernel.dispatch_shell)
    assert "self.should_handle(stream, msg, idents)" in source
    assert 'self.set_parent(idents, msg, channel="shell")' in source
    assert 'self.set_parent(idents, msg, channel="control")' in inspect.getsource(Kernel.process_control)
    assert list(inspect.signature(Kernel.process_control).parameters) == ["self", "msg"]
    assert "async with asyncio_lock" in inspect.getsource(Kernel.shell_main)


def test_ipykernels_own_start_wants_a_debugger_and_its_bases_does_not() -> None:
    assert "debugpy_stream" in inspect.getsource(IPythonKernel.start)
    assert "debugpy" not in inspect.getsource(Kernel.start)


def test_a_control_message_may_be_looked_at_before_it_is_read() -> None:
    session = Session(key=b"k")
    frames = session.serialize(session.msg("kind", {"a": 1}))
    _, signed = session.feed_identities(frames)
    assert session.deserialize(signed, content=False)["header"]["msg_type"] == "kind"
    assert session.deserialize(signed)["content"] == {"a": 1}
    with pytest.raises(ValueError, match="Duplicate"):
        session.deserialize(signed)


def test_jupyter_clients_message_ids_carry_the_senders_pid() -> None:
    assert Session().msg("kind")["header"]["msg_id"].split("_")[-2] == str(os.getpid())


def test_a_result_tells_what_was_raised_before_and_in_the_code() -> None:
    result = ExecutionResult(None)
    assert (result.error_before_exec, result.error_in_exec) == (None, None)


def test_failures_stay_from_one_cell_to_the_next_in_these_places() -> None:
    assert "_last_traceback_during_displayhook = False" in inspect.getsource(ZMQInteractiveShell.run_cell)
    assert "msg" in ZMQShellDisplayHook.__annotations__
    assert '"_last_traceback_during_displayhook"' in inspect.getsource(IPythonKernel.do_execute)


def test_an_xpub_socket_tells_only_of_topics_that_nobody_had() -> None:
    with zmq.Context() as context:
        publisher, first, second = (context.socket(kind) for kind in (zmq.XPUB, zmq.SUB, zmq.SUB))
        address = f"inproc://{uuid.uuid4().hex}"
        publisher.bind(address)
        for subscriber in (first, second):
            subscriber.connect(address)
            subscriber.subscribe(b"topic")
        assert publisher.poll(5000)
        assert publisher.recv() == b"\x01topic"
        assert not publisher.poll(50)
        for socket in (publisher, first, second):
            socket.close(0)


# -- gate.py --------------------------------------------------------------------------------


def test_which_cells_ipython_counts() -> None:
    cells = [
        ("1", {}),
        ("# comment", {}),
        ("def f(:", {}),
        ("1/0", {}),
        ("", {}),
        ("  \n", {}),
        ("1", {"silent": True}),
        ("1", {"store_history": False}),
    ]
    found = in_a_shell(f"found = [count(code, **options) for code, options in {cells!r}]")
    assert found == [1, 1, 1, 1, 0, 0, 0, 0]


def test_a_reset_sets_ipythons_counter_back() -> None:
    assert in_a_shell("count('1'); count('2'); shell.reset(); found = shell.execution_count") == 1


def test_exit_cells_are_left_out_of_the_list_of_inputs() -> None:
    """So that list is filled up to the next number."""
    found = in_a_shell("shell.history_manager.store_inputs(1, 'exit', 'exit'); found = len(shell.user_ns['In'])")
    assert found == 1


def test_a_history_that_is_off_has_no_file_and_no_thread() -> None:
    found = in_a_shell(
        "count('1'); m = shell.history_manager; found = [m.using_thread, m.hist_file, len(m.db_input_cache)]"
    )
    assert found == [False, ":memory:", 1]


# -- moment.py, interrupts.py, guard.py -------------------------------------------------------


def test_the_frames_of_ipython_hold_what_a_signal_handler_looks_for() -> None:
    assert {"to_run", "node"} <= set(InteractiveShell.run_ast_nodes.__code__.co_varnames)
    assert "result" in DisplayHook.__call__.__code__.co_varnames
    for function in (EventManager.trigger, InteractiveShell.run_cell_async, InteractiveShell.run_ast_nodes):
        assert inspect.isfunction(function)


def test_a_cell_runs_with_the_users_globals() -> None:
    found = in_a_shell("shell.run_cell('import sys; same = sys._getframe().f_globals')\nns = shell.user_ns\n"
                       "found = [ns['same'] is shell.user_global_ns, ns is shell.user_global_ns]")  # fmt: skip
    assert found == [True, True]


def test_callbacks_of_ipythons_events_may_be_interrupted() -> None:
    assert "except (Exception, KeyboardInterrupt)" in inspect.getsource(EventManager.trigger)


def test_formatting_an_exception_for_the_history_trusts_its_text() -> None:
    assert "str(evalue)" in inspect.getsource(InteractiveShell._format_exception_for_storage)


def test_a_keyboard_interrupt_in_a_task_leaves_the_loop_fit_to_go_on() -> None:
    loop = asyncio.new_event_loop()
    done: list[str] = []

    async def struck() -> None:
        raise KeyboardInterrupt

    async def other() -> None:
        await asyncio.sleep(0.01)
        done.append("other")
        loop.stop()

    tasks = [loop.create_task(struck()), loop.create_task(other())]
    with pytest.raises(KeyboardInterrupt):
        loop.run_forever()
    loop.run_forever()
    assert done == ["other"]
    assert isinstance(tasks[0].exception(), KeyboardInterrupt)
    loop.close()


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX")
def test_libcs_system_throws_a_sigint_away() -> None:
    code = (
        "import os, signal, threading\n"
        "hits = []\n"
        "signal.signal(signal.SIGINT, lambda *_: hits.append(1))\n"
        "threading.Timer(0.2, signal.pthread_kill, [threading.get_ident(), signal.SIGINT]).start()\n"
        "os.system('sleep 0.5')\n"
        "print(hits)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="POSIX")
def test_a_signal_sent_to_the_main_thread_has_landed_after_its_next_system_call() -> None:
    """What lets `disarm` be sure that nothing is on its way any more."""
    code = (
        "import signal, threading, time\n"
        "hits = []\n"
        "signal.signal(signal.SIGINT, lambda *_: hits.append(1))\n"
        "main, lock, missed = threading.get_ident(), threading.Lock(), 0\n"
        "def send():\n"
        "    with lock: signal.pthread_kill(main, signal.SIGINT)\n"
        "for n in range(300):\n"
        "    thread = threading.Thread(target=send); thread.start()\n"
        "    while not lock.locked() and thread.is_alive(): pass\n"
        "    with lock: pass\n"
        "    if thread.is_alive(): thread.join()\n"
        "    time.sleep(0)\n"
        "    missed += len(hits) != n + 1\n"
        "print(missed)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "0\n"


# -- cell_input.py, app.py --------------------------------------------------------------------


def test_ipythons_clean_up_of_input_is_these_lists() -> None:
    manager = TransformerManager()
    cleanup = [getattr(t, "__name__", type(t).__name__) for t in manager.cleanup_transforms]
    assert cleanup == ["leading_empty_lines", "leading_indent", "PromptStripper", "PromptStripper"]
    assert [t.__name__ for t in manager.line_transforms] == ["cell_magic"]


def test_the_debugger_module_can_do_without_debugpy() -> None:
    code = (
        "import sys\n"
        "sys.modules['debugpy'] = None\n"
        "from ipykernel.debugger import _is_debugpy_available\n"
        "print(_is_debugpy_available)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "False\n"
