"""The `loommux` object of every kernel, and the same client outside of kernels."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from tests.e2e.driving import Agent, Place
from tests.e2e.shown import body, failed

pytestmark = pytest.mark.anyio

COLUMNS = ["name", "id", "state", "busy", "idle", "pid", "executions", "leases", "kept", "scope", "home"]
ERRORS = "from loommux_kernel.client import DaemonError\n"


async def value(agent: Agent, source: str) -> str:
    """What a cell prints."""
    return body(await agent.run(f"%%loommux --wait 60 --silence 60\n{source}"))


async def test_it_is_there_hidden_and_comes_back(agent: Agent) -> None:
    assert "loommux" not in await value(agent, "x = 1\n%who")
    for before in ("0", "loommux = 5", "del loommux"):
        for reset in ("%reset -f", "%reset -f -s"):
            await agent.run(before)
            await agent.run(reset)
            assert "<loommux in <this kernel " in await value(agent, "loommux")
            assert "loommux" not in await value(agent, "%who")


async def test_its_help_names_what_it_can(agent: Agent) -> None:
    for source in ("loommux?", "help(loommux)"):
        text = await agent.run(f"%%loommux --full-output\n{source}")
        for name in ("kernels", "create", "rename", "recycle", "recycle_idle", "notify", "watch", "export", "follow"):
            assert f"{name}(" in text, (source, name)


async def test_every_kernel_is_in_a_table(agent: Agent) -> None:
    await value(agent, "loommux.create('lab')")
    lines = (await value(agent, "loommux.kernels()")).split("\n")
    assert lines[1].split() == COLUMNS
    (mine,) = [line for line in lines[2:] if line.endswith(" -")]
    (lab,) = [line for line in lines[2:] if line.startswith("lab ")]
    assert lab.split()[-1] == mine.split()[0]
    assert (
        await value(agent, "print({k['name']: k['home'] for k in loommux.kernels()}['lab'] == loommux.self.name)")
        == "True"
    )


async def test_kernels_are_found_by_name_path_and_id_and_never_opened(agent: Agent) -> None:
    source = (
        ERRORS
        + """\
lab = loommux.create('lab')
assert lab == loommux['lab'] == loommux[f'/{loommux.self.name}/lab'] == loommux[lab.id] == loommux.create('lab')
assert loommux[loommux.self.id] is loommux.self and loommux[f'/{loommux.self.name}'] is loommux.self
before = len(loommux.kernels())
for missing in ('nobody', '/nobody', '/nobody/lab', '0' * 32):
    try: loommux[missing]
    except DaemonError as error: assert error.status == 'kernel_not_found', error
    else: print('found', missing)
assert len(loommux.kernels()) == before
print(lab)"""
    )
    assert (await value(agent, source)).startswith("<child kernel 'lab', id ")


async def test_a_handle_has_the_eight_tools(agent: Agent) -> None:
    source = (
        ERRORS
        + """\
lab = loommux.create('lab')
n = lab.run_cell("import time\\nfor i in range(30): print('line', i)\\ntime.sleep(60)", wait_seconds=0)['execution']
assert lab.wait(n, timeout_seconds=0.2)['status'] == 'running'
while lab.read_output(n)['output_total_lines'] < 30: pass
assert lab.read_output(n, line_range='-2:')['text'].split() == ['line', '28', 'line', '29']
assert lab.search_output('line 7', n)['matching_lines'] == 1
assert lab.status()['current_execution'] == n and lab.execution_status(n)['status'] == 'running'
try: lab.run_cell('1')
except DaemonError as error: assert error.status == 'busy', error
assert lab.interrupt(n)['status'] == 'interrupted'
try: lab.interrupt()
except DaemonError as error: assert error.status == 'idle', error
failed = lab.run_cell('1/0')
assert (failed['status'], failed['error']['ename']) == ('error', 'ZeroDivisionError')
assert lab.restart()['new_process'] == 2
assert lab.run_cell('6 * 7')['result_text'] == '42\\n'
try: lab.read_output(99)
except DaemonError as error: assert error.status == 'execution_not_found', error
print('all')"""
    )
    assert await value(agent, source) == "all"


async def test_output_can_be_followed_as_it_arrives(agent: Agent) -> None:
    source = """\
lab = loommux.create('lab')
waits = "while not os.path.exists('go'): time.sleep(0.01)\\nprint('end', end='')"
n = lab.run_cell("import os, time\\nfor i in range(200): print(i)\\n" + waits, wait_seconds=0)
texts = []
for text in lab.follow(n['execution']):
    texts.append(text)
    if '199' in text: open('go', 'w').close()
assert ''.join(texts) == ''.join(f'{i}\\n' for i in range(200)) + 'end', texts
assert len(texts) > 1
assert ''.join(lab.follow()) == ''.join(texts)
print('followed')"""
    assert await value(agent, source) == "followed"


async def test_calls_work_from_threads_and_tasks_and_while_the_loop_is_blocked(agent: Agent) -> None:
    source = """\
import asyncio, threading
names = []
threads = [threading.Thread(target=lambda: names.append(loommux.self.status()['kernel']['name'])) for _ in range(4)]
[t.start() for t in threads]; [t.join() for t in threads]
names.append((await asyncio.to_thread(loommux.self.status))['kernel']['name'])
print(set(names) == {loommux.self.name}, len(names))"""
    assert await value(agent, source) == "True 5"


async def test_the_own_name_follows_a_rename_and_is_known_to_the_next_header(agent: Agent) -> None:
    source = """\
import os
old = loommux.self.name
print(loommux.rename(loommux.self, 'report'), loommux.self.name, os.environ['LOOMMUX_KERNEL_NAME'])"""
    assert (await value(agent, source)).split("\n")[0] == "report report report"
    assert "'report'" in await agent.run("%%loommux --kernel report\nloommux.self.name")
    await value(agent, "a, b = loommux.create('a'), loommux.create('b')")
    assert await value(agent, "print(loommux.rename(b, 'a'), b.name, loommux['a-2'] == b)") == "a-2 a-2 True"


async def test_a_kernels_executions_are_exported_as_a_notebook(agent: Agent, common_place: Place) -> None:
    await value(agent, "print('to be exported')")
    path = Path((await value(agent, "print(loommux.export('run.ipynb'))")).strip())
    assert path == common_place.workspace / "run.ipynb"
    cells = json.loads(await anyio.Path(path).read_text())["cells"]
    assert any("to be exported" in "".join(cell["source"]) for cell in cells)
    _, exists = await failed(agent, "loommux.export('run.ipynb')")
    assert exists == f"FileExistsError: {path} exists; overwrite=True replaces it"
    await value(agent, "print(loommux.export('run.ipynb', overwrite=True))")
    assert len(json.loads(await anyio.Path(path).read_text())["cells"]) > len(cells)


async def test_what_the_server_refuses_is_an_error_that_names_it(agent: Agent) -> None:
    _, named = await failed(agent, "loommux['nobody']")
    assert named.startswith("DaemonError: kernel_not_found: ")
    _, named = await failed(agent, "loommux.create('a/b')")
    assert named.startswith("DaemonError: "), named


async def test_a_script_outside_of_kernels_has_the_same_client(agent: Agent) -> None:
    url = await value(agent, "import os; print(os.environ['LOOMMUX_CONTROL_URL'])")
    id = await value(agent, "print(loommux.self.id); seen = 'seen'")
    script = (
        "import sys; from loommux_kernel.client import Daemon\n"
        "kernel = Daemon(sys.argv[1])[sys.argv[2]]\n"
        "print(kernel.run_cell('seen')['result_text'], [k['name'] for k in Daemon(sys.argv[1]).kernels()])"
    )
    environment = {name: text for name, text in os.environ.items() if not name.startswith("LOOMMUX_")}
    done = await anyio.to_thread.run_sync(
        lambda: subprocess.run(
            [sys.executable, "-c", script, url, id], capture_output=True, text=True, timeout=60, env=environment
        )
    )
    assert done.returncode == 0, done.stderr
    assert "'seen'" in done.stdout
