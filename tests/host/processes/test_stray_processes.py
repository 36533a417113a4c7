"""What counts as left behind by a kernel, and what never does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import psutil
import pytest

from loommux_host.processes.running_servers import boot_id, was_there
from loommux_kernel.shared.clock import uptime

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="subreapers are Linux's")
#: A process that becomes a subreaper with children of every kind, and says which are left after a sweep.
SCRIPT = """
import json, os, subprocess, sys, time
import psutil
from loommux_host.processes.stray_processes import OwnChildren, become_subreaper, end_left_by, end_orphans
from loommux_kernel.shared.clock import uptime
mark, other = os.environ | {"LOOMMUX_KERNEL_ID": "a-kernel"}, os.environ | {"LOOMMUX_KERNEL_ID": "another"}
def child(**given):
    return psutil.Process(subprocess.Popen(["sleep", "60"], **given).pid)
def orphan(env):
    # A daemon: its parent, which began it, has ended, so that it is this subreaper's.
    out = subprocess.run(["setsid", "sh", "-c", "setsid sleep 60 >&- & echo $!"], env=env, stdout=-1, text=True).stdout
    return psutil.Process(int(out))
become_subreaper()
own = OwnChildren()
made = {"older than the kernel": child(start_new_session=True, env={})}
time.sleep(0.1)
since = uptime()
with own.starting():
    made["its own"] = child(start_new_session=True, env=mark)
    own.add(made["its own"].pid)
made["in its session"] = child(process_group=0, env=mark)
made["marked"] = orphan(mark)
made["not marked"] = orphan(other)
ended = SWEEP
left = [name for name, p in made.items() if p.is_running() and p.status() != "zombie"]
for p in made.values():
    if p.is_running():
        p.kill()
print(json.dumps({"left": left, "ended": ended}))
"""
SPARED = ["older than the kernel", "its own", "in its session"]


def swept(how: str, **environment: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.replace("SWEEP", how)],
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        check=True,
    )
    return json.loads(done.stdout)


@pytest.mark.case("X03")
def test_of_a_dead_server_only_what_carries_its_mark_is_ended() -> None:
    said = swept("end_left_by({'a-kernel', 'a-third'}, own)")
    assert said == {"left": [*SPARED, "not marked"], "ended": 1}


@pytest.mark.case("X03")
def test_a_server_that_was_started_in_a_cell_ends_neither_itself_nor_its_own() -> None:
    """Then it carries the mark of that cell's kernel, as what it starts does."""
    said = swept("end_left_by({'a-kernel'}, own)", LOOMMUX_KERNEL_ID="a-kernel")
    assert said == {"left": [*SPARED, "not marked"], "ended": 1}


def test_of_a_kernel_whose_init_died_every_orphan_is_ended_and_nothing_that_the_server_started() -> None:
    said = swept("end_orphans('a-kernel', None, own, since)[0]")
    assert said == {"left": SPARED, "ended": 2}


def test_a_process_of_another_run_of_the_system_is_another() -> None:
    here = psutil.Process()
    assert was_there(here, uptime(), boot_id())
    assert not was_there(here, uptime() - 3600 * 24 * 3650, boot_id())
    assert not was_there(here, uptime(), "another run")
