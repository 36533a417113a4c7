"""The private names of ipykernel, jupyter_client, CPython and IPython that the capture relies on."""

from __future__ import annotations

import _posixsubprocess
import asyncio
import inspect
import pdb
import threading

import pytest
from ipykernel import iostream, kernelapp
from ipykernel.displayhook import ZMQShellDisplayHook
from ipykernel.kernelbase import Kernel
from ipykernel.zmqshell import ZMQDisplayPublisher, ZMQInteractiveShell
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magics._table import BUILTIN_LAZY_MAGICS, MAGICS_CLASSES
from IPython.core.magics.script import ScriptMagics
from jupyter_client.session import DONE, Session

from loommux_kernel.capture import fork_hooks
from loommux_kernel.executions import contexts


def _source(thing: object) -> str:
    return inspect.getsource(thing)  # type: ignore[arg-type]


def test_the_app_makes_its_iopub_thread_from_the_name_in_its_module() -> None:
    assert "self.iopub_thread = IOPubThread(self.iopub_socket, pipe=True, session=self.session)" in _source(
        kernelapp.IPKernelApp.init_iopub
    )


def test_the_app_makes_its_streams_through_outstream_class() -> None:
    source = _source(kernelapp.IPKernelApp.init_io)
    assert 'outstream_factory(self.session, self.iopub_thread, "stdout", echo=e_stdout)' in source
    assert 'outstream_factory(self.session, self.iopub_thread, "stderr", echo=e_stderr)' in source
    assert source.index('"stdout", echo') < source.index('"stderr", echo')


def test_the_iopub_thread_has_what_its_subclass_overrides() -> None:
    assert list(inspect.signature(iostream.IOPubThread.__init__).parameters) == ["self", "socket", "pipe", "session"]
    assert list(inspect.signature(iostream.IOPubThread._handle_subscription).parameters) == ["self", "frames"]
    assert "self.send_multipart(msg[1:])" in _source(iostream.IOPubThread._handle_pipe_msg)
    assert "if pipe:\n            self._setup_pipe_in()" in _source(iostream.IOPubThread.__init__)
    assert "ctx, pipe_out = self._setup_pipe_out()" in _source(iostream.IOPubThread._really_send)
    assert "pipe_out.send_multipart([self._pipe_uuid, *msg]" in _source(iostream.IOPubThread._really_send)
    assert "self._xpub_stream.on_recv(self._handle_subscription)" in _source(iostream.IOPubThread._setup_xpub_listener)
    assert "self._xpub_stream = ZMQStream(self.socket, self.io_loop)" in _source(
        iostream.IOPubThread._setup_xpub_listener
    )


def test_a_session_sends_as_its_subclass_does() -> None:
    assert list(inspect.signature(Session.send).parameters) == [
        "self", "stream", "msg_or_type", "content", "parent", "ident", "buffers", "track", "header", "metadata",
    ]  # fmt: skip
    assert DONE is not None


def test_threads_carry_these_variables_of_ipykernel() -> None:
    for owner in (ZMQInteractiveShell, ZMQDisplayPublisher, ZMQShellDisplayHook):
        made = _source(owner.__init__).partition("self._parent_header")[2].partition("self._parent_header.set")[0]
        assert "ContextVar(" in made
    source = _source(Kernel.__init__)
    assert 'self._shell_parent = ContextVar("shell_parent")' in source
    assert 'self._shell_parent_ident = ContextVar("shell_parent_ident")' in source


def test_ipykernel_shows_errors_through_the_display_hook() -> None:
    source = _source(ZMQInteractiveShell._showtraceback)
    for name in ("dh.topic", "dh.session.send", "dh.pub_socket", "dh.parent_header", "self._last_traceback = stb"):
        assert name in source
    assert "_flush_streams" in _source(ZMQDisplayPublisher.publish)


def test_threading_starts_threads_through_a_name_in_its_module() -> None:
    assert any(hasattr(threading, name) for name in contexts.THREAD_STARTERS)
    source = _source(threading.Thread.start)
    assert any(f"{name}(self._bootstrap" in source for name in contexts.THREAD_STARTERS)


def test_multiprocessing_spawns_through_the_wrapped_name() -> None:
    from multiprocessing import util

    assert "_posixsubprocess.fork_exec" in _source(util.spawnv_passfds)
    assert callable(_posixsubprocess.fork_exec)
    assert "subprocess.Popen" in fork_hooks.STARTS


@pytest.mark.anyio
async def test_a_task_says_whether_anybody_has_fetched_its_exception() -> None:
    async def fails() -> None:
        raise ValueError

    task = asyncio.ensure_future(fails())
    await asyncio.wait([task])
    assert task._log_traceback is True  # type: ignore[attr-defined]
    task.exception()
    assert task._log_traceback is False  # type: ignore[attr-defined]


def test_debuggers_stop_through_these_methods() -> None:
    assert {"set_trace", "interaction"} <= set(dir(pdb.Pdb))
    assert "self.interaction(" in _source(pdb.Pdb.user_line)


def test_ipython_declares_its_script_magics_lazily() -> None:
    assert MAGICS_CLASSES["ScriptMagics"] == "IPython.core.magics.script"
    assert any("script" in table for table in BUILTIN_LAZY_MAGICS.values())
    assert "self.shebang(line, cell)" in _source(ScriptMagics._make_script_magic)
    assert "self.shebang.parser" in _source(ScriptMagics.shebang)


def test_ipython_copies_what_is_printed_through_one_method() -> None:
    assert 'with self._tee(channel="stdout"), self._tee(channel="stderr"):' in _source(InteractiveShell.run_cell)


def test_ipython_asks_these_of_a_shell() -> None:
    names = ("ask_exit", "system", "getoutput", "var_expand", "showtraceback", "_get_exc_info", "run_line_magic")
    assert all(callable(getattr(ZMQInteractiveShell, name)) for name in names)
    assert "self.set_hook" in _source(ZMQInteractiveShell.init_hooks)
    assert "payloadpage_page" in _source(ZMQInteractiveShell.init_hooks)
