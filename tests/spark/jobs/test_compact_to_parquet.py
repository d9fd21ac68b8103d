"""Topics as one file for each day: each record once, for any task and any crash."""

import datetime as dt
import os
import signal
import subprocess
import sys
from pathlib import Path

import compact_to_parquet
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from chispa import assert_df_equality
from compact_to_parquet import NAME, DayFile
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from dafka_core import EmbeddedCluster, Producer
from dafka_core.archive.archive import SCHEMA
from dafka_core.archive.manifest import ArchiveError
from tests.spark.jobs.programs import JOBS, ROOT, run, until_done
from tests.synced_disk import SyncedDisk

DAY = "2026-11-24"
FILE = Path("topic=t", f"day={DAY}", NAME)
START = dt.datetime(2025, 11, 23, 23, 59, tzinfo=dt.UTC)


def test_each_day_has_one_file_with_each_record_once(
    session: SparkSession, cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    def publish(*minutes: int) -> None:
        with Producer("daily", tower=cluster.tower) as producer:
            for each in minutes:
                time = START + dt.timedelta(minutes=each)
                producer.publish(b"%d" % each, key=b"k", headers=[("h", b"1")], timestamp=time)
            producer.flush(30)

    def arguments(checkpoint: str) -> list[str]:
        places = (f"--output={tmp_path / 'days'}", f"--checkpoint={tmp_path / checkpoint}")
        limit = "--max-offsets-per-trigger=3"
        return [f"--tower={cluster.tower}", "--topic=daily", limit, *places, "--available-now"]

    publish(0, 1, 2, 3)  # the first is the day's last
    parsed = compact_to_parquet.parse(arguments("checkpoint"))
    until_done(compact_to_parquet.build_writer(session, parsed), parsed)
    publish(-1, 4)  # the first is late
    # A process of its own reads all again; its workers have no module of the job's name.
    command = [sys.executable, "-m", "dafka_core.cli", "job", "compact_to_parquet"]
    run(*command, *arguments("another"), env={**os.environ, "PYTHONPATH": str(ROOT)})

    files = sorted((tmp_path / "days").rglob("*.parquet"))
    assert [path.parent.name for path in files] == ["day=2025-11-23", "day=2025-11-24"]
    kept = session.read.parquet(str(tmp_path / "days"))
    counts = {row.day.day: row["count"] for row in kept.groupBy("day").count().collect()}
    assert counts == {23: 2, 24: 4}
    reader = session.read.format("dafka").option("tower", cluster.tower)
    source = reader.option("subscribe", "daily").option("includeHeaders", "true").load()
    columns = [sf.col(name) for name in source.columns]
    assert_df_equality(kept.select(columns), source, ignore_row_order=True, ignore_nullable=True)


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
    assert path == directory / FILE
    rows = pq.read_table(path, partitioning=None).to_pylist()
    assert all(row["value"] == b"%d" % row["offset"] for row in rows)
    return [(row["partition"], row["offset"]) for row in rows]


def written(path: Path) -> tuple[int, ...]:
    """What a write changes; reads change the time of access."""
    found = path.stat()
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def test_records_are_added_once_and_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compact_to_parquet, "ROW_GROUP_RECORDS", 4)
    assert add(tmp_path, records("A", 0, 1), records("B", 7)) == 3
    assert add(tmp_path, records("A", 5), records("C", 0)) == 2  # those between are another day's
    before = written(tmp_path / FILE)
    assert add(tmp_path, records("A", 0, 1, 5)) == 0
    assert written(tmp_path / FILE) == before
    assert add(tmp_path, records("A", 1, 5), records("A", 6, 7)) == 2
    rows = [("A", 0), ("A", 1), ("B", 7), ("A", 5), ("C", 0), ("A", 6), ("A", 7)]
    assert offsets(tmp_path) == rows


def test_added_records_survive_a_power_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SyncedDisk(tmp_path, monkeypatch.setattr)
    for last in (1, 2):
        assert add(tmp_path / "a" / "b", records("A", *range(last)))
        assert disk.lost() == []


@pytest.mark.parametrize("again", [records("A", 0, 1, later_us=9), records("A", 0, 1, 2, 3, 4)])
def test_other_records_at_the_same_offsets_are_refused(
    tmp_path: Path, again: pa.RecordBatch
) -> None:
    add(tmp_path, records("A", 1, 3, 5))
    with pytest.raises(ArchiveError, match=r"other records than partition A, .* created again"):
        add(tmp_path, again)
    assert offsets(tmp_path) == [("A", 1), ("A", 3), ("A", 5)]


def test_a_file_that_something_else_has_written_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "topic=t" / f"day={DAY}" / NAME
    path.parent.mkdir(parents=True)
    pq.write_table(pa.table({"a": [1]}), path)
    with pytest.raises(ArchiveError, match="was not written by this job"):
        add(tmp_path, records("A", 0))


_KILLED = """
import os, signal, sys
from pathlib import Path
from tests.spark.jobs.test_compact_to_parquet import DAY, DayFile, records
with DayFile(Path(sys.argv[1]), "t", DAY) as file:
    file.add(records("A", 2, 3))
    if sys.argv[2] == "after":
        file.finish()
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_killed_task_leaves_the_old_file_or_the_new_one(tmp_path: Path, moment: str) -> None:
    add(tmp_path, records("A", 0, 1))
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{JOBS}"}
    command = [sys.executable, "-c", _KILLED, str(tmp_path), moment]
    killed = subprocess.run(command, check=False, env=environment, timeout=60)
    assert killed.returncode == -signal.SIGKILL
    assert len(offsets(tmp_path)) == (2 if moment == "before" else 4)
    assert add(tmp_path, records("A", 2, 3), records("A", 4)) == (3 if moment == "before" else 1)
    assert offsets(tmp_path) == [("A", offset) for offset in range(5)]
    assert len([*(tmp_path / FILE).parent.iterdir()]) == 1
