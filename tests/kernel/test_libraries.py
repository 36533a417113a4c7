"""Libraries that know a notebook when they see one, and what is mended about them."""

from __future__ import annotations

from kernel_process import Client, KernelProcess
from reading import text


def test_the_shell_has_the_name_by_which_libraries_know_a_notebook(kernel: KernelProcess, server: Client) -> None:
    reply = server.run("print(get_ipython().__class__.__name__)")
    assert text(kernel, reply.serial) == "ZMQInteractiveShell\n"


def test_a_live_display_of_rich_ends_with_its_last_state(kernel: KernelProcess, server: Client) -> None:
    source = (
        "from rich.live import Live\nwith Live('first', auto_refresh=False) as live:\n"
        "    live.update('second', refresh=True)\n    live.update('last')\nprint('after')"
    )
    assert text(kernel, server.run(source, timeout=60).serial) == "last\nafter\n"
