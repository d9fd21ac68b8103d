"""The file of a day: each record once, whoever adds it, and whenever that ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dafka_core.archive.archive_errors import ArchiveError
from dafka_core.archive.record_files import SCHEMA
from dafka_spark.jobs.support import day_file
from dafka_spark.jobs.support.day_file import NAME, DayFile
from tests.spark.jobs.programs import ROOT
from tests.synced_disk import SyncedDisk

DAY = "2026-11-24"


def records(partition: str, *offsets: int, later_us: int = 0) -> pa.RecordBatch:
    rows = [
        {
            "value": b"%d" % each,
            "partition": partition,
            "offset": each,
            "timestamp": each + later_us,
        }
        for each in offsets
    ]
    return pa.RecordBatch.from_pylist(rows, SCHEMA)


def add(directory: Path, *batches: pa.RecordBatch) -> int:
    with DayFile(directory, "t", DAY) as file:
        for batch in batches:
            file.add(batch)
        return file.finish()


def offsets(directory: Path) -> list[tuple[str, int]]:
    [path] = directory.rglob("*.parquet")
    assert path == directory / "topic=t" / f"day={DAY}" / NAME
    rows = pq.read_table(path, partitioning=None).to_pylist()
    assert all(row["value"] == b"%d" % row["offset"] for row in rows)
    return [(row["partition"], row["offset"]) for row in rows]


def test_records_are_added_to_one_file(tmp_path: Path) -> None:
    assert add(tmp_path, records("A", 0, 1), records("B", 7)) == 3
    assert add(tmp_path, records("A", 5), records("C", 0)) == 2  # those between are another day's
    assert offsets(tmp_path) == [("A", 0), ("A", 1), ("B", 7), ("A", 5), ("C", 0)]
    assert pq.ParquetFile(tmp_path / "topic=t" / f"day={DAY}" / NAME).num_row_groups == 1


def test_a_power_cut_takes_nothing_that_was_added(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = SyncedDisk(tmp_path, monkeypatch.setattr)
    for last in (1, 2):
        assert add(tmp_path / "a" / "b", records("A", *range(last)))
        assert disk.lost() == []


def test_what_is_added_again_is_there_once(tmp_path: Path) -> None:
    assert add(tmp_path, records("A", 0, 1)) == 2
    before = (tmp_path / "topic=t" / f"day={DAY}" / NAME).stat()
    assert add(tmp_path, records("A", 0, 1)) == 0
    assert (tmp_path / "topic=t" / f"day={DAY}" / NAME).stat() == before
    assert add(tmp_path, records("A", 0), records("A", 1, 2)) == 1
    assert offsets(tmp_path) == [("A", 0), ("A", 1), ("A", 2)]


@pytest.mark.parametrize("again", [records("A", 0, 1, later_us=9), records("A", 0, 1, 2, 3, 4)])
def test_other_records_at_the_same_offsets_are_refused(
    tmp_path: Path, again: pa.RecordBatch
) -> None:
    add(tmp_path, records("A", 1, 3, 5))
    with pytest.raises(ArchiveError, match=r"has other records than partition A, .* was made anew"):
        add(tmp_path, again)
    assert offsets(tmp_path) == [("A", 1), ("A", 3), ("A", 5)]


def test_a_file_that_something_else_has_written_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "topic=t" / f"day={DAY}" / NAME
    path.parent.mkdir(parents=True)
    pq.write_table(pa.table({"a": [1]}), path)
    with pytest.raises(ArchiveError, match="was not written by this job"):
        add(tmp_path, records("A", 0))


def test_large_files_are_written_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(day_file, "ROW_GROUP_RECORDS", 4)
    for start in range(0, 12, 3):
        add(tmp_path, records("A", *range(start, start + 3)))
    assert offsets(tmp_path) == [("A", offset) for offset in range(12)]


_KILLED = """
import os, signal, sys
from pathlib import Path
from tests.spark.jobs.test_day_file import DAY, DayFile, records
with DayFile(Path(sys.argv[1]), "t", DAY) as file:
    file.add(records("A", 2, 3))
    if sys.argv[2] == "after":
        file.finish()
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("moment", ["before", "after"])
def test_who_is_killed_leaves_the_old_file_or_the_new_one(tmp_path: Path, moment: str) -> None:
    add(tmp_path, records("A", 0, 1))
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", _KILLED, str(tmp_path), moment]
    killed = subprocess.run(command, check=False, env=environment, timeout=60)
    assert killed.returncode == -signal.SIGKILL
    assert len(offsets(tmp_path)) == (2 if moment == "before" else 4)
    assert add(tmp_path, records("A", 2, 3), records("A", 4)) == (3 if moment == "before" else 1)
    assert offsets(tmp_path) == [("A", offset) for offset in range(5)]
    assert len([*(tmp_path / "topic=t" / f"day={DAY}").iterdir()]) == 1
