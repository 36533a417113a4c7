"""Jupyter's own clients, as ``loommux attach`` runs them.

``python -m loommux_host.jupyter.console_clients console|qtconsole FILE``.

Owns two things. Ctrl-C reaches the running cell: the clients refuse to interrupt a kernel that
they have not started, but a kernel can be asked by a message. And the keys of a kernel that is
reached over TCP are used: the clients read them from its file, and leave them there. Everything
else is theirs. Run in a process of its own by `commands.attach`.
"""

from __future__ import annotations

import sys
from typing import Any


def interrupt(client: Any) -> None:
    """Ask the kernel; it interrupts what runs, and tells who wanted it."""
    client.control_channel.send(client.session.msg("interrupt_request", {}))


def with_keys(client: type[Any]) -> type[Any]:
    """A client that has the keys which the app has read."""

    class Client(client):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            if (app := options.get("parent")) is not None:
                self.curve_publickey, self.curve_secretkey = app.curve_publickey, app.curve_secretkey

    return Client


def console(connection_file: str) -> None:
    """The terminal client."""
    from jupyter_console.app import ZMQTerminalIPythonApp  # pyright: ignore[reportMissingImports]

    class Console(ZMQTerminalIPythonApp):
        kernel_client_class = with_keys(ZMQTerminalIPythonApp.kernel_client_class)

        def handle_sigint(self, *arguments: Any) -> None:
            if self.shell._executing:
                interrupt(self.kernel_client)
            else:
                super().handle_sigint(*arguments)

    Console.launch_instance(["--existing", connection_file])


def qtconsole(connection_file: str) -> None:
    """The window."""
    from qtconsole.qtconsoleapp import JupyterQtConsoleApp  # pyright: ignore[reportMissingImports]

    class Window(JupyterQtConsoleApp):
        kernel_client_class = with_keys(JupyterQtConsoleApp.kernel_client_class)

        def init_colors(self, widget: Any) -> None:
            """Called for every tab that is made, before it has its client."""
            super().init_colors(widget)
            widget.custom_interrupt = True
            widget.custom_interrupt_requested.connect(lambda: interrupt(widget.kernel_client))

    Window.launch_instance(["--existing", connection_file])


CLIENTS = {"console": console, "qtconsole": qtconsole}

if __name__ == "__main__":
    CLIENTS[sys.argv[1]](sys.argv[2])
