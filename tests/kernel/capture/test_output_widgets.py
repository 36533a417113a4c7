"""ipywidgets without a client that draws them: their text follows their state."""

from __future__ import annotations

from loommux_kernel.capture.widget_text import Views
from loommux_kernel.shared.protocol import Stream
from tests.kernel.kernel_process import Client, KernelProcess
from tests.kernel.reading import text

WIDGETS = "import ipywidgets as w\nfrom IPython.display import display, clear_output\n"


def test_a_widget_shows_its_last_state_in_its_place(kernel: KernelProcess, server: Client) -> None:
    source = "bar = w.IntProgress(max=500)\ndisplay(bar)\nprint('x')\nfor i in range(500): bar.value = i"
    reply = server.run(WIDGETS + source, timeout=60)
    assert text(kernel, reply.serial) == "IntProgress(value=499, max=500)\nx\n"


def test_a_bar_of_tqdm_is_its_last_state_and_one_that_does_not_stay_is_gone(
    kernel: KernelProcess, server: Client
) -> None:
    source = (
        "from tqdm.notebook import tqdm\nfor i in tqdm(range(300)): pass\nfor i in tqdm(range(9), leave=False): pass"
    )
    lines = text(kernel, server.run(source, timeout=60).serial).splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("100%")
    assert " 300/300 " in lines[0]


def test_a_widget_that_has_left_the_screen_is_shown_once_more_at_the_end(kernel: KernelProcess, server: Client) -> None:
    source = "bar = w.IntProgress()\ndisplay(bar)\nfor i in range(100):\n    print(i)\n    bar.value = i"
    lines = text(kernel, server.run(WIDGETS + source, timeout=60).serial).splitlines()
    assert [line for line in lines if "value=" in line][1:] == ["IntProgress(value=99)"]
    assert lines[-1] == "IntProgress(value=99)"


def test_text_in_an_output_widget_is_recorded_and_cleared_as_the_widget_says(
    kernel: KernelProcess, server: Client
) -> None:
    source = (
        "o = w.Output()\ndisplay(o)\nprint('kept')\nfor i in range(5):\n"
        "    with o:\n        clear_output(wait=True)\n        print('inside', i)\nprint('after')"
    )
    reply = server.run(WIDGETS + source, timeout=60)
    assert text(kernel, reply.serial) == "kept\ninside 4\nafter\n"
    assert text(kernel, reply.serial, Stream.STDOUT) == "kept\ninside 4\nafter\n"


def test_outputs_given_to_a_widget_are_recorded_and_replaced(kernel: KernelProcess, server: Client) -> None:
    source = "o = w.Output()\no.append_stdout('one\\n')\no.append_stderr('two\\n')\n"
    assert text(kernel, server.run(WIDGETS + source, timeout=60).serial) == "one\ntwo\n"
    replaced = "for i in range(3): o.outputs = ({'output_type': 'stream', 'name': 'stdout', 'text': f'{i}\\n'},)"
    assert text(kernel, server.run(replaced).serial) == "2\n"


def test_a_widget_whose_repr_fails_keeps_its_text_and_harms_nothing(kernel: KernelProcess, server: Client) -> None:
    source = (
        "class Odd(w.IntProgress):\n    def __repr__(self):\n        if self.value: raise ValueError\n"
        "        return 'odd'\nodd = Odd()\ndisplay(odd)\nodd.value = 5\nprint('on')"
    )
    assert text(kernel, server.run(WIDGETS + source, timeout=60).serial) == "odd\non\n"


def test_only_the_last_displayed_widgets_are_followed() -> None:
    shown: list[str] = []
    views = Views(lambda serial, model, text, last: shown.append(model))
    for number in range(200):
        bundle = {"text/plain": "x", "application/vnd.jupyter.widget-view+json": {"model_id": f"m{number}"}}
        views.sent(1, "display_data", {"data": bundle})
    for number in range(200):
        views.sent(1, "comm_close", {"comm_id": f"m{number}"})
    assert shown == [f"m{number}" for number in range(136, 200)]
