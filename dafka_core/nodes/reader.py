"""The reader: asks what stores hold, and fetches ranges.  What Spark and the CLI read with."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Collection, Iterator
from typing import Any

from dafka_core.closing import Closing
from dafka_core.errors import (
    ClosedError,
    DataLossError,
    FetchTimeoutError,
    NodeFailedError,
    NoStoreError,
)
from dafka_core.node_options import ReaderOptions
from dafka_core.nodes.addresses import new_address
from dafka_core.nodes.argument_checks import check_argument
from dafka_core.nodes.interruptible import InterruptibleCondition
from dafka_core.nodes.mesh import Mesh
from dafka_core.protocol.reader_role import RangeRead, ReaderRole
from dafka_core.protocol.role import Outgoing
from dafka_core.protocol.store_directory import StoreQuery
from dafka_core.protocol.validation import check_address, check_end, check_sequence, check_topic
from dafka_core.records import PartitionInfo, RecordBatch, TopicPartition


class Reader(Closing):
    """Reads heads, times and ranges from the stores.  May be used from several threads.

    Args:
        tower: see ``NodeOptions.tower``.
        options: see ``ReaderOptions``.

    Raises:
        ConfigError: an option cannot be used.
        TowerNotFoundError: no tower answered.
    """

    def __init__(self, *, tower: Any = None, **options: Any) -> None:
        if tower is not None:
            options["tower"] = tower
        self._config = ReaderOptions.build(options)
        self._limit_bytes = self._config.max_queued_bytes
        self._role = ReaderRole(new_address())
        self._lock = threading.Lock()
        self._changed = InterruptibleCondition()
        self._reads: dict[int, _Reading] = {}
        self._mesh = Mesh("reader", self._role, self._config, on_round=self._on_round)
        self._mesh.start()

    @property
    def address(self) -> str:
        """The reader's UUID."""
        return self._role.address

    def stores(self) -> list[str]:
        """The addresses of the stores heard of so far."""
        return sorted(self._role.directory.stores)

    def c_stores(self) -> list[str]:
        """Those of them that answer no queries: deployed stores, which the mesh alone reaches."""
        return sorted(self._role.directory.c_stores)

    def endpoints(self) -> dict[str, tuple[str, ...]]:
        """Where stores can be read in bulk, as URIs of Arrow Flight, by the store's address."""
        return self._role.directory.endpoints

    def partitions(
        self, topics: Collection[str] | None = None, *, timeout_s: float
    ) -> list[PartitionInfo]:
        """What the stores hold of the topics (None: of all), by the furthest of them.

        Raises:
            ConfigError: one of the topics cannot be one.
            NoStoreError: no store was heard of within ``timeout_s`` seconds.
        """
        for topic in topics or ():
            check_argument("topic", topic, check_topic)
        question = self._ask(
            lambda now: self._role.directory.ask_heads(now, topics or ()), timeout_s
        )
        wanted = None if topics is None else set(topics)
        return [
            PartitionInfo(topic, partition, earliest, end)
            for (topic, partition), (earliest, end) in sorted(question.heads.items())
            if wanted is None or topic in wanted
        ]

    def times(
        self, tp: TopicPartition, start: int, end: int, *, timeout_s: float
    ) -> list[tuple[int, int]]:
        """When records ``[start, end)`` were written: (first offset, microseconds), ascending.

        Each time holds until the next one's offset.  Empty when no store knows.

        Raises:
            ConfigError: the range cannot be one.
            NoStoreError: no store was heard of within ``timeout_s`` seconds.
        """
        _check_range(tp, start, end)
        question = self._ask(
            lambda now: self._role.directory.ask_times(now, tp, start, end),
            timeout_s,
        )
        return question.best_times()

    def read(
        self, tp: TopicPartition, start: int, end: int, *, timeout_s: float
    ) -> Iterator[RecordBatch]:
        """The records ``[start, end)``, in order and complete.

        Raises:
            ConfigError: the range cannot be one.
            DataLossError: no store has the records any more, or has them yet.
            FetchTimeoutError: nothing arrived for ``timeout_s`` seconds.
        """
        _check_range(tp, start, end)
        if start >= end:
            return
        reading = self._begin(tp, start, end)
        offset = start
        try:
            while offset < end:
                batches = self._take(reading, timeout_s)
                if not batches:
                    self._explain(tp, offset, end, timeout_s)
                for batch in batches:
                    offset = batch.end
                    yield batch
        finally:
            self._end(reading)

    def close(self) -> None:
        """Ends; may be called twice."""
        self._mesh.close()

    def _ask(
        self, ask: Callable[[float], tuple[StoreQuery, list[Outgoing]]], timeout_s: float
    ) -> StoreQuery:
        asked: list[StoreQuery] = []

        def call(now: float) -> list[Outgoing]:
            question, messages = ask(now)
            asked.append(question)
            return messages

        self._mesh.call(call)
        self._wait(lambda: bool(asked) and asked[0].answered, timeout_s)
        question = asked[0] if asked else None
        if question is not None:
            self._mesh.call(lambda now: self._role.directory.forget(question))
        if question is None or not question.answered:
            raise NoStoreError([str(tower) for tower in self._config.tower], timeout_s)
        return question

    def _begin(self, tp: TopicPartition, start: int, end: int) -> _Reading:
        begun: list[_Reading] = []

        def call(now: float) -> None:
            reading = _Reading(self._role.read(tp, start, end))
            self._reads[id(reading)] = reading
            begun.append(reading)

        self._mesh.call(call)
        self._wait(lambda: bool(begun), None)
        return begun[0]

    def _take(self, reading: _Reading, timeout_s: float) -> list[RecordBatch]:
        self._mesh.check()  # also when records are there: a closed reader gives out no more
        self._wait(lambda: bool(reading.arrived), timeout_s)
        with self._lock:
            batches, reading.arrived = reading.arrived, []
            reading.arrived_bytes = 0
        if not reading.read.room:
            self._mesh.wake()
        return batches

    def _end(self, reading: _Reading) -> None:
        def call(now: float) -> None:
            self._reads.pop(id(reading), None)
            self._role.forget(reading.read)

        # A range may be given up after the reader was closed.
        with contextlib.suppress(ClosedError, NodeFailedError):
            self._mesh.call(call)

    def _explain(self, tp: TopicPartition, offset: int, end: int, waited_s: float) -> None:
        """Raises the error that fits records which do not come."""
        infos = self.partitions([tp.topic], timeout_s=waited_s)
        held = next((info for info in infos if info.partition == tp.partition), None)
        if held is None:
            raise DataLossError(*tp, offset, None, "no store has the partition")
        if held.earliest > offset:
            why = "the records before it have been trimmed"
            raise DataLossError(*tp, offset, held.earliest, why)
        if held.end < end:
            why = f"the partition ends at {held.end} in every store, {end} was asked for"
            raise DataLossError(*tp, max(offset, held.end), held.earliest, why)
        raise FetchTimeoutError(*tp, offset, end, waited_s)

    def _wait(self, condition: Callable[[], bool], timeout_s: float | None) -> None:
        self._changed.wait_until(condition, timeout_s, self._mesh.check)

    # -- in the loop -----------------------------------------------------------------------------

    def _on_round(self, now: float) -> bool:
        room_again = False
        with self._lock:
            for reading in self._reads.values():
                read = reading.read
                reading.arrived_bytes += sum(batch.values.size_bytes for batch in read.delivered)
                reading.arrived.extend(read.delivered)
                read.delivered.clear()
                had_room, read.room = read.room, reading.arrived_bytes < self._limit_bytes
                room_again |= read.room and not had_room
        self._changed.ring()
        return room_again


class _Reading:
    """One call of ``read``: what the loop has received of it and the application not yet taken."""

    def __init__(self, read: RangeRead) -> None:
        self.read = read
        self.arrived: list[RecordBatch] = []
        self.arrived_bytes = 0


def _check_range(tp: TopicPartition, start: int, end: int) -> None:
    check_argument("topic", tp.topic, check_topic)
    check_argument("partition", tp.partition, check_address)
    check_argument("start", start, check_sequence)
    check_argument("end", end, check_end)
