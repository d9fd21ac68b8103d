"""Progress reports of streaming queries, in topic ``__dafka.queries``, and the lag that they show.

A query with a name reports to a partition whose address is a hash of the name, after the digits of
the query's key.  A report is a JSON object::

    {"v": 1, "query": "hourly", "run": "8C1F...", "every_s": 60,
     "topics": ["flights"], "positions": {"flights": {"EB0A...": 1000}},
     "packed_positions": "", "finished": false}

``positions`` are the offsets of the next records to read, packed for many partitions
(``source_offset``).  ``topics`` are the topics of which the query reads new partitions, too.
``run`` is new at each start of the query.  While it runs, reports are at most ``every_s`` apart;
``finished`` is true in the last report of a query that ended by itself.  The store's clock gives
the time of a report.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Annotated, ClassVar, Final, NamedTuple, Self

import msgspec
import pyarrow as pa
from msgspec import Meta
from msgspec.structs import replace

from dafka_core.errors import DafkaError, OffsetConflictError
from dafka_core.flight.limits import MAX_RANGES, parts
from dafka_core.flight.requests import GetRequest, RecordRange, furthest_facts
from dafka_core.flight.store_client import StoreClient
from dafka_core.model.json_message import JsonMessage, Natural
from dafka_core.model.names import QUERIES_TOPIC
from dafka_core.model.records import PartitionInfo, RecordBatch, TopicPartition, merge_heads
from dafka_core.model.values import Longs
from dafka_core.queries.source_offset import (
    PACKED_PARTITIONS,
    Positions,
    flat,
    nested,
    pack,
    unpack,
)
from dafka_core.security.permissions import EVERYBODY, PREFIX_DIGITS, Permissions

RUNNING: Final = "running"
FINISHED: Final = "finished"
"""The query ended by itself, as one with ``trigger(availableNow=True)`` does."""
LATE: Final = "late"
"""Three reports are missing: the query was stopped or has failed, or no store takes reports."""

MAX_UNPACKED_BYTES: Final = 16 << 20
"""Limit for a report's positions, about 200,000 partitions: any consumer may write reports."""

LAST_REPORTS: Final = 16
"""Reports read of each query; enough to see all runs that are active at the same time."""

TRIES: Final = 5  # attempts to publish a report while another run of the query publishes, too


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
    """Append a report at the store with most reports that takes it, or raise DafkaError."""
    tp = partition_of(progress.query, topic, owner)
    values = pa.array([progress.packed()], pa.binary())
    failure = DafkaError(
        "no store with Arrow Flight answers; start one with 'dafka store --dir DIR'"
    )
    for _ in range(TRIES):
        ends: list[tuple[int, StoreClient]] = []
        for client in clients:
            try:
                (state,) = client.transaction_states([tp], timeout_s=timeout_s)
                ends.append((state.end, client))
            except DafkaError as error:
                failure = error
        for end, client in sorted(ends, key=lambda each: -each[0]):
            try:
                with client.put(tp, end, timeout_s=timeout_s) as put:
                    put.write(values)
                    put.finish(timeout_s)
                return
            except OffsetConflictError as error:
                failure = error
                break  # another run has published meanwhile
            except DafkaError as error:
                failure = error
        else:
            break
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


class PartitionLag(NamedTuple):
    """The unread records of a partition: offsets ``position`` to ``end`` (exclusive).

    ``bytes_behind`` is an estimate by the mean size of the partition's records.
    ``seconds_behind`` is the age of the first unread record, by a store's clock.  Both are None if
    no store has the figures.
    """

    query: str
    topic: str
    partition: str
    position: int
    end: int
    records_behind: int
    bytes_behind: int | None
    seconds_behind: float | None


class QueryLag(NamedTuple):
    """The lag of a run of a query, over all its partitions.

    ``seconds_behind`` is the largest of its partitions, ``reported_s`` the age of its last report.
    """

    query: str
    run: str
    state: str
    partitions: int
    records_behind: int
    bytes_behind: int | None
    seconds_behind: float | None
    reported_s: float
    lags: Sequence[PartitionLag]


def query_lags(
    clients: Sequence[StoreClient], topic: str = QUERIES_TOPIC, *, timeout_s: float
) -> list[QueryLag]:
    """Return the lag of each run that reports to ``topic``, by the query's name."""
    found = reports(clients, topic, timeout_s=timeout_s)
    if not found:
        return []
    heads = merge_heads(info for each in clients for info in each.heads(None, timeout_s=timeout_s))
    readers = []
    for progress, _ in found:
        known, topics = progress.offsets(), {*progress.topics}
        at = {tp: known.get(tp, 0) for tp in heads if tp in known or tp.topic in topics}
        readers.append((progress.query, at))
    lags = partition_lags(clients, heads, readers, timeout_s=timeout_s)
    return [
        QueryLag(
            report.progress.query,
            report.progress.run,
            FINISHED if report.progress.finished else LATE if report.is_late else RUNNING,
            len(each),
            *total_lag(each),
            report.age_s,
            each,
        )
        for report, each in zip(found, lags, strict=True)
    ]


def partition_lags(
    clients: Sequence[StoreClient],
    heads: Mapping[TopicPartition, PartitionInfo],
    readers: Sequence[tuple[str, Mapping[TopicPartition, int]]],
    *,
    timeout_s: float,
) -> list[list[PartitionLag]]:
    """Return the lag of each reader (name and positions) in its partitions that stores hold.

    ``heads`` are what the stores hold of all partitions together.
    """
    facts = furthest_facts(
        each for client in clients for each in client.facts(None, timeout_s=timeout_s)
    )
    ranges = [
        {
            tp: min(max(positions[tp], info.earliest), info.end)
            for tp, info in heads.items()
            if tp in positions
        }
        for _, positions in readers
    ]
    firsts = {(*tp, start) for each in ranges for tp, start in each.items()}
    waiting = [first for first in firsts if first[2] < heads[TopicPartition(*first[:2])].end]
    ages_s = _ages_s(clients, waiting, timeout_s)
    found: list[list[PartitionLag]] = []
    for (name, _), each in zip(readers, ranges, strict=True):
        found.append([])
        for tp, at in each.items():
            end, fact = heads[tp].end, facts.get(tp)
            count = end - at
            size = count * fact.size_bytes // fact.records if fact and fact.records else None
            age_s = ages_s.get((*tp, at)) if count else 0.0
            lag = PartitionLag(name, *tp, at, end, count, size if count else 0, age_s)
            found[-1].append(lag)
    return found


def _ages_s(
    clients: Sequence[StoreClient], firsts: Iterable[tuple[str, str, int]], timeout_s: float
) -> dict[tuple[str, str, int], float]:
    left, found = sorted(firsts), {}
    for client in clients:
        if not left:
            break
        now_us = client.clock_us(timeout_s=timeout_s)
        ranges = [RecordRange(topic, name, at, at + 1) for topic, name, at in left]
        for batch, times in held_records(client, ranges, timeout_s):
            found[(*batch.tp, batch.offset)] = max(0.0, (now_us - int(times[0, 1])) / 1e6)
        left = [each for each in left if each not in found]
    return found


def total_lag(lags: Sequence[PartitionLag]) -> tuple[int, int | None, float | None]:
    """Return records, bytes and seconds behind of all partitions together."""
    sizes = [each.bytes_behind for each in lags if each.bytes_behind is not None]
    ages = [each.seconds_behind for each in lags if each.seconds_behind is not None]
    return (
        sum(each.records_behind for each in lags),
        sum(sizes) if len(sizes) == len(lags) else None,
        max(ages) if len(ages) == len(lags) and ages else None if lags else 0.0,
    )
