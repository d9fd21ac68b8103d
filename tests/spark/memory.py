"""What ``dafka_core.Reader`` offers, over lists in memory: offsets and plans without sockets."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, nullcontext

from dafka_core.errors import DataLossError
from dafka_core.records import PartitionInfo, RecordBatch, Values
from dafka_spark.cluster.connections import MeshReader
from dafka_spark.options import MeshAddress

RUN_RECORDS = 7


class MemorySource:
    """Topics in memory; ``trim`` and ``cut`` lose records at either end."""

    def __init__(self) -> None:
        self.logs: dict[tuple[str, str], list[bytes]] = {}
        self.earliest: dict[tuple[str, str], int] = {}
        self.written: list[tuple[int, int]] = []
        self.calls: list[str] = []
        self.missing: set[int] = set()
        self.closing = threading.Event()
        self.backwards = False

    @property
    def closed(self) -> bool:
        return self.closing.is_set()

    def add(self, topic: str, partition: str, count: int) -> None:
        log = self.logs.setdefault((topic, partition), [])
        log.extend(b"%d" % offset for offset in range(len(log), len(log) + count))

    def trim(self, topic: str, partition: str, earliest: int) -> None:
        self.earliest[topic, partition] = earliest

    def cut(self, topic: str, partition: str, end: int) -> None:
        del self.logs[topic, partition][end:]

    def drop(self, topic: str, partition: str) -> None:
        del self.logs[topic, partition]

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
            PartitionInfo(*key, self.earliest.get(key, 0), len(log))
            for key, log in self.logs.items()
            if topics is None or key[0] in topics
        ]
        return found[::-1] if self.backwards else found

    def read(
        self, topic: str, partition: str, start: int, end: int, *, timeout_s: float
    ) -> Iterator[RecordBatch]:
        self.calls.append("read")
        key = (topic, partition)
        if key not in self.logs:
            raise DataLossError(topic, partition, start, None, "no store has the partition")
        if start < self.earliest.get(key, 0):
            raise DataLossError(topic, partition, start, self.earliest[key], "trimmed")
        at = start
        while at < min(end, len(self.logs[key])):
            if at in self.missing:
                at += 1
                continue
            stop = min(at + RUN_RECORDS, end)
            stop = min([stop, *(gap for gap in self.missing if at < gap)])
            yield RecordBatch(topic, partition, at, Values.of(self.logs[key][at:stop]))
            at = stop
        if at < end:
            raise DataLossError(topic, partition, at, self.earliest.get(key, 0), "it ends there")

    def times(
        self, topic: str, partition: str, start: int, end: int, *, timeout_s: float
    ) -> list[tuple[int, int]]:
        self.calls.append("times")
        return self.written

    def close(self) -> None:
        self.closing.set()
