"""Making private directories again."""

from __future__ import annotations

import stat
from pathlib import Path

from loommux_kernel.shared.private_directories import make_again


def test_a_directory_that_was_removed_is_made_again_for_us_alone(tmp_path: Path) -> None:
    make_again(tmp_path / "a" / "b")
    assert [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("a", "a/b")] == [0o700, 0o700]


def test_what_is_there_stays(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir(mode=0o755)
    (tmp_path / "a" / "file").write_text("mine")
    make_again(tmp_path / "a")
    assert (tmp_path / "a" / "file").read_text() == "mine"
