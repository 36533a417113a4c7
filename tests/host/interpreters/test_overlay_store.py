"""Overlays on disk: whole or not there, made once, by several at a time."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest

from loommux_host.interpreters import overlay_store
from loommux_host.interpreters.finders import BEHIND, CONTENTS, FRONT
from loommux_host.interpreters.overlay_plan import Piece
from loommux_host.interpreters.probe import Interpreter
from loommux_host.interpreters.wheel_fetch import NotFetched

pytestmark = pytest.mark.anyio
HERE = Interpreter(Path("/p"), Path("/"), (3, 11, 4), "cpython", "linux-x86_64", False, (), {})
#: A package of this environment in front, a module with a top-level file and compiled code behind.
PIECES = [
    Piece("comm", "0.2", "front", "own", "0.1"),
    Piece("psutil", "7", "behind", "own"),
    Piece("typing-extensions", "4", "behind", "own"),
]
WHEEL = Piece("wire", "27.3", "behind", "wheel")


def made(cache: Path, pieces: list[Piece] = PIECES) -> Path:
    return overlay_store.make(cache, pieces, HERE)


def test_an_overlay_has_the_files_of_its_packages_and_no_compiled_code(tmp_path: Path) -> None:
    overlay = made(tmp_path)
    contents = json.loads((overlay / CONTENTS).read_text())
    assert contents == {FRONT: ["comm"], BEHIND: ["psutil", "typing_extensions"]}
    assert (overlay / FRONT / "comm/__init__.py").is_file()
    assert (overlay / BEHIND / "typing_extensions.py").is_file()
    assert list((overlay / BEHIND).glob("psutil-*.dist-info/METADATA"))
    assert not list(overlay.rglob("*.pyc"))
    assert not [path for path in overlay.rglob("*") if path.is_symlink()], "nothing depends on another environment"


def test_one_that_is_whole_is_found_and_one_that_is_not_is_made_again(tmp_path: Path) -> None:
    overlay = made(tmp_path)
    key = overlay_store.key_of(PIECES, HERE)
    assert overlay_store.find(tmp_path, key) == overlay
    (overlay / BEHIND / "typing_extensions.py").unlink()
    assert overlay_store.find(tmp_path, key) is None
    assert made(tmp_path) == overlay
    assert overlay_store.find(tmp_path, key) == overlay
    (overlay / CONTENTS).write_text("{")
    assert overlay_store.find(tmp_path, key) is None


def test_other_versions_or_another_python_are_another_overlay() -> None:
    keys = {
        overlay_store.key_of(PIECES, HERE),
        overlay_store.key_of([*PIECES, WHEEL], HERE),
        overlay_store.key_of([Piece("comm", "0.3", "front", "own"), *PIECES[1:]], HERE),
        overlay_store.key_of(PIECES, Interpreter(Path("/q"), Path("/"), (3, 12, 0), "cpython", "x", False, (), {})),
    }
    assert len(keys) == 4


def test_several_that_make_the_same_one_at_a_time_get_the_same(tmp_path: Path) -> None:
    results: list[Path] = []
    threads = [threading.Thread(target=lambda: results.append(made(tmp_path))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 6 and len(set(results)) == 1
    assert [path.name for path in (tmp_path / "overlays").iterdir()] == [overlay_store.key_of(PIECES, HERE)]


def test_nothing_half_made_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(source: object, target: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "link", full)
    monkeypatch.setattr(overlay_store.shutil, "copy2", full)
    with pytest.raises(OSError, match="No space left"):
        made(tmp_path)
    assert list((tmp_path / "overlays").iterdir()) == []


async def test_a_wheel_is_fetched_once(tmp_path: Path) -> None:
    fetched: list[str] = []

    async def fetch(piece: Piece, interpreter: Interpreter, target: Path) -> None:
        fetched.append(piece.name)
        (target / "wire").mkdir()
        (target / "wire/__init__.py").write_text("")
        (target / "wire.libs").mkdir()
        (target / "wire.libs/x.so").write_text("")
        (target / "wire-27.3.dist-info").mkdir()

    for _ in range(2):
        await overlay_store.with_wheel(tmp_path, WHEEL, HERE, fetch)
    overlay = made(tmp_path, [WHEEL])
    assert fetched == ["wire"]
    assert json.loads((overlay / CONTENTS).read_text())[BEHIND] == ["wire"]
    assert (overlay / BEHIND / "wire.libs/x.so").is_file(), "libraries lie beside what loads them"


async def test_a_fetch_that_fails_leaves_nothing_and_is_tried_again(tmp_path: Path) -> None:
    async def fetch(piece: Piece, interpreter: Interpreter, target: Path) -> None:
        (target / "half").write_text("")
        raise NotFetched("no network")

    for _ in range(2):
        with pytest.raises(NotFetched):
            await overlay_store.with_wheel(tmp_path, WHEEL, HERE, fetch)
    assert list((tmp_path / "wheels").iterdir()) == []
