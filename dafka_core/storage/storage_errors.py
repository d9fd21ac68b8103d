"""LMDB's errors as ``StoreError``, with remedies."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import struct
from collections.abc import Iterator
from pathlib import Path

import lmdb

from dafka_core.errors import DiskFullError, StoreError

MAX_READERS = 1024
"""Read transactions at one time, those of leases included; each costs 64 bytes of memory."""

DATA_FILE = "data.mdb"

BACKUP_MANIFEST = "backup.json"  # marks a directory as a backup (``backup.py``)

_FULL_CODES = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

_FULL_BYTES = 1 << 20  # a disk with less free space is full: LMDB writes as much at a time


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
        raise _of_disk(directory, error) from error


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


def _of_disk(directory: Path, error: lmdb.Error | OSError) -> StoreError:
    if isinstance(error, lmdb.MapFullError):
        why = (
            "the address space of its map is full; nothing of this was written: restart the store "
            "without a limit of address space (ulimit -v)"
        )
        return DiskFullError(directory, why)
    code = error.errno if isinstance(error, OSError) else getattr(error, "code", 0)
    if code in _FULL_CODES or (code == errno.EIO and _has_no_room(directory)):
        why = f"the disk is full ({error}); nothing of this was written: free some space"
        return DiskFullError(directory, why)
    why = f"{error}"
    if code == errno.EIO or isinstance(error, lmdb.DiskError):
        why = (
            f"the disk fails ({error}); nothing of this was written. It has free space, so it may "
            "be broken: see the system's log, and start the store with an empty directory on "
            "another disk; it copies all records that other stores and producers still have"
        )
    elif isinstance(error, lmdb.PanicError):
        why = f"an earlier write failed halfway ({error}); restart the store"
    elif isinstance(error, lmdb.ReadersFullError):
        why = f"more than {MAX_READERS} concurrent reads ({error})"
    return StoreError(directory, why)


def _has_no_room(directory: Path) -> bool:
    """Return True if the disk, or the file by the process's limit, has no room for a write.

    LMDB reports a write that the disk has accepted in part as EIO, as it does if the disk becomes
    full, or the file reaches the process's limit (ulimit -f).
    """
    try:
        disk = os.statvfs(directory)
        size_bytes = max((each.stat().st_size for each in directory.iterdir()), default=0)
    except OSError:
        return False
    limit_bytes, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    room_bytes = disk.f_bavail * disk.f_frsize
    if limit_bytes != resource.RLIM_INFINITY:
        room_bytes = min(room_bytes, limit_bytes - size_bytes)
    return room_bytes < _FULL_BYTES
