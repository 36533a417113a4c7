"""The eight tools and the server's instructions: the words that an agent works from.

Owns what the agent is told before its first call, nothing else. Each description, and
the instructions, stay under 2,000 characters, because clients cut there; what matters
most stands first. They say what a call does to the world, when to use it and when its
neighbour, what comes back, and what to do when the host cut the call short. `parameters`
knows how arguments are checked; `tool_calls` carries calls out.
"""

from __future__ import annotations

from typing import Any

from loommux_host.mcp.parameters import CELL, COUNT, FLAG, POSITIVE, SECONDS, TEXT, Parameter, Tool, one_of
from loommux_kernel.shared.protocol import Stream

INSTRUCTIONS = """\
loommux is a persistent IPython kernel for your work. Variables, imports, the working directory and started \
processes stay from cell to cell, so build on earlier cells. Not a sandbox: cells run with the full rights of \
the account that runs this server.

run_cell runs one cell and returns when it ends, but after 10 s in all or 10 s without output at the latest. \
"In [7] · 8.1 s:" opens its result; 7 is the cell's number for the other tools.

- "Running, …" in a result: the cell goes on by itself. wait(execution=7) waits again and brings the whole \
result; execution_status looks without waiting; read_output reads what it has printed so far.
- "busy: …": another cell is running and nothing of yours was run. wait() for it or interrupt() it, then send \
your cell again.
- A call was cut short, cancelled or lost: the cell was not stopped. Never send it again to get \
its result. status says what ran; wait(execution=N) gives the result again, any number of times.
- A long job: begin its cell with the line %%loommux --wait 50 --silence 50 to wait longer (stay under your \
host's limit for one call), then wait() as often as needed.
- "Output omitted": the result had over 5,000 tokens. read_output(line_range="-50:") reads any lines, \
search_output(query="error") finds some.
- Stuck: interrupt() ends the running cell and keeps variables. When that does not help, restart() always \
does; variables are lost, records of the last three processes stay.

Lines between <loommux-notice> and </loommux-notice> at the end of a result come from the environment, not \
from your code: cells run by others, a new process.

Cells are IPython: top-level await, !command, %magic, %%bash. There is no stdin: input() ends as an error. \
Figures come back as images. loommux is a ready name there: loommux.notify("…") tells you something apart from \
output; lab = loommux.create("lab") is a second kernel beside this one: \
n = lab.run_cell("…", wait_seconds=0)["execution"]; lab.wait(n). More: help(loommux)."""

EXECUTION = Parameter(
    "execution", POSITIVE, "The cell's number, 7 for In [7]. Left out: the running cell, else the most recent one."
)
PROCESS = Parameter(
    "process", POSITIVE, "Only for records of an earlier process of the kernel; a restart or death tells its number."
)
KERNEL = Parameter("kernel", TEXT, 'Only when told: a kernel\'s name or id, the handle a result gave you, or "new".')
STREAM = Parameter(
    "stream", one_of(*Stream, make=Stream), "Which output; combined is all of it, in order.", default="combined"
)
MAX_CHARS = Parameter("max_chars", POSITIVE, "Return at most so many characters of each line.")

READS = {"readOnlyHint": True, "idempotentHint": True, "openWorldHint": False}
DESTROYS = {"readOnlyHint": False, "destructiveHint": True, "idempotentHint": False, "openWorldHint": False}

RUN_CELL = Tool(
    "run_cell",
    "Run a cell",
    """\
Run one IPython cell in your persistent kernel and wait for its first result. Variables, imports, the working \
directory and background processes stay for later cells: build on them. Not a sandbox: code runs with the \
full rights of the server's account on its files, network and processes.

`freeform` is the cell as written, without code fences: Python, top-level await, !command, %magic, %%bash. \
The value of the last line is shown as Out[N]. There is no stdin.

Returns when the cell ends, after 10 s in all, or after 10 s without output, whichever comes first:
- "In [7] · 8.1 s:", then output, result, traceback, images. A Python error is a normal result. 7 is the number \
for the other tools.
- "Running, …" with the last lines: the cell goes on by itself. Call wait(execution=7); never send it again.
- "busy: …": another cell is running, nothing of yours was run. wait() or interrupt() first.
- "kernel_died: …": the process has ended and its variables are gone. If it says that nothing was run, send the \
cell again to run it in the new process.
- "Output omitted: …": over 5,000 tokens; the last lines are shown. read_output and search_output get the rest.

If the host cut this call short, the cell is still running or has ended: ask status or wait(), do not run it twice.

Options go into the first line of the cell, before a magic like %%bash on the next:
%%loommux --wait 50 --silence 50
waits up to 50 s for this cell (default 10 each; stay under your host's limit for one call); --full-output \
returns all output however long. Run %%loommux? for the others.""",
    (
        Parameter(
            "freeform", CELL, "The cell's source, exactly as IPython is to get it.", required=True
        ),
        KERNEL,
    ),
    {"readOnlyHint": False, "destructiveHint": True, "idempotentHint": False, "openWorldHint": True},
    long=True,
)  # fmt: skip

WAIT = Tool(
    "wait",
    "Wait for a cell",
    """\
Wait for a cell that was already sent, or get the whole result of an ended one again. Runs nothing and stops \
nothing: when the time is up, the cell goes on.

Use it after "Running, …" or "busy: …", and whenever a result was lost because the host cut a call short: the \
result can be had any number of times, images included. To look without waiting use execution_status; to \
read what a running cell has printed use read_output; to end it use interrupt.

Returns as soon as the cell ends, with the result as run_cell gives it (output, result, traceback, images; \
"Killed", "Interrupted"). Otherwise, after timeout_seconds in all or silence_seconds without new output, \
whichever comes first, "Running, …" with the elapsed time and the last lines: call wait again. For a job of \
many minutes raise both, but stay under your host's limit for one call. If the host cuts this call short, \
just call it again. With watch it waits for work beside the cells instead and says how that ended; its output is \
in the cell that started it.""",
    (
        EXECUTION,
        Parameter("timeout_seconds", SECONDS, "Return after so long in any case.", default=10),
        Parameter("silence_seconds", SECONDS, "Return after so long without new output.", default=10),
        Parameter("watch", TEXT, 'A watch started with loommux.watch(name, …), or "next": whichever ends first.'),
        PROCESS,
        KERNEL,
    ),
    READS,
    long=True,
)

STATUS = Tool(
    "status",
    "Look at the kernel",
    """\
What the kernel is and does, without touching it: its name and state, process and pid, workspace, Python \
interpreter, the running or most recent cell, the last five cells (number, state, duration, first line), \
who else works here, the command with which a person can attach, the last ten notices.

Answers at once, also while a cell runs and when the kernel hangs (then it says how old its knowledge is). Use \
it first when you come back, when the host cut a call short and you need the number of your cell, or when \
something seems stuck. For one cell use execution_status, for its output read_output, to wait for it wait.

If this call itself was cut short, call it again; it changes nothing.""",
    (KERNEL,),
    READS,
)

EXECUTION_STATUS = Tool(
    "execution_status",
    "Look at one cell",
    """\
State and facts of one cell, without its output: running, completed, error, interrupted or killed; how long it \
has taken, when it last printed, how much output it has, who sent it, the error's name, and the cell's source.

Answers at once and changes nothing. Use it to check on a long cell between other work; use wait to wait for \
the end and get the result, read_output to see what it printed, status when you do not know the number. \
"killed" means that its process ended. If this call was cut short, call it again.""",
    (EXECUTION, PROCESS, KERNEL),
    READS,
)

READ_OUTPUT = Tool(
    "read_output",
    "Read output",
    """\
Read lines of a cell's recorded output: while it still runs, after it ended, and also what a result left out. \
Runs nothing and changes nothing.

line_range is start:stop, lines counted from 1, both ends included, negative from the end: "1:200", "-20:" \
(the last twenty), ":-3", "40:40". Left out: everything, which for a large output is cut in the middle with \
the next call to make, so ask for a range. stream picks stdout, stderr, result (text of results and displays) or \
traceback alone; line numbers differ between streams. start_char and max_chars pick columns, from 1: read a \
very long line in pieces with line_range="3:3", start_char=1, max_chars=100000, then start_char=100001.

The first line says what you got, like [lines 20–40 of 12,044]; then the lines as they were printed. To find \
something in much output use search_output first, then read around its line numbers. To wait for more output \
use wait. If this call was cut short, call it again with a smaller range or max_chars.""",
    (
        EXECUTION,
        STREAM,
        Parameter("line_range", TEXT, 'Lines to read, like "1:200" or "-20:"; left out: all.'),
        Parameter("start_char", POSITIVE, "Begin each line at this character.", default=1),
        MAX_CHARS,
        PROCESS,
        KERNEL,
    ),
    READS,
    long=True,
)

SEARCH_OUTPUT = Tool(
    "search_output",
    "Search output",
    """\
Find lines in a cell's recorded output, while it runs or after it ended. Runs nothing and changes nothing. Use it \
instead of reading long output: to find an error, a metric, a file name. To see the lines around a hit, give \
context_before and context_after, or call read_output with its line numbers.

query is a regular expression if it compiles as one, else plain text; query_mode literal or regex says which. It \
is matched line by line.

The first line says what was found, like [3 matching lines, 4 matches, of 12,044]; then "M 120 | text" for a \
matching line and "C 119 | text" for context, with the line numbers of read_output. A row over \
max_chars (400) is cut around its first match, "M 120:5001 | …text…": 5001 is its column, for start_char of \
read_output. A pattern that takes over 2 s ends as query_too_expensive: simplify it or use literal. If this \
call was cut short, call it again.""",
    (
        Parameter("query", TEXT, "What to find.", required=True),
        EXECUTION,
        STREAM,
        Parameter("query_mode", one_of("auto", "literal", "regex"), "How to read the query.", default="auto"),
        Parameter("context_before", COUNT, "Lines to show before each match.", default=0),
        Parameter("context_after", COUNT, "Lines to show after each match.", default=0),
        Parameter("ignore_case", FLAG, "Match upper and lower case alike.", default=False),
        MAX_CHARS,
        PROCESS,
        KERNEL,
    ),
    READS,
)

INTERRUPT = Tool(
    "interrupt",
    "Interrupt a cell",
    """\
Stop the running cell as Ctrl+C would, and end the processes that it started. Variables, imports and everything \
earlier cells left stay. Use it for a cell that takes too long or waits for something that does not come; use \
restart only when this does not help or a clean state is wanted.

Without execution it means the cell that runs now; with it only that cell: when another runs by then, nothing is \
touched. It never hits the next cell or an idle kernel.

Comes back within seconds and claims only what was seen: interrupted; ended (the cell ended otherwise \
meanwhile); interrupt_sent (the cell caught it, or native code holds the interpreter: wait, or restart); idle or \
not_running (nothing to stop); not_yours (someone else's cell runs: give its number to interrupt it all the \
same). The output so far stays readable with wait or read_output.

If the host cut this call short, ask status before you interrupt again.""",
    (Parameter(
        "execution", POSITIVE, "Interrupt only this cell, 7 for In [7]. Left out: the running one."
    ), KERNEL),
    DESTROYS,
)  # fmt: skip

RESTART = Tool(
    "restart",
    "Restart the kernel",
    """\
Replace the kernel's process by a new one: all variables and imports are lost, the running cell and every process \
that cells started are ended, startup files run again. It always works, whatever the cell does, within seconds.

Use it when interrupt did not help, when memory is full, or for a clean state (for example after a package was \
upgraded). To stop only a cell use interrupt, which keeps variables.

Comes back when the new process is ready, and says what was ended: the cell, how many processes, who was \
attached; and the new process number and pid. Cell numbers start again at 1. Output of earlier cells stays \
readable, that of the last three processes: pass the old number as process to wait, read_output, search_output \
or execution_status.

If the host cut this call short, ask status for the process number before you restart again.""",
    (KERNEL,),
    DESTROYS,
)

TOOLS: dict[str, Tool] = {
    tool.name: tool
    for tool in (RUN_CELL, WAIT, STATUS, EXECUTION_STATUS, READ_OUTPUT, SEARCH_OUTPUT, INTERRUPT, RESTART)
}


def listing() -> list[dict[str, Any]]:
    """The tools as ``tools/list`` gives them, in both protocol eras."""
    return [tool.listing() for tool in TOOLS.values()]
