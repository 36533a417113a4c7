"""What agents are told of the tools, and how arguments are checked."""

from __future__ import annotations

import inspect
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loommux_host.mcp.parameters import LARGEST_INTEGER, BadArgument
from loommux_host.mcp.tools import INSTRUCTIONS, TOOLS, listing
from loommux_kernel.shared.protocol import Stream

#: Contract 3: parameters and defaults.
CONTRACT = {
    "run_cell": {"freeform": None, "kernel": None},
    "wait": {
        "execution": None, "timeout_seconds": 10, "silence_seconds": 10, "watch": None, "process": None, "kernel": None,
    },
    "status": {"kernel": None},
    "execution_status": {"execution": None, "process": None, "kernel": None},
    "read_output": {
        "execution": None, "stream": "combined", "line_range": None, "start_char": 1, "max_chars": None,
        "process": None, "kernel": None,
    },
    "search_output": {
        "query": None, "execution": None, "stream": "combined", "query_mode": "auto", "context_before": 0,
        "context_after": 0, "ignore_case": False, "max_chars": None, "process": None, "kernel": None,
    },
    "interrupt": {"execution": None, "kernel": None},
    "restart": {"kernel": None},
}  # fmt: skip
REQUIRED = {"run_cell": ["freeform"], "search_output": ["query"]}
READERS = {"wait", "status", "execution_status", "read_output", "search_output"}


def test_the_eight_tools_have_the_parameters_and_defaults_of_the_contract() -> None:
    assert {name: {p.name: p.default for p in tool.parameters} for name, tool in TOOLS.items()} == CONTRACT
    assert {n: [p.name for p in t.parameters if p.required] for n, t in TOOLS.items()} == {
        name: REQUIRED.get(name, []) for name in CONTRACT
    }


@pytest.mark.parametrize("text", [INSTRUCTIONS, *(tool.description for tool in TOOLS.values())])
@pytest.mark.case("E12")
def test_descriptions_and_instructions_are_not_cut_by_any_client(text: str) -> None:
    assert len(text.encode()) < 2000


@pytest.mark.case("S05")
def test_it_is_said_that_this_is_no_sandbox() -> None:
    for text in (INSTRUCTIONS, TOOLS["run_cell"].description):
        assert "Not a sandbox" in text
        assert "full rights" in text


@pytest.mark.parametrize("name", CONTRACT)
def test_every_description_says_what_to_do_when_the_host_cut_the_call_short(name: str) -> None:
    assert "cut" in TOOLS[name].description


def test_hints_say_what_only_reads_and_what_destroys() -> None:
    for tool in listing():
        hints = tool["annotations"]
        assert hints["readOnlyHint"] is (tool["name"] in READERS)
        assert hints["idempotentHint"] is (tool["name"] in READERS)
    for name in ("restart", "interrupt", "run_cell"):
        assert TOOLS[name].hints["destructiveHint"]


def test_long_results_are_announced() -> None:
    announced = {tool["name"] for tool in listing() if tool.get("_meta") == {"anthropic/maxResultSizeChars": 200_000}}
    assert announced == {"run_cell", "wait", "read_output"}


def test_schemas_are_closed_objects_in_which_every_parameter_is_described() -> None:
    for tool in listing():
        assert "outputSchema" not in tool
        schema = tool["inputSchema"]
        assert schema["type"] == "object"
        assert schema["additionalProperties"] is False
        for name, parameter in schema["properties"].items():
            assert parameter["description"], name
            assert parameter["type"] in {"string", "integer", "number", "boolean"}
    assert len(json.dumps(listing())) < 16_000


def test_the_service_takes_every_argument_under_its_name() -> None:
    from loommux_host.usecases.service import Service

    for name, tool in TOOLS.items():
        taken = inspect.signature(getattr(Service, name)).parameters
        given = {"source" if p.name == "freeform" else p.name for p in tool.parameters}
        assert given <= set(taken), name
        needed = {n for n, p in taken.items() if p.default is inspect.Parameter.empty} - {"self", "caller"}
        assert needed <= given, name


# -- arguments -------------------------------------------------------------------


def test_defaults_fill_in_what_is_left_out_or_null() -> None:
    search = TOOLS["search_output"].arguments({"query": "x", "stream": None, "ignore_case": None})
    assert search["stream"] is Stream.COMBINED
    assert search["ignore_case"] is False
    assert search["execution"] is None
    assert search["context_before"] == 0
    assert TOOLS["wait"].arguments({})["timeout_seconds"] == 10.0


@pytest.mark.parametrize(
    ("tool", "arguments", "parameter", "says"),
    [
        ("run_cell", {}, "freeform", "it has to be a string"),
        ("run_cell", {"freeform": None}, "freeform", "it has to be a string"),
        ("run_cell", {"freeform": 7}, "freeform", "it has to be a string"),
        ("run_cell", {"freeform": "\ud800"}, "freeform", "without lone surrogates"),
        ("run_cell", {"freeform": "1", "code": "2"}, "code", "run_cell takes freeform, kernel"),
        ("wait", {"execution": 0}, "execution", "it has to be a positive integer"),
        ("wait", {"execution": "7"}, "execution", "it has to be a positive integer"),
        ("wait", {"execution": True}, "execution", "it has to be a positive integer"),
        ("wait", {"execution": 7.5}, "execution", "it has to be a positive integer"),
        ("wait", {"execution": LARGEST_INTEGER + 1}, "execution", "it has to be a positive integer"),
        ("wait", {"timeout_seconds": 0}, "timeout_seconds", "positive, finite number of seconds"),
        ("wait", {"timeout_seconds": float("inf")}, "timeout_seconds", "positive, finite number of seconds"),
        ("wait", {"silence_seconds": float("nan")}, "silence_seconds", "positive, finite number of seconds"),
        ("wait", {"silence_seconds": "10"}, "silence_seconds", "positive, finite number of seconds"),
        ("wait", {"watch": ""}, "watch", "it has to be a string that is not empty"),
        ("read_output", {"stream": "stdin"}, "stream", "one of combined, stdout, stderr, result, traceback"),
        ("read_output", {"stream": ["stdout"]}, "stream", "one of combined, stdout"),
        ("read_output", {"line_range": 5}, "line_range", "it has to be a string"),
        ("read_output", {"max_chars": 0}, "max_chars", "it has to be a positive integer"),
        ("search_output", {}, "query", "it has to be a string"),
        ("search_output", {"query": "x", "query_mode": "glob"}, "query_mode", "one of auto, literal, regex"),
        ("search_output", {"query": "x", "context_before": -1}, "context_before", "an integer, 0 or more"),
        ("search_output", {"query": "x", "ignore_case": "yes"}, "ignore_case", "true or false"),
        ("status", {"execution": 7}, "execution", "status takes kernel"),
    ],
)
def test_a_bad_argument_is_named_with_its_value_and_what_is_allowed(
    tool: str, arguments: dict[str, object], parameter: str, says: str
) -> None:
    with pytest.raises(BadArgument) as caught:
        TOOLS[tool].arguments(arguments)
    assert caught.value.parameter == parameter
    assert caught.value.value == arguments.get(parameter) or caught.value.value != caught.value.value  # NaN
    assert says in caught.value.allowed


def test_a_whole_number_is_an_integer_however_a_client_writes_it() -> None:
    arguments = TOOLS["wait"].arguments({"execution": 7.0, "timeout_seconds": 3})
    assert arguments["execution"] == 7
    assert isinstance(arguments["execution"], int)
    assert arguments["timeout_seconds"] == 3.0


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)
NAMES = st.sampled_from(sorted({name for parameters in CONTRACT.values() for name in parameters})) | st.text()


@given(st.sampled_from(sorted(CONTRACT)), st.dictionaries(NAMES, JSON, max_size=4))
def test_any_json_is_taken_or_refused_and_never_fails_otherwise(tool: str, arguments: dict[str, object]) -> None:
    try:
        taken = TOOLS[tool].arguments(arguments)
    except BadArgument as bad:
        assert bad.parameter in arguments or bad.parameter in REQUIRED[tool]
    else:
        assert set(taken) == set(CONTRACT[tool])
