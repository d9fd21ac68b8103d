"""Reading an archive, also while it is written and after a part was removed."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from dafka_core.archive import archive
from dafka_core.archive.archive import Archive, info_of
from dafka_core.archive.manifest import ArchiveError, Manifest, path_of, staged_path
from dafka_core.errors import DataLossError
from dafka_core.model.names import text_of
from dafka_core.model.records import PartitionInfo, TopicPartition
from dafka_core.testing import StoreDouble
from tests.integration.archive.records import (
    BEGIN_US,
    HOUR_US,
    A,
    B,
    archived,
    batch,
    offsets_in_files,
    offsets_in_manifest,
)
from tests.integration.cli.processes import run, sentence

ODD = TopicPartition(text_of(b"a/\xff="), text_of(b"../\x80"))


def offsets(directory: Path, start: int, end: int) -> list[int]:
    files = Archive(directory).held()[A]
    return [
        offset
        for each in archive.read(directory, A, files, start, end)
        for offset in each.offsets.tolist()
    ]


def test_all_topics_or_some(tmp_path: Path) -> None:
    for tp in (A, B, ODD):
        archived(tmp_path, tp, 30)
    found = Archive(tmp_path)
    assert found.topics() == sorted([A.topic, ODD.topic])
    assert list(found.held()) == sorted([A, B, ODD])
    assert list(found.held([ODD.topic, "none"])) == [ODD]
    assert info_of(A, found.held()[A]) == PartitionInfo(*A, 0, 30)
    assert offsets_in_manifest(tmp_path, ODD) == list(range(30))


def test_what_is_added_later_is_seen(tmp_path: Path) -> None:
    archived(tmp_path, A, 10)
    found = Archive(tmp_path)
    assert found.held()[A][-1].end == 10
    archived(tmp_path, A, 20)
    assert found.held()[A][-1].end == 20


def test_a_day_that_is_removed_has_expired(tmp_path: Path) -> None:
    archived(tmp_path, A, 60)
    shutil.rmtree(tmp_path / "topic=flights" / "day=2026-01-01")
    assert info_of(A, Archive(tmp_path).held()[A]) == PartitionInfo(*A, 24, 60)
    assert offsets(tmp_path, 24, 60) == list(range(24, 60))
    with pytest.raises(DataLossError) as lost:
        offsets(tmp_path, 20, 60)
    assert (lost.value.wanted, lost.value.available) == (20, 24)
    archived(tmp_path, A, 70)  # not archived again
    assert offsets_in_manifest(tmp_path, A) == list(range(24, 70))
    shutil.rmtree(tmp_path / "topic=flights")
    assert Archive(tmp_path).held() == {}


def test_a_file_that_is_published_while_it_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archived(tmp_path, A, 60)
    manifest = Manifest(tmp_path, A.topic)
    manifest.refresh()
    (first, *_) = files = Archive(tmp_path).held()[A]
    published, staged = path_of(manifest, first), staged_path(manifest, first)

    def publishing(original: Any) -> Any:
        def opened(directory: Path, path: Path, *more: Any) -> Any:
            if path == staged:
                staged.replace(published)
            return original(directory, path, *more)

        return opened

    for name in ("read_records", "first_from"):
        monkeypatch.setattr(archive, name, publishing(getattr(archive, name)))
    staged.parent.mkdir(parents=True)
    published.replace(staged)
    assert sum(each.count for each in archive.read(tmp_path, A, files, 0, 60)) == 60
    published.replace(staged)
    assert archive.offset_of_time(tmp_path, A, files, BEGIN_US + HOUR_US) == 1
    assert published.exists()


def test_a_file_that_goes_while_it_is_read(tmp_path: Path) -> None:
    archived(tmp_path, A, 60)
    files = Archive(tmp_path).held()[A]
    shutil.rmtree(tmp_path / "topic=flights" / "day=2026-01-02")
    batches = archive.read(tmp_path, A, files, 0, 60)
    assert next(batches).end == 24
    with pytest.raises(DataLossError) as lost:
        next(batches)
    assert (lost.value.wanted, lost.value.available) == (24, 48)


def test_a_hole_between_files_is_a_loss(tmp_path: Path) -> None:
    archived(tmp_path, A, 10)
    archived(tmp_path, A, 30, start=20)
    with pytest.raises(DataLossError) as lost:
        offsets(tmp_path, 5, 30)
    assert (lost.value.wanted, lost.value.available) == (10, 20)
    with pytest.raises(DataLossError) as lost:
        offsets(tmp_path, 25, 31)
    assert (lost.value.wanted, lost.value.available) == (30, None)


def test_strangers_files_are_not_read(tmp_path: Path) -> None:
    archived(tmp_path, A, 10)
    day = tmp_path / "topic=flights" / "day=2026-01-01"
    shutil.copy(next(day.iterdir()), day / "copy.parquet")
    (tmp_path / "topic=flights" / "_SUCCESS").touch()
    assert offsets_in_manifest(tmp_path, A) == list(range(10))


@pytest.mark.parametrize(
    ("hours", "expected"), [(-1, 0), (0, 0), (5.5, 6), (24, 24), (30, 30), (59.5, None)]
)
def test_the_first_offset_of_a_time(tmp_path: Path, hours: float, expected: int | None) -> None:
    archived(tmp_path, A, 60)
    files, time_us = Archive(tmp_path).held()[A], BEGIN_US + int(hours * HOUR_US)
    assert archive.offset_of_time(tmp_path, A, files, time_us) == expected


def test_a_directory_without_an_archive_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArchiveError, match="it is not an archive: it has no directory _dafka"):
        Archive(tmp_path)


def test_records_without_a_time(tmp_path: Path) -> None:
    bare = batch(A, 0, 5)
    archived(tmp_path, A, 5, read=lambda wanted: [type(bare)(A, 0, bare.values)])
    files = Archive(tmp_path).held()[A]
    assert [(file.day, file.greatest_us) for file in files] == [(None, None)]
    assert archive.offset_of_time(tmp_path, A, files, 0) is None
    assert [path.parent.name for path in tmp_path.rglob("*.parquet")] == [
        "day=__HIVE_DEFAULT_PARTITION__"
    ]


def test_two_stores_are_archived_once(tmp_path: Path) -> None:
    made = tmp_path / "archive"
    with StoreDouble(tmp_path / "a", "1" * 32) as one, StoreDouble(tmp_path / "b", "2" * 32) as two:
        one.log.append([batch(A, 0, 40), batch(B, 0, 10)])
        two.log.append([batch(A, 0, 30)])
        two.log.append([batch(A, 30, 50)])
        uris = ",".join(each.location.locations[0] for each in (one, two))
        asked = ("archive", "flights", "--dir", str(made), "--stores", uris)
        done = run(*asked, "--before", "2026-01-02T06:00Z", "--json")
        assert done.returncode == 0, done.stderr
        said = json.loads(done.stdout)
        assert said.pop("bytes") > 0
        assert said == {"topic": "flights", "files": 3, "records": 40}
        assert offsets_in_manifest(made, A) == offsets_in_files(made, A) == list(range(30))
        done = run(*asked)  # all of it is old
        assert done.returncode == 0, done.stderr
        assert offsets_in_manifest(made, A) == offsets_in_files(made, A) == list(range(50))
        assert offsets_in_files(made, B) == list(range(10))
        done = run(*asked, "--before", "now")
        assert b"nothing to archive: all records are in the archive" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        (
            ("none", "--dir", "{made}"),
            1,
            "no store has records of topic 'none' (there are 'flights')",
        ),
        (
            ("flights", "--dir", "{made}", "--before", "noon"),
            2,
            "must be a time like 2026-01-01T00:00:00Z, a date, or an age like 15m, or now",
        ),
        (("flights", "--dir", "{made}", "--before", "2026-01-02T06:00"), 2, "has no time zone"),
        (("flights", "--dir", "{made}", "--before", ""), 2, "an age like 15m, or now"),
        (("flights", "--dir", "{file}"), 1, "is a file: name a directory"),
        (("flights", "--dir", "{made}/not/there"), 1, "No such file or directory"),
        (("flights",), 2, "Missing option '--dir'"),
    ],
)
def test_what_cannot_be_archived_gets_a_sentence(
    tmp_path: Path, arguments: tuple[str, ...], code: int, expected: str
) -> None:
    with StoreDouble(tmp_path / "a", "1" * 32) as store:
        store.log.append([batch(A, 0, 5)])
        named = {"made": tmp_path / "archive", "file": tmp_path / "a" / "data.mdb"}
        words = (word.format(**named) for word in arguments)
        done = run("archive", *words, "--stores", store.location.locations[0])
        assert (done.returncode, expected in sentence(done)) == (code, True), done.stderr
