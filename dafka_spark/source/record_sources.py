"""Sources of records: a store's log on this machine, a store's Flight server, archive and mesh.

Option ``fetch`` selects among them. A source checks what it receives: of one range it returns each
record once and in order, or raises an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol

import numpy as np
from msgspec import structs

from dafka_core.archive import archive
from dafka_core.archive.manifest import ArchivedFile
from dafka_core.errors import CHANGED, DafkaError, HistoryChangedError
from dafka_core.flight.requests import GetRequest, RecordRange
from dafka_core.flight.store_location import StoreLocation
from dafka_core.model.epochs import NO_LIFE, EpochId
from dafka_core.model.records import (
    UNKNOWN_US,
    PartitionInfo,
    RecordBatch,
    Records,
    TopicPartition,
    coalesce,
    times_between,
)
from dafka_spark.cluster import connections
from dafka_spark.options import AUTO, FLIGHT, LOCAL, MESH, SourceOptions
from dafka_spark.source.offset_ranges import OffsetRange, StoreRange


class RecordSource(Protocol):
    """One place to read records from."""

    @property
    def name(self) -> str:
        """Place and method, for errors."""

    @property
    def known(self) -> range | None:
        """Offsets that it had when the batch was planned; None if it may have any."""

    def read(self, wanted: OffsetRange, /) -> Iterator[Records]:
        """Yield the records of a range, in order and complete, or raise a DafkaError.

        Batches cover all offsets, also if only records that match option ``where`` are in them.
        """

    def heads(self, topic: str) -> list[PartitionInfo]:
        """Return the earliest and end offsets of a topic's partitions as they are now."""


class NotLocalError(DafkaError):
    """A store's log that this process cannot read; expected, and not logged."""


class StoreSource:
    """A store, which also returns the records of several ranges for one request.

    Of several ranges it leaves out what it lacks; of one range it raises the reason.
    """

    NAME: ClassVar[str]

    def __init__(self, store: StoreRange, options: SourceOptions, *, times: bool = False) -> None:
        self.name = self.NAME.format(store.location.store)
        self.known = range(store.earliest, store.end)
        self._location = store.location
        self._options = options
        self._times = times

    def _request(self, ranges: Sequence[OffsetRange]) -> GetRequest:
        return GetRequest(
            tuple(map(_record_range, ranges)),
            times=self._times,
            partial=len(ranges) > 1,
            max_records=self._options.max_records_per_batch,
            max_bytes=self._options.max_bytes_per_batch,
        )

    def heads(self, topic: str) -> list[PartitionInfo]:
        """See ``RecordSource``."""
        with connections.borrow_client(self._location, self._options.keys) as client:
            return client.heads([topic], timeout_s=self._options.fetch_timeout_s)


class LocalLogSource(StoreSource):
    """The log file of a store on this machine."""

    NAME = "the log of store {}"

    def read(self, *ranges: OffsetRange) -> Iterator[RecordBatch]:
        """Yield the records of ranges; raise NotLocalError if the file cannot be read here."""
        with connections.borrow_logs() as logs:
            if (log := logs.open(self._location)) is None:
                raise NotLocalError(_why_not_local(self._location))
            with connections.borrow_client(self._location, self._options.keys) as client:
                yield from log.records(client, self._request(ranges))


class FlightSource(StoreSource):
    """The Arrow Flight server of a store."""

    NAME = "store {} by Arrow Flight"

    def read(self, *ranges: OffsetRange) -> Iterator[Records]:
        """Yield the records of ranges, with option ``where`` only those that match."""
        request, where = self._request(ranges), self._options.where
        if where is not None:
            envelope = self._options.envelope
            request = structs.replace(request, where=where.text, envelope=envelope)
        with connections.borrow_client(self._location, self._options.keys) as client:
            yield from client.records(request, timeout_s=self._options.fetch_timeout_s)


class ArchiveSource:
    """Consecutive files of one partition in the archive."""

    def __init__(self, directory: str, tp: TopicPartition, files: Sequence[ArchivedFile]) -> None:
        self.name = f"the archive at {directory}"
        self.known = range(files[0].start, files[-1].end)
        self._directory = directory
        self._tp = tp
        self._files = files

    def read(self, wanted: OffsetRange) -> Iterator[RecordBatch]:
        """See ``RecordSource``; archived records remain when a newer producer replaces them."""
        yield from archive.read(self._directory, self._tp, self._files, wanted.start, wanted.end)

    def life_before(self, offset: int) -> EpochId:
        """Return the newest producer known when the records before ``offset`` were archived."""
        return next(file.life for file in self._files if offset <= file.end)

    def heads(self, topic: str) -> list[PartitionInfo]:
        """See ``RecordSource``."""
        return [archive.info_of(self._tp, self._files)] if topic == self._tp.topic else []


@dataclass(frozen=True, slots=True)
class MeshSource:
    """Any node of the mesh that has the records."""

    name: ClassVar[str] = "the mesh"
    known: ClassVar[None] = None
    connect: connections.Connect
    options: SourceOptions
    times: bool = False

    def read(self, wanted: OffsetRange) -> Iterator[RecordBatch]:
        """See ``RecordSource``; stores are asked for times separately."""
        limits = self.options.max_records_per_batch, self.options.max_bytes_per_batch
        bounds, timeout_s = (wanted.tp, wanted.start, wanted.end), self.options.fetch_timeout_s
        with self.connect(self.options.mesh_address) as reader:
            batches = _of_history(reader.read(*bounds, timeout_s=timeout_s), wanted)
            if self.times:
                written = reader.times(*bounds, timeout_s=timeout_s)
                batches = _with_times(batches, wanted, written)
            for batch in coalesce(batches, *limits):
                yield from batch.split(*limits)

    def heads(self, topic: str) -> list[PartitionInfo]:
        """See ``RecordSource``."""
        with self.connect(self.options.mesh_address) as reader:
            return reader.partitions([topic], timeout_s=self.options.fetch_timeout_s)


def open_sources(
    wanted: OffsetRange, options: SourceOptions, connect: connections.Connect, *, times: bool
) -> list[RecordSource]:
    """Return the sources that option ``fetch`` allows, fastest first; each connects when read."""
    sources: list[RecordSource] = []
    for fetch, kind in (LOCAL, LocalLogSource), (FLIGHT, FlightSource):
        if options.fetch in (AUTO, fetch):
            sources.extend(kind(each, options, times=times) for each in wanted.stores)
    sources.extend(archive_sources(options.archive, wanted, wanted.archived))
    if options.fetch in (AUTO, MESH) and not options.stores:
        sources.append(MeshSource(connect, options, times))
    return sources


def archive_sources(
    directory: str, wanted: OffsetRange, files: Sequence[ArchivedFile] | None = None
) -> list[ArchiveSource]:
    """Return a source for each run of consecutive files with some of a range.

    Without ``files`` the archive is searched; ArchiveError is raised if it is damaged.
    """
    if files is None:
        files = archive.Archive(directory).held([wanted.topic]).get(wanted.tp, ())
    runs: list[list[ArchivedFile]] = []
    for file in files:
        if not wanted.overlaps(file.start, file.end):
            continue
        if runs and runs[-1][-1].end == file.start:
            runs[-1].append(file)
        else:
            runs.append([file])
    return [ArchiveSource(directory, wanted.tp, run) for run in runs]


def _with_times(
    batches: Iterable[RecordBatch], wanted: OffsetRange, written: Sequence[tuple[int, int]]
) -> Iterator[RecordBatch]:
    """Add timestamps: ``written`` has the first offset of each, ascending, and microseconds."""
    table = np.array([(0, UNKNOWN_US), *written], dtype=np.int64)
    counts = np.diff(table[:, 0].clip(wanted.start, wanted.end), append=wanted.end)
    times = np.column_stack((counts, table[:, 1]))
    for batch in batches:
        first, stop = batch.offset - wanted.start, batch.end - wanted.start
        yield replace(batch, times=times_between(times, first, stop))


def _record_range(wanted: OffsetRange) -> RecordRange:
    life, after = (None if each == NO_LIFE else each for each in (wanted.life, wanted.after))
    return RecordRange(*wanted.tp, wanted.start, wanted.end, life, after)


def _of_history(batches: Iterable[RecordBatch], wanted: OffsetRange) -> Iterator[RecordBatch]:
    """Yield the batches; raise HistoryChangedError at one of a producer that took over since."""
    for batch in batches:
        epoch = batch.epoch
        for life, end in ((wanted.after, wanted.start), (wanted.life, wanted.end)):
            if epoch is not None and NO_LIFE < life < epoch.life and epoch.start < end:
                raise HistoryChangedError(*wanted.tp, epoch.start, None, CHANGED, end)
        yield batch


def _why_not_local(location: StoreLocation) -> str:
    if not location.directory:
        return "the store does not report its directory"
    if not location.here:
        return "it is on another machine"
    return f"this process cannot read {location.directory}, or the store was restarted there"
