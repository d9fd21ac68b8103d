"""What goes wrong with an archive, with what would be right."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa

from dafka_core.errors import DafkaError

_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
_READ_ONLY: Final = (errno.EROFS, errno.EACCES, errno.EPERM)


@dataclass(eq=False)
class ArchiveError(DafkaError):
    """A directory of archived records that cannot be read or written."""

    sentence = "archive at {directory}: {why}"
    directory: Path | str
    why: str

    def __post_init__(self) -> None:
        self.directory = str(self.directory)
        super().__post_init__()


def damaged(directory: Path | str, what: Path | str, why: str) -> ArchiveError:
    """The error for a file whose content is not what was written."""
    return ArchiveError(
        directory,
        f"{what}: {why}. It is not what was written: put it back from a copy, or remove the "
        "topic's directories in the archive, with the one in _dafka",
    )


@contextlib.contextmanager
def translated(directory: Path | str) -> Iterator[None]:
    """Errors of the disk leave as ``ArchiveError``."""
    try:
        yield
    except OSError as error:
        raise ArchiveError(directory, _reason(error)) from error


@contextlib.contextmanager
def reading(directory: Path | str, what: Path | str) -> Iterator[None]:
    """Errors of reading a Parquet file leave as ``ArchiveError``; that there is none as it is."""
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
    said = f"{error.strerror or error}{name}"
    if error.errno in _FULL:
        return f"the disk is full: {said}; nothing of this was archived: free some space"
    if error.errno in _READ_ONLY:
        return f"it cannot be written to: {said}; give this user the right to, or name another one"
    return said
