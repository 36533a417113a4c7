"""The console in Debian's Chromium: every screen and act, small and large, light and dark."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

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

    def agent(self, name: str, kernel: str) -> Agent:
        self.agents.append(Agent(self.base, name, kernel))
        return self.agents[-1]

    def kernels(self) -> dict[str, dict[str, Any]]:
        listed = httpx2.get(f"{self.base}/api/resources", timeout=PATIENCE).json()["resources"]
        return {one["name"]: one for one in listed}


class Agent:
    """A session of the handshake era, request by request, while the browser looks on."""

    def __init__(self, base: str, name: str, kernel: str) -> None:
        accept = {"accept": "application/json, text/event-stream"}
        who = {"X-Loommux-Operator": name, "X-Loommux-Resource": kernel}
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
    token.write_text("open-sesame")
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
    page.get_by_label("Token").fill("open-sesame")
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
