"""LMDB's mapped file: positions in it, and signals at pages that cannot be read.

The system sends SIGBUS to the thread that touches a mapped page which the disk cannot read, or
after the end of a truncated file.  LMDB aborts if a damaged tree violates its assertions.  Both end
the process nearly silently.  The handler here runs in that thread, inside LMDB, where no error can
be raised.  It logs the reason, and ends the process with exit code 1.
"""

from __future__ import annotations

import contextlib
import ctypes
import inspect
import logging
import mmap
import os
import signal
import struct
import sys
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np

from dafka_core.errors import StoreError
from dafka_core.storage.storage_errors import DATA_FILE

_MAPS: Final = Path("/proc/self/maps")


def mapping_at(address: int) -> tuple[range, int, str]:
    """Return the mapping at an address, by how much it is above the file's positions, and the file.

    The name is empty if nothing is mapped.
    """
    with contextlib.suppress(OSError):
        for line in _MAPS.read_text().splitlines():
            # As in: 7f0e5c000000-7f0e5d000000 r--s 00000000 fe:00 1234   /data/data.mdb
            bounds, _, offset, *_, path = line.split(maxsplit=5)
            span = range(*(int(bound, 16) for bound in bounds.split("-")))
            if address in span:
                return span, span.start - int(offset, 16), path
    return range(0), 0, ""


_PAGE: Final = struct.Struct("<QHHI")
"""The header of LMDB's pages: number, unused, flags, and the count of a large value's pages."""

_OVERFLOW: Final = 4  # the flag of a large value's pages (P_OVERFLOW)


class FilePositions:
    """Positions in one file, which this process has mapped.  Thread-safe."""

    def __init__(self, data: Path) -> None:
        self._data = data
        # The mapped range, and the difference of an address in it and its position. Assigned
        # together, since threads read concurrently.
        self._mapped = range(0), 0

    def of(self, packed: memoryview) -> int:
        """Return the bytes' position in the file; StoreError if the system does not report it."""
        address = int(np.frombuffer(packed, np.uint8).__array_interface__["data"][0])
        region, shift = self._mapped
        if address not in region:
            region, shift, path = mapping_at(address)
            if not path.endswith(f"/{self._data.name}"):
                why = f"{_MAPS} does not contain {self._data.name}: read it over Flight"
                raise StoreError(self._data.parent, why)
            self._mapped = region, shift
        return address - shift

    def is_whole(self, packed: memoryview) -> bool:
        """Return False if LMDB would free other pages than those of this value.

        A large value has pages of its own, and the header of the first says how many.
        """
        position = self.of(packed)
        page, at = divmod(position, mmap.PAGESIZE)
        if at != _PAGE.size:  # a small value, in a page of the tree
            return True
        with self._data.open("rb") as file:
            file.seek(position - at)
            number, _, flags, count = _PAGE.unpack(file.read(at))
        pages = -(-(at + len(packed)) // mmap.PAGESIZE)
        return (number, flags, count) == (page, _OVERFLOW, pages)


_FIXED: Final = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x10
"""With Linux's MAP_FIXED, which Python does not have."""

_SIGINFO: Final = 4

_libc: Final = ctypes.CDLL(None)

_first: Final = threading.Lock()  # held for ever: twice, the handler would be its own predecessor

_previous: Final = {each: (ctypes.c_size_t * 19)() for each in (signal.SIGBUS, signal.SIGABRT)}
"""``struct sigaction`` of Linux: the handler, 16 words of a mask, flags, one for the C library."""

_noted: dict[Path, dict[int, str]] = {}

_log = logging.getLogger("dafka.store")


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
