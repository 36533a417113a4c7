"""A notebook in JupyterLab, in Debian's Chromium, on the kernel that an agent works in."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.clients.jupyter import PATIENCE, Agent, until
from tests.clients.lab import Lab, Notebook

#: Where the pictures of docs/attach.md go, when they are to be made anew.
PICTURES = os.environ.get("LOOMMUX_PICTURES")
PLOT = "import matplotlib.pyplot as plt\nplt.plot(losses, marker='o'); plt.title('loss'); plt.show()"


@pytest.fixture
def lab(agent: Agent, tmp_path: Path) -> Iterator[Lab]:
    lab = Lab(agent, tmp_path)
    yield lab
    lab.close()


@pytest.mark.timeout(300)
def test_a_notebook_works_in_the_agents_kernel_and_neither_restart_nor_shutdown_in_lab_ends_it(
    agent: Agent, lab: Lab, page: Page
) -> None:
    agent.run("losses = [2.31, 1.12, 0.64, 0.41, 0.33]\nprint('trained')")
    lab.notebook("look.ipynb", "min(losses)", PLOT, "best = losses.index(min(losses))", "losses[best]")
    notebook = Notebook(page, lab, "look.ipynb")
    notebook.ready()
    assert "0.33" in notebook.run(0).inner_text()
    plot = notebook.run(1).locator("img")
    expect(plot).to_be_visible()
    notebook.run(2)
    picture(page, "lab")

    text = agent.run("best")
    assert "Out[5]: 4" in text
    assert "In [4] (completed, JupyterLab (look.ipynb))" in text
    assert "after its end" not in text, "what Lab asks for its widgets is no cell's output"
    assert re.search(r"^Others here: JupyterLab \(look\.ipynb\) \(last sign .* ago\)$", agent.call("status"), re.M)

    notebook.menu("Kernel", "Restart Kernel…")
    picture(page, "restart")
    page.locator(".jp-Dialog .jp-mod-accept").click()
    notebook.ready()
    assert "0.33" in notebook.run(3).inner_text(), "the variables are there: only the proxy was restarted"

    notebook.menu("Kernel", "Shut Down Kernel")
    expect(page.locator(".jp-StatusBar-Widget, #jp-main-statusbar")).to_contain_text(
        "No Kernel", timeout=PATIENCE * 1000
    )
    assert "Out[7]: 4" in agent.run("best")
    assert "process 1" in agent.call("status")


@pytest.mark.timeout(300)
def test_without_a_kernel_each_cell_of_a_notebook_is_answered_with_how_to_start_one(
    private_jupyter: Path, tmp_path: Path, page: Page
) -> None:
    agent = Agent(private_jupyter, tmp_path)
    lab = Lab(agent, tmp_path)
    try:
        agent.close()
        lab.notebook("early.ipynb", "1 + 1")
        notebook = Notebook(page, lab, "early.ipynb")
        until(lambda: "Connecting to kernel" in lab.log.read_text(), "the connection")
        said = page.get_by_text("no loommux kernel is running")
        for _ in range(int(PATIENCE / 5)):  # what is run before Lab has taken the answer for a kernel's is lost
            notebook.run(0, failing=True)
            page.wait_for_timeout(5000)
            if said.count():
                break
        expect(said.first).to_be_visible()
        picture(page, "none")
    finally:
        lab.close()


def picture(page: Page, name: str) -> None:
    if PICTURES:
        page.screenshot(path=Path(PICTURES) / f"{name}.png")
