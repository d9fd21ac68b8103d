"""Limits of this process, kept by the kernel, and logs filled up to one."""

import contextlib
import mmap
import os
import resource
from collections.abc import Iterator
from pathlib import Path

from dafka_core.model.records import RecordBatch
from dafka_core.storage import Log
from tests.integration.storage.processes import TP

VALUE = b"x" * (1 << 20)


def fill(store: Log) -> None:
    for number in range(store.end(TP), 1000):
        store.append([RecordBatch.of(TP, number, [VALUE])])


@contextlib.contextmanager
def limited(what: int, size_bytes: int) -> Iterator[None]:
    """Set a limit of this process."""
    before = resource.getrlimit(what)
    resource.setrlimit(what, (size_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(what, before)


def break_heads(store: Log) -> None:
    """The disk has no room for LMDB's first two pages, as a full copy-on-write one.

    LMDB then fails after it has written the pages that they would describe.
    """
    for each in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # closed meanwhile
            flags = (Path("/proc/self/fdinfo") / each.name).read_text().split()[3]
            if each.readlink() == store.directory / "data.mdb" and int(flags, 8) & os.O_DSYNC:
                full = os.open("/dev/full", os.O_RDWR)
                os.dup2(full, int(each.name), inheritable=False)
                os.close(full)


def used_bytes() -> int:
    """Return this process's address space in use."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * mmap.PAGESIZE
