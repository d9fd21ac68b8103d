"""Keep a file in the page cache while other sides of a comparison have their turns.

Some machines return unused memory within seconds (seen: 6 GB of page cache gone within a minute),
and then a side waits for the disk. That depends on the machine, and no goal is about it.
"""

from __future__ import annotations

import contextlib
import mmap
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np

STEP_BYTES = 2 << 20  # one byte of each huge page, as in a file that has just been written

PAUSE_S = 2.0
"""Interval: memory is not returned so soon, and reading 5,000 bytes of 10 GB takes some
milliseconds."""


@contextlib.contextmanager
def kept(file: Path) -> Iterator[None]:
    """Keep the file in memory during the context, if it fits."""
    with file.open("rb") as opened:
        mapped = mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ)
    done = threading.Event()
    toucher = threading.Thread(target=_touch, args=(mapped, done), name="keeps the page cache")
    toucher.start()
    try:
        yield
    finally:
        done.set()
        toucher.join()


def _touch(mapped: mmap.mmap, done: threading.Event) -> None:
    octets = np.frombuffer(mapped, np.uint8)
    while not done.wait(PAUSE_S):
        octets[::STEP_BYTES].max()
