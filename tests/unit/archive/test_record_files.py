"""Parquet files of records: what is written is what is read."""

import errno
import os
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dafka_core.archive.archive import (
    SCHEMA,
    RecordFile,
    by_day,
    first_from,
    least_and_greatest_us,
    read_records,
)
from dafka_core.archive.manifest import (
    MAX_NAME_BYTES,
    ArchivedFile,
    ArchiveError,
    damaged,
    day_name,
    day_of,
    file_name,
    reading,
    topic_name,
    topic_of,
    translated,
)
from dafka_core.model.names import text_of
from dafka_core.model.records import UNKNOWN_US, RecordBatch
from dafka_core.model.values import Values
from tests.integration.archive.records import BEGIN_US, HOUR_US, A, batch, enveloped


def written(directory: Path, *batches: RecordBatch) -> tuple[Path, ArchivedFile]:
    path = directory / "x.parquet"
    file = RecordFile(directory, path)
    for each in batches:
        file.write(each)
    size = file.finish()
    start, end = batches[0].offset, batches[-1].end
    first, last = least_and_greatest_us(batches[0])[0], least_and_greatest_us(batches[-1])[1]
    return path, ArchivedFile(A.partition, start, end, None, size, first, last, "0" * 32)


def runs(of: RecordBatch) -> object:
    assert of.times is not None
    return of.times.tolist()


def test_records_come_back_with_their_times(tmp_path: Path) -> None:
    path, file = written(tmp_path, batch(A, 5, 9), batch(A, 9, 20))
    found = list(read_records(tmp_path, path, A, file, 7, 15))
    assert [(each.offset, each.end) for each in found] == [(7, 9), (9, 15)]
    for each in found:
        wanted = batch(A, each.offset, each.end)
        assert each.values == wanted.values.to_list()
        assert runs(each) == runs(wanted)


def test_columns_are_those_of_spark(tmp_path: Path) -> None:
    path, _ = written(tmp_path, enveloped(A, 3))
    rows = pq.read_table(path).to_pylist()
    assert [(row["key"], row["value"]) for row in rows] == [
        (b"k", b"v"),
        (b"gone", None),
        (None, b"bare"),
        (None, b""),
    ]
    assert rows[0]["headers"] == [{"key": "h", "value": b"1"}, {"key": "n", "value": None}]
    assert [row["headers"] for row in rows[1:]] == [None] * 3
    assert [row["offset"] for row in rows] == [3, 4, 5, 6]
    assert {row["partition"] for row in rows} == {A.partition}
    assert {(row["timestamp"], row["timestampType"]) for row in rows} == {(None, None)}


def test_envelopes_come_back_as_they_were(tmp_path: Path) -> None:
    path, file = written(tmp_path, enveloped(A, 3))
    [found] = read_records(tmp_path, path, A, file, 3, 7)
    assert found.values == enveloped(A, 3).values.to_list()
    assert runs(found) == [[4, UNKNOWN_US]]


def test_a_batch_is_cut_where_a_day_ends() -> None:
    cut = list(by_day(batch(A, 20, 50), UNKNOWN_US))
    assert [(day, each.offset, each.end) for day, each in cut] == [
        ("2026-01-01", 20, 24),
        ("2026-01-02", 24, 48),
        ("2026-01-03", 48, 50),
    ]
    for _, each in cut:
        assert runs(each) == runs(batch(A, each.offset, each.end))


def test_records_without_a_time_are_of_no_day() -> None:
    times = np.array([[2, UNKNOWN_US], [1, BEGIN_US], [3, BEGIN_US + 1]], np.int64)
    mixed = RecordBatch(A, 10, Values.of([b"x"] * 6), times=times)
    cut = [(day, each.offset, each.end) for day, each in by_day(mixed, UNKNOWN_US)]
    assert cut == [(None, 10, 12), ("2026-01-01", 12, 16)]
    assert least_and_greatest_us(mixed) == (UNKNOWN_US, BEGIN_US + 1)
    bare = RecordBatch.of(A, 0, [b"x"])
    assert list(by_day(bare, UNKNOWN_US)) == [(None, bare)]
    assert least_and_greatest_us(bare) == (UNKNOWN_US, UNKNOWN_US)


def test_late_records_are_of_the_day_of_the_newest_one_before_them() -> None:
    day_us = 24 * HOUR_US
    stamps = [BEGIN_US - day_us, BEGIN_US, BEGIN_US - 5 * day_us, BEGIN_US + day_us, BEGIN_US]
    shuffled = RecordBatch(
        A, 0, Values.of([b"x"] * 5), times=np.array([[1, us] for us in stamps], np.int64)
    )
    cut = [(day, each.end) for day, each in by_day(shuffled, BEGIN_US)]
    assert cut == [("2026-01-01", 3), ("2026-01-02", 5)]
    assert least_and_greatest_us(shuffled) == (BEGIN_US - 5 * day_us, BEGIN_US + day_us)


@pytest.mark.parametrize(("hours", "expected"), [(-5, 5), (5, 5), (6.5, 7), (19, 19), (19.1, None)])
def test_a_time_is_looked_up(tmp_path: Path, hours: float, expected: int | None) -> None:
    path, file = written(tmp_path, batch(A, 5, 9), batch(A, 9, 20))
    assert first_from(tmp_path, path, file, BEGIN_US + int(hours * HOUR_US)) == expected


def other_columns(path: Path) -> None:
    table = pq.read_table(path)
    pq.write_table(table.rename_columns([*table.column_names[:-1], "other"]), path)


def other_offsets(path: Path) -> None:
    table = pq.read_table(path, schema=SCHEMA)
    moved = pa.array(np.arange(15) + 6)
    pq.write_table(table.set_column(3, SCHEMA.field("offset"), moved), path, store_schema=False)


def one_octet(path: Path) -> None:
    octets = bytearray(path.read_bytes())
    octets[len(octets) // 8] ^= 1
    path.write_bytes(octets)


@pytest.mark.parametrize(
    ("change", "keeps_size", "expected"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:-9]), False, "cannot be read"),
        (lambda path: path.write_bytes(b""), False, "cannot be read"),
        (lambda path: path.write_bytes(b"\0" * path.stat().st_size), True, "cannot be read"),
        (one_octet, True, "cannot be read"),
        (lambda path: written(path.parent, batch(A, 5, 19)), False, "has 14 records and "),
        (other_columns, False, "has other columns"),
        (other_offsets, False, "has other offsets than 5 to 20"),
    ],
)
def test_what_was_not_written_is_found(
    tmp_path: Path, change: Callable[[Path], None], keeps_size: bool, expected: str
) -> None:
    path, file = written(tmp_path, batch(A, 5, 9), batch(A, 9, 20))
    if expected.startswith("has 14"):
        path.unlink()
    change(path)
    if not keeps_size and not expected.startswith("has 14"):
        size = path.stat().st_size
        file = ArchivedFile(A.partition, 5, 20, None, size, None, None, "0" * 32)
    with pytest.raises(ArchiveError, match=expected):
        list(read_records(tmp_path, path, A, file, 5, 20))


def test_no_file_is_another_matter(tmp_path: Path) -> None:
    file = ArchivedFile(A.partition, 0, 5, None, 9, None, None, "0" * 32)
    with pytest.raises(FileNotFoundError):
        list(read_records(tmp_path, tmp_path / "none", A, file, 0, 5))


@pytest.mark.parametrize(
    ("topic", "name"),
    [
        ("flights", "topic=flights"),
        ("a/b", "topic=a%2Fb"),
        ("..", "topic=.."),
        ("50%=x", "topic=50%25%3Dx"),
        ("größe", "topic=größe"),
        (text_of(b"\xff\n"), "topic=%5Cxff%5Cx0a"),
    ],
)
def test_a_topic_s_directory(topic: str, name: str) -> None:
    assert topic_name("d", topic) == name
    assert topic_of(name) == topic


# A byte takes up to six characters of the name, which has room for 249.
@given(st.binary(min_size=1, max_size=41).filter(lambda octets: b"\0" not in octets))
def test_any_topic_comes_back(octets: bytes) -> None:
    name = topic_name("d", text_of(octets))
    assert "/" not in name
    assert topic_of(name) == text_of(octets)


def test_a_name_too_long_for_a_directory_is_refused() -> None:
    assert topic_name("d", "x" * (MAX_NAME_BYTES - 6))
    with pytest.raises(ArchiveError, match="is too long for a directory"):
        topic_name("d", "x" * (MAX_NAME_BYTES - 5))


@pytest.mark.parametrize("name", ["flights", "topic=", "topic=a/b", "topic=%00%", "topic=a:b"])
def test_what_is_no_topic_s_directory(name: str) -> None:
    assert topic_of(name) is None


@pytest.mark.parametrize("partition", ["../x", "_x", ".x", "x" * 200, text_of(b"\xff"), ""])
def test_an_odd_partition_has_a_plain_file(partition: str) -> None:
    name = file_name(partition, 3, 2**62)
    assert name.endswith("-0000000000000000003-4611686018427387904.parquet")
    assert name[0].isalnum()
    assert "/" not in name
    assert len(name) < 100


def test_days_are_those_of_utc() -> None:
    assert day_of(0) == "1970-01-01"
    assert day_of(-1) == "1969-12-31"
    assert day_of(86_400_000_000 * 20_000 - 1) == "2024-10-03"
    assert day_of(2**62) is None
    assert day_name(None) == "day=__HIVE_DEFAULT_PARTITION__"


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (errno.ENOSPC, "the disk is full: No space left on device .*: free some space"),
        (errno.EDQUOT, "the disk is full: Disk quota exceeded"),
        (errno.EROFS, "it cannot be written to: Read-only file system .*; permit this user"),
        (errno.EACCES, "it cannot be used: Permission denied .*; permit this user"),
        (errno.ESTALE, "archive at d: Stale file handle"),
    ],
)
def test_errors_of_the_disk(number: int, expected: str) -> None:
    with pytest.raises(ArchiveError, match=expected), translated("d"):
        raise OSError(number, os.strerror(number), "d/x")


def test_errors_of_reading_are_of_the_file_but_that_there_is_none() -> None:
    with pytest.raises(ArchiveError, match="f: cannot be read"), reading("d", "f"):
        raise pa.ArrowInvalid("Parquet magic bytes not found")
    with pytest.raises(ArchiveError, match="Permission denied"), reading("d", "f"):
        raise PermissionError(errno.EACCES, "Permission denied", "f")
    with pytest.raises(FileNotFoundError), reading("d", "f"):
        raise FileNotFoundError(errno.ENOENT, "No such file or directory", "f")


def test_it_travels_between_processes() -> None:
    error = damaged("d", "f", "is missing")
    found = pickle.loads(pickle.dumps(error))
    assert (str(found), found.directory, found.why) == (str(error), "d", error.why)
    assert str(error).startswith(
        "archive at d: f: is missing. It was changed or is damaged: restore it"
    )
