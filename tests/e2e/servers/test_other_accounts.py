"""What another account of the machine can reach of a server: nothing that holds output, a token, a ticket or a key.

As root, servers run under one made-up account, and a program under another tries everything: each socket, file and
process. Otherwise what can be tried by oneself is tried, and the test is skipped for the rest.
"""

from __future__ import annotations

import json
import re
import stat
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx2
import pytest
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CallToolResult

from tests.e2e.accounts import Accounts, Found, two_accounts
from tests.e2e.driving import COMMAND, PATIENCE, mcp_client, text_of, until
from tests.e2e.trees import below

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")]

OUTPUT = "output-of-a-cell-4e1f"
TOKEN = "token-of-this-test-0123456789abcdef"
#: Files that are not ours to close, or that the test makes.
OPEN = {"stderr", "made-by-a-cell", "slow-browser", "opened"}
#: Prints, forks a child that displays, leaves one that runs, and has more than can be decided without counting tokens.
CELL = f"""
import os, subprocess, sys
print({OUTPUT[:9]!r} + {OUTPUT[9:]!r})
if os.fork() == 0:
    display("display-of-a-child" + "-77aa")
    os._exit(0)
os.wait()
left = subprocess.Popen(["sleep", "1000"])
print(" ".join(f"word{{n}}" for n in range(2000)))
open("made-by-a-cell", "w").close()
"""
#: What a cell does to get at the server: every ancestor's pipes, memory and environment.
CLIMB = """
import os
def ancestors():
    pid = os.getppid()
    while pid > 1:
        status = open(f"/proc/{pid}/status").read()
        if int(status.split("Uid:")[1].split()[0]) != os.getuid():
            return
        yield pid, status.split("Name:")[1].split()[0]
        pid = int(status.split("PPid:")[1].split()[0])
for pid, name in ancestors():
    got = []
    for what in ("environ", "mem", "maps"):
        try:
            os.close(os.open(f"/proc/{pid}/{what}", os.O_RDONLY))
            got.append(what)
        except OSError:
            pass
    for fd in range(64):
        try:
            os.close(os.open(f"/proc/{pid}/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK))
            got.append(f"fd {fd}")
        except OSError:
            pass
    print(name, got)
"""


@pytest.fixture
def accounts() -> Iterator[Accounts]:
    with two_accounts() as made:
        yield made


def secrets(accounts: Accounts) -> dict[str, str]:
    """What nobody else may learn, by what it is: the files say some of it."""
    found = {"output": OUTPUT, "a display": "display-of-a-child-77aa", "a variable": accounts.hosts_secret}
    for path in (accounts.home / ".local" / "share" / "jupyter" / "runtime").glob("kernel-loommux-*.json"):
        info = json.loads(path.read_text())
        found |= {f"{name} of {path.name}": info[name] for name in ("key", "curve_secretkey") if name in info}
    return found


def told(found: Found, hidden: dict[str, str]) -> list[str]:
    return [what for what, secret in hidden.items() if secret in found.everything]


def open_to_others(directory: Path) -> list[str]:
    """Files and sockets there that nothing closes to others: neither their own rights nor a directory on the way."""
    return [
        f"{path} {stat.filemode(path.lstat().st_mode)}"
        for path in below(directory)
        if not path.is_dir()
        and path.lstat().st_mode & 0o066
        and all(
            on_the_way.stat().st_mode & 0o011 for on_the_way in path.parents if on_the_way.is_relative_to(directory)
        )
    ]


def check(accounts: Accounts, hidden: dict[str, str], *, ports: int) -> None:
    """Nothing but what was asked for listens, and nobody else is let in; see the module."""
    names, listening = accounts.sockets()
    assert names, "the looking finds no socket"
    assert len(listening) == (ports if accounts.sees_all else 0), listening
    assert not [name for name in names if name.startswith("@")], "the rights of files do not hold for such a name"
    assert not open_to_others(accounts.temporary)
    assert not open_to_others(accounts.home / ".local")
    arguments = " ".join(word for process in accounts.processes() for word in process.cmdline())
    assert not [what for what, secret in hidden.items() if secret in arguments]
    if accounts.stranger is None:
        return
    mine = accounts.look(accounts.owner)
    assert told(mine, hidden).count("output"), "the looking does not find what is there"
    assert any("key of" in what for what in told(mine, hidden)), "nor the connection files"
    found = accounts.look(accounts.stranger)
    assert not told(found, hidden)
    assert found.connected == [str(port) for port in listening]
    assert {name for process in found.processes.values() for name in process} <= {"cmdline"}
    assert {Path(path).name for path in found.files} <= OPEN


def skip_without(accounts: Accounts) -> None:
    if accounts.stranger is None:
        pytest.skip(f"all but the look of another account was tried: {accounts.no_stranger}")


@dataclass
class Console:
    """`loommux console` whose browser stays at what it was given to open."""

    accounts: Accounts

    def __post_init__(self) -> None:
        home = self.accounts.home
        self.said, self._given = home / "console-said", home / "opened"
        browser = home / "slow-browser"
        browser.write_text('#!/bin/sh\necho "$@" > "$HOME/opened"\nwhile [ ! -e "$HOME/closed" ]; do sleep 0.1; done\n')
        browser.chmod(0o755)
        self.accounts.give(browser)
        with self.said.open("wb") as file:
            self.said.chmod(0o600)
            self.accounts.run(*COMMAND, "console", stderr=file, BROWSER=str(browser))

    async def opened(self) -> bool:
        return self._given.exists() and bool(self._given.read_text())

    @property
    def page(self) -> Path:
        return Path(self._given.read_text().strip().removeprefix("file://"))

    @property
    def address(self) -> str:
        """As it was printed; it stands in the page too."""
        [printed] = re.findall(r"http://127\.0\.0\.1:\d+/#token=\S+", self.said.read_text())
        assert printed in self.page.read_text()
        return printed

    async def log_in(self) -> None:
        """The page is gone then."""
        page, (base, _, ticket) = self.page, self.address.partition("/#token=")
        async with httpx2.AsyncClient(base_url=base, timeout=PATIENCE, trust_env=False) as http:
            assert (await http.post("/api/login", json={"token": ticket})).status_code == 200
        assert not page.exists()
        (self.accounts.home / "closed").touch()


#: By name: the flags, the settings, and the ports that they ask for.
WAYS = {"fork": ([], "", 0), "spawn": (["--spawn"], "", 0), "tcp": ([], 'kernel_transport = "tcp"', 5)}


@pytest.mark.case("X01", "X04", "X07")
@pytest.mark.parametrize("way", WAYS)
async def test_a_stdio_server_is_closed_to_other_accounts(accounts: Accounts, way: str) -> None:
    flags, settings, ports = WAYS[way]
    accounts.configure(settings)
    client = await accounts.server(*flags).open()
    said = await client.cell(CELL)
    assert OUTPUT in said and "display-of-a-child-77aa" in said
    check(accounts, secrets(accounts), ports=ports)
    if accounts.owner != 0:
        climbed = re.findall(r"^(\S+) \[(.*)\]$", await client.cell(CLIMB), re.M)
        ours = climbed[: 3 if "--spawn" in flags else 4]
        assert [name for name, _ in ours] == [*["loommux-init"] * 2, *["loommux-keeper"] * (len(ours) - 3), "python"]
        assert not [one for one in ours if one[1]], climbed
    skip_without(accounts)


@pytest.mark.case("X01", "X02")
async def test_an_http_server_and_the_console_are_closed_to_other_accounts(accounts: Accounts) -> None:
    token = accounts.home / "token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    accounts.give(token)
    accounts.configure(f"auth_token_file = {str(token)!r}")
    accounts.server("--server", "--port", "0", stdio=False)

    async def listens() -> bool:
        return "listening on" in accounts.log

    await until(listens)
    [base] = re.findall(r"listening on (http://[^/\s]+)/", accounts.log)
    console = Console(accounts)
    await until(console.opened)
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with (
        httpx2.AsyncClient(base_url=base, headers=headers, timeout=PATIENCE, trust_env=False) as http,
        mcp_client(streamable_http_client(f"{base}/mcp", http_client=http), "2026-07-28") as client,
    ):
        result = await client.call_tool("run_cell", {"freeform": CELL}, read_timeout_seconds=PATIENCE)
        assert isinstance(result, CallToolResult)
        [handle] = re.findall(r"kernel=(k_\S+)", text_of(result))
    ticket = console.address.partition("#token=")[2]
    check(accounts, secrets(accounts) | {"token": TOKEN, "ticket": ticket, "handle": handle}, ports=2)
    assert not open_to_others(console.page.parent)
    await console.log_in()
    skip_without(accounts)
