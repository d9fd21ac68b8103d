"""Bounds on the cost of a refusal: peers choose what is refused."""

import time
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quickly_and_without_memory() -> Iterator[None]:
    tracemalloc.start()
    started_s = time.process_time()
    try:
        yield
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # A loop over what is announced would take minutes and gigabytes.
    assert time.process_time() - started_s < 2
    assert peak_bytes < 1 << 20
