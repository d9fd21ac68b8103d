"""The lag of Kafka's consumer groups, from the gateways' records and the stores' ends.

It asks stores only; no gateway need run.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from dafka_core.errors import DataLossError
from dafka_core.flight.limits import MAX_BATCH_BYTES
from dafka_core.flight.store_client import StoreClient
from dafka_core.model.records import PartitionInfo, TopicPartition, merge_heads
from dafka_core.queries.query_progress import PartitionLag, partition_lags, total_lag
from dafka_kafka.groups.group import CONSUMER, KeptMember, assigned_partitions
from dafka_kafka.groups.offsets import OFFSETS_TOPIC, GroupRecord, Offsets, Place
from dafka_kafka.registry_table import REGISTRY, RegistryTable, committed_end, parse_record

EMPTY: Final = "empty"
STABLE: Final = "stable"
"""States of a group at its last stored generation."""

TRIES: Final = 3  # attempts to read a topic that a gateway may trim meanwhile


class GroupPartition(NamedTuple):
    """A partition that a group has committed, or that one of its members reads.

    ``lag`` is None without a commit, for a negative offset, or if no store has the partition;
    ``member`` is None if no member reads it.
    """

    topic: str
    number: int
    lag: PartitionLag | None
    member: KeptMember | None


class GroupLag(NamedTuple):
    """A group's lag over all partitions; see ``QueryLag``."""

    group: str
    state: str
    members: int
    records_behind: int
    bytes_behind: int | None
    seconds_behind: float | None
    partitions: Sequence[GroupPartition]


def group_lags(clients: Sequence[StoreClient], *, timeout_s: float) -> list[GroupLag]:
    """Return the lag of each group, by name.

    Raises:
        StoreUnreachableError: a store does not answer.
    """
    offsets = Offsets()
    for tp, _, value in _records(clients, OFFSETS_TOPIC, timeout_s):
        if (record := GroupRecord.parse_or_none(value)) is not None:
            offsets.take(tp.partition, record)
    groups = sorted(offsets.groups())
    if not groups:
        return []
    numbers = _numbers(clients, timeout_s)
    heads = merge_heads(info for each in clients for info in each.heads(None, timeout_s=timeout_s))
    told = [(group, _positions(offsets, numbers, group)) for group in groups]
    lags = partition_lags(clients, heads, told, timeout_s=timeout_s)
    return [_lag(offsets, numbers, group, each) for group, each in zip(groups, lags, strict=True)]


def _positions(offsets: Offsets, numbers: RegistryTable, group: str) -> dict[TopicPartition, int]:
    found = {}
    for place, committed in offsets.committed(group).items():
        numbered = numbers.get(*place)
        if numbered is not None and committed.offset >= 0:
            found[numbered.tp] = committed.offset
    return found


def _lag(
    offsets: Offsets, numbers: RegistryTable, group: str, lags: Sequence[PartitionLag]
) -> GroupLag:
    by_number: dict[Place, PartitionLag] = {}
    for each in lags:
        number = numbers.number(TopicPartition(each.topic, each.partition))
        assert number is not None  # it was found by its number
        by_number[each.topic, number] = each
    generation = offsets.generation(group)
    members = generation.members if generation else ()
    is_known = generation is not None and generation.protocol_type == CONSUMER
    readers = {
        place: member
        for member in (members if is_known else ())
        for place in assigned_partitions(member.assignment)
    }
    places = sorted({*offsets.committed(group), *readers})
    partitions = [
        GroupPartition(*place, by_number.get(place), readers.get(place)) for place in places
    ]
    return GroupLag(group, STABLE if members else EMPTY, len(members), *total_lag(lags), partitions)


def _numbers(clients: Sequence[StoreClient], timeout_s: float) -> RegistryTable:
    records = [
        (offset, parse_record(value))
        for tp, offset, value in _records(clients, REGISTRY.topic, timeout_s)
        if tp == REGISTRY
    ]
    end = max((committed_end(record, offset) for offset, record in records), default=0)
    table = RegistryTable()
    for offset, record in records:
        if offset < end:
            table.apply(record)
    return table


def _records(
    clients: Sequence[StoreClient], topic: str, timeout_s: float
) -> list[tuple[TopicPartition, int, bytes]]:
    for _ in range(TRIES - 1):
        with suppress(DataLossError):  # a gateway has trimmed it
            return _read(clients, topic, timeout_s)
    return _read(clients, topic, timeout_s)


def _read(
    clients: Sequence[StoreClient], topic: str, timeout_s: float
) -> list[tuple[TopicPartition, int, bytes]]:
    """Return a topic's records, of each partition those of the store that has most of it."""
    held: dict[TopicPartition, tuple[PartitionInfo, StoreClient]] = {}
    for client in clients:
        for info in client.heads([topic], timeout_s=timeout_s):
            known = held.get(info.tp)
            if known is None or (known[0].life, known[0].end) < (info.life, info.end):
                held[info.tp] = info, client
    found: list[tuple[TopicPartition, int, bytes]] = []
    for info, client in held.values():
        batches = client.read(
            info.tp,
            info.earliest,
            info.end,
            times=False,
            max_records=10_000,
            max_bytes=MAX_BATCH_BYTES,
            timeout_s=timeout_s,
        )
        for batch in batches:
            values = enumerate(batch.values, batch.offset)
            found += ((info.tp, offset, bytes(value)) for offset, value in values)
    return found
