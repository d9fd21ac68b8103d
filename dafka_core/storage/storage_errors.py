"""LMDB's errors as ``StoreError``, with remedies."""

from __future__ import annotations

import contextlib
import errno
import struct
from collections.abc import Iterator
from pathlib import Path

import lmdb

from dafka_core.errors import StoreError

MAX_READERS = 1024
"""Read transactions at one time, those of leases included; each costs 64 bytes of memory."""

DATA_FILE = "data.mdb"

BACKUP_MANIFEST = "backup.json"
"""Marks a directory as a backup (``backup.py``)."""

_DISK_CODES = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


@contextlib.contextmanager
def translated(directory: Path, opening: bool = False) -> Iterator[None]:
    """Translate errors of LMDB and the disk to ``StoreError``.

    With ``opening`` a file that is no database of LMDB may be another program's.
    """
    try:
        yield
    except (lmdb.InvalidError, lmdb.VersionMismatchError) as error:
        raise (foreign if opening else damaged)(directory, str(error)) from error
    except struct.error as error:
        raise damaged(directory, f"a key or a row is invalid ({error})") from error
    except (lmdb.CorruptedError, lmdb.PageNotFoundError) as error:
        raise damaged(directory, str(error)) from error
    except (lmdb.Error, OSError) as error:
        raise StoreError(directory, _disk_reason(error)) from error


def damaged(directory: Path, why: str) -> StoreError:
    """Return the error for a directory with damaged content."""
    return StoreError(
        directory,
        f"{why}. Its files are damaged: move the directory away and start the store with an "
        "empty one; it copies all records that other stores and producers still have",
    )


def foreign(directory: Path, why: str) -> StoreError:
    """Return the error for a file that no store has written."""
    return StoreError(
        directory,
        f"{DATA_FILE} is not a store's file ({why}): give the store an empty directory, or "
        "move that file away",
    )


def _disk_reason(error: lmdb.Error | OSError) -> str:
    code = error.errno if isinstance(error, OSError) else getattr(error, "code", 0)
    if isinstance(error, lmdb.DiskError) or code in _DISK_CODES:
        # LMDB reports EIO for a write that a disk accepted in part, as a disk does when it becomes
        # full.
        otherwise = "; if the disk has free space, replace it: it is failing"
        cure = f"free some space{otherwise if code == errno.EIO else ''}"
        return f"the disk is full or fails ({error}); nothing of this was written: {cure}"
    if isinstance(error, lmdb.PanicError):
        return f"an earlier write failed halfway ({error}); restart the store"
    if isinstance(error, lmdb.MapFullError):
        return (
            "the address space of its map is full; nothing of this was written: restart "
            "the store, which maps twice the file's size, without a limit of address space "
            "(ulimit -v)"
        )
    if isinstance(error, lmdb.ReadersFullError):
        return f"more than {MAX_READERS} concurrent reads ({error})"
    return f"{error}"
