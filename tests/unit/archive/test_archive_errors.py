"""What goes wrong with an archive is said with what would be right."""

from __future__ import annotations

import errno
import os
import pickle

import pyarrow as pa
import pytest

from dafka_core.archive.archive_errors import ArchiveError, damaged, reading, translated


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (errno.ENOSPC, "the disk is full: No space left on device .*: free some space"),
        (errno.EDQUOT, "the disk is full: Disk quota exceeded"),
        (errno.EROFS, "it cannot be written to: Read-only file system .*; give this user"),
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
    assert str(error).startswith("archive at d: f: is missing. It is not what was written: put it")
