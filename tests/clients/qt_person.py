"""A person at qtconsole: runs in a process of its own, types cells and says what the window shows.

Cells come as lines of JSON on stdin, ``null`` is Ctrl-C; each is answered by a line with the window's text.
"""

from __future__ import annotations

import json
import sys
import threading
from typing import Any

from qtconsole.qtconsoleapp import JupyterQtConsoleApp
from qtpy import QtCore

from loommux_host.jupyter import console_clients


class Hands(QtCore.QObject):
    asked = QtCore.Signal(object)  # pyright: ignore


def main(connection_file: str) -> None:
    hands = Hands()
    started = JupyterQtConsoleApp.start

    def start(app: Any) -> None:
        widget = app.widget

        def say() -> None:
            sys.stdout.write(json.dumps(widget._control.toPlainText()) + "\n")
            sys.stdout.flush()

        def act(source: str | None) -> None:
            if source is None:
                widget.request_interrupt_kernel()
            else:
                widget.execute(source)

        widget.executed.connect(lambda _: QtCore.QTimer.singleShot(300, say))
        hands.asked.connect(act)
        threading.Thread(target=read, daemon=True).start()
        started(app)

    def read() -> None:
        for line in sys.stdin:
            hands.asked.emit(json.loads(line))

    JupyterQtConsoleApp.start = start  # pyright: ignore
    console_clients.qtconsole(connection_file)


if __name__ == "__main__":
    main(sys.argv[1])
