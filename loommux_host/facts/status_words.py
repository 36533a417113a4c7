"""Every status word of a result, once: what it means, and the template of its text.

`rendering` words results with these, and docs/reference.md is checked against the tables. The
words of what did nothing are in `refusals`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Word:
    """A status word's meaning, and the template of its text."""

    meaning: str
    text: str


#: States of an execution; the `status` of run_cell, wait, execution_status, read_output and search_output.
STATES: dict[str, Word] = {
    "running": Word(
        "the cell has not ended; the call has",
        "Running{silence}: use wait() for completion, read_output() for collected output,"
        " or search_output() to locate text.",
    ),
    "completed": Word("the cell ended without an error", ""),
    "error": Word("the cell ended by a Python error; its traceback is in the output", ""),
    "interrupted": Word("the cell was ended by an interrupt", "Interrupted."),
    "killed": Word(
        "the process of the cell ended before the cell did",
        "Killed: process {process} {how}{memory}.{company} Variables are gone; {next}. Records: process={process}.",
    ),
}

#: What interrupt answers. Those in `NOTHING_DONE` did nothing and are marked as errors.
INTERRUPTS: dict[str, Word] = {
    "interrupted": Word(
        "the cell has ended by the interrupt",
        "interrupted: {cell} ended by the interrupt after {elapsed}; the kernel keeps its variables{detail}.",
    ),
    "ended": Word(
        "the cell has ended, and not as interrupted: it came to its end first, or caught the interrupt",
        "ended: {cell} has ended after {elapsed}, not as interrupted; its state is {state}{detail}.",
    ),
    "interrupt_sent": Word(
        "the interrupt was sent, but the cell still runs",
        "interrupt_sent: {cell} still runs after {elapsed}{detail}. Use wait() to see whether it ends;"
        " restart() always works.",
    ),
    "idle": Word(
        "nothing runs, so there was nothing to interrupt", "idle: {kernel} runs no cell. Nothing was interrupted."
    ),
    "not_running": Word(
        "the named execution does not run", "not_running: {cell} does not run{detail}. Nothing was interrupted."
    ),
}
NOTHING_DONE = frozenset({"idle", "not_running"})

#: What restart answers.
RESTARTS: dict[str, Word] = {
    "restarted": Word(
        "a new process runs in place of the old one",
        "restarted: process {new} (pid {new_pid}) replaces {old}. Variables are gone; the next cell is In [1].",
    ),
}

#: What wait answers about a watch.
WATCHES: dict[str, Word] = {
    "watch_running": Word(
        "no watch that was asked for has ended; they go on", "Running: {running}. Call wait() again; nothing was ended."
    ),
    "watch_completed": Word("the watch ended without an error", "Watch {name}: completed after {elapsed}."),
    "watch_failed": Word("the watch ended by a Python error", "Watch {name}: failed after {elapsed}: {error}."),
    "watch_cancelled": Word(
        "the watch was cancelled, or its process ended before it", "Watch {name}: cancelled after {elapsed}{because}."
    ),
    "watch_ended": Word(
        "the watch has ended, and how was lost on the way; its notice says it", "Watch {name}: ended after {elapsed}."
    ),
}

#: States of a kernel; the `status` of status.
KERNELS: dict[str, Word] = {
    "starting": Word("its first process is being started", ""),
    "running": Word("its process runs; `busy` says whether a cell does", ""),
    "restarting": Word("a new process is being started", ""),
    "unresponsive": Word("its process runs and does not answer; what is said is what was last known", ""),
    "stopped": Word("it has no process; the next call that needs one starts it", ""),
}

#: Why a result has no body; `output_omitted_reason`.
OMISSIONS: dict[str, Word] = {
    "running": Word("the cell has not ended", ""),
    "token_limit_exceeded": Word(
        "the output has more than 5,000 o200k_base tokens",
        "Output omitted: {amount}; over {limit:,} tokens. Use read_output() or search_output();"
        " %%loommux --full-output returns all of the next run.",
    ),
    "size_limit_exceeded": Word(
        "the output has more than 200,000 characters, or does not fit into `max_result_bytes`",
        "{what} omitted: {amount}; {why}. Next: {call}, or {other}.",
    ),
    "token_limit_unavailable": Word(
        "the shipped vocabulary cannot be loaded, or the process that counts tokens does not answer",
        "Output omitted: {cell} is {state}, {amount}. The limit of {limit:,} tokens could not be applied ({reason})."
        " Use read_output() or search_output(); %%loommux --full-output returns all of the next run.",
    ),
    "output_unreadable": Word(
        "the record store has not taken the output yet, or cannot be read",
        "Output omitted: its record cannot be read yet; {call} shows it once that is possible.",
    ),
    "output_gone": Word(
        "somebody has removed the files in which its record was",
        "Output omitted: {amount}; it is gone, for the files of its record were removed. The cell itself has run.",
    ),
}

#: Lines that stand beside output in a result, apart from the sentences above.
BESIDE_OUTPUT: dict[str, str] = {
    "heading": "{cell} · {duration}:",
    "shutdown": "The server {why}; the cell ends with it.",
    "recent": "Last lines:",
    "head": "First {lines}:",
    "tail": "Last {lines}:",
    "read": "[lines {first}–{last} of {total}{columns}]",
    "read_none": "[no lines of {total}]",
    "search": "[{matching}, {matches}, of {total}]",
    "search_none": "[no matching lines]",
    "stacks": "Python stacks at that moment:",
}

#: Why a server does not start: one line on stderr, ``<word>: <what to change>``, and exit code 2.
STARTS: dict[str, Word] = {
    "python_not_found": Word("no interpreter is meant by what was given with --python", ""),
    "config_not_found": Word("the directory given with --config does not exist", ""),
    "config_not_directory": Word("what was given with --config is no directory", ""),
    "config_untrusted": Word(
        "others own the configuration directory or a file in it, may write it, or may read the token", ""
    ),
    "config_load_failed": Word("config.py cannot be read, or raised an exception", ""),
    "config_unknown_setting": Word("config.py defines a name that is no setting", ""),
    "config_invalid_setting": Word("a setting has a value that is not allowed", ""),
    "workspace_config_load_failed": Word("resolve_workspace raised an exception", ""),
    "workspace_config_invalid_return": Word("resolve_workspace returned no path", ""),
    "workspace_not_found": Word("the workspace does not exist", ""),
    "workspace_not_directory": Word("the workspace is no directory", ""),
}
