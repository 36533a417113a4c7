"""What docs/remote.md shows works: its commands through an sshd of the test's own, its proxy in front of a server."""

from __future__ import annotations

import getpass
import json
import os
import re
import shutil
import ssl
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import httpx2
import psutil
import pytest
from mcp import ClientSession
from mcp.client.stdio import StdioServerParameters, stdio_client

from tests.clients.conftest import LISTENING, PATIENCE, free_port, listens

PAGE = (Path(__file__).parents[2] / "docs" / "remote.md").read_text()
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.M | re.S)
HOST = "lab.example.org"
SSHD = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
NGINX = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
TOKEN = "open-sesame-of-this-test"

pytestmark = [pytest.mark.timeout(300), pytest.mark.case("X27")]


def blocks(language: str) -> list[str]:
    return [text for kind, text in FENCE.findall(PAGE) if kind == language]


def soon(true: Callable[[], Any], why: Callable[[], str]) -> None:
    end = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < end, why()
        time.sleep(0.05)


@dataclass(frozen=True)
class Lab:
    """The machine of the docs: this one, through SSH, with a project in the home that the docs name."""

    home: Path
    environment: dict[str, str]
    #: The process id of sshd.
    daemon: int

    @property
    def project(self) -> Path:
        return self.home / "project"

    def here(self, text: str) -> str:
        """A text of the docs, about this machine."""
        return (
            text.replace("/home/me", str(self.home))
            .replace(f"me@{HOST}", HOST)
            .replace("cd project", f"cd {self.project}")
        )

    def commands(self) -> list[str]:
        """The names of what runs over there."""
        return [one.name() for one in psutil.Process(self.daemon).children(recursive=True)]

    @contextmanager
    def running(self, *command: str, until: str, cwd: Path | None = None) -> Iterator[None]:
        """A command that goes on, from when it has said something until the end."""
        log = self.home / "command.log"
        with log.open("w") as said:
            process = subprocess.Popen(
                command, cwd=cwd, env=self.environment, stdin=subprocess.DEVNULL, stdout=said, stderr=said
            )
        try:
            soon(lambda: until in log.read_text(), log.read_text)
            yield
        finally:
            process.terminate()
            process.wait(PATIENCE)


@pytest.fixture
def lab(loommux: str, private_jupyter: Path, tmp_path: Path) -> Iterator[Lab]:
    assert SSHD, "run `make setup-clients` first"
    if os.geteuid() == 0:  # its separated process changes its root to this
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    keys, home = tmp_path / "keys", tmp_path / "home"
    (home / "project").mkdir(parents=True)
    keys.mkdir(mode=0o700)
    for name in ("host", "mine"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", keys / name], check=True)
    shutil.copy(keys / "mine.pub", keys / "authorized")
    port, settings = free_port(), keys / "sshd_config"
    settings.write_text(
        f"ListenAddress 127.0.0.1\nPort {port}\nHostKey {keys / 'host'}\nAuthorizedKeysFile {keys / 'authorized'}\n"
        "PidFile none\nUsePAM no\nStrictModes no\nPasswordAuthentication no\nPermitRootLogin prohibit-password\n"
    )
    (keys / "config").write_text(
        f"Host {HOST}\n HostName 127.0.0.1\n Port {port}\n User {getpass.getuser()}\n IdentityFile {keys / 'mine'}\n"
        f" IdentitiesOnly yes\n UserKnownHostsFile {keys / 'known'}\n StrictHostKeyChecking accept-new\n"
        " BatchMode yes\n"
    )
    # `ssh` as the docs write it, with the configuration that a reader has in ~/.ssh.
    ssh, programs = shutil.which("ssh"), tmp_path / "bin"
    programs.mkdir()
    (programs / "ssh").write_text(f'#!/bin/sh\nexec {ssh} -F {keys / "config"} "$@"\n')
    (programs / "ssh").chmod(stat.S_IRWXU)
    (home / "project" / ".venv").symlink_to(Path(sys.executable).parent.parent)
    path = f"{programs}{os.pathsep}{Path(loommux).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"HOME": str(home), "PATH": path, "JUPYTER_RUNTIME_DIR": str(private_jupyter)}
    log = tmp_path / "sshd.log"
    with log.open("w") as errors:
        daemon = subprocess.Popen([SSHD, "-D", "-e", "-f", settings], stderr=errors)
    try:
        soon(lambda: listens(port) or daemon.poll() is not None, log.read_text)
        assert daemon.poll() is None, log.read_text()
        yield Lab(home, environment, daemon.pid)
    finally:
        daemon.terminate()
        daemon.wait()


@contextmanager
def serving(lab: Lab) -> Iterator[None]:
    """The server that the page begins with."""
    [command] = [text for text in blocks("sh") if "--server" in text]
    with lab.running(*command.split(), until=LISTENING, cwd=lab.project):
        yield


def entries() -> list[dict[str, Any]]:
    shown = [json.loads(text) for text in blocks("json")]
    return [one["mcpServers"]["lab"] for one in shown]


def first_cell(lab: Lab, entry: dict[str, Any], source: str) -> str:
    async def ask() -> str:
        words = [lab.here(word) for word in entry["args"]]
        program = StdioServerParameters(command=entry["command"], args=words, env=lab.environment)
        with anyio.fail_after(PATIENCE):
            async with stdio_client(program) as streams, ClientSession(*streams[:2]) as session:
                await session.initialize()
                answer = await session.call_tool("run_cell", {"freeform": source})
                return "".join(block.text for block in answer.content if block.type == "text")

    return anyio.run(ask)


def test_every_entry_that_a_host_gets_for_ssh_works_in_the_project_over_there(lab: Lab) -> None:
    connects, starts = entries()
    assert "connect" in connects["args"][1] and "connect" not in starts["args"][1]
    where = "import os; os.getcwd()"
    with serving(lab):
        assert str(lab.project) in first_cell(lab, connects, f"kept = 41\n{where}")
        assert "Out[2]: 42" in first_cell(lab, connects, "kept + 1")
    assert str(lab.project) in first_cell(lab, starts, where)


def test_the_port_that_ssh_brings_here_leads_to_the_server_and_install_names_it(lab: Lab) -> None:
    [forward] = [text for text in blocks("bash") if text.startswith("ssh ")]
    [install] = [text for text in blocks("bash") if text.startswith("loommux install")]
    port = free_port()
    with serving(lab):
        command = [*lab.here(forward).replace("8801", str(port)).split()]
        process = subprocess.Popen(command, env=lab.environment, stdin=subprocess.DEVNULL)
        try:
            soon(lambda: listens(port) or process.poll() is not None, lambda: "no port")
            base = f"http://127.0.0.1:{port}"
            assert httpx2.get(f"{base}/api/health", timeout=PATIENCE).json()["ok"]
            assert "loommux" in httpx2.get(base, timeout=PATIENCE).text
            # Without a session of its own, sshd would hold small packets back.
            soon(lambda: "sleep" in lab.commands(), lambda: f"{lab.commands()}")
        finally:
            process.terminate()
            process.wait(PATIENCE)
    subprocess.run(install.replace("8801", str(port)).split(), env=lab.environment, cwd=lab.home, check=True)
    written = json.loads((lab.home / ".claude.json").read_text())["mcpServers"]["loommux"]
    assert written["url"] == f"{base}/mcp"


def test_ssh_refuses_a_socket_that_is_not_named_by_its_whole_path(lab: Lab) -> None:
    refused = subprocess.run(
        ["ssh", "-L", "8801:server.sock", HOST, "true"], env=lab.environment, capture_output=True, text=True
    )
    assert refused.returncode != 0 and "Bad local forwarding" in refused.stderr


# -- the reverse proxy -----------------------------------------------------------------------


def block(begins: str) -> str:
    [found] = [text for _, text in FENCE.findall(PAGE) if text.startswith(begins)]
    return found


def until(said: Path, words: str, process: subprocess.Popen[bytes]) -> str:
    end = time.monotonic() + PATIENCE
    while words not in said.read_text():
        assert time.monotonic() < end and process.poll() is None, said.read_text()
        time.sleep(0.05)
    return said.read_text()


@pytest.fixture
def directory() -> Iterator[Path]:
    """Not below tmp_path: the paths of sockets are short."""
    made = Path(tempfile.mkdtemp(prefix="lm-"))
    yield made
    shutil.rmtree(made)


@pytest.fixture
def server(loommux: str, private_jupyter: Path, directory: Path) -> Iterator[int]:
    """The port of a server with the configuration of the docs, which names a token file in the home."""
    home, project = directory / "home", directory / "project"
    (home / ".config" / "loommux").mkdir(parents=True)
    (project / ".loommux").mkdir(parents=True, mode=0o700)
    token = home / ".config" / "loommux" / "token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    (project / ".loommux" / "config.py").write_text(block("allowed_hosts"))
    log = directory / "server.log"
    places = {"HOME": str(home), "TMPDIR": str(directory), "JUPYTER_RUNTIME_DIR": str(private_jupyter)}
    with log.open("w") as errors:
        command = [loommux, "--server", "--port", "0"]
        process = subprocess.Popen(command, cwd=project, env=os.environ | places, stderr=errors)
    try:
        found = re.search(rf"{LISTENING}http://127\.0\.0\.1:(\d+)/", until(log, LISTENING, process))
        assert found
        yield int(found[1])
    finally:
        process.terminate()
        process.wait(PATIENCE)


@pytest.fixture
def proxy(server: int, directory: Path) -> Iterator[tuple[int, Path]]:
    """The port of nginx with the block of the docs, and its certificate."""
    assert NGINX, "run `make setup-clients` first"
    certificate, key = directory / "lab.pem", directory / "lab.key"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-subj", f"/CN={HOST}", "-addext", f"subjectAltName=DNS:{HOST}", "-keyout", key, "-out", certificate],
        check=True, capture_output=True,
    )  # fmt: skip
    port = free_port()
    shown = block("server {").replace("listen 443", f"listen 127.0.0.1:{port}").replace("8801", str(server))
    shown = shown.replace("/etc/ssl/lab.pem", str(certificate)).replace("/etc/ssl/lab.key", str(key))
    assert str(server) in shown and str(key) in shown
    paths = "".join(
        f"{kind}_temp_path {directory / kind};\n" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    log, settings = directory / "nginx.log", directory / "nginx.conf"
    settings.write_text(
        f"daemon off;\nmaster_process off;\npid {directory / 'nginx.pid'};\nerror_log {log} notice;\nevents {{}}\n"
        f"http {{\naccess_log off;\n{paths}{shown}}}\n"
    )
    log.touch()
    process = subprocess.Popen([NGINX, "-e", log, "-c", settings])
    try:
        end = time.monotonic() + PATIENCE
        while not listens(port):
            assert time.monotonic() < end and process.poll() is None, log.read_text()
            time.sleep(0.05)
        yield port, certificate
    finally:
        process.terminate()
        process.wait(PATIENCE)


def test_the_proxy_of_the_docs_leads_calls_streams_and_the_page_to_the_server(proxy: tuple[int, Path]) -> None:
    port, certificate = proxy
    accept = {"accept": "application/json, text/event-stream", "x-loommux-resource": "report"}
    # As DNS would have it: the name leads here.
    reach = httpx2.HTTPTransport(verify=ssl.create_default_context(cafile=str(certificate)))
    base = f"https://127.0.0.1:{port}"
    sni = {"sni_hostname": HOST}
    with httpx2.Client(
        transport=reach, base_url=base, headers={**accept, "host": HOST}, timeout=PATIENCE, trust_env=False
    ) as http:
        assert http.get("/", extensions=sni).status_code == 200
        assert http.get("/api/resources", extensions=sni).status_code == 401
        http.headers["authorization"] = f"Bearer {TOKEN}"
        begin = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}}
        message = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": begin}
        opened = http.post("/mcp", json=message, extensions=sni)
        opened.raise_for_status()
        http.headers["mcp-session-id"] = opened.headers["mcp-session-id"]
        http.headers["mcp-protocol-version"] = "2025-11-25"
        http.post("/mcp", json={"jsonrpc": "2.0", "method": "notifications/initialized"}, extensions=sni)
        with http.stream("GET", "/api/events", extensions=sni) as events:
            lines = events.iter_lines()
            assert next(lines)  # unbuffered: the first word comes at once, and each event as it happens
            call = {"name": "run_cell", "arguments": {"freeform": "6 * 7"}}
            message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}
            assert "Out[1]: 42" in http.post("/mcp", json=message, extensions=sni).text
            assert any("execution_ended" in line for line in lines)
