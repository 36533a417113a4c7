"""What happens to a cell's text before Python sees it, and the `%%loommux` magic.

Owns taking the header out without moving any line, and the answer to a header where none
may be. It replaces IPython's clean-up of input: leading blank lines are kept, and what
looks like a prompt is not taken for one. Does not know what a header's options do to the
call; that is the host's. Called by `kernel`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from IPython.core.error import UsageError
from IPython.core.inputtransformer2 import cell_magic, leading_indent
from IPython.core.magic import no_var_expand

from loommux_kernel.shared import header


class CellInput:
    """The input transformations of one kernel."""

    def __init__(
        self, is_self: Callable[[str], bool], of_session: Callable[[], bool], forward: Callable[[str, str], None]
    ) -> None:
        #: Whether a name is this kernel's: naming it is the same as naming none.
        self._is_self = is_self
        #: Whether an MCP session has sent the cell; only those are attached to kernels.
        self._of_session = of_session
        #: Runs a cell in the kernel of that name.
        self._forward = forward
        #: The text of the cell that was sent; only its first line may be a header, once.
        self.sent: str | None = None
        self._taken = 0

    def install(self, shell: Any) -> None:
        manager = shell.input_transformer_manager
        manager.cleanup_transforms = [self.take_out, leading_indent]
        manager.line_transforms = [cell_magic, self.put_back]
        shell.register_magic_function(self.magic, "cell", "loommux")
        shell.register_magic_function(misplaced, "line", "loommux")
        shell.register_magic_function(misplaced, "line", "%loommux")

    def take_out(self, lines: list[str]) -> list[str]:
        """Without the header, a byte order mark, and the blank lines before the code, which `put_back` makes up for."""
        lines = header.split_lines("".join(lines))
        start = self._after_header(lines)
        while start < len(lines) and lines[start].isspace():
            start += 1
        self._taken = start
        return header.split_lines("".join(lines[start:]))

    def put_back(self, lines: list[str]) -> list[str]:
        """As many blank lines as were taken, so that tracebacks count as the sender does."""
        return ["\n"] * self._taken + lines

    def _after_header(self, lines: list[str]) -> int:
        line = header.find(lines)
        if line is None or not self._is_sent(lines):
            return 0
        try:
            found = header.parse(lines[line])
        except header.InvalidHeader:
            return 0  # stays, and is refused as a magic
        if found is None or (found.kernel is not None and not self._is_self(found.kernel)):
            return 0
        return line + 1 if found.attach is None or self._of_session() else 0

    def _is_sent(self, lines: list[str]) -> bool:
        sent = None if self.sent is None else header.without_order_mark(self.sent)
        return sent is not None and "".join(lines).rstrip("\n") == sent.rstrip("\n")

    @no_var_expand
    def magic(self, line: str, cell: str | None = None) -> None:
        """Run the cell in the kernel that its header names, or refuse; any other header was taken out before."""
        __tracebackhide__ = True
        try:
            found = header.parse(f"%%loommux {line}")
        except header.InvalidHeader as error:
            raise UsageError(str(error)) from None
        if found is not None and found.attach is not None and not self._of_session():
            raise UsageError("only an MCP session can be attached to a kernel; this cell comes from a Jupyter client.")
        sent, meant = self.sent, header.parse(self.sent) if self.sent is not None else None
        if sent is None or found is None or found.kernel is None or meant is None or meant.kernel != found.kernel:
            misplaced(line)
            return
        self.sent = None
        # its lines count as the sender does, there too
        self._forward(found.kernel, "\n" * (meant.line + 1) + meant.body(sent))


def misplaced(line: str) -> None:
    """Refuse a header that is not the first line of the cell that was sent."""
    raise UsageError(
        "a %%loommux header is the first line of a cell, once, with two percent signs; "
        "it cannot stand anywhere else. %%loommux? shows help."
    )


CellInput.magic.__doc__ = misplaced.__doc__ = header.HELP
