"""The cell header's grammar (contract 3.4)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loommux_kernel.shared.header import (
    BY_NAME,
    HELP,
    NAME,
    OPTIONS,
    SECONDS,
    USAGE,
    Header,
    InvalidHeader,
    parse,
    without_order_mark,
)  # fmt: skip


def test_a_cell_without_a_header_has_none() -> None:
    assert parse("1 + 1") is None
    assert parse("") is None
    assert parse("\n  \n") is None
    assert parse("%%time\n1") is None
    assert parse("%%loommuxx --wait 3") is None


def test_every_option_is_read() -> None:
    assert parse("%%loommux --kernel build --wait 30 --silence 2.5 --full-output\n1") == Header(
        line=0, kernel="build", wait=30.0, silence=2.5, full_output=True
    )
    assert parse("%%loommux --attach report --create\n1") == Header(line=0, attach="report", create=True)
    assert parse("%%loommux --kernel /main/build --create\n1") == Header(line=0, kernel="/main/build", create=True)
    assert parse("%%loommux --attach report --create --autoclose\n1") == Header(
        line=0, attach="report", create=True, autoclose=True
    )
    assert parse("%%loommux --alone --attach report --create --keep\n1") == Header(
        line=0, attach="report", create=True, keep=True, alone=True
    )
    assert parse("%%loommux\n1") == Header(line=0)


def test_usage_help_and_parser_know_the_same_options() -> None:
    assert USAGE == (
        "%%loommux [--kernel NAME [--create] | --attach NAME [--create [--autoclose | --keep]] [--alone]]"
        " [--wait SECONDS] [--silence SECONDS] [--full-output]"
    )
    values = {"": "", NAME: " build", SECONDS: " 2.5"}
    for option in OPTIONS:
        company = " ".join(f"{name}{values[BY_NAME[name].takes]}" for (*_, name) in option.beside)
        assert parse(f"%%loommux {company} {option.name}{values[option.takes]}\n1") is not None
        assert f"\n{option.name}" in HELP


@pytest.mark.case("X20")
def test_a_byte_order_mark_is_passed_over_before_a_header_and_before_the_code_under_it() -> None:
    for source in (
        "\ufeff%%loommux --wait 3\nx",
        "\n \ufeff%%loommux --wait 3\n\ufeffx",
        "%%loommux --wait 3\n\ufeffx",
    ):
        header = parse(source)
        assert header is not None and header.wait == 3
        assert header.body(source) == "x"
    assert without_order_mark("\ufeff") == ""
    assert without_order_mark("\n\ufeff x") == "\n x"
    assert without_order_mark("\ufeff\ufeffx") == "\ufeffx"  # as Python: one
    assert without_order_mark("x = '\ufeff'") == "x = '\ufeff'"


def test_names_are_quoted_as_in_a_shell() -> None:
    for text in ("--kernel 'my build'", '--kernel "my build"', "--kernel my\\ build", "--kernel='my build'"):
        header = parse(f"%%loommux {text}\n1")
        assert header is not None
        assert header.kernel == "my build"


def test_only_the_first_line_that_is_not_blank_is_a_header() -> None:
    header = parse("\n   \n%%loommux --wait 3\nx")
    assert header == Header(line=2, wait=3.0)
    assert parse("x = 1\n%%loommux --wait 3") is None
    assert parse("# note\n%%loommux --wait 3") is None


def test_a_header_may_be_indented_like_any_cell_magic() -> None:
    assert parse("  %%loommux --wait 3\n  x") == Header(line=0, wait=3.0)


def test_asking_for_help_is_no_header() -> None:
    assert parse("%%loommux?") is None
    assert parse("%%loommux??\n") is None


def test_the_body_is_what_follows_the_header() -> None:
    source = "\n%%loommux --wait 3\n%%time\nx\n"
    header = parse(source)
    assert header is not None
    assert header.body(source) == "%%time\nx\n"


@pytest.mark.case("X23")
@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("--wai 3", "'--wai' is not an option"),
        ("--full", "'--full' is not an option"),
        ("-w 3", "'-w' is not an option"),
        ("build", "'build' is not an option"),
        ("--wait 3 4", "'4' is not an option"),
        ("--wait", "--wait needs a value"),
        ("--kernel --wait 3", "--kernel needs a value"),
        ("--wait x", "--wait must be a positive, finite number of seconds, got 'x'"),
        ("--wait 0", "got '0'"),
        ("--wait -3", "got '-3'"),
        ("--silence nan", "--silence must be"),
        ("--silence inf", "--silence must be"),
        ("--silence 1e999", "--silence must be"),
        ("--wait 3 --wait 4", "--wait is given twice"),
        ("--full-output=yes", "--full-output takes no value"),
        ("--kernel a --attach b", "exclude each other"),
        ("--create", "--create goes only with --kernel or --attach"),
        ("--autoclose", "--autoclose goes only with --attach"),
        ("--attach a --autoclose", "--autoclose goes only with --create"),
        ("--kernel a --create --keep", "--keep goes only with --attach"),
        ("--attach a --create --keep --autoclose", "--autoclose and --keep exclude each other"),
        ("--kernel a --alone", "--alone goes only with --attach"),
        ("--kernel 'a", "no closing quotation"),
        ("--kernel ''", "--kernel needs a printable name"),
        ("--kernel 'a\tb'", "--kernel needs a printable name"),
        (f"--kernel {'a' * 257}", "at most 256 characters"),
        ("--kernel a/b", "without /, or an id, or a path like /main/child, got 'a/b'"),
        ("--kernel a/b/c", "or a path like /main/child, got 'a/b/c'"),
        ("--kernel /a/b/c", "or a path like /main/child"),
        ("--kernel /a/", "or a path like /main/child"),
        ("--kernel /", "or a path like /main/child"),
        ("--attach /a", "--attach needs a printable name without /, or an id, got '/a'"),
    ],
)
def test_a_bad_header_is_refused_by_name(text: str, says: str) -> None:
    with pytest.raises(InvalidHeader) as refused:
        parse(f"%%loommux {text}\n1")
    assert says in str(refused.value)


@given(st.text(max_size=80))
def test_any_text_after_the_mark_is_a_header_or_refused(text: str) -> None:
    try:
        header = parse(f"%%loommux {text}")
    except InvalidHeader as refused:
        assert str(refused)
    else:
        assert header is not None
        assert header.line == 0


@given(st.floats(min_value=0, exclude_min=True, allow_infinity=False, allow_nan=False))
def test_any_positive_finite_number_is_a_time(seconds: float) -> None:
    header = parse(f"%%loommux --wait {seconds!r}")
    assert header is not None
    assert header.wait == seconds
