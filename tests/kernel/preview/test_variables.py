"""The user's variables, read without running any code of theirs."""

from __future__ import annotations

import collections
import enum
import sys
import threading
import types
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from loommux_kernel.preview.values import PREVIEW
from loommux_kernel.preview.variables import MOST, variables
from loommux_kernel.shared.protocol import ExecutionStarted
from tests.kernel.kernel_process import Client


def told(**namespace: Any) -> dict[str, dict[str, Any]]:
    return {one["name"]: one for one in variables(namespace, {})["variables"]}


def short(value: object) -> tuple[Any, Any, Any]:
    one = told(x=value)["x"]
    return one["type"], one["size"], one["preview"]


# -- what is told ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (7, ("int", None, "7")),
        (None, ("NoneType", None, "None")),
        (1.5, ("float", None, "1.5")),
        ("a\nb", ("str", 3, r"'a\nb'")),
        (b"ab", ("bytes", 2, "b'ab'")),
        ([1, "a", [2]], ("list", 3, "[1, 'a', [2]]")),
        ((1,), ("tuple", 1, "(1,)")),
        (set[int](), ("set", 0, "set()")),
        (frozenset({1}), ("frozenset", 1, "frozenset({1})")),
        ({"a": {"b": 1}}, ("dict", 1, "{'a': {'b': 1}}")),
        (collections.deque([1]), ("collections.deque", 1, "deque([1])")),
        (range(3), ("range", 3, "range(0, 3, 1)")),
        (range(10**30), ("range", None, f"range(0, {10**30}, 1)")),
        (10**300, ("int", None, "int of 997 bits")),
        (list(range(100)), ("list", 100, "[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, … 90 more]")),
        (types, ("module", None, "types")),
        (Path, ("type", None, f"class {Path.__module__}.Path")),
        (short, ("function", None, "short(value)")),
        (len, ("builtin_function_or_method", None, "len")),
        ([[[[[1]]]]], ("list", 1, "[[[[…]]]]")),
    ],
)
def test_builtin_values_are_shown(value: object, expected: tuple[str, int | None, str]) -> None:
    assert short(value) == expected


def test_a_list_that_holds_itself_is_shown() -> None:
    loop: list[Any] = []
    loop.append(loop)
    assert short(loop)[2] == "[[[[…]]]]"


def test_what_is_told_is_bounded() -> None:
    one = told(x="y" * 10**6, **{"n" * 10_000: 1})
    assert all(len(str(part)) <= PREVIEW for value in one.values() for part in value.values())
    assert one["x"]["size"] == 10**6
    many = variables({f"v{n}": n for n in range(MOST + 20)}, {})
    assert (len(many["variables"]), many["total"]) == (MOST, MOST + 20)
    assert many["variables"][-1]["name"] == f"v{MOST + 19}"


def test_text_that_utf_8_cannot_say_is_escaped() -> None:
    [one] = variables({"\udce9": "\udce9"}, {})["variables"]
    assert (one["name"], one["preview"]) == (r"\udce9", r"'\udce9'")


def test_names_of_ipython_and_hidden_ones_are_left_out() -> None:
    mine = object()
    hidden = {"loommux": mine, "quit": mine}
    names: dict[Any, Any] = dict.fromkeys(["_", "__", "___", "_i", "_ii", "_i3", "_12", "_dh", "In", "Out", "__name__"])
    namespace = {**names, "loommux": mine, "quit": 3, "_own": 1, 5: 1}
    assert [one["name"] for one in variables(namespace, hidden)["variables"]] == ["quit", "_own"]


def test_arrays_and_frames_are_told_by_shape_type_and_names() -> None:
    assert short(np.arange(12.0).reshape(3, 4)[:, :2]) == (
        "numpy.ndarray", [3, 2], "float64 [0.0, 1.0, 4.0, 5.0, 8.0, 9.0]"
    )  # fmt: skip
    assert short(np.float64(1.5)) == ("numpy.float64", None, "1.5")
    assert short(np.array(["a"])) == ("numpy.ndarray", [1], "str_")
    frame = pd.DataFrame({"a": [1, 2], "b": ["x", "y"]}, index=pd.date_range("2020", periods=2))
    kind, size, preview = short(frame)
    assert (kind, size) == ("pandas.DataFrame", [2, 2])
    assert preview in ("columns 'a', 'b'", "2 columns")
    assert short(pd.DataFrame({3: [1.0], 4: [True]}))[1:] == ([1, 2], "columns 3, 4")
    assert short(pd.Series([1, 2], name="q")) == ("pandas.Series", [2], "'q': int64 [1, 2]")
    assert short(pd.MultiIndex.from_product([[1, 2], [3]]))[1] == [2]
    assert short(pd.CategoricalIndex(["a"]))[1:] == ([1], None)
    assert short(pd.DataFrame())[1:] == ([0, 0], "0 columns")


def test_polars_frames_are_told_too() -> None:
    polars = pytest.importorskip("polars")
    assert short(polars.DataFrame({"a": [1, 2], "b": [3, 4]}))[1:] == ([2, 2], "columns 'a', 'b'")
    assert short(polars.Series("n", [1, 2]))[1:] == ([2], "'n'")


def test_memory_that_is_not_an_arrays_own_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(bytes(80))
    mapped = np.memmap(tmp_path / "data", dtype="float64", mode="r")
    assert short(np.frombuffer(mapped))[1:] == ([10], "float64")
    assert short(mapped) == ("numpy.memmap", None, None)


# -- what is not run -------------------------------------------------------------------


class Alarm:
    """Any code of a user's that is run while it is set."""

    on = False
    rung: list[str] = []  # noqa: RUF012

    def __call__(self, name: str) -> Any:
        def method(*args: Any, **more: Any) -> Any:
            if self.on:
                self.rung.append(name)
                raise AssertionError(name)
            return 0 if name in ("__len__", "__hash__") else NotImplemented

        return method


ALARM = Alarm()
HOOKS = ["__repr__", "__str__", "__len__", "__iter__", "__eq__", "__hash__", "__bool__", "__sizeof__", "__format__"]
LOOKS = ["__getattribute__", "__instancecheck__", "__subclasscheck__"]


def alarmed(bases: tuple[type, ...] = (), name: str = "User", meta: type = type, module: str = "user") -> type:
    body: dict[str, Any] = {hook: ALARM(hook) for hook in (*HOOKS, "items", "keys", "shape", "dtype", "__getattr__")}
    body |= {"__getattribute__": _watching, "__class__": property(ALARM("__class__")), "__module__": module}
    return meta(name, bases, body)


def _watching(self: object, name: str) -> Any:
    if ALARM.on:
        ALARM.rung.append(name)
    return object.__getattribute__(self, name)


class Meta(type):
    def __getattribute__(cls, name: str) -> Any:
        if ALARM.on:
            ALARM.rung.append(name)
        return type.__getattribute__(cls, name)


for _hook in ("__repr__", "__eq__", "__instancecheck__", "__subclasscheck__"):
    setattr(Meta, _hook, ALARM(_hook))


def _hash(cls: type) -> int:
    if ALARM.on:
        ALARM.rung.append("hash")
    return id(cls)


Meta.__hash__ = _hash  # type: ignore[method-assign,assignment]


def test_no_code_of_a_value_or_its_type_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    made = [alarmed(), alarmed(meta=Meta)]
    made += [alarmed((base,)) for base in (list, dict, str, int, set, tuple, float, np.ndarray, pd.Series)]
    made += [alarmed(name="ndarray", module="numpy"), alarmed(name="DataFrame", module="pandas.core.frame")]
    made += [alarmed(name="DataFrame", module="polars.x"), alarmed(name="float64", module="numpy", meta=Meta)]
    made += [type(enum.Enum("Color", "RED"))]
    values: list[Any] = [kind for kind in made]  # noqa: C416
    values += [object.__new__(made[0]), object.__new__(made[1])]
    values += [kind.__new__(kind) for kind in made[2:9] if kind.__mro__[1] is not np.ndarray]  # pyright: ignore[reportCallIssue]
    values += [object.__new__(kind) for kind in made[11:15]]
    lying = types.ModuleType("lying")
    lying.__getattr__ = ALARM("__getattr__")  # type: ignore[method-assign]
    frame = pd.DataFrame({"a": [1]})
    object.__setattr__(frame, "_mgr", object.__new__(made[0]))
    namespace = {f"v{n}": value for n, value in enumerate([*values, lying, frame])}
    namespace["nested"] = [values[-1], {"k": values[-2]}, (values[-3],)]
    namespace["objects"] = np.empty(1, dtype=object)
    namespace["objects"][0] = object.__new__(made[0])
    ALARM.rung.clear()
    monkeypatch.setattr(Alarm, "on", True)
    result = variables(namespace, {})
    monkeypatch.setattr(Alarm, "on", False)
    assert ALARM.rung == []
    assert len(result["variables"]) == len(namespace)
    assert not [one for one in result["variables"] if "cannot be read" in str(one["preview"])]


def test_variables_that_change_meanwhile_are_read_all_the_same() -> None:
    namespace: dict[Any, Any] = {"d": {}, "s": set()}
    over = threading.Event()

    def change() -> None:
        n = 0
        while not over.is_set():
            n += 1
            namespace["d"][n % 1000] = namespace[f"v{n % 100}"] = n
            namespace["s"].add(n % 1000)
            namespace["d"].pop((n * 7) % 1000, None)
            namespace.pop(f"v{(n * 7) % 100}", None)
            namespace["s"].discard((n * 7) % 1000)

    interval = sys.getswitchinterval()
    changing = threading.Thread(target=change)
    sys.setswitchinterval(1e-6)
    try:
        changing.start()
        for _ in range(200):
            seen = {one["name"]: one for one in variables(namespace, {})["variables"]}
            assert not seen or {"d", "s"} <= set(seen)
    finally:
        sys.setswitchinterval(interval)
        over.set()
        changing.join(10)


# -- in a kernel ---------------------------------------------------------------------------


@pytest.mark.case("P08")
def test_a_kernel_tells_its_variables_while_a_cell_runs(server: Client) -> None:
    server.run("import os\nanswer, _own = 42, [1]\ndef helper(a, *b): ...")
    before = server.ask("variables")
    shown = {one["name"]: one["preview"] for one in before["variables"]}
    assert shown == {"os": "os", "answer": "42", "_own": "[1]", "helper": "helper(a, *b)"}
    assert before["total"] == 4
    request = server.submit("for busy in iter(int, 1): pass")
    server.wait_event(ExecutionStarted, serial=server.seen + 1)
    names = [one["name"] for one in server.ask("variables", timeout=10)["variables"]]
    assert {"answer", "helper"} <= set(names)
    assert "loommux" not in names
    server.ask("interrupt")
    server.reply(request)
    assert server.run("loommux = 5").state == "completed"
    assert "loommux" in [one["name"] for one in server.ask("variables")["variables"]]
