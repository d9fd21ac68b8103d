"""What the service says of topics and partitions: FlightInfos, with tickets to get the records."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from pyarrow import flight

from dafka_core.columnar.columns import schema_of
from dafka_core.columnar.requests import Criteria, GetRequest, InfoRequest
from dafka_core.errors import ConfigError
from dafka_core.records import PartitionInfo
from dafka_core.storage import Log

VERSION = 1


class Facts(NamedTuple):
    """What the log says of one partition; times in microseconds since the epoch UTC."""

    held: PartitionInfo
    size_bytes: int
    first_time_us: int | None
    last_time_us: int | None

    def members(self) -> dict[str, object]:
        """The facts as a JSON object's members."""
        topic, partition, earliest, end = self.held
        return {
            "topic": topic,
            "partition": partition,
            "earliest": earliest,
            "end": end,
            "records": end - earliest,
            "bytes": self.size_bytes,
            "first_time_us": self.first_time_us,
            "last_time_us": self.last_time_us,
        }


def infos(log: Log, criteria: Criteria, locations: Sequence[str]) -> Iterator[flight.FlightInfo]:
    """One for each partition."""
    for held in log.partitions(criteria.topic):
        request = InfoRequest(held.topic, held.partition)
        yield _info(request, _descriptor(request), [_facts(log, held)], locations)


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
    return _info(request, descriptor, [_facts(log, each) for each in held(log, request)], locations)


def held(log: Log, request: InfoRequest) -> list[PartitionInfo]:
    """The partitions that are meant.

    Raises:
        ConfigError: there is none.
    """
    if request.partition is None:
        found = log.partitions(request.topic)
    else:
        one = log.info(request.topic, request.partition)
        found = [one] if one else []
    if not found:
        member = "topic" if request.partition is None else "partition"
        name = request.partition or request.topic
        raise ConfigError(member, name, f"the store has no such {member}; list_flights has them")
    return found


def _info(
    request: InfoRequest,
    descriptor: flight.FlightDescriptor,
    facts: Sequence[Facts],
    locations: Sequence[str],
) -> flight.FlightInfo:
    members = [each.members() for each in facts]
    told = members[0] if request.partition is not None else _whole(request.topic, facts)
    return flight.FlightInfo(
        schema_of(request.columns),
        descriptor,
        [
            flight.FlightEndpoint(
                _ticket(request, each.held), list(locations), app_metadata=_packed(one)
            )
            for each, one in zip(facts, members, strict=True)
        ],
        sum(each.held.end - each.held.earliest for each in facts),
        sum(each.size_bytes for each in facts),
        ordered=len(facts) == 1,
        app_metadata=_packed(told),
    )


def _whole(topic: str, facts: Sequence[Facts]) -> dict[str, object]:
    firsts = [each.first_time_us for each in facts if each.first_time_us is not None]
    lasts = [each.last_time_us for each in facts if each.last_time_us is not None]
    return {
        "topic": topic,
        "partitions": len(facts),
        "records": sum(each.held.end - each.held.earliest for each in facts),
        "bytes": sum(each.size_bytes for each in facts),
        "first_time_us": min(firsts, default=None),
        "last_time_us": max(lasts, default=None),
    }


def _ticket(request: InfoRequest, held: PartitionInfo) -> bytes:
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


def _facts(log: Log, held: PartitionInfo) -> Facts:
    if held.earliest == held.end:
        return Facts(held, 0, None, None)
    first = log.times(held.topic, held.partition, held.earliest, held.earliest + 1)
    last = log.times(held.topic, held.partition, held.end - 1, held.end)
    return Facts(held, -1, first[0][1] if first else None, last[0][1] if last else None)


def _packed(members: dict[str, object]) -> bytes:
    return json.dumps({"v": VERSION, **members}).encode("ascii")
