"""What ``dafka_core.Reader`` offers, over lists in memory: offsets and plans without sockets."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, nullcontext

from dafka_core.errors import DataLossError
from dafka_core.records import PartitionInfo, RecordBatch, TopicPartition
from dafka_core.values import Values
from dafka_spark.cluster.connections import MeshReader
from dafka_spark.options import MeshAddress

BATCH_RECORDS = 7


class MemorySource:
    """Topics in memory; ``trim`` and ``cut`` lose records at either end."""

    def __init__(self) -> None:
        self.logs: dict[TopicPartition, list[bytes]] = {}
        self.earliest: dict[TopicPartition, int] = {}
        self.written: list[tuple[int, int]] = []
        self.calls: list[str] = []
        self.missing: set[int] = set()
        self.closing = threading.Event()
        self.backwards = False

    @property
    def closed(self) -> bool:
        return self.closing.is_set()

    def add(self, tp: TopicPartition, count: int) -> None:
        log = self.logs.setdefault(tp, [])
        log.extend(b"%d" % offset for offset in range(len(log), len(log) + count))

    def trim(self, tp: TopicPartition, earliest: int) -> None:
        self.earliest[tp] = earliest

    def cut(self, tp: TopicPartition, end: int) -> None:
        del self.logs[tp][end:]

    def drop(self, tp: TopicPartition) -> None:
        del self.logs[tp]

    def connect(self, via: MeshAddress) -> AbstractContextManager[MeshReader]:
        return nullcontext(self)

    def stores(self) -> list[str]:
        return ["C" * 32]

    def endpoints(self) -> dict[str, tuple[str, ...]]:
        return {}

    def partitions(
        self, topics: Collection[str] | None = None, *, timeout_s: float
    ) -> list[PartitionInfo]:
        self.calls.append("partitions")
        found = [
            PartitionInfo(*tp, self.earliest.get(tp, 0), len(log))
            for tp, log in self.logs.items()
            if topics is None or tp.topic in topics
        ]
        return found[::-1] if self.backwards else found

    def read(
        self, tp: TopicPartition, start: int, end: int, *, timeout_s: float
    ) -> Iterator[RecordBatch]:
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
            yield RecordBatch(tp, at, Values.of(self.logs[tp][at:stop]))
            at = stop
        if at < end:
            raise DataLossError(*tp, at, self.earliest.get(tp, 0), "it ends there")

    def times(
        self, tp: TopicPartition, start: int, end: int, *, timeout_s: float
    ) -> list[tuple[int, int]]:
        self.calls.append("times")
        return self.written

    def close(self) -> None:
        self.closing.set()
