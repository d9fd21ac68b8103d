"""How a process with a node in it asks the system for memory."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from typing import Final

_M_TRIM_THRESHOLD: Final = -1
_M_TOP_PAD: Final = -2
_M_MMAP_THRESHOLD: Final = -3

LARGEST_KEPT_BYTES: Final = 32 << 20
"""Smaller pieces come from glibc's heap, larger ones from the system each time.  glibc takes no
higher limit; a burst of messages and a block of the log are smaller."""

KEPT_BYTES: Final = 128 << 20
"""Freed memory above this goes back to the system."""

STEP_BYTES: Final = 32 << 20
"""What the heap grows by: a group of records on its way to the disk."""


def keep_freed_memory() -> None:
    """Has glibc keep freed memory for the next burst, instead of giving it back each time.

    The system zeroes each page that it hands out: a store, which needs large buffers for every
    group of records, would spend more than half of its time on that.  With another C library
    nothing happens.
    """
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, LARGEST_KEPT_BYTES)
        mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)
        mallopt(_M_TOP_PAD, STEP_BYTES)
