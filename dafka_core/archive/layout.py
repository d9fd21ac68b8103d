"""Names of directories and files in an archive, and the errors of an archive.

::

    topic=flights/day=2026-01-31/PARTITION-START-END.parquet    records of one partition and day
    _dafka/topic=flights/00000000000000000001.json              the manifest (``manifest.py``)
    _dafka/topic=flights/staged/ID/                             unpublished files

Spark, Arrow and DuckDB read the first of these as one table (Hive's partition columns), and ignore
names that begin with an underscore.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import errno
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa
import xxhash

from dafka_core.errors import DafkaError
from dafka_core.model.names import escape, octets_of, quoted, unescape
from dafka_core.system.files import make_directory

_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
_READ_ONLY: Final = (errno.EROFS, errno.EACCES, errno.EPERM)


@dataclass(eq=False)
class ArchiveError(DafkaError):
    """A directory of archived records that cannot be read or written."""

    sentence = "archive at {directory}: {why}"
    directory: Path | str
    why: str


def damaged(directory: Path | str, what: Path | str, why: str) -> ArchiveError:
    """Return the error for a damaged file."""
    return ArchiveError(
        directory,
        f"{what}: {why}. It was changed or is damaged: restore it from a copy, or remove the "
        "topic's directories in the archive, also the directory in _dafka",
    )


@contextlib.contextmanager
def translated(directory: Path | str) -> Iterator[None]:
    """Convert errors of the disk to ``ArchiveError``."""
    try:
        yield
    except OSError as error:
        raise ArchiveError(directory, _reason(error)) from error


@contextlib.contextmanager
def reading(directory: Path | str, what: Path | str) -> Iterator[None]:
    """Convert errors of reading a Parquet file to ``ArchiveError``, except FileNotFoundError."""
    try:
        yield
    except FileNotFoundError:
        raise
    except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
        if isinstance(error, OSError) and error.errno in (*_FULL, *_READ_ONLY):
            raise ArchiveError(directory, _reason(error)) from error
        raise damaged(directory, what, f"cannot be read ({error})") from error


def _reason(error: OSError) -> str:
    name = f" ({error.filename})" if error.filename else ""
    reason = f"{error.strerror or error}{name}"
    if error.errno in _FULL:
        return f"the disk is full: {reason}; nothing of this was archived: free some space"
    if error.errno in _READ_ONLY:
        return f"it cannot be written to: {reason}; permit this user to, or name another directory"
    return reason


MANIFEST: Final = "_dafka"
STAGED: Final = "staged"
NO_DAY: Final = "__HIVE_DEFAULT_PARTITION__"
"""Hive's null: of records without a time."""

MAX_NAME_BYTES: Final = 255  # of one file or directory, in Linux's file systems

_TOPIC: Final = "topic="
_SPECIAL: Final = re.compile(r"[\x00-\x1f\x7f\"#%'*/:=?\\{}\[\]^]")
"""Characters escaped in such names by Spark (``ExternalCatalogUtils``) and Hive."""

_PERCENT: Final = re.compile("%([0-9A-Fa-f]{2})")
_PLAIN: Final = re.compile("[A-Za-z0-9][A-Za-z0-9-]{0,63}")
DAY_US: Final = 86_400_000_000


def make_archive(directory: Path) -> None:
    """Create an empty archive in a directory, if it has none; raise ArchiveError if it cannot be.

    Not the directories above it: that would create an archive below an unmounted disk's mount
    point.
    """
    if directory.is_file():
        why = "it is a file: name a directory, which is created if missing"
        raise ArchiveError(directory, why)
    with translated(directory):
        make_directory(directory / MANIFEST, below=directory.absolute().parent)


def topic_name(directory: Path | str, topic: str) -> str:
    """Return the name of a topic's directory; raise ArchiveError if it would be too long."""
    name = _TOPIC + _SPECIAL.sub(lambda found: f"%{ord(found[0]):02X}", escape(topic))
    if len(name.encode()) > MAX_NAME_BYTES:
        why = f"the name of topic {quoted(topic)} is too long for a directory: it is not archived"
        raise ArchiveError(directory, why)
    return name


def topic_of(name: str) -> str | None:
    """Return the topic of a directory's name; None for other directories."""
    if not name.startswith(_TOPIC):
        return None
    shown = _PERCENT.sub(lambda found: chr(int(found[1], 16)), name.removeprefix(_TOPIC))
    with contextlib.suppress(ValueError, ArchiveError):
        topic = unescape(shown)
        return topic if topic and topic_name("", topic) == name else None
    return None


def day_name(day: str | None) -> str:
    """Return the name of a day's directory."""
    return f"day={day or NO_DAY}"


def day_of(time_us: int) -> str | None:
    """Return the day of a time in UTC, like ``2026-01-31``; None outside of the calendar."""
    with contextlib.suppress(OverflowError):
        return (dt.date(1970, 1, 1) + dt.timedelta(days=time_us // DAY_US)).isoformat()
    return None


def day_us(day: str) -> int:
    """Return the time at which a day begins, in microseconds since 1970 UTC."""
    return (dt.date.fromisoformat(day) - dt.date(1970, 1, 1)).days * DAY_US


def file_name(partition: str, start: int, end: int) -> str:
    """Return the name of the file with records ``start`` to ``end`` (exclusive)."""
    name = partition
    if not _PLAIN.fullmatch(partition):
        name = xxhash.xxh3_128_hexdigest(octets_of(partition))
    return f"{name}-{start:019d}-{end:019d}.parquet"
