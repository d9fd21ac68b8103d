"""A reader over lists in memory: tests of what reads offsets and ranges need no sockets."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext

from dafka_core import Reader
from dafka_core.errors import DataLossError
from dafka_core.model.epochs import NO_LIFE, Epoch
from dafka_core.model.records import KnownStore, PartitionInfo, RecordBatch, TopicPartition
from dafka_core.model.values import Values

BATCH_RECORDS = 7


class MemoryReader(Reader):
    """Reads one store's records from memory.

    Attributes:
        logs: the values of each partition, from offset 0 on.
        earliest: the first offset of partitions whose records were trimmed.
        written: what ``times`` answers.
        missing: offsets that ``read`` passes over, as a store with a hole would.
        calls: the names of the called methods.
        away: the stores that are known and do not answer.
        epoch: that of all records.
        backwards: whether ``partitions`` answers in the other order.
        closing: set by ``close``.
    """

    # Not the reader's own, which joins a mesh.
    def __init__(self, counts: Mapping[TopicPartition, int] | None = None) -> None:
        self.logs: dict[TopicPartition, list[bytes]] = {}
        self.earliest: dict[TopicPartition, int] = {}
        self.written: list[tuple[int, int]] = []
        self.missing: set[int] = set()
        self.calls: list[str] = []
        self.away: list[KnownStore] = []
        self.epoch: Epoch | None = None
        self.backwards = False
        self.closing = threading.Event()
        for tp, count in (counts or {}).items():
            self.add(tp, count)

    def add(self, tp: TopicPartition, count: int) -> None:
        """Appends records; each one's value is its offset in decimal."""
        log = self.logs.setdefault(tp, [])
        log.extend(b"%d" % offset for offset in range(len(log), len(log) + count))

    def trim(self, tp: TopicPartition, earliest: int) -> None:
        """Loses the records before ``earliest``."""
        self.earliest[tp] = earliest

    def cut(self, tp: TopicPartition, end: int) -> None:
        """Loses the records from ``end`` on."""
        del self.logs[tp][end:]

    def drop(self, tp: TopicPartition) -> None:
        """Loses a partition."""
        del self.logs[tp]

    @property
    def closed(self) -> bool:
        """Whether ``close`` was called."""
        return self.closing.is_set()

    def connect(self, address: object) -> AbstractContextManager[MemoryReader]:
        """Lends this reader, whatever mesh is asked for."""
        return nullcontext(self)

    def stores(self) -> list[str]:
        """One store, without Flight."""
        return ["C" * 32]

    def endpoints(self) -> dict[str, tuple[str, ...]]:
        """None."""
        return {}

    def wait_for_stores(self, *, timeout_s: float) -> None:
        """There is nothing to wait for."""

    def missing_stores(self, *, timeout_s: float) -> list[KnownStore]:
        """See ``Reader.missing_stores``."""
        return list(self.away)

    def partitions(
        self, topics: Collection[str] | None = None, *, timeout_s: float
    ) -> list[PartitionInfo]:
        """See ``Reader.partitions``."""
        self.calls.append("partitions")
        life = NO_LIFE if self.epoch is None else self.epoch.life
        found = [
            PartitionInfo(*tp, self.earliest.get(tp, 0), len(log), life)
            for tp, log in self.logs.items()
            if topics is None or tp.topic in topics
        ]
        return found[::-1] if self.backwards else found

    def read(
        self, tp: TopicPartition, start: int, end: int, *, timeout_s: float
    ) -> Iterator[RecordBatch]:
        """See ``Reader.read``; in batches of ``BATCH_RECORDS``."""
        self.calls.append("read")
        if tp not in self.logs:
            raise DataLossError(*tp, start, None, "no store has the partition")
        if start < self.earliest.get(tp, 0):
            raise DataLossError(*tp, start, self.earliest[tp], "trimmed")
        at = start
        while at < min(end, len(self.logs[tp])):
            if at in self.missing:
                at += 1
                continue
            stop = min(at + BATCH_RECORDS, end)
            stop = min([stop, *(gap for gap in self.missing if at < gap)])
            yield RecordBatch(tp, at, Values.of(self.logs[tp][at:stop]), epoch=self.epoch)
            at = stop
        if at < end:
            raise DataLossError(*tp, at, self.earliest.get(tp, 0), "it ends there")

    def times(
        self, tp: TopicPartition, start: int, end: int, *, timeout_s: float
    ) -> list[tuple[int, int]]:
        """See ``Reader.times``."""
        self.calls.append("times")
        return self.written

    def close(self) -> None:
        """Sets ``closing``."""
        self.closing.set()
