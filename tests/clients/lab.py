"""JupyterLab as a person has it: a server of its own, a notebook in a browser's tab."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import nbformat
from playwright.sync_api import Locator, Page, expect

from tests.clients.jupyter import LOOMMUX, PATIENCE, Agent, until


class Lab:
    """One Jupyter server, with directories of its own; the kernelspec is installed as a person would."""

    def __init__(self, agent: Agent, directory: Path) -> None:
        self.directory = directory / "notebooks"
        self.directory.mkdir()
        settings = directory / "jupyter_config_dir/lab/user-settings/@jupyterlab/apputils-extension"
        settings.mkdir(parents=True)
        quiet = {"fetchNews": "false", "checkForUpdates": False}
        (settings / "notification.jupyterlab-settings").write_text(json.dumps(quiet))
        own = {name: str(directory / name.lower()) for name in ("JUPYTER_DATA_DIR", "JUPYTER_CONFIG_DIR", "IPYTHONDIR")}
        environment = agent.environment | own
        self._runtime = agent.runtime
        self.environment = environment
        subprocess.run(
            [LOOMMUX, "kernelspec", "install", "--user"], env=environment, check=True, stdout=subprocess.PIPE
        )
        log = self.log = directory / "lab.log"
        with log.open("w") as errors:
            self._process = subprocess.Popen(
                [
                    sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--port=0",
                    "--IdentityProvider.token=", f"--ServerApp.root_dir={self.directory}",
                ],
                cwd=directory, env=environment, stderr=errors, stdout=errors,
            )  # fmt: skip
        found = until(lambda: re.search(r"(http://(?:localhost|127\.0\.0\.1):\d+)/lab", log.read_text()), "JupyterLab")
        self.url = found[1]

    def notebook(self, name: str, *sources: str) -> None:
        """A notebook with those cells, for the kernelspec of loommux."""
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources])
        notebook.metadata["kernelspec"] = {"name": "loommux", "display_name": "loommux session", "language": "python"}
        nbformat.write(notebook, self.directory / name)

    def close(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(PATIENCE)
        finally:
            self._process.kill()
            for left in self._runtime.glob("jupyter_cookie_secret"):
                left.unlink()


class Notebook:
    """An open notebook."""

    def __init__(self, page: Page, lab: Lab, name: str) -> None:
        self.page = page
        #: How often Lab has asked for the kernel's widgets: the last thing that it does with a new connection.
        self._asked = self._seen = 0
        page.on("websocket", lambda socket: socket.on("framesent", self._sent))
        page.goto(f"{lab.url}/lab/tree/{name}?reset")
        self._cells = page.locator(".jp-Notebook .jp-CodeCell")
        expect(self._cells.first).to_be_visible(timeout=PATIENCE * 1000)

    def _sent(self, frame: str | bytes) -> None:
        if b"comm_info_request" in (frame.encode() if isinstance(frame, str) else frame):
            self._asked += 1

    def ready(self) -> None:
        """Wait until Lab has connected to a kernel anew; what is run before is lost."""
        for _ in range(int(PATIENCE * 10)):
            if self._asked > self._seen:
                break
            self.page.wait_for_timeout(100)
        assert self._asked > self._seen, "JupyterLab has not connected to a kernel"
        self._seen = self._asked

    def cell(self, index: int) -> Locator:
        return self._cells.nth(index)

    def run(self, index: int, *, failing: bool = False) -> Locator:
        """Run that cell; its output, once it has ended. One that fails need not get a number."""
        cell = self.cell(index)
        cell.locator(".cm-content").click()
        self.page.keyboard.press("Control+Enter")
        if not failing:
            expect(cell.locator(".jp-InputPrompt")).to_have_text(re.compile(r"\[\d+\]:"), timeout=PATIENCE * 1000)
        return cell.locator(".jp-OutputArea")

    def menu(self, *path: str) -> None:
        for name in path:
            self.page.locator(".lm-MenuBar, .lm-Menu").get_by_text(name, exact=True).first.click()
