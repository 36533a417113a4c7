"""The console in Debian's Chromium: every screen and act, small and large, light and dark."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import httpx2
import nbformat
import psutil
import pytest
from jupyter_client.blocking.client import BlockingKernelClient

from tests.clients.conftest import LISTENING, PATIENCE

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.timeout(300)
SHOTS = os.environ.get("LOOMMUX_SHOTS")
SERIOUS = {"serious", "critical"}
ATTACK = "<img src=x onerror='window.hit=1'><script>window.hit=1</script>"
ATTACKS = f"""
from IPython.display import HTML, SVG, Markdown, display
attack = {ATTACK!r}
print(attack, "\\x1b[31mred\\x1b]8;;javascript:window.hit=1\\x07link\\x1b]8;;\\x07")
links = "<a id=out href='http://evil.example/'>out</a> <a id=away target=_self href='http://evil.example/'>away</a>"
display(HTML(attack + links + "<meta http-equiv=refresh content='0;url=http://evil.example/'>"))
display(SVG(data="<svg xmlns='http://www.w3.org/2000/svg' onload='parent.hit=1'><script>parent.hit=1</script></svg>"))
display(Markdown("[x](javascript:window.hit=1)" + attack))
loommux.notify(attack)
raise ValueError(attack)
"""


MILLION = """%%loommux --wait 0.5
for n in range(1, 1_000_000, 1_000):
    print(*(f"line {k} {'x' * 30}" for k in range(n, n + 1_000)), sep="\\n")
"""


@dataclass
class Site:
    """A server with a place to work; `start` and `end` it as often as wanted."""

    loommux: str
    workspace: Path
    environment: dict[str, str]
    log: Path
    process: subprocess.Popen[bytes] | None = None
    base: str = ""
    agents: list[Agent] = field(default_factory=list["Agent"])

    def start(self, port: int = 0) -> None:
        already = len(self.log.read_text()) if self.log.exists() else 0
        with self.log.open("a") as errors:
            command = [self.loommux, "--server", "--port", str(port)]
            self.process = subprocess.Popen(command, cwd=self.workspace, env=self.environment, stderr=errors)
        soon(lambda: LISTENING in self.log.read_text()[already:])
        found = re.search(rf"{LISTENING}(http://[^/\s]+)/", self.log.read_text()[already:])
        assert found
        self.base = found[1]

    def end(self) -> None:
        assert self.process is not None
        while self.agents:
            self.agents.pop().http.close()
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(PATIENCE) == 0, self.log.read_text()

    def agent(self, name: str, kernel: str, token: str | None = None) -> Agent:
        self.agents.append(Agent(self.base, name, kernel, token))
        return self.agents[-1]

    def kernels(self) -> dict[str, dict[str, Any]]:
        listed = httpx2.get(f"{self.base}/api/resources", timeout=PATIENCE).json()["resources"]
        return {one["name"]: one for one in listed}


class Agent:
    """A session of the handshake era, request by request, while the browser looks on."""

    def __init__(self, base: str, name: str, kernel: str, token: str | None = None) -> None:
        accept = {"accept": "application/json, text/event-stream"}
        who = {"X-Loommux-Operator": name, "X-Loommux-Resource": kernel}
        who |= {"Authorization": f"Bearer {token}"} if token else {}
        self.http = httpx2.Client(base_url=base, headers={**accept, **who}, timeout=PATIENCE, trust_env=False)
        client = {"name": name, "version": "1"}
        params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": client}
        opened = self._post({"id": 0, "method": "initialize", "params": params})
        self.http.headers["mcp-session-id"] = opened.headers["mcp-session-id"]
        self.http.headers["mcp-protocol-version"] = "2025-11-25"
        self._post({"method": "notifications/initialized"})

    def run(self, source: str) -> str:
        return self.call("run_cell", freeform=source)

    def call(self, tool: str, **arguments: Any) -> str:
        answer = self._post({"id": 1, "method": "tools/call", "params": {"name": tool, "arguments": arguments}})
        return answer.text.replace("\\n", "\n")

    def _post(self, message: dict[str, Any]) -> httpx2.Response:
        answer = self.http.post("/mcp", json={"jsonrpc": "2.0", **message})
        answer.raise_for_status()
        return answer


def soon(true: Callable[[], Any]) -> None:
    end = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < end, "it did not come true in time"
        time.sleep(0.05)


@pytest.fixture
def site(loommux: str, private_jupyter: Path, tmp_path: Path) -> Iterator[Site]:
    # Not below tmp_path: the paths of sockets are short.
    temporary = Path(tempfile.mkdtemp(prefix="lm-"))
    workspace = tmp_path / "workspace"
    (workspace / ".loommux").mkdir(parents=True, mode=0o700)
    environment = {**os.environ, "JUPYTER_RUNTIME_DIR": str(private_jupyter), "TMPDIR": str(temporary)}
    made = Site(loommux, workspace, environment, tmp_path / "server.log")
    made.start()
    try:
        yield made
        made.end()
        assert "Traceback" not in made.log.read_text(), made.log.read_text()
    finally:
        for agent in made.agents:
            agent.http.close()
        if made.process is not None:
            made.process.kill()
            made.process.wait()
        shutil.rmtree(temporary)


@pytest.fixture
def faults(page: Page) -> Iterator[list[str]]:
    """What the browser complains of; nothing, unless a test expects it."""
    found: list[str] = []
    page.on("pageerror", lambda error: found.append(str(error)))
    page.on("console", lambda message: found.append(message.text) if message.type == "error" else None)
    yield found
    assert not found


@pytest.fixture(scope="session")
def axe(node_modules: Path) -> str:
    return (node_modules / "axe-core" / "axe.min.js").read_text()


def confirm(page: Page, verb: str) -> None:
    page.locator("dialog").get_by_role("button", name=verb, exact=True).click()


def test_the_fleet_and_one_kernel_are_shown_as_they_live_and_acted_on(
    site: Site, page: Page, faults: list[str]
) -> None:
    agent = site.agent("claude-1", "report")
    agent.run("rows = [1, 2]")
    agent.run("%%loommux --wait 0.2\nimport time\nfor n in range(10_000):\n    print('step', n)\n    time.sleep(0.05)")
    httpx2.post(f"{site.base}/api/resources", json={"path": "/report/build"}, timeout=PATIENCE)
    page.goto(site.base)
    row = page.locator("tr.main")
    row.get_by_text("claude-1").wait_for()
    row.locator("samp", has_text="step").wait_for()
    page.locator("tr.child", has_text="build").wait_for()
    row.get_by_role("link", name="report").click()
    last = page.locator(".output .line .text").last
    seen = last.inner_text()
    soon(lambda: last.inner_text() != seen)
    page.locator(".acts").get_by_role("button", name="Interrupt").click()
    page.locator("dialog", has_text="which has run for").wait_for()
    confirm(page, "Interrupt")
    page.locator(".cellhead .state", has_text="interrupted").wait_for()
    assert "In [2] was interrupted by the console" in agent.call("status")

    page.get_by_role("button", name="Variables").click()
    page.locator(".names tr", has_text="rows").get_by_text("[1, 2]").wait_for()
    page.get_by_role("button", name="Rename").click()
    page.get_by_label("New name").fill("weekly")
    confirm(page, "Rename")
    page.get_by_role("heading", name="weekly").wait_for()
    page.locator(".acts").get_by_role("button", name="Restart").click()
    page.locator("dialog", has_text="all variables of weekly").wait_for()
    confirm(page, "Restart")
    page.get_by_role("button", name="Cells").click()
    page.locator(".item.end", has_text="Process 1 ended by restart (the console)").click()
    page.locator(".item.cell", has_text="rows").wait_for()
    told = agent.call("status")
    assert "was renamed by the console: report is weekly now" in told
    assert "Process 1 ended by restart (the console)" in told

    with page.expect_download() as download:
        page.get_by_role("button", name="Export .ipynb").click()
    made = nbformat.read(download.value.path(), as_version=4)
    nbformat.validate(made)
    assert "Process 1 ended by restart" in "".join(cell.source for cell in made.cells)
    page.get_by_role("button", name="Attach").click()
    page.locator("dialog pre", has_text="jupyter_console --existing").wait_for()
    page.keyboard.press("Escape")
    page.get_by_role("button", name="MCP config").click()
    page.locator("dialog pre", has_text=f"claude mcp add --transport http loommux {site.base}/mcp").wait_for()
    page.keyboard.press("Escape")
    page.keyboard.press("a")
    page.locator(".feed tr", has_text="run_cell").first.wait_for()
    page.keyboard.press("f")
    page.get_by_role("button", name="All", exact=True).click()
    page.get_by_role("button", name="Recycle…").click()
    page.locator("dialog", has_text="with 1 child").wait_for()
    page.locator("dialog").get_by_role("button", name="Recycle", exact=True).click()
    page.get_by_text("No kernels yet").wait_for()
    assert "it was recycled by the console" in agent.run("1")


def test_a_million_lines_stay_light_and_any_of_them_is_reached(site: Site, page: Page, faults: list[str]) -> None:
    agent = site.agent("claude-1", "flood")
    agent.run(MILLION)
    soon(lambda: not site.kernels()["flood"]["busy"])
    page.goto(f"{site.base}/#/kernel/flood/1/700000")
    page.locator(".line.here", has_text="line 700000 ").wait_for()
    assert page.locator(".line").count() < 300
    page.locator(".output").focus()
    page.keyboard.press("G")
    page.locator(".line", has_text="line 1000000 ").wait_for()
    page.locator(".tools input").fill("line 12345 ")
    page.keyboard.press("Enter")
    page.locator(".hits li.hit", has_text="line 12345 ").wait_for()
    page.locator(".line.here mark").wait_for()
    agent.run("%%loommux --wait 0.5\nn = 0\nwhile True:\n    n += 1\n    print('flood', n)")
    page.goto(f"{site.base}/#/kernel/flood")
    page.locator(".line .text", has_text="flood").first.wait_for()
    page.get_by_role("button", name="Notices").click()
    page.get_by_text("No notices").wait_for()
    page.get_by_role("button", name="Cells").click()
    metrics = page.context.new_cdp_session(page)
    metrics.send("Performance.enable")
    used = {one["name"]: one["value"] for one in metrics.send("Performance.getMetrics")["metrics"]}
    assert used["JSHeapUsedSize"] < 200e6
    assert used["Nodes"] < 20_000


def test_sixty_four_kernels_with_five_thousand_executions_and_a_flood_stay_light(
    site: Site, page: Page, browser: Browser, faults: list[str]
) -> None:
    (site.workspace / ".loommux" / "config.py").write_text("max_kernels = 64\n")
    site.end()
    site.start()
    agents = [site.agent(f"agent-{n}", f"kernel-{n}") for n in range(64)]

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda agent: agent.run("1"), agents))
    for kernel in site.kernels().values():
        run_many(kernel["connection_file"], 79)
    assert sum(kernel["execution_count"] for kernel in site.kernels().values()) == 64 * 80
    page.goto(site.base)
    page.locator("tr.main").nth(63).wait_for()
    agents[5].run("%%loommux --wait 0.5\nn = 0\nwhile True:\n    n += 1\n    print('line', n)")
    page.locator("tr.main samp", has_text="line").wait_for()
    for name in ("kernel-63", "kernel-5", "kernel-20", "kernel-5"):
        page.get_by_role("link", name=name, exact=True).click()
        page.get_by_role("heading", name=name).wait_for()
        page.locator(".item.cell").first.wait_for()
        if name == "kernel-5":
            last = page.locator(".output .line .text").last
            seen = last.inner_text()
            soon(lambda last=last, seen=seen: last.inner_text() != seen)
        else:
            executions, first = page.locator(".list"), page.locator(".item.cell .number", has_text=re.compile("^1$"))
            soon(lambda e=executions, f=first: e.evaluate("e => { e.scrollTop = e.scrollHeight }") or f.count())
        assert memory_of_pages(browser) < 200e6
        page.go_back()
    page.locator("tr", has=page.get_by_role("link", name="kernel-63", exact=True)).scroll_into_view_if_needed()
    place = page.locator(".fleet").evaluate("fleet => fleet.scrollTop")
    page.get_by_role("link", name="kernel-63", exact=True).click()
    page.get_by_role("heading", name="kernel-63").wait_for()
    page.go_back()
    assert page.locator(".fleet").evaluate("fleet => fleet.scrollTop") == place > 500
    agents[5].call("interrupt")


def run_many(connection_file: str, cells: int) -> None:
    """As an attached client that waits for the last only."""
    client = BlockingKernelClient(connection_file=connection_file)
    client.load_connection_file()
    client.start_channels()
    asked = [client.execute(f"{n}") for n in range(cells)]
    while client.get_shell_msg(timeout=PATIENCE)["parent_header"].get("msg_id") != asked[-1]:
        pass
    client.stop_channels()


def memory_of_pages(browser: Browser) -> int:
    """Bytes of the browser's largest page that nothing else shares."""
    session = browser.new_browser_cdp_session()
    processes = session.send("SystemInfo.getProcessInfo")["processInfo"]
    session.detach()
    return max(psutil.Process(one["id"]).memory_full_info().uss for one in processes if one["type"] == "renderer")


def test_what_code_says_is_text_and_never_acts(site: Site, page: Page) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    agent = site.agent(ATTACK[:40], "a<b onclick=alert(1)>")
    agent.run(ATTACKS)
    page.goto(site.base)
    page.locator("tr.main a").first.click()
    page.locator(".output .line", has_text="<script>window.hit=1</script>").first.wait_for()
    page.get_by_role("button", name="Show HTML").first.click()
    page.locator(".display .picture img").first.wait_for()
    frame = page.frame_locator(".framed iframe").first
    for _ in range(2):
        frame.locator("#out").click()
    frame.locator("#away").click()
    frame.locator("#away").wait_for(state="detached")
    assert page.locator(".framed iframe").first.get_attribute("sandbox") == ""
    for tab in ("Variables", "Notices"):
        page.get_by_role("button", name=tab).click()
        page.get_by_text("<img src=x").first.wait_for()
    page.keyboard.press("a")
    page.locator(".feed td.who", has_text="<img").first.wait_for()
    assert page.evaluate("window.hit") is None
    assert not [url for url in asked if not url.startswith((site.base, "data:"))]
    [kernel] = site.kernels().values()
    shown = f"{site.base}/api/resources/{kernel['resource_id']}/display?execution=1&type=image/svg%2Bxml&ordinal=2"
    page.goto(shown)
    assert page.evaluate("window.hit") is None


def test_a_browser_logs_in_once_and_finds_a_server_that_was_started_again(site: Site, page: Page, axe: str) -> None:
    site.end()
    token = site.workspace / "token"
    token.write_text("open-sesame-of-this-test")
    token.chmod(0o600)
    config = site.workspace / ".loommux" / "config.py"
    config.write_text(f"auth_token_file = {str(token)!r}\n")
    config.chmod(0o600)
    site.start()
    port = int(site.base.rpartition(":")[2])
    page.goto(f"{site.base}/#/activity")
    page.get_by_label("Token").fill("wrong")
    page.get_by_role("button", name="Open the console").click()
    page.get_by_text("That is not this server's token.").wait_for()
    is_faultless(page, axe, "login")
    page.get_by_label("Token").fill("open-sesame-of-this-test")
    page.get_by_role("button", name="Open the console").click()
    page.get_by_text("Nothing has happened yet").wait_for()
    page.reload()
    page.locator(".link.is-open").wait_for()
    site.end()
    page.get_by_text("The server does not answer").wait_for()
    site.start(port)
    page.locator(".link.is-open").wait_for()
    page.keyboard.press("f")
    page.get_by_text("No kernels yet").wait_for()


#: By name: the address, what shows that it is there, the button to press then.
SCREENS = {
    "fleet": ("#/", ".kernels", None),
    "chosen": ("#/", ".kernels", "All"),
    "activity": ("#/activity", ".feed", None),
    "everything": ("#/activity", ".feed", "Everything"),
    "cells": ("#/kernel/report", ".list", None),
    "image": ("#/kernel/report/1", ".picture", None),
    "error": ("#/kernel/report/2", ".note.bad", None),
    "variables": ("#/kernel/report?tab=variables", ".names", None),
    "notices": ("#/kernel/report?tab=notices", ".notices", None),
    "rename": ("#/kernel/report?tab=notices", ".notices", "Rename"),
    "restart": ("#/kernel/report?tab=notices", ".notices", "Restart"),
    "attach": ("#/kernel/report?tab=notices", ".notices", "Attach"),
    "config": ("#/kernel/report?tab=notices", ".notices", "MCP config"),
    "missing": ("#/kernel/nowhere", ".empty h1", None),
}
PLOT = """
import base64
from IPython.display import display
dot = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
display({"image/png": dot, "text/plain": "a dot"}, raw=True)
loommux.notify("three files have no header")
"""


def test_every_screen_is_accessible_and_fits_in_light_and_dark_large_and_small(
    site: Site, browser: Browser, axe: str
) -> None:
    agent = site.agent("claude-1", "report")
    agent.run(PLOT)
    agent.run("1 / 0")
    for scheme in ("light", "dark"):
        for width, height in ((1440, 900), (390, 844)):
            context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
            page = context.new_page()
            page.set_default_timeout(PATIENCE * 1000)
            for name, (address, there, button) in SCREENS.items():
                page.goto(f"{site.base}/{address}")
                page.locator(there).first.wait_for()
                if button:
                    page.get_by_role("button", name=button, exact=True).click()
                if there == ".notices" and button:
                    page.locator("dialog").wait_for()
                is_faultless(page, axe, f"{name}-{width}-{scheme}")
                page.keyboard.press("Escape")
                page.locator("dialog").wait_for(state="detached")
            context.close()


def is_faultless(page: Page, axe: str, name: str) -> None:
    if SHOTS:
        page.screenshot(path=f"{SHOTS}/{name}.png")
    assert not page.evaluate("document.documentElement.scrollWidth > innerWidth"), f"{name} is wider than the window"
    page.evaluate(axe)
    found = page.evaluate("axe.run({resultTypes: ['violations']})")["violations"]
    bad = [(one["id"], [node["html"][:200] for node in one["nodes"]]) for one in found if one["impact"] in SERIOUS]
    assert not bad, f"{name}: {bad}"


# -- as a person expects ----------------------------------------------------------------------


def shown_address(page: Page) -> str:
    return page.evaluate("location.href")


@pytest.mark.case("X28")
def test_a_page_opened_by_name_follows_a_rename_by_anybody_with_its_address(
    site: Site, page: Page, faults: list[str]
) -> None:
    agent = site.agent("claude-1", "report")
    agent.run("rows = [1, 2]")
    page.goto(f"{site.base}/#/kernel/report/1?stream=combined")
    page.get_by_role("heading", name="In [1]").wait_for()
    page.get_by_role("button", name="Rename").click()
    page.get_by_label("New name").fill("weekly 100%")
    confirm(page, "Rename")
    page.get_by_role("heading", name="weekly 100%").wait_for()
    soon(lambda: shown_address(page) == f"{site.base}/#/kernel/weekly%20100%25/1?stream=combined")
    kernel = site.kernels()["weekly 100%"]["resource_id"]
    renamed = httpx2.post(f"{site.base}/api/resources/{kernel}/rename", json={"name": "monthly"}, timeout=PATIENCE)
    assert renamed.status_code == 200
    page.get_by_role("heading", name="monthly").wait_for()
    soon(lambda: "#/kernel/monthly/1" in shown_address(page))
    # The old name is another's now: the page stays with the kernel that it shows, an address of before means the other.
    site.agent("claude-2", "weekly%20100%25").run("'another'")
    page.reload()
    page.get_by_role("heading", name="monthly").wait_for()
    page.goto(f"{site.base}/#/kernel/weekly 100%")
    page.get_by_role("heading", name="weekly 100%").wait_for()
    page.locator(".output .line", has_text="another").wait_for()


@pytest.mark.case("X28")
def test_going_back_to_an_address_with_the_old_name_finds_the_renamed_kernel(site: Site, page: Page) -> None:
    site.agent("claude-1", "report").run("rows = 1")
    page.goto(f"{site.base}/#/kernel/report")
    page.get_by_role("heading", name="report").wait_for()
    page.keyboard.press("v")
    page.get_by_role("button", name="Rename").click()
    page.get_by_label("New name").fill("weekly")
    confirm(page, "Rename")
    soon(lambda: shown_address(page).endswith("#/kernel/weekly?tab=variables"))
    page.go_back()
    page.get_by_role("heading", name="weekly").wait_for()
    soon(lambda: shown_address(page).endswith("#/kernel/weekly"))


@pytest.mark.case("X28")
def test_several_kernels_of_one_name_are_a_choice(site: Site, page: Page, axe: str, faults: list[str]) -> None:
    for name in ("report", "forecast"):
        site.agent(name, name).run(f"'the home {name}'")
        child = httpx2.post(f"{site.base}/api/resources", json={"path": f"/{name}/build"}, timeout=PATIENCE).json()
        cells = f"{site.base}/api/resources/{child['resource_id']}/executions"
        for _ in range(2):
            httpx2.post(cells, json={"source": f"'built for {name}'"}, timeout=PATIENCE).raise_for_status()
    page.goto(f"{site.base}/#/kernel/build/2")
    page.get_by_role("heading", name="2 kernels are called build").wait_for()
    is_faultless(page, axe, "choice")
    page.get_by_role("link", name="/forecast/build").press("Enter")
    page.locator(".title a", has_text="forecast").wait_for()
    page.get_by_role("heading", name="In [2]").wait_for()
    page.go_back()
    page.get_by_role("link", name="/report/build").wait_for()


@pytest.mark.case("X28")
def test_a_link_to_an_old_cell_shows_its_row_and_the_keys_go_on_from_there(site: Site, page: Page) -> None:
    agent = site.agent("claude-1", "long")
    agent.run("1")
    run_many(site.kernels()["long"]["connection_file"], 40)
    agent.call("restart")
    agent.run("1")
    run_many(site.kernels()["long"]["connection_file"], 899)
    current = page.locator(".item.current .number")
    page.goto(f"{site.base}/#/kernel/long/2.20")
    soon(lambda: current.is_visible() and current.inner_text() == "20")
    box, row = page.locator(".list").bounding_box(), page.locator(".item.current").bounding_box()
    assert box and row and box["y"] <= row["y"] <= box["y"] + box["height"] - row["height"]
    for key, number in (("j", "19"), ("j", "18"), ("k", "19"), ("k", "20"), ("k", "21")):
        page.keyboard.press(key)
        page.get_by_role("heading", name=f"In [{number}]").wait_for()
        assert current.inner_text() == number
    # A cell of an earlier process, whose section is closed at first.
    page.goto(f"{site.base}/#/kernel/long/1.7")
    soon(lambda: current.is_visible() and current.inner_text() == "7")
    page.keyboard.press("j")
    page.get_by_role("heading", name="In [6]").wait_for()
    # One that never was: it is said, and the list is the newest.
    page.goto(f"{site.base}/#/kernel/long/2.5000")
    page.reload()
    page.get_by_role("alert").wait_for()
    page.locator(".item.cell .number", has_text=re.compile("^900$")).wait_for()


@pytest.mark.case("X28")
def test_the_row_of_a_running_cell_counts_its_lines_as_they_come(site: Site, page: Page, faults: list[str]) -> None:
    agent = site.agent("claude-1", "steps")
    agent.run("%%loommux --wait 0.2\nimport time\nfor n in range(10_000):\n    print('step', n)\n    time.sleep(0.05)")
    page.goto(f"{site.base}/#/kernel/steps")
    lines = page.locator(".item.current .lines", has_text="line")
    for _ in range(3):
        seen = lines.inner_text()
        soon(lambda seen=seen: lines.inner_text() != seen)
    agent.call("interrupt")


@pytest.mark.case("X28")
def test_each_box_of_the_attach_dialog_holds_what_it_says(site: Site, page: Page, faults: list[str]) -> None:
    site.agent("claude-1", "report").run("1")
    kernel = site.kernels()["report"]
    page.goto(f"{site.base}/#/kernel/report")
    page.get_by_role("button", name="Attach").click()

    def box(name: str) -> str:
        return page.get_by_label(name, exact=True).inner_text()

    assert box("Qt console").endswith(f"qtconsole --existing {kernel['connection_file']}")
    assert "console --existing" in box("Jupyter’s terminal client")
    assert "qtconsole" not in box("Jupyter’s terminal client")
    assert box("In a terminal") == f"loommux attach {kernel['resource_id']}"
    assert box("In a window") == f"loommux attach {kernel['resource_id']} --qtconsole"


@pytest.mark.case("X28")
def test_no_configuration_holds_a_token_or_downloads_anything(site: Site, page: Page, axe: str) -> None:
    name = "Bob's 'été'!"
    asks_for_token(site, "open-sesame-of-this-test")
    page.goto(f"{site.base}/#token=open-sesame-of-this-test")
    page.locator(".empty pre", has_text="--token-file").wait_for()
    site.agent("claude-1", quote(name), token="open-sesame-of-this-test").run("1")
    page.get_by_role("link", name=name).click()
    page.get_by_role("button", name="MCP config").click()
    is_faultless(page, axe, "config-token")
    shown = {host: page.get_by_label(re.compile(f"^{host}")).last.inner_text() for host in HOSTS}
    assert "open-sesame-of-this-test" not in str(shown) and "npx" not in str(shown)
    header = quote(name, safe="")
    code, cursor, vscode = (json.loads(shown[host]) for host in ("Claude Code", "Cursor", "VS Code"))
    server = code["mcpServers"]["loommux"]
    assert server["headers"] == {"X-Loommux-Resource": header, "Authorization": "Bearer ${LOOMMUX_TOKEN}"}
    assert cursor["mcpServers"]["loommux"]["headers"]["Authorization"] == "Bearer ${env:LOOMMUX_TOKEN}"
    assert vscode["inputs"][0]["password"] is True
    assert vscode["servers"]["loommux"]["headers"]["Authorization"] == f"Bearer ${{input:{vscode['inputs'][0]['id']}}}"
    codex = tomllib.loads(shown["Codex"])["mcp_servers"]["loommux"]
    assert codex["bearer_token_env_var"] == "LOOMMUX_TOKEN"
    assert codex["http_headers"] == {"X-Loommux-Resource": header}
    # What is to be started is started: with the token's file in place it is a server that works in this very kernel.
    home = site.workspace / "home"
    (home / ".config" / "loommux").mkdir(parents=True)
    (home / ".config" / "loommux" / "token").write_text("open-sesame-of-this-test")
    (home / ".config" / "loommux" / "token").chmod(0o600)
    desktop = json.loads(shown["Claude Desktop"])["mcpServers"]["loommux"]
    told = spoken([desktop["command"], *desktop["args"]], site.environment | {"HOME": str(home)}, "run_cell")
    assert "Out[2]: 42" in told
    # And what is to be typed writes an entry that does the same.
    typed = shown["With loommux"].replace("loommux install", f"{site.loommux} install --client claude-desktop")
    environment = site.environment | {"HOME": str(home), "XDG_CONFIG_HOME": str(home / ".config")}
    subprocess.run(["bash", "-c", typed], env=environment, check=True, capture_output=True)
    written = json.loads((home / ".config" / "Claude" / "claude_desktop_config.json").read_text())
    assert name in written["mcpServers"]["loommux"]["args"]


#: By the words that their boxes begin with.
HOSTS = ("With loommux", "Claude Code", "Cursor", "VS Code", "Codex", "Claude Desktop")


def asks_for_token(site: Site, secret: str) -> None:
    """The server, started again with a token."""
    site.end()
    token, config = site.workspace / "token", site.workspace / ".loommux" / "config.py"
    for file, text in ((token, secret), (config, f"auth_token_file = {str(token)!r}\n")):
        file.write_text(text)
        file.chmod(0o600)
    site.start()


def spoken(command: list[str], environment: dict[str, str], tool: str) -> str:
    """What a server over stdio answers to 6 * 7, as a host would ask it."""
    client = {"name": "host", "version": "1"}
    begin = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": client}
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdin and run.stdout
        answer = ""
        for message in (
            {"id": 0, "method": "initialize", "params": begin},
            {"method": "notifications/initialized"},
            {"id": 1, "method": "tools/call", "params": {"name": tool, "arguments": {"freeform": "6 * 7"}}},
        ):
            run.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
            run.stdin.flush()
            while "id" in message and f'"id":{message["id"]}' not in answer.replace('"id": ', '"id":'):
                answer = run.stdout.readline()
                assert answer, "it ended"
        run.stdin.close()
    return answer


@pytest.mark.case("X28")
def test_without_a_token_the_configurations_name_the_kernel_in_words_that_a_shell_reads(site: Site, page: Page) -> None:
    name = "Bob's 'été'!"
    site.agent("claude-1", quote(name)).run("1")
    page.goto(f"{site.base}/#/kernel/{quote(name)}")
    page.get_by_role("button", name="MCP config").click()
    typed = shlex.split(page.get_by_label(re.compile("^Claude Code")).last.inner_text())
    assert typed[-2:] == ["--header", f"X-Loommux-Resource: {quote(name, safe='')}"]
    desktop = json.loads(page.get_by_label(re.compile("^Claude Desktop")).last.inner_text())["mcpServers"]["loommux"]
    assert desktop["args"] == ["connect", f"{site.base}/mcp", "--resource", name]
    assert "Out[2]: 42" in spoken([desktop["command"], *desktop["args"]], site.environment, "run_cell")


@pytest.fixture
def console_of_all(site: Site) -> Iterator[str]:
    """The address that `loommux console` prints, for the servers of this test."""
    command = [site.loommux, "console", "--no-browser"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, env=site.environment, text=True) as console:
        assert console.stderr
        found = re.search(r"http://127\.0\.0\.1:\d+/#token=\S+", console.stderr.readline())
        assert found
        yield found[0]
        console.send_signal(signal.SIGINT)


@pytest.mark.case("X28")
def test_a_second_browser_is_told_how_to_get_in_and_gets_in(
    site: Site, console_of_all: str, browser: Browser, page: Page, axe: str
) -> None:
    site.agent("claude-1", "report").run("1")
    page.goto(console_of_all)
    page.get_by_role("link", name="report").wait_for()
    second = browser.new_context(viewport={"width": 1280, "height": 800}).new_page()
    second.goto(console_of_all)
    second.get_by_text("Each address of this console lets in one browser").wait_for()
    is_faultless(second, axe, "second")
    page.get_by_role("button", name="Other browser").click()
    address = page.get_by_label("Address", exact=True).inner_text()
    second.get_by_label("Address").fill(address)
    second.get_by_role("button", name="Open the console").click()
    second.get_by_role("link", name="report").wait_for()
    assert not second.locator(".toasts p").count()
    second.context.close()
    # At the console of all servers a configuration names the server's own address, not the console's.
    page.keyboard.press("Escape")
    page.get_by_role("link", name="report").click()
    page.get_by_role("button", name="MCP config").click()
    page.locator("dialog pre", has_text=re.compile(rf"loommux {re.escape(site.base)}/mcp --header")).wait_for()


@pytest.mark.case("X28")
def test_the_fleet_has_room_for_its_cells_at_every_width(site: Site, page: Page, faults: list[str]) -> None:
    agent = site.agent("a client with a long name that goes on", "report" * 20)
    agent.run("%%loommux --wait 0.2\nimport time\nprint('x' * 500, flush=True)\ntime.sleep(600)")
    page.goto(site.base)
    page.locator("tr.main samp").wait_for()
    for width in (360, 600, 760, 820, 900, 901, 1000, 1220, 1221, 1440):
        page.set_viewport_size({"width": width, "height": 800})
        boxes = page.locator("tr.main td:visible").evaluate_all(
            "cells => cells.filter(c => c.innerText || c.querySelector('input')).map(c => {"
            " const r = c.getBoundingClientRect(); return [r.left, r.top, r.right, r.bottom, c.className] })"
        )
        for i, one in enumerate(boxes):
            for other in boxes[:i]:
                across = min(one[2], other[2]) - max(one[0], other[0])
                down = min(one[3], other[3]) - max(one[1], other[1])
                assert across < 1 or down < 1, f"{width}: {one} {other}"
        doing = page.locator("td.doing").evaluate("cell => [cell.clientWidth, cell.scrollWidth]")
        assert doing[0] > 110 and doing[1] <= doing[0] + 1, f"{width}: {doing}"
    agent.call("interrupt")


@pytest.mark.case("X28")
def test_a_server_that_is_stopped_is_said_and_asked_slowly_and_no_act_seems_done(site: Site, page: Page) -> None:
    site.agent("claude-1", "long").run("1")
    run_many(site.kernels()["long"]["connection_file"], 99)
    page.goto(f"{site.base}/#/kernel/long")
    page.locator(".item.cell .number", has_text=re.compile("^100$")).wait_for()
    site.end()
    page.get_by_text("The server does not answer; what is shown may be old").wait_for()
    failed: list[str] = []
    page.on("requestfailed", lambda request: failed.append(request.url))
    page.locator(".list").evaluate("list => { list.scrollTop = list.scrollHeight }")
    page.get_by_role("button", name="Recycle").click()
    confirm(page, "Recycle")
    page.locator(".toasts .bad", has_text="The server does not answer.").wait_for()
    page.wait_for_timeout(2000)  # how often it asks meanwhile is what this is about
    assert len(failed) < 20, failed
    assert not page.get_by_text("Recycled").count()
    site.start(int(site.base.rpartition(":")[2]))
    page.get_by_role("heading", name="There is no such kernel").wait_for()
