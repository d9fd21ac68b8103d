"""Stores with Arrow Flight and without a mesh."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Self

import numpy as np
import pytest

from dafka_core.model.records import RecordBatch, TopicPartition
from dafka_core.model.values import Values
from dafka_core.testing import StoreDouble
from dafka_spark.cluster.timing import Deadline
from tests.memory_reader import MemoryReader


class Served(StoreDouble):
    """A store with records that have their offset as value, as in ``MemoryReader``."""

    def add(self, tp: TopicPartition, count: int, size_bytes: int = 0) -> Self:
        """Append records and return the store."""
        end = self.log.end(tp)
        self.append(tp, [value(offset, size_bytes) for offset in range(end, end + count)])
        return self

    def add_at(self, tp: TopicPartition, *times_ms: float) -> None:
        """Append one record for each time, in milliseconds since the epoch UTC."""
        self.log.append([timed(tp, self.log.end(tp), *times_ms)])


Serve = Callable[[str], Served]
"""Starts a store, by name."""


class HeardOf(MemoryReader):
    """A reader of a mesh with these stores; ``logs`` has the records of C nodes."""

    def __init__(self, stores: Iterable[Served] = (), c_nodes: Iterable[str] = ()) -> None:
        super().__init__()
        self.served = list(stores)
        self.c_nodes = list(c_nodes)

    def stores(self) -> list[str]:
        return [served.address for served in self.served] + self.c_nodes

    def endpoints(self) -> dict[str, tuple[str, ...]]:
        return {served.address: served.location.locations for served in self.served}


def restart_at_pause(monkeypatch: pytest.MonkeyPatch, store: Served) -> None:
    """Stop a store; it starts again when a reader pauses before its next attempt."""
    port, pause = store.port, Deadline.pause
    store.stop()

    def start(_: Deadline) -> None:
        monkeypatch.setattr(Deadline, "pause", pause)
        store.start(port)

    monkeypatch.setattr(Deadline, "pause", start)


def value(offset: int, size_bytes: int = 0) -> bytes:
    """The record at an offset, padded to a size."""
    return b"%0*d" % (size_bytes, offset)


def timed(tp: TopicPartition, start: int, *times_ms: float) -> RecordBatch:
    """Return records from offset ``start`` on, one for each time."""
    values = Values.of([value(offset) for offset in range(start, start + len(times_ms))])
    times = np.array([[1, int(time_ms * 1_000)] for time_ms in times_ms], np.int64)
    return RecordBatch(tp, start, values, times=times)
