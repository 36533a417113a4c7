"""What becomes of IOPub's messages: in order with the text, in the record, and to attached clients."""

from __future__ import annotations

import itertools
import json

import pytest
import zmq

from loommux_kernel.shared.protocol import ExecutionEnded, ExecutionStarted, OutputArrived, State, Stream
from tests.kernel.kernel_process import Client, KernelProcess
from tests.kernel.reading import displays, text, wait_text


def test_displays_stand_between_the_texts(kernel: KernelProcess, server: Client) -> None:
    reply = server.run(
        "from IPython.display import display, HTML\nprint('one')\ndisplay('two')\nprint('three')\n"
        "display(HTML('<b>four</b>'))\n'five'"
    )
    lines = text(kernel, reply.serial).splitlines()
    assert lines[:3] == ["one", "'two'", "three"]
    assert lines[-1] == f"Out[{reply.number}]: 'five'"
    found = displays(kernel, reply.serial)
    assert [d.kind for d in found] == ["display", "display", "result"]
    assert found[1].bundle["text/html"] == "<b>four</b>"
    assert reply.displays == 0  # none of them is an image


def test_images_are_counted_for_the_host(kernel: KernelProcess, server: Client) -> None:
    reply = server.run("from IPython.display import display\ndisplay({'image/png': 'iVBO'}, raw=True)\ndisplay('x')")
    assert reply.displays == 1
    assert len(displays(kernel, reply.serial)) == 2


def test_bytes_in_a_bundle_are_recorded_in_base64(kernel: KernelProcess, server: Client) -> None:
    reply = server.run(
        "from IPython.display import display\nclass Drawn:\n    def _repr_png_(self):\n        return b'\\x89PNG'\n"
        "handle = display(Drawn(), display_id=True)\nhandle.update(Drawn())\nDrawn()"
    )
    assert reply.displays == 3
    assert [d.bundle["image/png"] for d in displays(kernel, reply.serial)] == ["iVBORw=="] * 2


def test_a_display_updated_a_thousand_times_is_its_last_state(kernel: KernelProcess, server: Client) -> None:
    reply = server.run(
        "from IPython.display import display\nhandle = display('start', display_id=True)\n"
        "for i in range(1000):\n    handle.update(i)\nprint('end')"
    )
    assert text(kernel, reply.serial) == "999\nend\n"
    assert len(displays(kernel, reply.serial)) == 1


def test_clear_output_in_a_loop_leaves_the_last_round(kernel: KernelProcess, server: Client) -> None:
    reply = server.run(
        "from IPython.display import clear_output\n"
        "for i in range(50):\n    clear_output(wait=True)\n    print('round', i)"
    )
    assert text(kernel, reply.serial) == "round 49\n"


def test_messages_of_threads_and_later_tasks_belong_to_their_cell(kernel: KernelProcess, server: Client) -> None:
    client = kernel.foreign()
    first = server.run(
        "import asyncio, threading, time\nfrom IPython.display import display\n"
        "def later():\n    time.sleep(0.3)\n    display('from a thread')\n"
        "async def too():\n    await asyncio.sleep(0.3)\n    display('from a task')\n"
        "threading.Thread(target=later).start(); task = asyncio.create_task(too())"
    )
    second = server.run("print('next')")
    wait_text(kernel, first.serial, "from a thread")
    wait_text(kernel, first.serial, "from a task")
    assert text(kernel, second.serial) == "next\n"
    client.take_published(0.2)
    shown = [m for m in client.published if m["msg_type"] == "display_data"]
    inputs = [m for m in client.published if m["msg_type"] == "execute_input"]
    assert {m["parent_header"]["msg_id"] for m in shown} == {inputs[0]["parent_header"]["msg_id"]}


def test_an_attached_client_sees_streams_and_displays_in_order(kernel: KernelProcess, server: Client) -> None:
    client = kernel.foreign()
    request = client.execute(
        "import os, sys\nfrom IPython.display import display\nprint('a'); display('b'); print('\\x1b[31mc\\x1b[0m')\n"
        "sys.stderr.write('d\\n'); os.system('echo e'); 1 / 0"
    )
    messages = client.wait_idle(request)
    stdout = [m["content"]["text"] for m in messages if m["content"].get("name") == "stdout"]
    assert "".join(stdout) == "a\n\x1b[31mc\x1b[0m\ne\n"
    assert [m["content"]["text"] for m in messages if m["content"].get("name") == "stderr"] == ["d\n"]
    kinds = [kind for kind, _ in itertools.groupby(m["msg_type"] for m in messages) if kind != "execute_input"]
    assert kinds == ["status", "stream", "display_data", "stream", "error", "status"]
    server.seen = server.ask("status")["last_serial"]
    assert text(kernel, server.seen, Stream.STDOUT) == "a\nc\ne\n"


def test_late_output_reaches_clients_as_its_own_cells(kernel: KernelProcess, server: Client) -> None:
    client = kernel.foreign()
    request = client.execute("import threading\nthreading.Timer(0.2, print, ['late']).start()")
    client.wait_idle(request)
    server.seen = server.ask("status")["last_serial"]
    server.run("import time; time.sleep(0.5)")
    client.take_published(0.2)
    (late,) = [m for m in client.published if m["msg_type"] == "stream"]
    assert late["parent_header"]["msg_id"] == request["header"]["msg_id"]


def test_nobody_else_gets_what_only_the_server_wants(kernel: KernelProcess, server: Client) -> None:
    started = server.run("print('x')")
    server.wait_event(ExecutionEnded, serial=started.serial)
    numbers = [e.sequence for e in server.events]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    kinds = [type(e) for e in server.events if getattr(e, "serial", None) == started.serial]
    assert kinds[0] is ExecutionStarted
    assert kinds[-1] is ExecutionEnded


def test_output_is_told_of_while_a_cell_runs_and_not_too_often(kernel: KernelProcess, server: Client) -> None:
    reply = server.run("import time\nfor i in range(100):\n    print('line', i)\n    time.sleep(0.01)", timeout=60)
    end = server.wait_event(ExecutionEnded, serial=reply.serial)
    told = [e for e in server.events if isinstance(e, OutputArrived) and e.serial == reply.serial]
    assert 3 <= len(told) <= 10 * (end.at - reply.started_at) + 2
    assert all(b.at - a.at > 0.05 for a, b in itertools.pairwise(told))
    assert told[-1].last_line.startswith("line ")


def test_a_subscription_is_heard_in_the_middle_of_a_flood(kernel: KernelProcess, server: Client) -> None:
    request = server.submit(
        "import time\nuntil = time.time() + 3\nwhile time.time() < until:\n    display(1)\n    time.sleep(0.0005)"
    )
    context = zmq.Context()
    subscriber = context.socket(zmq.SUB)
    subscriber.linger = 0
    info = json.loads(kernel.connection.read_text())
    subscriber.connect(f"ipc://{info['ip']}-{info['iopub_port']}")
    for n in range(100):
        topic = f"topic {n}".encode()
        subscriber.subscribe(topic)
        while True:
            assert subscriber.poll(10_000), f"{topic!r} was not heard"
            if subscriber.recv_multipart()[0] == topic:
                break
    context.destroy(linger=0)
    assert server.reply(request).state is State.COMPLETED


def test_a_bare_stream_message_is_recorded(kernel: KernelProcess, server: Client) -> None:
    reply = server.run(
        "k = get_ipython().kernel\nk.send_response(k.iopub_socket, 'stream', {'name': 'stderr', 'text': 'sent\\n'})"
    )
    assert reply.state is State.COMPLETED
    assert text(kernel, reply.serial, Stream.STDERR) == "sent\n"


@pytest.mark.parametrize("bundle", ["{'text/plain': 5}", "{'image/png': b'\\x89PNG'}", "{}"])
def test_odd_bundles_harm_nothing(kernel: KernelProcess, server: Client, bundle: str) -> None:
    server.run(f"from IPython.display import display\ndisplay({bundle}, raw=True)")
    assert text(kernel, server.run("print('after')").serial) == "after\n"
