"""Keeps a file in the page cache while other sides of a comparison have their turns.

Some machines give memory back that nobody has used for some seconds (seen: 6 GB of page cache gone
within a minute), and then the side whose turn it is waits for a disk.  What a disk costs depends on
the machine, and none of the goals is about it.
"""

from __future__ import annotations

import contextlib
import mmap
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np

STEP_BYTES = 2 << 20
"""One octet of each large page, which is what a file lies in that has just been written."""

PAUSE_S = 2.0
"""Memory is not given back so soon; and 10 GB are 5,000 octets, some milliseconds."""


@contextlib.contextmanager
def kept(file: Path) -> Iterator[None]:
    """The file stays in memory for as long as the context lasts, if there is enough."""
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
