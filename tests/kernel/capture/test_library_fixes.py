"""Libraries that know a notebook when they see one, and what is mended about them."""

from __future__ import annotations

from tests.kernel.kernel_process import Client, KernelProcess
from tests.kernel.reading import text


def test_the_shell_has_the_name_by_which_libraries_know_a_notebook(kernel: KernelProcess, server: Client) -> None:
    reply = server.run("print(get_ipython().__class__.__name__)")
    assert text(kernel, reply.serial) == "ZMQInteractiveShell\n"


def test_a_live_display_of_rich_ends_with_its_last_state(kernel: KernelProcess, server: Client) -> None:
    source = (
        "from rich.live import Live\nwith Live('first', auto_refresh=False) as live:\n"
        "    live.update('second', refresh=True)\n    live.update('last')\nprint('after')"
    )
    assert text(kernel, server.run(source, timeout=60).serial) == "last\nafter\n"


def test_rich_without_ipywidgets_shows_its_state_and_no_warnings(kernel: KernelProcess, server: Client) -> None:
    source = (
        "import sys; sys.modules['ipywidgets'] = None\nfrom rich.live import Live\n"
        "with Live('first', auto_refresh=False) as live:\n"
        "    for i in range(9): live.update(f'[red]step {i}', refresh=True)\n    live.update('last')\n"
        "with Live('gone', transient=True) as live: live.refresh()\nprint('after')"
    )
    try:
        assert text(kernel, server.run(source, timeout=60).serial) == "last\nafter\n"
    finally:
        server.run("del sys.modules['ipywidgets']")


def test_a_mended_library_is_imported_as_any_other(kernel: KernelProcess, server: Client) -> None:
    source = (
        "import importlib, rich.live\nimportlib.reload(rich.live)\n"
        "print(rich.live.Live.__module__, rich.live.__spec__.name)"
    )
    assert text(kernel, server.run(source, timeout=60).serial) == "rich.live rich.live\n"
