"""The ways to records: the logs of stores on this machine, mapped; Arrow Flight; and the mesh."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from dafka_core.errors import DafkaError
from dafka_core.flight.limits import MAX_BATCH_BYTES, MAX_BATCH_RECORDS
from dafka_core.flight.store_location import StoreLocation
from dafka_core.records import PartitionInfo, RecordBatch, TopicPartition, coalesce
from dafka_spark.cluster import connections
from dafka_spark.options import AUTO, FLIGHT, LOCAL, MESH, SourceOptions
from dafka_spark.source.mesh_batches import with_times
from dafka_spark.source.range_planner import HeldRange, OffsetRange


class RecordSource(Protocol):
    """One place, and how it is read."""

    @property
    def name(self) -> str:
        """Which place, and how it is read; for errors."""

    @property
    def known(self) -> range | None:
        """The offsets it was seen to have when the batch was planned; None: it may have any."""

    def read(self, wanted: OffsetRange, *, times: bool) -> Iterator[RecordBatch]:
        """The records of a range; ``times`` says whether theirs are needed."""

    def held(self, tp: TopicPartition) -> PartitionInfo | None:
        """What there is of a partition now."""


class NotHereError(DafkaError):
    """A log that this process cannot map: no failure, the next way is taken."""


@dataclass(frozen=True, slots=True)
class _OneStore:
    """What the ways to one store share."""

    hint: HeldRange
    options: SourceOptions

    @property
    def location(self) -> StoreLocation:
        """Where it is."""
        return self.hint.location

    @property
    def known(self) -> range:
        """See ``RecordSource``."""
        return range(self.hint.earliest, self.hint.end)

    def held(self, tp: TopicPartition) -> PartitionInfo | None:
        """See ``RecordSource``; the store itself says it."""
        with connections.lend_client(self.location) as client:
            infos = client.heads([tp.topic], timeout_s=self.options.fetch_timeout_s)
        return _of(tp, infos)


class LocalLogSource(_OneStore):
    """The log of a store on this machine, with no server in between."""

    __slots__ = ()

    @property
    def name(self) -> str:
        """Which log."""
        return f"the log of store {self.location.store}"

    def read(self, wanted: OffsetRange, *, times: bool) -> Iterator[RecordBatch]:
        """See ``RecordSource``; raises ``NotHereError`` where the log cannot be mapped."""
        with connections.lend_logs() as logs:
            log = logs.open(self.location)
            if log is None:
                raise NotHereError(self._why_not())
            yield from log.read(
                wanted.tp,
                wanted.start,
                wanted.end,
                max_records=self.options.max_records_per_batch,
                max_bytes=self.options.max_bytes_per_batch,
            )

    def _why_not(self) -> str:
        location = self.location
        if not location.directory:
            return "the store does not say where it is"
        if not location.here:
            return "it is on another machine"
        return (
            f"this process cannot read {location.directory}, or the store has been restarted there"
        )


class FlightSource(_OneStore):
    """A store's Arrow Flight server."""

    __slots__ = ()

    @property
    def name(self) -> str:
        """Which store."""
        return f"store {self.location.store} by Arrow Flight"

    def read(self, wanted: OffsetRange, *, times: bool) -> Iterator[RecordBatch]:
        """See ``RecordSource``."""
        with connections.lend_client(self.location) as client:
            yield from client.read(
                wanted.tp,
                wanted.start,
                wanted.end,
                times=times,
                # A store sends no more than a block at a time.
                max_records=min(self.options.max_records_per_batch, MAX_BATCH_RECORDS),
                max_bytes=min(self.options.max_bytes_per_batch, MAX_BATCH_BYTES),
                timeout_s=self.options.fetch_timeout_s,
            )


@dataclass(frozen=True, slots=True)
class MeshSource:
    """Whoever in the mesh has the records."""

    connect: connections.Connect
    options: SourceOptions

    @property
    def name(self) -> str:
        """Nobody in particular."""
        return "the mesh"

    @property
    def known(self) -> None:
        """See ``RecordSource``."""

    def read(self, wanted: OffsetRange, *, times: bool) -> Iterator[RecordBatch]:
        """See ``RecordSource``."""
        options = self.options
        limits = options.max_records_per_batch, options.max_bytes_per_batch
        with self.connect(options.mesh_address) as source:
            batches = source.read(
                wanted.tp, wanted.start, wanted.end, timeout_s=options.fetch_timeout_s
            )
            if times:
                written = source.times(
                    wanted.tp, wanted.start, wanted.end, timeout_s=options.fetch_timeout_s
                )
                batches = with_times(batches, written)
            for batch in coalesce(batches, *limits):
                yield from batch.split(*limits)

    def held(self, tp: TopicPartition) -> PartitionInfo | None:
        """See ``RecordSource``."""
        with self.connect(self.options.mesh_address) as source:
            infos = source.partitions([tp.topic], timeout_s=self.options.fetch_timeout_s)
        return _of(tp, infos)


def ways(
    hints: Sequence[HeldRange], options: SourceOptions, connect: connections.Connect
) -> list[RecordSource]:
    """The ways that option ``fetch`` allows, the best one first."""
    found: list[RecordSource] = []
    if options.fetch in (AUTO, LOCAL):
        found.extend(LocalLogSource(hint, options) for hint in hints)
    if options.fetch in (AUTO, FLIGHT):
        found.extend(FlightSource(hint, options) for hint in hints)
    if options.fetch in (AUTO, MESH):
        found.append(MeshSource(connect, options))
    return found


def _of(tp: TopicPartition, infos: Sequence[PartitionInfo]) -> PartitionInfo | None:
    return next((info for info in infos if info.tp == tp), None)
