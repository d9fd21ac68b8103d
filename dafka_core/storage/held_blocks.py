"""The blocks of some partitions and their sizes, kept while a partition stays as it was."""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Iterator
from typing import Final

from dafka_core.errors import StoreError
from dafka_core.records import PartitionInfo, TopicPartition
from dafka_core.storage.log import Log
from dafka_core.storage.retention import HeldBlock

LOOK_BYTES: Final = 64 << 20
"""How much is looked at at a time; as long LMDB uses no freed page again."""


class HeldBlocks:
    """Looks at blocks a little at a time, and at none twice as long as its offsets are the same.

    Args:
        log: any thread may read it.
    """

    def __init__(self, log: Log) -> None:
        self._log = log
        self._held: dict[TopicPartition, tuple[PartitionInfo, list[HeldBlock]]] = {}

    def __len__(self) -> int:
        return len(self._held)

    def of(self, tp: TopicPartition) -> tuple[PartitionInfo, list[HeldBlock]]:
        """What a partition that was looked at holds."""
        return self._held[tp]

    def found(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, list[HeldBlock]]:
        """The blocks of those partitions that were looked at, and were there."""
        return {tp: self._held[tp][1] for tp in tps if tp in self._held}

    def keep_only(self, tps: Collection[TopicPartition]) -> None:
        """Forgets all other partitions."""
        for tp in self._held.keys() - tps:
            del self._held[tp]

    def look_at(
        self,
        partitions: Iterable[PartitionInfo],
        damaged: dict[TopicPartition, StoreError] | None = None,
    ) -> Generator[None, None, dict[TopicPartition, list[HeldBlock]]]:
        """The blocks of partitions; each step looks at a few.

        With ``damaged``, which gets their errors, damaged partitions are as they were last seen.

        Raises:
            DafkaError: the log is closed, or damaged.
        """
        infos = list(partitions)
        for info in infos:
            if info.tp not in self._held or self._held[info.tp][0] != info:
                try:
                    yield from self.look(info.tp)
                except StoreError as error:
                    if damaged is None:
                        raise
                    damaged[info.tp] = error
        return self.found(info.tp for info in infos)

    def look(self, tp: TopicPartition) -> Iterator[None]:
        """Looks at the blocks of a partition that were not looked at before."""
        _, blocks = self._held.get(tp, (None, []))
        known = {(block.first, block.end): block for block in blocks}
        while True:
            looked_at_bytes = 0
            with self._log.snapshot() as snapshot:
                found = snapshot.blocks(tp)
                if found is None:
                    self._held.pop(tp, None)
                    return
                for number, bounds in enumerate(zip(found.bounds, found.bounds[1:], strict=False)):
                    if bounds not in known and looked_at_bytes < LOOK_BYTES:
                        known[bounds] = found[number]
                        looked_at_bytes += known[bounds].size_bytes
                wanted = list(zip(found.bounds, found.bounds[1:], strict=False))
                info = found.info
            yield
            if looked_at_bytes < LOOK_BYTES:
                break
        self._held[tp] = info, [known[bounds] for bounds in wanted]
