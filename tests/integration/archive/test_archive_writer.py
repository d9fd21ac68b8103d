"""Each offset is archived once, with several writers and kills at any moment."""

import errno
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import pytest

from dafka_core.archive import archive, manifest
from dafka_core.archive.archive import Added, ArchiveWriter, Wanted
from dafka_core.archive.manifest import ArchiveError
from dafka_core.errors import CHANGED, DafkaError, HistoryChangedError, StoreUnreachableError
from dafka_core.model.epochs import EpochId
from dafka_core.model.records import RecordBatch
from tests.integration.archive import killed_writer
from tests.integration.archive.records import (
    A,
    B,
    archived,
    batch,
    offsets_in_files,
    offsets_in_manifest,
    read,
)


def records_in(added: Added) -> int:
    return sum(file.end - file.start for file in added.files)


def test_a_file_has_records_of_one_day(tmp_path: Path) -> None:
    archived(tmp_path, A, 50)
    names = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.parquet"))
    zeros = "0" * 17
    assert names == [
        f"topic=flights/day=2026-01-0{day}/{A.partition}-{zeros}{start:02}-{zeros}{end}.parquet"
        for day, start, end in ((1, 0, 24), (2, 24, 48), (3, 48, 50))
    ]


def test_nothing_is_added_twice(tmp_path: Path) -> None:
    writer = ArchiveWriter(tmp_path, "flights")
    assert records_in(writer.archive([Wanted(A, 0, 30)], read)) == 30
    assert writer.archive([Wanted(A, 0, 30)], read).files == []
    assert records_in(writer.archive([Wanted(A, 10, 40)], read)) == 10


def test_a_hole_is_filled_later(tmp_path: Path) -> None:
    archived(tmp_path, A, 50, start=20)
    archived(tmp_path, A, 10)
    archived(tmp_path, A, 60)
    assert offsets_in_manifest(tmp_path, A) == offsets_in_files(tmp_path, A) == list(range(60))


def test_partitions_are_added_together(tmp_path: Path) -> None:
    writer = ArchiveWriter(tmp_path, "flights")
    added = writer.archive([Wanted(A, 0, 30), Wanted(B, 0, 20)], read)
    assert (records_in(added), writer.manifest.version) == (50, 1)


def test_who_comes_second_adds_what_the_first_has_not(tmp_path: Path) -> None:
    def slow(wanted: Wanted) -> Iterator[RecordBatch]:
        yield from read(wanted)
        if wanted.start == 0:  # both have read the manifest; this one commits last
            archived(tmp_path, A, 20)

    archived(tmp_path, A, 30, read=slow)
    assert offsets_in_manifest(tmp_path, A) == offsets_in_files(tmp_path, A) == list(range(30))
    assert not any(tmp_path.rglob("*.staged"))


def test_many_writers_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "COMMIT_BYTES", 50)
    failed: list[DafkaError] = []

    def work(number: int) -> None:
        try:
            for end in range(number, 120, 5 + number):
                archived(tmp_path, A, end)
            archived(tmp_path, A, 120)
        except DafkaError as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert offsets_in_manifest(tmp_path, A) == offsets_in_files(tmp_path, A) == list(range(120))


def test_a_kill_at_any_step_loses_and_doubles_nothing(tmp_path: Path) -> None:
    """Kill the writer before each of its changes of the disk."""
    made = subprocess.run(
        [sys.executable, "-m", killed_writer.__name__, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert made.returncode == 0, made.stderr
    steps = sorted(tmp_path.iterdir(), key=lambda path: int(path.name))
    assert len(steps) == int(made.stdout) > 30
    whole = list(range(60))
    for step in steps:
        found = offsets_in_manifest(step, A) if (step / "_dafka").exists() else []
        assert found in ([], whole[:30], whole), step
        in_files = offsets_in_files(step, A)
        assert len(in_files) == len(set(in_files)), step
        assert set(in_files) <= set(found), step
        archived(step, A, 60)
        assert offsets_in_manifest(step, A) == offsets_in_files(step, A) == whole, step
        assert not any(step.rglob("*.staged")), step
        assert not any(step.rglob("open-*")), step


def test_a_full_disk_leaves_the_archive_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archived(tmp_path, A, 30)

    def full(path: Path, octets: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    with monkeypatch.context() as patch:
        patch.setattr(manifest, "replace_file", full)
        with pytest.raises(ArchiveError, match="the disk is full: No space left on device"):
            archived(tmp_path, A, 60)
    assert offsets_in_manifest(tmp_path, A) == offsets_in_files(tmp_path, A) == list(range(30))
    assert not any(tmp_path.rglob("*.staged"))
    archived(tmp_path, A, 60)
    assert offsets_in_files(tmp_path, A) == list(range(60))


def test_a_disk_that_fills_up_while_records_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer's files are on a device that is always full."""
    archived(tmp_path, A, 30)

    original = Path.open

    def on_full_disk(path: Path, mode: str = "r", **options: Any) -> IO[Any]:
        if mode != "xb":
            return original(path, mode, **options)
        path.touch()
        return original(Path("/dev/full"), "r+b", buffering=0)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", on_full_disk)
        with pytest.raises(ArchiveError, match="the disk is full"):
            archived(tmp_path, A, 60)
    assert offsets_in_manifest(tmp_path, A) == offsets_in_files(tmp_path, A) == list(range(30))
    assert [
        path.name for path in (tmp_path / "_dafka" / "topic=flights" / "staged").iterdir()
    ] == []


def test_a_file_system_without_links_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def link(source: Path, target: Path) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", link)
    with pytest.raises(ArchiveError, match="its file system does not support hard links"):
        archived(tmp_path, A, 30)
    assert offsets_in_files(tmp_path, A) == []
    assert not any(tmp_path.rglob("*.staged"))


def test_one_partition_that_fails_leaves_the_others(tmp_path: Path) -> None:
    gone = StoreUnreachableError("S", "connection lost")

    def broken(wanted: Wanted) -> Iterator[RecordBatch]:
        yield batch(wanted.tp, wanted.start, wanted.start + 3)
        if wanted.tp == A:
            raise gone
        yield batch(wanted.tp, wanted.start + 3, wanted.end)

    writer = ArchiveWriter(tmp_path, "flights")
    added = writer.archive([Wanted(A, 0, 30), Wanted(B, 0, 20)], broken)
    assert added.failed == {A: gone}
    assert offsets_in_manifest(tmp_path, B) == offsets_in_files(tmp_path, B) == list(range(20))
    assert offsets_in_manifest(tmp_path, A) == offsets_in_files(tmp_path, A) == []


def test_records_that_were_set_aside_since_are_told_of(tmp_path: Path) -> None:
    old, new = EpochId(1, 7, 1), EpochId(2, 8, 1)
    writer = ArchiveWriter(tmp_path, "flights")
    writer.archive([Wanted(A, 0, 30, old)], read)
    asked: list[Wanted] = []

    def changed(wanted: Wanted) -> Iterator[RecordBatch]:
        asked.append(wanted)
        raise HistoryChangedError(*A, 25, None, CHANGED, 30)

    added = writer.archive([Wanted(A, 0, 60, new)], changed)
    assert asked == [Wanted(A, 30, 60, new, old)]
    [(tp, error)] = added.failed.items()
    assert tp == A
    assert "from offset 25 on the archive may have records that the stores" in str(error)


def test_files_of_a_history_that_changes_are_not_added(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first files are finished when the store tells that a part of them is set aside."""
    monkeypatch.setattr(archive, "FILE_BYTES", 20)
    monkeypatch.setattr(archive, "GROUP_RECORDS", 5)

    def changed(wanted: Wanted) -> Iterator[RecordBatch]:
        yield batch(wanted.tp, wanted.start, wanted.start + 20)
        if wanted.tp == A:
            yield batch(A, 20, 25)
            raise HistoryChangedError(*A, 3, None, CHANGED, 30)

    writer = ArchiveWriter(tmp_path, "flights")
    added = writer.archive([Wanted(B, 0, 20), Wanted(A, 0, 30)], changed)
    assert list(added.failed) == [A]
    assert {each.partition for each in added.files} == {B.partition}
    assert offsets_in_manifest(tmp_path, A) == []
    assert offsets_in_files(tmp_path, B) == list(range(20))


def test_a_store_that_gives_other_records_is_not_believed(tmp_path: Path) -> None:
    def holed(wanted: Wanted) -> Iterator[RecordBatch]:
        yield batch(wanted.tp, 0, 3)
        yield batch(wanted.tp, 4, wanted.end)

    def short(wanted: Wanted) -> Iterator[RecordBatch]:
        yield batch(wanted.tp, 0, 3)

    with pytest.raises(ArchiveError, match="offset 4 arrived instead of 3"):
        archived(tmp_path, A, 30, read=holed)
    with pytest.raises(ArchiveError, match="the records end at 3, not at 30"):
        archived(tmp_path, A, 30, read=short)
    assert offsets_in_files(tmp_path, A) == []


def test_a_large_range_is_several_files_and_commits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "FILE_BYTES", 60)
    monkeypatch.setattr(archive, "COMMIT_BYTES", 100)
    monkeypatch.setattr(archive, "GROUP_RECORDS", 5)
    writer = ArchiveWriter(tmp_path, "flights")
    assert len(writer.archive([Wanted(A, 0, 100)], read).files) > 10
    assert writer.manifest.version > 3
    assert offsets_in_manifest(tmp_path, A) == offsets_in_files(tmp_path, A) == list(range(100))


def test_late_records_are_in_the_day_of_the_newest_before_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "GROUP_RECORDS", 5)

    def late(wanted: Wanted) -> Iterator[RecordBatch]:
        yield batch(wanted.tp, 24, 29)
        yield replace(batch(wanted.tp, 0, 5), offset=29)

    ArchiveWriter(tmp_path, "flights").archive([Wanted(A, 24, 34)], late)
    [path] = tmp_path.rglob("*.parquet")
    assert path.parent.name == "day=2026-01-02"
    assert offsets_in_files(tmp_path, A) == [*range(24, 34)]
