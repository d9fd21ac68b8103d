"""What the service says of topics and partitions: FlightInfos, with tickets to get the records."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from pyarrow import flight

from dafka_core.errors import ConfigError
from dafka_core.flight.columns import schema_of
from dafka_core.flight.requests import Criteria, GetRequest, InfoRequest
from dafka_core.records import PartitionInfo, TopicPartition
from dafka_core.storage import Log, PartitionStatistics

VERSION = 1


def infos(log: Log, criteria: Criteria, locations: Sequence[str]) -> Iterator[flight.FlightInfo]:
    """One for each partition."""
    for held in log.partitions(criteria.topic):
        facts = log.statistics(held.tp)
        if facts is not None:
            request = InfoRequest(held.topic, held.partition)
            yield _info(request, _descriptor(request), [facts], locations)


def info(
    log: Log,
    request: InfoRequest,
    descriptor: flight.FlightDescriptor,
    locations: Sequence[str],
) -> flight.FlightInfo:
    """The one of a descriptor: of a topic with an endpoint for each partition, or of a partition.

    Raises:
        ConfigError: there is no such topic, or no such partition.
    """
    found = [log.statistics(each.tp) for each in held(log, request)]
    return _info(request, descriptor, [facts for facts in found if facts is not None], locations)


def held(log: Log, request: InfoRequest) -> list[PartitionInfo]:
    """The partitions that are meant.

    Raises:
        ConfigError: there is none.
    """
    if request.partition is None:
        found = log.partitions(request.topic)
    else:
        one = log.info(TopicPartition(request.topic, request.partition))
        found = [one] if one else []
    if not found:
        member = "topic" if request.partition is None else "partition"
        name = request.partition or request.topic
        raise ConfigError(member, name, f"the store has no such {member}; list_flights has them")
    return found


def _info(
    request: InfoRequest,
    descriptor: flight.FlightDescriptor,
    facts: Sequence[PartitionStatistics],
    locations: Sequence[str],
) -> flight.FlightInfo:
    members = [_members(each) for each in facts]
    told = members[0] if request.partition is not None else _whole(request.topic, facts)
    endpoints = [
        flight.FlightEndpoint(_ticket(request, each), list(locations), app_metadata=_packed(one))
        for each, one in zip(facts, members, strict=True)
    ]
    return flight.FlightInfo(
        schema_of(request.columns),
        descriptor,
        endpoints,
        sum(each.records for each in facts),
        sum(each.size_bytes for each in facts),
        ordered=len(facts) == 1,
        app_metadata=_packed(told),
    )


def _members(facts: PartitionStatistics) -> dict[str, object]:
    return {
        ("bytes" if name == "size_bytes" else name): fact for name, fact in facts._asdict().items()
    }


def _whole(topic: str, facts: Sequence[PartitionStatistics]) -> dict[str, object]:
    firsts = [each.first_time_us for each in facts if each.first_time_us is not None]
    lasts = [each.last_time_us for each in facts if each.last_time_us is not None]
    return {
        "topic": topic,
        "partitions": len(facts),
        "records": sum(each.records for each in facts),
        "bytes": sum(each.size_bytes for each in facts),
        "first_time_us": min(firsts, default=None),
        "last_time_us": max(lasts, default=None),
    }


def _ticket(request: InfoRequest, held: PartitionStatistics) -> bytes:
    return GetRequest(
        held.topic,
        held.partition,
        held.earliest,
        held.end,
        request.columns,
        max_records=request.max_records,
        max_bytes=request.max_bytes,
    ).packed()


def _descriptor(request: InfoRequest) -> flight.FlightDescriptor:
    assert request.partition is not None
    try:
        for name in (request.topic, request.partition):
            name.encode()
    except UnicodeEncodeError:  # a path has texts only; JSON can escape what is none
        return flight.FlightDescriptor.for_command(request.packed())
    return flight.FlightDescriptor.for_path(request.topic, request.partition)


def _packed(members: dict[str, object]) -> bytes:
    return json.dumps({"v": VERSION, **members}).encode("ascii")
