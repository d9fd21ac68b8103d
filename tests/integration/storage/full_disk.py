"""A child process: a log on a disk that is full, and then has room again.

``full_disk.py DIRECTORY SCENARIO`` checks what must hold, and prints ``right``. The directory is a
small file system that another file fills; where none can be mounted, a limit on the size of files
stands in.
"""

import contextlib
import os
import resource
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

import pytest

from dafka_core.errors import StoreError
from dafka_core.model.epochs import EpochId
from dafka_core.model.log_entries import LogEntry, Promise, SetAside, Stage
from dafka_core.model.records import RecordBatch, TopicPartition
from dafka_core.storage import Log
from dafka_core.storage.open_environment import LOCK_FILE
from tests.integration.storage import limits
from tests.integration.storage.processes import TP, put, values_of

MOUNTED_BYTES: Final = 40 << 20
PAGE_BYTES: Final = 4096
TPS: Final = [TopicPartition("t", f"P{number}") for number in range(192)]


class Disk:
    """Return the file system of a directory."""

    def __init__(self, directory: Path) -> None:
        self.store = directory / "store"
        self._ballast = directory / "ballast"

    @property
    def mounted(self) -> bool:
        """Return True for a file system of the tests."""
        status = os.statvfs(self._ballast.parent)
        return status.f_blocks * status.f_frsize == MOUNTED_BYTES

    @contextlib.contextmanager
    def full(self, but_bytes: int = 0) -> Iterator[None]:
        """Leave room for this size only."""
        if not self.mounted:
            sizes = [path.stat().st_size for path in self.store.glob("data.mdb")]
            with limits.limited(resource.RLIMIT_FSIZE, max(sizes, default=0) + but_bytes):
                yield
            return
        self._ballast.write_bytes(bytes(self._free_bytes() - but_bytes))
        yield
        self._ballast.unlink()

    def _free_bytes(self) -> int:
        status = os.statvfs(self._ballast.parent)
        return status.f_bavail * status.f_frsize


def refused() -> AbstractContextManager[object]:
    """Check that the log refuses the actions inside with a sentence."""
    return pytest.raises(StoreError, match=r"No space left|the disk is full")


def readers(disk: Disk) -> None:
    """Read in more threads than before: LMDB's reader table has room for them."""
    with Log(disk.store) as log:
        put(log, 100)
        values = values_of(log)
        with disk.full(), contextlib.ExitStack() as snapshots:
            for _ in range(500):
                snapshots.enter_context(log.snapshot())
            assert values_of(log) == values


def starting(disk: Disk) -> None:
    """Open a log with any amount of room: it opens or is refused, and opens with enough."""
    for pages in range(40):
        with disk.full(pages * PAGE_BYTES), contextlib.suppress(StoreError):
            Log(disk.store).close()
        with Log(disk.store) as log:
            put(log, 1)
        for path in disk.store.iterdir():
            path.unlink()


def restarting(disk: Disk) -> None:
    """Open and read an existing log without any room."""
    with Log(disk.store) as log:
        put(log, 100)
        values = values_of(log)
    with disk.full():
        for _ in range(3):
            with Log(disk.store) as log:
                assert values_of(log) == values
    (disk.store / "lock.mdb").unlink()
    (disk.store / LOCK_FILE).unlink()
    with disk.full():
        if disk.mounted:
            with refused():
                Log(disk.store)
    with Log(disk.store) as log:
        assert values_of(log) == values


def writing(disk: Disk) -> None:
    """Check that entries of each kind without room are refused, and leave nothing."""
    life = EpochId(5, 7, 1)
    large = RecordBatch.of(TP, 100, [bytes(limits.VALUE)] * 4)
    entries: list[list[LogEntry]] = [
        [large],
        [Promise(TP, life), large],
        [SetAside(TP, 50), RecordBatch.of(TP, 50, large.values)],
        [Stage(large, "A" * 32)],
    ]
    with Log(disk.store) as log:
        put(log, 100)
        values, lives = values_of(log), log.lives(TP)
        with disk.full():
            for each in entries * 3:
                with refused():
                    log.write(each)
                assert values_of(log) == values
                assert (log.lives(TP), log.aside(), log.staged()) == (lives, [], [])
        for each in entries[1:3]:
            assert log.write(each) == [None, None]
        held = values[:50] + list(large.values)
    with Log(disk.store) as log:
        assert values_of(log) == held
        assert log.lives(TP).promised == life
        (aside,) = log.aside()
        assert (aside.start, aside.end) == (50, 104)


def merging(disk: Disk) -> None:
    """Merge blocks later if they have no room now; appends with room continue meanwhile."""
    ends = dict.fromkeys(TPS, 0)

    def append(log: Log, count: int) -> None:
        batches = [RecordBatch.of(tp, ends[tp], [value(ends[tp])] * 3) for tp in TPS[:count]]
        log.append(batches)
        ends.update({batch.tp: batch.end for batch in batches})

    def value(end: int) -> bytes:
        return b"%d," % end * 50

    def blocks(log: Log) -> int:
        return sum(len(log.read(tp, 0, end)) for tp, end in ends.items())

    with Log(disk.store) as log:
        for _ in range(150):
            append(log, len(TPS))
        with disk.full(200_000):
            for _ in range(5):
                with refused():
                    while log.merge_step():
                        continue
            for _ in range(5):
                append(log, 1)
        unmerged = blocks(log)
        while log.merge_step():
            continue
        assert blocks(log) < 0.7 * unmerged
        for tp, end in ends.items():
            assert values_of(log, tp) == [value(offset // 3 * 3) for offset in range(end)]


if __name__ == "__main__":
    globals()[sys.argv[2]](Disk(Path(sys.argv[1])))
    print("right", flush=True)
