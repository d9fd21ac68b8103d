"""The lag of streaming queries: their reported positions against what the stores hold.

Functions raise StoreUnreachableError if a store does not answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from dafka_core.flight.requests import RecordRange, furthest_facts
from dafka_core.flight.store_client import StoreClient
from dafka_core.model.names import QUERIES_TOPIC
from dafka_core.model.records import PartitionInfo, TopicPartition, merge_heads
from dafka_core.queries.query_progress import held_records, reports

RUNNING: Final = "running"
FINISHED: Final = "finished"
"""The query ended by itself, as one with ``trigger(availableNow=True)`` does."""
LATE: Final = "late"
"""Three reports are missing: the query was stopped or has failed, or no store takes reports."""


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
