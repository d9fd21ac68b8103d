"""Progress reports of streaming queries, in topic ``__dafka.queries``.

A query with a name reports to a partition whose address is a hash of the name, after the digits of
the query's key.  A report is a JSON object::

    {"v": 1, "query": "hourly", "run": "8C1F...", "every_s": 60,
     "topics": ["flights"], "positions": {"flights": {"EB0A...": 1000}},
     "packed_positions": "", "finished": false}

``positions`` are the offsets of the next records to read, packed for many partitions
(``packed_offset``).  ``topics`` are the topics of which the query reads new partitions, too.
``run`` is new at each start of the query.  While it runs, reports are at most ``every_s`` apart;
``finished`` is true in the last report of a query that ended by itself.  The store's clock gives
the time of a report.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Annotated, ClassVar, Final, NamedTuple, Self

import msgspec
import pyarrow as pa
from msgspec import Meta
from msgspec.structs import replace

from dafka_core.errors import DafkaError, NoStoreError, OffsetConflictError
from dafka_core.flight.limits import MAX_RANGES, parts
from dafka_core.flight.requests import GetRequest, RecordRange
from dafka_core.flight.store_client import StoreClient
from dafka_core.model.json_message import JsonMessage, Natural
from dafka_core.model.names import QUERIES_TOPIC
from dafka_core.model.packed_offset import PACKED_PARTITIONS, Positions, pack, unpack
from dafka_core.model.records import PartitionInfo, RecordBatch, TopicPartition
from dafka_core.model.values import Longs
from dafka_core.queries.source_offset import flat, nested
from dafka_core.security.permissions import EVERYBODY, PREFIX_DIGITS, Permissions

MAX_UNPACKED_BYTES: Final = 16 << 20
"""Limit for a report's positions, about 200,000 partitions: any consumer may write reports."""

LAST_REPORTS: Final = 16
"""Reports read of each query; enough to see all runs that are active at the same time."""

TRIES: Final = 5
"""Attempts to publish a report while another run of the query publishes, too."""


class QueryProgress(JsonMessage, frozen=True):
    """A report; see the module's documentation."""

    what: ClassVar[str] = "report of a query"

    query: str
    run: str
    every_s: Annotated[float, Meta(gt=0)]
    topics: tuple[str, ...] = ()
    positions: dict[str, dict[str, Natural]] = msgspec.field(default_factory=dict)
    packed_positions: str = ""
    finished: bool = False

    def at(self, positions: Positions) -> Self:
        """Return the report with other positions."""
        if len(positions) >= PACKED_PARTITIONS:
            return replace(self, positions={}, packed_positions=pack(positions, {}, {}))
        return replace(self, positions=nested(positions), packed_positions="")

    def offsets(self) -> dict[TopicPartition, int]:
        """Return the offset of the next record of each partition; raise ValueError if damaged."""
        if self.packed_positions:
            return unpack(self.packed_positions, MAX_UNPACKED_BYTES).positions
        return flat(self.positions, int)


class Report(NamedTuple):
    """The last report of a run, and its age."""

    progress: QueryProgress
    age_s: float

    @property
    def is_late(self) -> bool:
        """True if three reports are missing: the query has ended, or no store takes them."""
        return self.age_s > 3 * self.progress.every_s and not self.progress.finished


def partition_of(
    query: str, topic: str = QUERIES_TOPIC, owner: Permissions = EVERYBODY
) -> TopicPartition:
    """Return the partition in which an owner reports of a query: no other key may write it."""
    name = hashlib.sha256(query.encode("utf-8", "surrogateescape")).hexdigest()[:32]
    return TopicPartition(topic, owner.made_own(name.upper()))


def is_partition_of(query: str, partition: str) -> bool:
    """Return True if a partition is for the reports of a query, by whichever key."""
    return partition[PREFIX_DIGITS:] == partition_of(query).partition[PREFIX_DIGITS:]


def publish(
    clients: Sequence[StoreClient],
    topic: str,
    progress: QueryProgress,
    *,
    owner: Permissions = EVERYBODY,
    timeout_s: float,
) -> None:
    """Append a report at the store that has most of its partition; raise DafkaError if none can."""
    tp = partition_of(progress.query, topic, owner)
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
        if not ends:
            break
        end, client = max(ends, key=lambda each: each[0])
        try:
            with client.put(tp, end, timeout_s=timeout_s) as put:
                put.write(values)
                put.finish(timeout_s)
            return
        except OffsetConflictError as error:
            failure = error
    raise failure


def reports(clients: Sequence[StoreClient], topic: str, *, timeout_s: float) -> list[Report]:
    """Return the last report of each run, without runs that a newer one of the same key follows."""
    holders: dict[TopicPartition, tuple[PartitionInfo, StoreClient]] = {}
    for client in clients:
        for info in client.heads([topic], timeout_s=timeout_s):
            known = holders.get(info.tp)
            if known is None or (known[0].life, known[0].end) < (info.life, info.end):
                holders[info.tp] = info, client
    found: list[Report] = []
    for client in clients:
        ranges = [
            RecordRange(*tp, max(info.earliest, info.end - LAST_REPORTS), info.end)
            for tp, (info, holder) in sorted(holders.items())
            if holder is client
        ]
        if ranges:
            now_us = client.clock_us(timeout_s=timeout_s)
            for last in _read(client, ranges, timeout_s).values():
                found += of_runs(last, now_us)
    return sorted(found, key=lambda each: (each.progress.query, each.age_s))


def held_records(
    client: StoreClient, ranges: Sequence[RecordRange], timeout_s: float
) -> Iterator[tuple[RecordBatch, Longs]]:
    """Yield those records of ranges that a store has, with their times."""
    for part in parts(ranges, MAX_RANGES):
        request = GetRequest(part, times=True, partial=True, max_records=MAX_RANGES)
        for batch in client.records(request, timeout_s=timeout_s):
            yield batch, batch.times


def _read(
    client: StoreClient, ranges: Sequence[RecordRange], timeout_s: float
) -> dict[TopicPartition, list[tuple[int, QueryProgress]]]:
    """Return the valid reports of each partition, each with its time."""
    found: dict[TopicPartition, list[tuple[int, QueryProgress]]] = {}
    for batch, times in held_records(client, ranges, timeout_s):
        stamps = (int(us) for count, us in times for _ in range(count))
        for time_us, value in zip(stamps, batch.values, strict=True):
            with suppress(ValueError):
                progress = QueryProgress.parse(bytes(value))
                progress.offsets()
                if is_partition_of(progress.query, batch.tp.partition):
                    found.setdefault(batch.tp, []).append((time_us, progress))
    return found


def of_runs(last: Sequence[tuple[int, QueryProgress]], now_us: int) -> list[Report]:
    """Return the last report of each run, without runs that a newer one follows.

    ``last`` are the last reports of one query in order, each with its time by the clock of now.
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
