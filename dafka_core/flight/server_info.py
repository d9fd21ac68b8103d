"""What the service says of topics and partitions: FlightInfos, with tickets to get the records.

Each function raises InvalidRequestError for a request that is none, or is about what is not there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pyarrow import flight

from dafka_core.errors import InvalidRequestError
from dafka_core.flight.columns import schema_of
from dafka_core.flight.requests import Criteria, GetRequest, InfoRequest
from dafka_core.flight.server_context import ServerContext
from dafka_core.flight.server_keys import Caller
from dafka_core.json_message import pack, short
from dafka_core.names import text_of
from dafka_core.records import TopicPartition
from dafka_core.storage import PartitionStatistics


def list_partitions(
    context: ServerContext, criteria: bytes, caller: Caller
) -> Iterator[flight.FlightInfo]:
    """A FlightInfo for each partition."""
    found = context.log.partitions(context.parse(Criteria, criteria, caller).topic)
    for held in caller.known(found):
        request = InfoRequest(held.topic, held.partition)
        try:
            descriptor = flight.FlightDescriptor.for_path(*held.tp)
        except UnicodeEncodeError:  # a path has texts only; JSON escapes octets that are none
            descriptor = flight.FlightDescriptor.for_command(request.packed())
        yield _info(context, request, descriptor, [held.tp], caller.peer)


def info(
    context: ServerContext, descriptor: flight.FlightDescriptor, caller: Caller
) -> flight.FlightInfo:
    """The FlightInfo of a topic, with an endpoint for each partition, or of a partition."""
    request = _parse(context, descriptor, caller)
    return _info(context, request, descriptor, _partitions(context, request), caller.peer)


def schema(
    context: ServerContext, descriptor: flight.FlightDescriptor, caller: Caller
) -> flight.SchemaResult:
    """The schema of the batches that ``info``'s tickets get."""
    request = _parse(context, descriptor, caller)
    _partitions(context, request)
    return flight.SchemaResult(schema_of(request.columns))


def _parse(
    context: ServerContext, descriptor: flight.FlightDescriptor, caller: Caller
) -> InfoRequest:
    if descriptor.descriptor_type == flight.DescriptorType.PATH:
        context.check_open()
        names = [text_of(each) for each in descriptor.path]
        if len(names) not in (1, 2):
            why = "must be [topic] or [topic, partition]"
            raise InvalidRequestError("path", short(names[:3]), why)
        request = InfoRequest(names[0], names[1] if len(names) == 2 else None).checked()
        caller.allow(request)
        return request
    if descriptor.descriptor_type == flight.DescriptorType.CMD:
        return context.parse(InfoRequest, descriptor.command, caller)
    why = "must be a path or a command (docs/flight.md)"
    raise InvalidRequestError("descriptor", None, why)


def _partitions(context: ServerContext, request: InfoRequest) -> list[TopicPartition]:
    """The partitions that are meant; at least one."""
    if request.partition is None:
        member, name = "topic", request.topic
        found = [held.tp for held in context.log.partitions(name)]
    else:
        member, name = "partition", request.partition
        tp = TopicPartition(request.topic, name)
        found = [tp] if context.log.info(tp) else []
    if not found:
        why = f"the store has no such {member}; list_flights has them"
        raise InvalidRequestError(member, name, why)
    return found


def _info(
    context: ServerContext,
    request: InfoRequest,
    descriptor: flight.FlightDescriptor,
    partitions: Sequence[TopicPartition],
    peer: str,
) -> flight.FlightInfo:
    found = [facts for tp in partitions if (facts := context.log.statistics(tp)) is not None]
    locations = context.locations_for(peer)
    endpoints = [
        flight.FlightEndpoint(_ticket(request, each), locations, app_metadata=_facts(each))
        for each in found
    ]
    whole = _whole(request.topic, found)
    return flight.FlightInfo(
        schema_of(request.columns),
        descriptor,
        endpoints,
        whole["records"],
        whole["bytes"],
        ordered=len(found) == 1,
        app_metadata=pack(whole) if request.partition is None else _facts(found[0]),
    )


def _facts(held: PartitionStatistics) -> bytes:
    facts = held._asdict().items()
    return pack({("bytes" if name == "size_bytes" else name): fact for name, fact in facts})


def _whole(topic: str, partitions: Sequence[PartitionStatistics]) -> dict[str, Any]:
    firsts = [each.first_time_us for each in partitions if each.first_time_us is not None]
    lasts = [each.last_time_us for each in partitions if each.last_time_us is not None]
    return {
        "topic": topic,
        "partitions": len(partitions),
        "records": sum(each.records for each in partitions),
        "bytes": sum(each.size_bytes for each in partitions),
        "first_time_us": min(firsts, default=None),
        "last_time_us": max(lasts, default=None),
    }


def _ticket(request: InfoRequest, held: PartitionStatistics) -> bytes:
    topic, partition, start, end, *_ = held
    sizes = request.max_records, request.max_bytes
    return GetRequest(topic, partition, start, end, request.columns, False, *sizes).packed()
