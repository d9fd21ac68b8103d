"""The content of a store's disk, read from its directory."""

from pathlib import Path

import lmdb

from dafka_core.errors import StoreError
from dafka_core.model.records import TopicPartition
from dafka_core.storage import Log
from tests.integration.storage.processes import on_disk

READ_RECORDS = 65_536


def values_on_disk(directory: Path) -> dict[TopicPartition, list[bytes]]:
    """Return all records of a store that does not run, by topic and partition.

    Raises:
        StoreError: the directory is damaged.
        AssertionError: a partition has a gap.
    """
    found: dict[TopicPartition, list[bytes]] = {}
    with Log(directory) as log:
        for info in log.partitions():
            values = found[info.tp] = []
            while (start := info.earliest + len(values)) < info.end:
                batches = log.read(info.tp, start, info.end, max_records=READ_RECORDS)
                assert batches, f"{info} has nothing at {start}"
                for batch in batches:
                    assert batch.offset == info.earliest + len(values)
                    values += batch.values
    return found


def times_on_disk(directory: Path, tp: TopicPartition) -> list[int]:
    """Return the timestamps of a partition in a store that does not run."""
    with Log(directory) as log:
        info = log.info(tp)
        assert info is not None
        times = log.times(tp, info.earliest, info.end)
        ends = [offset for offset, _ in times[1:]] + [info.end]
    pairs = zip(times, ends, strict=True)
    return [us for (start, us), end in pairs for _ in range(start, end)]


class Blocks:
    """Watches the table of a running store, in which merging reduces the blocks.

    Close it before this process opens the directory in another way.
    """

    def __init__(self, directory: Path) -> None:
        self._env = lmdb.open(
            str(directory), readonly=True, max_dbs=3, map_size=1 << 40, create=False
        )
        self._blocks = self._env.open_db(b"blocks", create=False)

    def count(self) -> int:
        with self._env.begin() as transaction:
            entries: int = transaction.stat(self._blocks)["entries"]
            return entries

    def close(self) -> None:
        self._env.close()


def has_on_disk(directory: Path, count: int) -> bool:
    """Return whether a store, possibly running, has ``count`` records."""
    return count_on_disk(directory) >= count


def count_on_disk(directory: Path) -> int:
    """Return the number of records of a store, possibly running."""
    try:
        return sum(info.end - info.earliest for info in on_disk(directory))
    except (lmdb.Error, StoreError):  # missing, or about to grow
        return 0
