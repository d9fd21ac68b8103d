"""Names of directories and files follow from what is in them, and can be read back."""

from __future__ import annotations

import errno
import os
import pickle

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dafka_core.archive.layout import (
    MAX_NAME_BYTES,
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
        (errno.EACCES, "it cannot be written to: Permission denied"),
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
