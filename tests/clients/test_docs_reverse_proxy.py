"""The reverse proxy of docs/remote.md, run as it stands: nginx with TLS in front of a server that asks for a token."""

from __future__ import annotations

import os
import re
import shutil
import ssl
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from tests.clients.conftest import LISTENING, PATIENCE, free_port, listens

PAGE = (Path(__file__).parents[2] / "docs" / "remote.md").read_text()
NAME = "lab.example.org"
NGINX = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
TOKEN = "open-sesame"

pytestmark = [pytest.mark.timeout(300), pytest.mark.case("X27")]


def block(begins: str) -> str:
    [found] = [text for text in re.findall(r"^```\w+\n(.*?)^```$", PAGE, re.M | re.S) if text.startswith(begins)]
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
         "-subj", f"/CN={NAME}", "-addext", f"subjectAltName=DNS:{NAME}", "-keyout", key, "-out", certificate],
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
    sni = {"sni_hostname": NAME}
    with httpx2.Client(
        transport=reach, base_url=base, headers={**accept, "host": NAME}, timeout=PATIENCE, trust_env=False
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
