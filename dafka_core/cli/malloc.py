"""How a node's own process asks the system for memory."""

from __future__ import annotations

import ctypes
import sys
from typing import Final

_M_TRIM_THRESHOLD: Final = -1
_M_TOP_PAD: Final = -2
_M_MMAP_THRESHOLD: Final = -3

LARGEST_KEPT_BYTES: Final = 32 << 20
"""The most that glibc takes for its limit, below which memory comes from its heap: larger than a
burst of messages or a block of the log."""

KEPT_BYTES: Final = 128 << 20
"""Freed memory above this goes back to the system."""

STEP_BYTES: Final = 32 << 20
"""What the heap grows by: a group of records on its way to the disk."""


def keep_freed_memory() -> None:
    """Has glibc keep what is freed, for the next burst, instead of giving it back each time.

    The system zeroes each page it hands out: a store that takes large buffers for every group of
    records spends more than half of its time on that.  Where there is another C library, nothing
    happens.
    """
    if not sys.platform.startswith("linux"):
        return
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    mallopt(_M_MMAP_THRESHOLD, LARGEST_KEPT_BYTES)
    mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)
    mallopt(_M_TOP_PAD, STEP_BYTES)
