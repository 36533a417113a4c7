"""The cells that clients run, and what each has to come to. Pure: chances come from the caller's generator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random


@dataclass(frozen=True)
class Cell:
    """Source without a header; what it writes if nobody stops it, and how it ends then."""

    kind: str
    token: str
    source: str
    stdout: str = ""
    stderr: str = ""
    result: str = ""
    traceback: bool = False
    state: str = "completed"
    ename: str = ""
    #: How its process ends with it: a signal by name or an exit code.
    death: str | int | None = None
    #: Whether what it is stopped in has to be the beginning of `stdout`.
    steady: bool = True


def prints(token: str, chance: Random) -> Cell:
    count = chance.randint(1, 60)
    return Cell("print", token, f"for i in range({count}): print('{token}', i)", numbered(token, count))


def value(token: str, chance: Random) -> Cell:
    number = chance.randint(0, 10**6)
    return Cell("value", token, f"{number} * 2, '{token}'", result=f"({number * 2}, '{token}')\n")


def sleep(token: str, chance: Random) -> Cell:
    seconds = chance.choice([0.05, 0.3, 1.0, 2.5])
    return Cell(
        "sleep", token, f"import time\nprint('{token} a')\ntime.sleep({seconds})\nprint('{token} b')",
        f"{token} a\n{token} b\n",
    )  # fmt: skip


def flood(token: str, chance: Random) -> Cell:
    count = chance.choice([5_000, 20_000, 60_000])
    return Cell("flood", token, f"for i in range({count}): print('{token}', i)", numbered(token, count))


def both(token: str, chance: Random) -> Cell:
    count = chance.randint(2, 30)
    source = (
        f"import sys\nfor i in range({count}):\n    print('{token}', i)\n    print('{token} e', i, file=sys.stderr)"
    )
    return Cell("both", token, source, numbered(token, count), numbered(f"{token} e", count))


def bar(token: str, chance: Random) -> Cell:
    steps = chance.randint(10, 2_000)
    source = f"for i in range({steps}): print('\\r{token}', i, end='', flush=i % 100 == 0)\nprint()"
    return Cell("bar", token, source, f"{token} {steps - 1}\n", steady=False)


def shell(token: str, chance: Random) -> Cell:
    count = chance.randint(1, 200)
    return Cell(
        "shell", token, f"import subprocess\nsubprocess.run(['seq', '-f', '{token} %g', '0', '{count - 1}'])\nNone",
        numbered(token, count),
    )  # fmt: skip


def fork(token: str, chance: Random) -> Cell:
    source = f"""\
import os
child = os.fork()
if child == 0:
    print('{token} child', flush=True)
    {chance.choice(["os._exit(0)", "os.kill(os.getpid(), 9)"])}
os.waitpid(child, 0)
None"""
    return Cell("fork", token, source, f"{token} child\n")


def error(token: str, chance: Random) -> Cell:
    name = chance.choice(["ValueError", "KeyError", "RuntimeError"])
    return Cell(
        "error", token, f"print('{token}')\nraise {name}('{token}')",
        f"{token}\n", traceback=True, state="error", ename=name,
    )  # fmt: skip


def crash(token: str, chance: Random) -> Cell:
    how: dict[str | int, str] = {
        "SIGKILL": "os.kill(os.getpid(), 9)",
        "SIGSEGV": "os.kill(os.getpid(), 11)",
        "SIGABRT": "os.abort()",
        3: "os._exit(3)",
    }
    death = chance.choice(list(how))
    source = f"import os\nprint('{token}', flush=True)\n{how[death]}"
    return Cell("crash", token, source, f"{token}\n", state="killed", death=death)


def memory(token: str, chance: Random) -> Cell:
    caught = chance.random() < 0.5
    source = f"""\
import resource
soft, hard = resource.getrlimit(resource.RLIMIT_AS)
used = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()
kept = []
try:
    resource.setrlimit(resource.RLIMIT_AS, (used + (96 << 20), hard))
    while True: kept.append(bytearray(16 << 20))
{"except MemoryError: pass" if caught else ""}
finally:
    kept.clear()
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    print('{token} full')"""
    if caught:
        return Cell("memory", token, source, f"{token} full\n", steady=False)
    return Cell(
        "memory", token, source, f"{token} full\n", traceback=True, state="error", ename="MemoryError", steady=False
    )


def stubborn(token: str, chance: Random) -> Cell:
    source = f"""\
import time
end = time.monotonic() + {chance.choice([1, 3])}
while time.monotonic() < end:
    try: time.sleep(0.05)
    except KeyboardInterrupt: pass
print('{token} done')"""
    return Cell("stubborn", token, source, f"{token} done\n")


Maker = Callable[[str, Random], Cell]
#: How often each, for a kernel of one's own.
PRIVATE: dict[Maker, int] = {
    prints: 6, value: 6, sleep: 6, flood: 3, both: 4, bar: 4, shell: 4, fork: 3, error: 4, crash: 2, memory: 2,
    stubborn: 2,
}  # fmt: skip
#: In a shared one nothing lasts long, for clients that attached queue behind it.
SHARED: dict[Maker, int] = {prints: 6, value: 6, sleep: 3, both: 4, shell: 3, error: 4, fork: 2, crash: 1}


def one_of(makers: dict[Maker, int], token: str, chance: Random) -> Cell:
    [maker] = chance.choices(list(makers), list(makers.values()))
    return maker(token, chance)


def numbered(token: str, count: int) -> str:
    return "".join(f"{token} {i}\n" for i in range(count))
