"""A store archives what its rules have it give up: in whole days, or as much as makes a file."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dafka_core import Store
from dafka_core.archive.manifest import ArchiveError
from dafka_core.errors import ClosedError
from dafka_core.model.epochs import Epoch, EpochId
from dafka_core.model.log_entries import SetAside
from dafka_core.model.records import RecordBatch, TopicPartition, times_between
from dafka_core.nodes import maintenance
from dafka_core.nodes import maintenance as module
from dafka_core.nodes.maintenance import LogArchiver
from dafka_core.storage import Log, entry_writer
from dafka_core.testing import wait_until
from tests.integration.archive.records import (
    BEGIN_US,
    HOUR_US,
    A,
    B,
    batch,
    offsets_in_files,
    offsets_in_manifest,
)
from tests.integration.nodes.conftest import Produce


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    return tmp_path / "archive"


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Log]:
    """Each append makes a block; it is some days after the records."""
    monkeypatch.setattr(entry_writer, "SMALL_BLOCK_BYTES", 1)
    now_us = [BEGIN_US + 900 * HOUR_US]
    with Log(tmp_path / "store", clock_us=lambda: now_us[0]) as opened:
        now_us[0] += 100 * HOUR_US  # so that old records are nothing that puts it in doubt
        yield opened


def put(log: Log, tp: TopicPartition, end: int, step: int = 5) -> None:
    for start in range(log.end(tp), end, step):
        log.append([batch(tp, start, min(start + step, end))])


def test_whole_days_are_archived(log: Log, archive: Path) -> None:
    put(log, A, 60)
    archiver = LogArchiver(log, archive)
    assert archiver.archive(A, 20) == 0  # the day is not over
    assert archiver.archive(A, 24) == 24
    assert archiver.archive(A, 40) == 24
    assert archiver.archive(A, 50) == 48
    assert archiver.archive(A, 60) == 60  # nothing newer has come, for days
    assert [*offsets_in_files(archive, A)] == offsets_in_manifest(archive, A) == list(range(60))
    assert (archiver.files, archiver.records) == (3, 60)


def test_the_last_day_waits_until_it_is_over(tmp_path: Path, archive: Path) -> None:
    now_us = [BEGIN_US + 10 * HOUR_US]
    with Log(tmp_path / "store", clock_us=lambda: now_us[0]) as log:
        put(log, A, 8)
        archiver = LogArchiver(log, archive)
        assert archiver.archive(A, 8) == 0
        now_us[0] += 14 * HOUR_US
        assert archiver.archive(A, 8) == 8


def test_as_much_as_makes_a_file_is_archived(
    log: Log, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ARCHIVED_BYTES", 100)
    put(log, A, 60)
    assert LogArchiver(log, archive).archive(A, 20) == 20


def test_records_that_another_store_has_archived_are_not_archived_again(
    log: Log, archive: Path, tmp_path: Path
) -> None:
    put(log, A, 60)
    one = LogArchiver(log, archive)
    assert one.archive(A, 48) == 48
    with Log(tmp_path / "other", clock_us=log.now_us) as other:
        put(other, A, 72)
        two = LogArchiver(other, archive)
        assert two.archive(A, 48) == 48
        assert two.files == 0
        assert two.archive(A, 72) == 72
    assert one.archive(A, 60) == 60
    assert one.files == 2
    assert offsets_in_files(archive, A) == offsets_in_manifest(archive, A) == list(range(72))


def test_a_partition_that_cannot_be_archived_keeps_no_other(
    log: Log, archive: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ARCHIVED_BYTES", 1)
    old, new = Epoch.first(EpochId(5, 1, 1)), EpochId(9, 2, 1)
    times = np.array([[50, BEGIN_US]], np.int64)
    log.append([replace(RecordBatch.of(A, 0, [b"x"] * 50), times=times, epoch=old)])
    archiver = LogArchiver(log, archive)
    assert archiver.archive(A, 50) == 50
    assert log.write([SetAside(A, 40)]) == [None]
    again = Epoch(*new, 40, old.digest)
    log.append([replace(RecordBatch.of(A, 40, [b"y"] * 30), epoch=again)])
    put(log, B, 20)
    for before in (45, 60, 70):
        assert archiver.archive(A, before) == 0
        assert archiver.archive(B, 20) == 20
    assert caplog.text.count("it is not archived, and nothing of it is given up") == 1
    assert "from offset 40 on the archive may have records that the stores" in caplog.text
    assert len(archiver.failed) == 1


def test_records_replaced_before_they_are_read_are_not_archived_as_the_former_ones(
    log: Log, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ARCHIVED_BYTES", 1)
    old, times = Epoch.first(EpochId(5, 1, 1)), np.array([[50, BEGIN_US]], np.int64)
    lost, won = (RecordBatch.of(A, 0, [each] * 50) for each in (b"lost", b"won"))
    log.append([replace(lost, times=times, epoch=old)])
    batches = Log.batches

    def replaced(log: Log, *where: int) -> Iterator[RecordBatch]:
        monkeypatch.setattr(Log, "batches", batches)
        new = replace(won.between(40, 50), times=times_between(times, 40, 50))
        log.write([SetAside(A, 40), replace(new, epoch=Epoch(9, 2, 1, 40, old.digest))])
        return log.batches(A, 0, 50)

    monkeypatch.setattr(Log, "batches", replaced)
    archiver = LogArchiver(log, archive)
    assert archiver.archive(A, 50) == 0
    assert archiver.archive(A, 50) == 50
    assert archiver.failed == {}


def test_a_partition_that_has_begun_anew_is_not_taken_for_the_archived_one(
    log: Log, archive: Path, tmp_path: Path
) -> None:
    """As after its topic was deleted: its offsets are in the archive, and are other records."""
    old, new = Epoch.first(EpochId(5, 1, 1)), Epoch.first(EpochId(9, 2, 1))
    for epoch, directory in ((old, tmp_path / "before"), (new, tmp_path / "after")):
        with Log(directory, clock_us=log.now_us) as made:
            values = batch(A, 0, 24)
            made.append([replace(values, epoch=epoch)])
            archiver = LogArchiver(made, archive)
            assert archiver.archive(A, 24) == (24 if epoch is old else 0)
            assert len(archiver.failed) == (epoch is new)


def test_a_store_that_is_behind_waits(log: Log, archive: Path, tmp_path: Path) -> None:
    old = Epoch.first(EpochId(5, 1, 1))
    new = Epoch(9, 2, 1, 20, old.digest)
    values = batch(A, 0, 48)
    first, second = values.between(0, 20), values.between(20, 48)
    parts = [replace(first, epoch=old), replace(second, epoch=new)]
    log.append(parts)
    assert LogArchiver(log, archive).archive(A, 24) == 24
    with Log(tmp_path / "other", clock_us=log.now_us) as behind:
        behind.append([replace(values, epoch=old)])
        archiver = LogArchiver(behind, archive)
        assert archiver.archive(A, 48) == 0  # some of its records have lost, and it has not heard
        assert archiver.failed.keys() == {A}
        assert behind.write([SetAside(A, 20)]) == [None]
        behind.append([parts[1]])
        assert archiver.archive(A, 24) == 24
        assert not archiver.failed


def test_directories_that_were_moved_away_are_made_anew(
    log: Log, archive: Path, tmp_path: Path
) -> None:
    put(log, A, 60)
    archiver = LogArchiver(log, archive)
    assert archiver.archive(A, 24) == 24
    archive.rename(tmp_path / "before")
    LogArchiver(log, archive)
    with pytest.raises(ArchiveError, match="has disappeared"):
        archiver.archive(A, 48)
    assert archiver.archive(A, 48) == 48
    assert offsets_in_manifest(archive, A) == list(range(48))


def test_it_ends_soon_when_the_store_does(log: Log, archive: Path) -> None:
    put(log, A, 60)
    archiver = LogArchiver(log, archive)
    archiver.stop()
    with pytest.raises(ClosedError):
        archiver.archive(A, 48)
    assert offsets_in_files(archive, A) == []


def test_an_invalid_directory_is_refused(log: Log, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ArchiveError, match="it is a file: name a directory"):
        LogArchiver(log, tmp_path / "file")
    with pytest.raises(ArchiveError, match="No such file or directory"):
        LogArchiver(log, tmp_path / "not" / "there")


def test_a_store_archives_by_itself(
    tower: str, produce: Produce, tmp_path: Path, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ARCHIVED_BYTES", 1)
    monkeypatch.setattr(maintenance, "RETENTION_INTERVAL_S", 0.05)
    options = {"retain": "flights=1s", "archive": str(archive), "tower": tower}
    with Store(tmp_path / "store", **options) as store:
        producer = produce("flights")
        for number in range(5):
            producer.publish(b"value %d" % number)
        producer.flush(30)
        tp = TopicPartition("flights", producer.address)

        def is_given_up() -> bool:
            info = store.log.info(tp)
            return info is not None and info.earliest == 5

        wait_until(is_given_up)
        assert store.archiver is not None
        assert store.archiver.records == 5
    assert offsets_in_files(archive, tp) == offsets_in_manifest(archive, tp) == list(range(5))
