"""Keep a file in the page cache while other sides of a comparison have their turns.

Some machines return unused memory within seconds (seen: 6 GB of page cache gone within a minute),
and then a side waits for the disk. That depends on the machine, and no goal is about it.
"""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.processes import repeated

STEP_BYTES = 2 << 20  # one byte of each huge page, as in a file that has just been written

PAUSE_S = 2.0
"""Interval: memory is not returned so soon, and reading 5,000 bytes of 10 GB takes some
milliseconds."""


@contextlib.contextmanager
def kept(file: Path) -> Iterator[None]:
    """Keep the file in memory during the context, if it fits."""
    with file.open("rb") as opened:
        octets = np.frombuffer(mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ), np.uint8)
    with repeated(octets[::STEP_BYTES].max, PAUSE_S):
        yield
