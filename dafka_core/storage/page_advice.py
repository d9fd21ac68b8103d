"""What the system is told of the mapped file's pages that a reader has no more use for.

A page that was read counts as the reader's resident memory until it is told otherwise, although it
is only the file's, which the system keeps for all processes.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable
from functools import cache


def leave(address: int, size_bytes: int) -> None:
    """These bytes will not be read again soon.  Whoever reads them all the same finds them."""
    first = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE
    end = (address + size_bytes) // mmap.PAGESIZE * mmap.PAGESIZE
    madvise = _madvise()
    if end > first and madvise is not None:
        # An error means that the system does not know the advice, and it is only advice.
        madvise(first, end - first, mmap.MADV_DONTNEED)


@cache
def _madvise() -> Callable[[int, int, int], int] | None:
    try:
        found = ctypes.CDLL(None).madvise
    except (OSError, AttributeError):
        return None
    found.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return found
