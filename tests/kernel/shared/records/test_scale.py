"""Output at scale: all there, and not in memory (contract 3.5)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from loommux_kernel.shared.lines import Query
from loommux_kernel.shared.protocol import Stream
from loommux_kernel.shared.records.reader import RecordReader

WRITE = """
import sys
from pathlib import Path
from loommux_kernel.shared.protocol import Origin, OriginKind, Stream
from loommux_kernel.shared.records.writer import RecordWriter

def memory(what):
    return next(int(line.split()[1]) for line in Path("/proc/self/status").read_text().splitlines() if what in line)

writer = RecordWriter.open(Path(sys.argv[1]), 1 << 30, sys.exit)
writer.begin(1, 1, Origin(OriginKind.SESSION, "s", "c"), "source", 1.0, 1.0)
writer.text(1, Stream.STDOUT, "begin\\n")
writer.commit()
before = memory("VmRSS")
for n in range(1_000):
    if sys.argv[2] == "lines":
        writer.text(1, Stream.STDOUT, "".join(f"line {n * 1000 + k}\\n" for k in range(1000)))
    else:
        writer.text(1, Stream.STDOUT, f"{n:05d}" * 10_000)
    if n % 20 == 0:
        writer.commit()
writer.text(1, Stream.STDOUT, "end" if sys.argv[2] == "lines" else "\\nend")
writer.commit()
print((memory("VmHWM") - before) // 1024)
writer.close()
"""


def written(path: Path, what: str) -> int:
    """Mebibytes by which the writer's memory grew at its highest."""
    done = subprocess.run([sys.executable, "-c", WRITE, str(path), what], capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the memory of a process from /proc")
def test_a_million_lines_are_all_there_and_none_in_memory(tmp_path: Path) -> None:
    assert written(tmp_path / "records.db", "lines") < 32
    reader = RecordReader(tmp_path / "records.db")
    assert reader.lines(1, Stream.STDOUT, 1, 2) == ["begin", "line 0"]
    assert reader.lines(1, Stream.STDOUT, 500_002, 500_002) == ["line 500000"]
    assert reader.tail(1, Stream.COMBINED, 2) == ["line 999999", "end"]
    result = reader.search(1, Stream.STDOUT, Query.build(r"^line \d*999999$"), 0, 0)
    assert (result.rows, result.total_lines) == ([(1_000_001, "M", "line 999999")], 1_000_002)
    reader.close()


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the memory of a process from /proc")
def test_a_line_of_fifty_megabytes_is_all_there_and_not_in_memory(tmp_path: Path) -> None:
    assert written(tmp_path / "records.db", "line") < 32
    reader = RecordReader(tmp_path / "records.db")
    record = reader.by_serial(1)
    assert record is not None
    assert record.counts[Stream.STDOUT].characters == len("begin\n\nend") + 50_000_000
    line = reader.lines(1, Stream.STDOUT, 2, 2)[0]
    assert line == "".join(f"{n:05d}" * 10_000 for n in range(1_000))
    clipped = reader.tail(1, Stream.COMBINED, 2, max_chars=10)
    assert clipped == ["0000000000…[49,999,990 chars omitted]", "end"]
    found = reader.search(1, Stream.STDOUT, Query.build("00999$", "regex"), 0, 0, 10)
    assert (found.rows, found.columns) == ([(2, "M", "…0099900999")], {2: 49_999_996})
    assert reader.lines(1, Stream.STDOUT, 2, 2, 10, 49_999_996) == ["00999"]
    assert reader.lines(1, Stream.STDOUT, 2, 2, 10, 25_000_001) == ["0050000500…[24,999,990 chars omitted]"]
    assert reader.line_length(1, Stream.STDOUT, 2) == 50_000_000
    reader.close()
