"""Limits of this process, as the kernel keeps them, and logs filled up to one."""

from __future__ import annotations

import contextlib
import mmap
import resource
from collections.abc import Iterator
from pathlib import Path

from dafka_core.records import RecordBatch
from dafka_core.storage import Log
from tests.integration.storage.processes import TP

VALUE = b"x" * (1 << 20)


def fill(store: Log) -> None:
    for number in range(store.end(TP), 1000):
        store.append([RecordBatch.of(TP, number, [VALUE])])


@contextlib.contextmanager
def limited(what: int, size_bytes: int) -> Iterator[None]:
    """Sets a limit of this process, which the kernel keeps."""
    before = resource.getrlimit(what)
    resource.setrlimit(what, (size_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(what, before)


def used_bytes() -> int:
    """The address space this process has in use."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * mmap.PAGESIZE
