"""qtconsole, without a screen, on the kernel that an agent works in."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.clients.jupyter import PATIENCE, Agent, until

PERSON = Path(__file__).with_name("qt_person.py")


def test_a_window_shares_the_agents_kernel_interrupts_by_ctrl_c_and_exit_closes_it_alone(
    agent: Agent,
) -> None:
    agent.run("from_agent = 41")
    person = subprocess.Popen(
        [sys.executable, str(PERSON), agent.connection_file],
        text=True, env=agent.environment | {"QT_QPA_PLATFORM": "offscreen"},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    assert person.stdin and person.stdout

    def type_(source: str | None) -> None:
        person.stdin.write(json.dumps(source) + "\n")  # type: ignore[union-attr]
        person.stdin.flush()  # type: ignore[union-attr]

    def window() -> str:
        line = person.stdout.readline()  # type: ignore[union-attr]
        assert line, "the window is gone"
        return json.loads(line)

    try:
        type_("from_agent + 1")
        assert "Out[2]: 42" in window()
        type_("from_person = from_agent + 9")
        window()
        text = agent.run("from_person")
        assert "Out[4]: 50" in text
        assert "(completed, qt_person)" in text
        type_("import time; time.sleep(300)")
        until(lambda: "Running: In [5]" in agent.call("status"))
        type_(None)
        assert "KeyboardInterrupt" in window()
        assert "interrupted by qt_person" in agent.call("wait", execution=5)
        type_("exit")
        assert person.wait(PATIENCE) == 0
    finally:
        person.kill()
        person.communicate()
    assert "Out[7]: 50" in agent.run("from_person")
    assert "process 1" in agent.call("status")
