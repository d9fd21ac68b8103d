"""A log writer's counts and warnings about its disk."""

import logging
import time
from pathlib import Path

import pytest

from dafka_core.errors import FencedError, OffsetConflictError
from dafka_core.model.epochs import EpochId
from dafka_core.model.log_entries import LogEntry, Promise, SetAside, Stage
from dafka_core.model.records import RecordBatch, TopicPartition
from dafka_core.nodes import store_loop
from dafka_core.nodes.store_loop import LOW_BYTES, OTHER, SLOW_S, Disk, DiskWatch
from dafka_core.security import throttles

TP = TopicPartition("t", "p")
BATCH = RecordBatch.of(TP, 0, [b"abc", b"de"])


def written(watch: DiskWatch, *entries: LogEntry, took_s: float = 0.0) -> None:
    watch.begin()
    assert watch.begun_at is not None
    watch.begun_at -= took_s
    watch.end(entries, [None] * len(entries))


def test_written_entries_are_counted_by_kind(tmp_path: Path) -> None:
    watch = DiskWatch(tmp_path)
    written(watch, BATCH, Stage(BATCH, "A" * 32), SetAside(TP, 0), Promise(TP, EpochId(1, 2, 1)))
    assert (watch.records, watch.bytes, watch.fences, watch.promises) == (4, 10, 1, 1)
    assert watch.topics == {"t": [4, 10]}
    assert sum(watch.appends.counted.counts) == 1
    assert watch.begun_at is None


def test_refused_entries_are_counted_by_error(tmp_path: Path) -> None:
    watch = DiskWatch(tmp_path)
    watch.begin()
    watch.end([BATCH, BATCH], [FencedError(*TP, "A" * 32), OffsetConflictError(*TP, 0, 1)])
    assert watch.refused == {"FencedError": 1, "OffsetConflictError": 1}
    assert watch.records == 0


def test_topics_above_the_limit_are_counted_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_loop, "MAX_COUNTED_TOPICS", 3)
    watch = DiskWatch(tmp_path)
    for number in range(10):
        written(watch, RecordBatch.of(TopicPartition(f"t{number}", "p"), 0, [b"ab"]))
    assert watch.topics == {"t0": [1, 2], "t1": [1, 2], "t2": [1, 2], OTHER: [7, 14]}


def test_a_slow_disk_is_logged_once_a_minute(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = DiskWatch(tmp_path)
    with caplog.at_level(logging.WARNING, "dafka.store"):
        for _ in range(3):
            written(watch, BATCH, took_s=SLOW_S + 1)
        written(watch, BATCH)
    assert watch.slow_count == 3
    assert watch.slow_at is not None
    (record,) = caplog.records
    assert f"the disk below {tmp_path} is slow: it took 2.0 s" in record.getMessage()
    assert record.__dict__["event"] == "disk_slow"
    caplog.clear()
    monkeypatch.setattr(throttles, "REPEAT_AFTER_S", 0.0)
    watch = DiskWatch(tmp_path)
    for _ in range(2):
        written(watch, BATCH, took_s=SLOW_S + 1)
    assert [each.getMessage().count("1 times since") for each in caplog.records] == [1, 1]


@pytest.mark.parametrize(("free_bytes", "is_low"), [(LOW_BYTES // 2, True), (LOW_BYTES, False)])
def test_a_nearly_full_disk_is_logged_once(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    free_bytes: int,
    is_low: bool,
) -> None:
    disk = Disk(100 * LOW_BYTES, free_bytes)
    monkeypatch.setattr(Disk, "of", lambda directory: disk)
    watch = DiskWatch(tmp_path)
    with caplog.at_level(logging.WARNING, "dafka.store"):
        watch.check_space(time.monotonic())
        watch.check_space(time.monotonic())  # at once again
    assert disk.is_low == is_low
    assert len(caplog.records) == is_low
    assert all("nearly full" in each.getMessage() for each in caplog.records)


def test_a_small_disk_is_low_by_its_share(tmp_path: Path) -> None:
    assert Disk(LOW_BYTES, LOW_BYTES // 30).is_low
    assert not Disk(LOW_BYTES, LOW_BYTES // 10).is_low
    real = Disk.of(tmp_path)
    assert 0 < real.free_bytes <= real.size_bytes


def test_a_failure_ends_the_running_write(tmp_path: Path) -> None:
    watch = DiskWatch(tmp_path)
    watch.begin()
    error = OSError("no space left")
    watch.fail(error)
    assert (watch.begun_at, watch.failure) == (None, error)
