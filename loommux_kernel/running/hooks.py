"""Code of people's that IPython calls around a cell: event hooks, transformers of input and of the syntax tree.

Owns that a cell ends as its own code did, whatever such a hook raises, and that a failure
is told as one notice which names the hook. IPython lets `SystemExit` through, which would
end the cell in the hook's name, and prints its own internals for the rest. The shell uses it.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from typing import Any

from IPython.core.error import InputRejected, UsageError
from IPython.core.events import EventManager

from loommux_kernel.executions.end_states import message_of, safe_text

#: What a transformer says of the cell, by raising it; the cell is refused.
VERDICTS = (SyntaxError, InputRejected, UsageError)
Lines = list[str]
Transform = Callable[[Lines], Lines]
#: Tells of a hook that failed: what it is, the hook, its error. Raises in a forked child, which ends there.
Tell = Callable[[str, Any, BaseException], None]
#: ``("Cell", "In[3]")`` for a cell's file name, None for any other.
CellName = Callable[[str], tuple[str, str] | None]


class Events(EventManager):
    """The event hooks of one shell; `tell` is set when there is somebody to tell."""

    tell: Tell | None = None

    def trigger(self, event: str, *args: Any, **kwargs: Any) -> None:
        """Call all hooks of an event; one that fails keeps neither the others nor the cell from running."""
        for hook in self.callbacks[event][:]:
            try:
                hook(*args, **kwargs)
            except BaseException as error:
                if self.tell is None:
                    raise
                self.tell(f"the {event} hook", hook, error)


def guarded(transform: Transform, tell: Tell) -> Transform:
    """A transformer of input that leaves the lines as they are when it fails."""

    def transformed(lines: Lines) -> Lines:
        try:
            made = transform(lines)
            if not isinstance(made, list) or not all(isinstance(line, str) for line in made):
                raise TypeError(f"it must return a list of lines, not {type(made).__name__}")
        except VERDICTS:
            raise
        except BaseException as error:
            tell("the input transformer", transform, error)
            return lines
        return made

    return transformed


def transformed_tree(tree: ast.AST, transformers: list[Any], tell: Tell) -> ast.AST:
    """The tree after every transformer; one that fails is taken out, as IPython does."""
    for transformer in list(transformers):
        try:
            made = transformer.visit(tree)
            if not isinstance(made, ast.AST):
                raise TypeError(f"it must return a tree, not {type(made).__name__}")
            tree = made
        except InputRejected:
            raise
        except BaseException as error:
            transformers.remove(transformer)
            tell("the AST transformer, taken out now,", transformer, error)
    if transformers:
        ast.fix_missing_locations(tree)
    return tree


def described(what: str, hook: Any, error: BaseException, cell_name: CellName) -> str:
    """What is said of a failure, in one line: which hook, where, and why."""
    name = getattr(hook, "__qualname__", None) or type(hook).__qualname__
    if isinstance(error, KeyboardInterrupt):
        how = "was interrupted"
    else:
        message = " ".join(message_of(error).split())
        how = f"failed: {type(error).__name__}" + (f": {message}" if message else "")
    return safe_text(f"{what} {name}{_place(error, cell_name)} {how}")


def _place(error: BaseException, cell_name: CellName) -> str:
    """Where it was raised: the innermost line of a cell, else the innermost line."""
    places = list(_lines(error))
    in_cells = [(cell[1].replace("In[", "In ["), line) for file, line in places if (cell := cell_name(file))]
    for name, line in (in_cells or places)[-1:]:
        return f" ({name}, line {line})"
    return ""


def _lines(error: BaseException) -> Iterable[tuple[str, int]]:
    trace = error.__traceback__
    trace = trace and trace.tb_next  # the first frame is ours
    while trace is not None:
        yield trace.tb_frame.f_code.co_filename, trace.tb_lineno
        trace = trace.tb_next
