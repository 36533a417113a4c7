"""jupyter console in a terminal, on the kernel that an agent works in."""

from __future__ import annotations

import re
import signal
import sys

from tests.clients.jupyter import LOOMMUX, Agent, Terminal, until


def console(agent: Agent) -> Terminal:
    """The client, started with the very command that status names."""
    return Terminal([sys.executable, "-m", "jupyter_console", "--existing", agent.connection_file], agent.environment)


def test_the_agent_and_a_person_see_what_the_other_ran_and_exit_leaves_the_kernel_alone(agent: Agent) -> None:
    agent.run("from_agent = 41")
    person = console(agent)
    person.cell("from_agent + 1")
    person.until(r"Out\[2\]: 42")
    person.cell("from_person = from_agent + 9")
    person.prompt()
    text = agent.run("from_person")
    assert text.startswith("In [4] · ")
    assert "Out[4]: 50" in text
    assert "2 cells were run by others" in text
    assert "In [2] (completed, jupyter console), In [3] (completed, jupyter console)" in text
    assert re.search(r"^Others here: jupyter console \(last sign .* ago\)$", agent.call("status"), re.M)
    person.cell("exit")
    assert person.exit_code() == 0
    assert "Out[" in agent.run("from_person"), "exit has ended the kernel"
    assert "process 1" in agent.call("status")
    assert "Others here" not in agent.call("status").replace("Others here: jupyter console\n", "")


def test_loommux_attach_shows_what_ran_before_and_its_ctrl_c_reaches_the_running_cell(agent: Agent) -> None:
    agent.run("for line in range(6): print('line', line)")
    person = Terminal([LOOMMUX, "attach", "--console"], agent.environment)
    shown = person.until(r"line 5")
    assert re.search(r"Kernel private-\w+ · .*\.json", shown)
    assert re.search(r"In \[1\] · completed · .* · sent by session \S+", shown)
    assert "for line in range(6)" in shown
    person.cell("import time; time.sleep(300)")
    until(lambda: "Running: In [2]" in agent.call("status"))
    person.program.sendintr()
    person.until("KeyboardInterrupt")
    text = agent.call("wait", execution=2)
    assert "Interrupted." in text
    assert "interrupted by jupyter console" in text
    person.prompt()


def test_a_persons_long_cell_is_interrupted_by_the_agent_only_on_purpose_and_the_person_sees_by_whom(
    agent: Agent,
) -> None:
    agent.run("1")
    person = console(agent)
    person.cell("import time; time.sleep(300)")
    until(lambda: "Running: In [2]" in agent.call("status"))
    assert re.match(r"busy: In \[2\] of \S+ has run for .*, sent by jupyter console\.", agent.run("1"))
    assert agent.call("interrupt").startswith("not_yours: In [2] ")
    assert agent.call("interrupt", execution=2).startswith("interrupted: In [2] ")
    shown = person.until(r"Interrupted by session \S+\.")
    assert "KeyboardInterrupt" in shown
    person.prompt()


def test_input_that_a_person_owes_is_said_and_can_be_interrupted_after_the_client_has_died(agent: Agent) -> None:
    agent.run("1")
    person = console(agent)
    person.cell("answer = input('name? ')")
    person.until(r"\nname\?")  # the question itself, at a line's start, and not the echo of its code
    person.type("ada")
    person.cell("again = input('and again? ')")
    person.until(r"\nand again\?")
    assert re.search(r"^In \[3\] waits for input from jupyter console\.$", agent.call("status"), re.M)
    assert "sent by jupyter console, and waits for that client's input." in agent.run("1")
    person.program.kill(signal.SIGKILL)
    person.program.close()
    assert agent.call("interrupt", execution=3).startswith("interrupted: In [3]")
    assert "Out[4]: 'ada'" in agent.run("answer")


def test_after_a_restart_by_the_agent_the_console_works_on_by_itself(agent: Agent) -> None:
    agent.run("lost = 1")
    person = console(agent)
    person.cell("lost")
    person.until(r"Out\[2\]: 1")
    said = agent.call("restart")
    assert "Attached clients, which stay connected: jupyter console." in said
    for _ in range(20):  # jupyter console shows no answers until it has felt the new process's heartbeat
        person.cell("'lost' in globals()")
        person.prompt()
        if re.search(r"Out\[\d+\]: False", person.text()):
            break
    assert re.search(r"Out\[\d+\]: False", person.text()), person.text()
    assert "Source: 'lost' in globals()" in agent.call("execution_status", execution=1), "the very first one was run"
