"""What the service says of topics and partitions: FlightInfos, with tickets to get the records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pyarrow import flight

from dafka_core.errors import InvalidRequestError
from dafka_core.flight.answers import PartitionFacts, TopicFacts
from dafka_core.flight.columns import schema_of
from dafka_core.flight.requests import Criteria, GetRequest, InfoRequest
from dafka_core.flight.server_context import ServerContext
from dafka_core.records import TopicPartition
from dafka_core.storage import PartitionStatistics


def list_partitions(
    context: ServerContext, criteria: bytes, peer: str
) -> Iterator[flight.FlightInfo]:
    """A FlightInfo for each partition.

    Raises:
        InvalidRequestError: the criteria are none.
    """
    locations = context.locations_for(peer)
    for held in context.log.partitions(context.parse(Criteria, criteria).topic):
        facts = context.log.statistics(held.tp)
        if facts is not None:
            request = InfoRequest(held.topic, held.partition)
            yield _info(request, _descriptor(held.tp, request), [facts], locations)


def info(
    context: ServerContext, descriptor: flight.FlightDescriptor, peer: str
) -> flight.FlightInfo:
    """The FlightInfo of a topic, with an endpoint for each partition, or of a partition.

    Raises:
        InvalidRequestError: the descriptor is none, or there is no such topic or partition.
    """
    request = _parse(context, descriptor)
    found = [context.log.statistics(tp) for tp in _partitions(context, request)]
    facts = [each for each in found if each is not None]
    return _info(request, descriptor, facts, context.locations_for(peer))


def schema(context: ServerContext, descriptor: flight.FlightDescriptor) -> flight.SchemaResult:
    """The schema of the batches that ``info``'s tickets get.

    Raises:
        InvalidRequestError: as ``info`` does.
    """
    request = _parse(context, descriptor)
    _partitions(context, request)
    return flight.SchemaResult(schema_of(request.columns))


def _parse(context: ServerContext, descriptor: flight.FlightDescriptor) -> InfoRequest:
    if descriptor.descriptor_type == flight.DescriptorType.PATH:
        context.check_open()
        return InfoRequest.of_path(descriptor.path)
    if descriptor.descriptor_type == flight.DescriptorType.CMD:
        return context.parse(InfoRequest, descriptor.command)
    why = "must be a path or a command (docs/flight.md)"
    raise InvalidRequestError("descriptor", None, why)


def _partitions(context: ServerContext, request: InfoRequest) -> list[TopicPartition]:
    """The partitions that are meant.  Raises InvalidRequestError where there is none."""
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
    request: InfoRequest,
    descriptor: flight.FlightDescriptor,
    partitions: Sequence[PartitionStatistics],
    locations: Sequence[str],
) -> flight.FlightInfo:
    told = [PartitionFacts(*each).packed() for each in partitions]
    endpoints = [
        flight.FlightEndpoint(_ticket(request, each), locations, app_metadata=metadata)
        for each, metadata in zip(partitions, told, strict=True)
    ]
    whole = _whole(request.topic, partitions)
    return flight.FlightInfo(
        schema_of(request.columns),
        descriptor,
        endpoints,
        whole.records,
        whole.size_bytes,
        ordered=len(partitions) == 1,
        app_metadata=whole.packed() if request.partition is None else told[0],
    )


def _whole(topic: str, partitions: Sequence[PartitionStatistics]) -> TopicFacts:
    firsts = [each.first_time_us for each in partitions if each.first_time_us is not None]
    lasts = [each.last_time_us for each in partitions if each.last_time_us is not None]
    return TopicFacts(
        topic,
        len(partitions),
        sum(each.records for each in partitions),
        sum(each.size_bytes for each in partitions),
        min(firsts, default=None),
        max(lasts, default=None),
    )


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


def _descriptor(tp: TopicPartition, request: InfoRequest) -> flight.FlightDescriptor:
    try:
        return flight.FlightDescriptor.for_path(*tp)
    except UnicodeEncodeError:  # a path has texts only; JSON escapes octets that are none
        return flight.FlightDescriptor.for_command(request.packed())
