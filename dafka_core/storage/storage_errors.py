"""LMDB's errors, and signals from its mapped file, as ``StoreError`` with remedies."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import inspect
import logging
import mmap
import os
import resource
import signal
import struct
import sys
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

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


# -- signals ---------------------------------------------------------------------------------------
#
# The system sends SIGBUS to the thread that touches a mapped page which the disk cannot read, or
# after the end of a truncated file. LMDB aborts if a damaged tree violates its assertions. Both end
# the process nearly silently. The handler here runs in that thread, inside LMDB, where no error can
# be raised. It logs the reason, and ends the process with exit code 1.

_log: Final = logging.getLogger("dafka.store")

MAPS: Final = Path("/proc/self/maps")


def mapping_at(address: int) -> tuple[range, int, str]:
    """Return the mapping at an address, by how much it is above the file's positions, and the file.

    The name is empty if nothing is mapped.
    """
    with contextlib.suppress(OSError):
        for line in os.fsdecode(MAPS.read_bytes()).split("\n")[:-1]:  # names may have any bytes
            # As in: 7f0e5c000000-7f0e5d000000 r--s 00000000 fe:00 1234   /data/data.mdb
            bounds, _, offset, *_, path = line.split(maxsplit=5)
            span = range(*(int(bound, 16) for bound in bounds.split("-")))
            if address in span:
                return span, span.start - int(offset, 16), path
    return range(0), 0, ""


_FIXED: Final = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x10
"""With Linux's MAP_FIXED, which Python does not have."""

_SIGINFO: Final = 4

_libc: Final = ctypes.CDLL(None)

_first: Final = threading.Lock()  # held for ever: twice, the handler would be its own predecessor

_previous: Final = {each: (ctypes.c_size_t * 19)() for each in (signal.SIGBUS, signal.SIGABRT)}
"""``struct sigaction`` of Linux: the handler, 16 words of a mask, flags, one for the C library."""

_noted: dict[Path, dict[int, str]] = {}


def handle_faults() -> None:
    """Handle both signals in this process; those of other files act as before."""
    if sys.platform == "linux" and _first.acquire(blocking=False):
        action = (ctypes.c_size_t * 19)()
        action[0], action[17] = ctypes.cast(_handler, ctypes.c_void_p).value or 0, _SIGINFO
        for number, previous in _previous.items():
            _libc.sigaction(number, action, previous)


@contextlib.contextmanager
def faults_noted(file: Path) -> Iterator[dict[int, str]]:
    """Read a file's unreadable pages as zeros, and note the reason by position in the file.

    Only for a file that is not written: LMDB would write results of the zeros.
    """
    file = file.resolve()
    try:
        yield _noted.setdefault(file, {})
    finally:
        del _noted[file]


def _on_fault(number: int, info: Any, _context: int | None) -> None:
    # An error that left this function would be dropped, and the instruction would fault for ever.
    with contextlib.suppress(Exception):
        if number == signal.SIGABRT:
            for frame, _ in traceback.walk_stack(inspect.currentframe()):
                directory = getattr(frame.f_locals.get("self"), "directory", None)
                if isinstance(directory, Path):
                    _end(directory, f"LMDB cannot continue at a damaged page of {DATA_FILE}")
        span, shift, name = mapping_at(info[2])  # the address, in siginfo_t
        if number == signal.SIGBUS and name.endswith(".mdb"):
            page = info[2] // mmap.PAGESIZE * mmap.PAGESIZE
            return _end_or_note(Path(name), page - shift, page, span.stop - page)
    _libc.sigaction(number, _previous[signal.Signals(number)], None)
    signal.raise_signal(number)
    return None


_handler: Final = ctypes.CFUNCTYPE(
    None, ctypes.c_int, ctypes.POINTER(ctypes.c_size_t), ctypes.c_void_p
)(_on_fault)


def _end_or_note(path: Path, position: int, page: int, rest_bytes: int) -> None:
    size_bytes, reason = mmap.PAGESIZE, "it can be read again now"
    try:
        with path.open("rb", buffering=0) as file:
            file.seek(position)
            if not file.read(mmap.PAGESIZE):
                size_bytes, reason = rest_bytes, f"the file ends at byte {path.stat().st_size}"
    except OSError as error:
        reason = f"{error.strerror}"
    why = f"{path.name} cannot be read from byte {position} on ({reason})"
    if path in _noted:
        where, size = ctypes.c_void_p(page), ctypes.c_size_t(size_bytes)
        if _libc.mmap(where, size, mmap.PROT_READ, _FIXED, -1, ctypes.c_long(0)) != -1:
            _noted[path][position] = why
            return
    _end(path.parent, why)


def _end(directory: Path, why: str) -> None:
    why += (
        ", so this process ends. 'dafka store verify' lists what is lost. If the disk is failing, "
        "start the store with an empty directory on another disk; it copies all records that other "
        "stores and producers still have"
    )
    _log.critical("%s", StoreError(directory, why), extra={"event": "page_unreadable"})
    os._exit(1)
