"""How far streaming queries are: what each reports to a topic, for whoever looks from outside.

A query with a name has a partition of topic ``__dafka.queries``, whose address is made of the name.
A report is a JSON object::

    {"v": 1, "query": "hourly", "run": "8C1F...", "every_s": 60,
     "topics": ["flights"],
     "positions": {"flights": {"EB0A...": 1000}}, "packed_positions": ""}

``positions`` are the offsets of the next records to read; those of many partitions are packed
(``packed_offset``).  ``topics`` are those of which the query will read other partitions, too, when
it finds them; none where it reads none but these.  ``run`` is new at each start of the
query, and ``every_s`` is how many seconds pass between two reports at most, as long as it runs.
When a report came the store says, by its own clock.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Annotated, Any, ClassVar, Final, NamedTuple, Self

import msgspec
import pyarrow as pa
from msgspec import Meta

from dafka_core.errors import (
    DafkaError,
    NoStoreError,
    OffsetConflictError,
)
from dafka_core.flight.limits import MAX_BATCH_BYTES, MAX_RANGES, parts
from dafka_core.flight.requests import AskedRange
from dafka_core.flight.store_client import StoreClient
from dafka_core.model.json_message import JsonMessage, Natural
from dafka_core.model.names import QUERIES_TOPIC
from dafka_core.model.packed_offset import PACKED_PARTITIONS, Positions, pack, unpack
from dafka_core.model.records import PartitionInfo, RecordBatch, TopicPartition

MAX_UNPACKED_BYTES: Final = 16 << 20
"""Of a report's positions: those of some 200,000 partitions.  Anybody may write reports."""

LAST_REPORTS: Final = 16
"""Of each query: enough to see all runs that go on at the same time."""

TRIES: Final = 5
"""Of a report, where another run of the query reports at the same moment."""

_BATCH: Final[Any] = {"times": True, "max_records": MAX_RANGES, "max_bytes": MAX_BATCH_BYTES}


class QueryProgress(JsonMessage, frozen=True):
    """A report; see the module's documentation."""

    what: ClassVar[str] = "report of a query"

    query: str
    run: str
    every_s: Annotated[float, Meta(gt=0)]
    topics: tuple[str, ...] = ()
    positions: dict[str, dict[str, Natural]] = msgspec.field(default_factory=dict)
    packed_positions: str = ""

    def at(self, positions: Positions) -> Self:
        """The same report with other positions."""
        tree: dict[str, dict[str, int]] = {}
        packed = pack(positions, {}, {}) if len(positions) >= PACKED_PARTITIONS else ""
        for tp in () if packed else sorted(positions):
            tree.setdefault(tp.topic, {})[tp.partition] = positions[tp]
        return type(self)(self.query, self.run, self.every_s, self.topics, tree, packed)

    def offsets(self) -> dict[TopicPartition, int]:
        """The offset of the next record of each partition.

        Raises:
            ValueError: they are packed, and damaged.
        """
        if self.packed_positions:
            return unpack(self.packed_positions, MAX_UNPACKED_BYTES).positions
        return {
            TopicPartition(t, p): end
            for t, ends in self.positions.items()
            for p, end in ends.items()
        }


class Report(NamedTuple):
    """The last report of one run of a query, and how many seconds ago it came."""

    progress: QueryProgress
    age_s: float

    @property
    def is_late(self) -> bool:
        """Whether three reports are missing: the query has ended, or no store takes them."""
        return self.age_s > 3 * self.progress.every_s


def partition_of(query: str, topic: str = QUERIES_TOPIC) -> TopicPartition:
    """Where a query reports."""
    name = hashlib.sha256(query.encode("utf-8", "surrogateescape")).hexdigest()[:32]
    return TopicPartition(topic, name.upper())


def publish(
    clients: Sequence[StoreClient], topic: str, progress: QueryProgress, *, timeout_s: float
) -> None:
    """Appends a report, at the store that has most of the partition.

    Raises:
        DafkaError: no store has taken it.
    """
    tp = partition_of(progress.query, topic)
    values = pa.array([progress.packed()], pa.binary())
    failure: DafkaError = NoStoreError((), timeout_s)
    for _ in range(TRIES):
        ends: list[tuple[int, StoreClient]] = []
        for client in clients:
            try:
                (state,) = client.transaction_states([tp], timeout_s=timeout_s)
                ends.append((state.end, client))
            except DafkaError as error:
                failure = error
        for end, client in sorted(ends, key=lambda each: each[0], reverse=True)[:1]:
            try:
                with client.put(tp, end, timeout_s=timeout_s) as put:
                    put.write(values)
                    put.finish(timeout_s)
                return
            except OffsetConflictError as error:
                failure = error
    raise failure


def reports(clients: Sequence[StoreClient], topic: str, *, timeout_s: float) -> list[Report]:
    """The last report of each run of each query, but of runs that another one has followed.

    Raises:
        StoreUnreachableError: a store does not answer.
    """
    held: dict[TopicPartition, tuple[PartitionInfo, StoreClient]] = {}
    for client in clients:
        for info in client.heads([topic], timeout_s=timeout_s):
            before = held.get(info.tp)
            if before is None or (before[0].life, before[0].end) < (info.life, info.end):
                held[info.tp] = info, client
    found: list[Report] = []
    for client in clients:
        ranges = [
            AskedRange(*tp, max(info.earliest, info.end - LAST_REPORTS), info.end)
            for tp, (info, holder) in sorted(held.items())
            if holder is client
        ]
        if ranges:
            now_us = client.clock_us(timeout_s=timeout_s)
            for last in _read(client, ranges, timeout_s).values():
                found += of_runs(last, now_us)
    return sorted(found, key=lambda each: (each.progress.query, each.age_s))


def _read(
    client: StoreClient, ranges: Sequence[AskedRange], timeout_s: float
) -> dict[TopicPartition, list[tuple[int, QueryProgress]]]:
    """When each report of some partitions came, and the report; what is none is passed over."""
    found: dict[TopicPartition, list[tuple[int, QueryProgress]]] = {}
    for batch in _batches(client, ranges, timeout_s):
        assert batch.times is not None  # they were asked for
        times = [int(us) for count, us in batch.times for _ in range(count)]
        for time_us, value in zip(times, batch.values, strict=True):
            with suppress(ValueError):
                progress = QueryProgress.parse(bytes(value))
                progress.offsets()
                if partition_of(progress.query, batch.topic) == batch.tp:
                    found.setdefault(batch.tp, []).append((time_us, progress))
    return found


def _batches(
    client: StoreClient, ranges: Sequence[AskedRange], timeout_s: float
) -> Iterator[RecordBatch]:
    for part in parts(ranges, MAX_RANGES):
        for group in client.read_many(part, timeout_s=timeout_s, **_BATCH):
            yield from (batch for _, batch in group)


def of_runs(last: Sequence[tuple[int, QueryProgress]], now_us: int) -> list[Report]:
    """The last report of each run, without those that ended before another one began.

    ``last`` are the last reports of one query, with when each came.
    """
    first: dict[str, int] = {}
    newest: dict[str, int] = {}
    for number, (_, progress) in enumerate(last):
        first.setdefault(progress.run, number)
        newest[progress.run] = number
    return [
        Report(last[number][1], max(0.0, (now_us - last[number][0]) / 1e6))
        for number in newest.values()
        if not any(begin > number for begin in first.values())
    ]
