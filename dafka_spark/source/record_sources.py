"""Sources of records: local files of stores, Arrow Flight, the mesh and the archive."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol

import numpy as np

from dafka_core.archive import archive
from dafka_core.archive.manifest import ArchivedFile
from dafka_core.errors import CHANGED, DafkaError, HistoryChangedError
from dafka_core.flight.columns import OFFSET, TIMESTAMP, VALUE
from dafka_core.flight.store_client import StoreClient
from dafka_core.flight.store_location import StoreLocation
from dafka_core.flight.where_get import GetWhereRequest, read_where
from dafka_core.model.epochs import NO_LIFE, EpochId
from dafka_core.model.matched_records import KeptRecords, Records
from dafka_core.model.records import (
    UNKNOWN_US,
    PartitionInfo,
    RecordBatch,
    TopicPartition,
    coalesce,
    times_between,
)
from dafka_core.model.where import Where
from dafka_spark.cluster import connections
from dafka_spark.options import AUTO, FLIGHT, LOCAL, MESH, SourceOptions
from dafka_spark.source.range_planner import HeldRange, OffsetRange


class ArchiveSource:
    """Files of one partition that follow each other without a hole; a ``RecordSource``."""

    def __init__(self, directory: str, tp: TopicPartition, files: Sequence[ArchivedFile]) -> None:
        self.name = f"the archive at {directory}"
        self.known = range(files[0].start, files[-1].end)
        self._directory = directory
        self._tp = tp
        self._files = files

    def read(self, wanted: OffsetRange) -> Iterator[RecordBatch]:
        """The records of a range."""
        yield from archive.read(self._directory, self._tp, self._files, wanted.start, wanted.end)

    def life_before(self, offset: int) -> EpochId:
        """The newest life that was known when the records before an offset were archived."""
        return next(file.life for file in self._files if offset <= file.end)

    def heads(self, topic: str) -> list[PartitionInfo]:
        """What there is, in these files."""
        return [archive.info_of(self._tp, self._files)] if topic == self._tp.topic else []


def archive_sources(
    directory: str, tp: TopicPartition, files: Sequence[ArchivedFile]
) -> list[ArchiveSource]:
    """A source for each run of files without a hole."""
    runs: list[list[ArchivedFile]] = []
    for file in files:
        if runs and runs[-1][-1].end == file.start:
            runs[-1].append(file)
        else:
            runs.append([file])
    return [ArchiveSource(directory, tp, run) for run in runs]


def sources_now(directory: str, tp: TopicPartition, start: int, end: int) -> list[ArchiveSource]:
    """The sources of what the archive has of offsets ``start`` to ``end`` (exclusive) now.

    Raises:
        ArchiveError: it cannot be read.
    """
    files = archive.Archive(directory).held([tp.topic]).get(tp, ())
    return archive_sources(directory, tp, [f for f in files if f.start < end and start < f.end])


_log = logging.getLogger("dafka_spark")


class RecordSource(Protocol):
    """One way to read records: where, and how."""

    @property
    def name(self) -> str:
        """Where and how, for errors."""

    @property
    def known(self) -> range | None:
        """The offsets it was seen to have when the batch was planned; None: it may have any."""

    def read(self, wanted: OffsetRange) -> Iterator[Records]:
        """The records of a range; those that option ``where`` does not want may be left out."""

    def heads(self, topic: str) -> list[PartitionInfo]:
        """What there is of a topic now."""


class NotHereError(DafkaError):
    """A log that this process cannot read: no failure, the next source is asked."""


class _StoreSource:
    """What the two sources of one store share."""

    NAME: ClassVar[str]

    def __init__(self, hint: HeldRange, options: SourceOptions, *, times: bool = False) -> None:
        self.name = self.NAME.format(hint.location.store)
        self.known = range(hint.earliest, hint.end)
        self._location = hint.location
        self._options = options
        self._times = times
        most_records, most_bytes = options.max_records_per_batch, options.max_bytes_per_batch
        self._limits: dict[str, Any] = {"max_records": most_records, "max_bytes": most_bytes}

    def heads(self, topic: str) -> list[PartitionInfo]:
        """See ``RecordSource``; the store itself says it."""
        with connections.lend_client(self._location, self._options.keys) as client:
            return client.heads([topic], timeout_s=self._options.fetch_timeout_s)


class LocalLogSource(_StoreSource):
    """The log of a store on this machine, with no server in between."""

    NAME = "the log of store {}"

    def read(self, wanted: OffsetRange) -> Iterator[RecordBatch]:
        """See ``RecordSource``; raises ``NotHereError`` where the file cannot be read."""
        with connections.lend_logs() as logs:
            log = logs.open(self._location)
            if log is None:
                raise NotHereError(_why_not_here(self._location))
            with connections.lend_client(self._location, self._options.keys) as client:
                yield from log.read(client, **_asked(wanted), **self._limits)


class FlightSource(_StoreSource):
    """A store's Arrow Flight server, which sends no more than a block at a time."""

    NAME = "store {} by Arrow Flight"

    def read(self, wanted: OffsetRange) -> Iterator[Records]:
        """See ``RecordSource``."""
        with connections.lend_client(self._location, self._options.keys) as client:
            if (where := self._options.where) is not None:
                yield from self._kept(client, where, wanted)
                return
            yield from client.read(
                **_asked(wanted),
                times=self._times,
                timeout_s=self._options.fetch_timeout_s,
                **self._limits,
            )

    def _kept(
        self, client: StoreClient, where: Where, wanted: OffsetRange
    ) -> Iterator[KeptRecords]:
        asked = _asked(wanted)
        asked |= asked.pop("tp")._asdict() | self._limits
        request = GetWhereRequest(
            **asked,
            where=where.text,
            envelope=self._options.envelope,
            columns=(VALUE, OFFSET, TIMESTAMP) if self._times else (VALUE, OFFSET),
        )
        yield from read_where(client, request, timeout_s=self._options.fetch_timeout_s)


@dataclass(frozen=True, slots=True)
class MeshSource:
    """Any node of the mesh that has the records."""

    name: ClassVar[str] = "the mesh"
    known: ClassVar[None] = None
    connect: connections.Connect
    options: SourceOptions
    times: bool = False

    def read(self, wanted: OffsetRange) -> Iterator[RecordBatch]:
        """See ``RecordSource``.  Stores are asked for times apart from the records."""
        limits = self.options.max_records_per_batch, self.options.max_bytes_per_batch
        bounds, timeout_s = (wanted.tp, wanted.start, wanted.end), self.options.fetch_timeout_s
        with self.connect(self.options.mesh_address) as reader:
            batches = _of_history(reader.read(*bounds, timeout_s=timeout_s), wanted)
            if self.times:
                written = reader.times(*bounds, timeout_s=timeout_s)
                batches = with_times(batches, wanted, written)
            for batch in coalesce(batches, *limits):
                yield from batch.split(*limits)

    def heads(self, topic: str) -> list[PartitionInfo]:
        """See ``RecordSource``."""
        with self.connect(self.options.mesh_address) as reader:
            return reader.partitions([topic], timeout_s=self.options.fetch_timeout_s)


def open_sources(
    hints: Sequence[HeldRange],
    options: SourceOptions,
    connect: connections.Connect,
    *,
    times: bool = False,
    archived: Sequence[ArchiveSource] = (),
) -> list[RecordSource]:
    """The sources that option ``fetch`` allows, the best one first; each opens when it is read.

    ``times`` says whether those of the records are needed; ``archived`` are those
    of option ``archive``.
    """
    sources: list[RecordSource] = []
    if options.fetch in (AUTO, LOCAL):
        sources.extend(LocalLogSource(hint, options, times=times) for hint in hints)
    if options.fetch in (AUTO, FLIGHT):
        sources.extend(FlightSource(hint, options, times=times) for hint in hints)
    sources.extend(archived)
    if options.fetch in (AUTO, MESH) and not options.stores:
        sources.append(MeshSource(connect, options, times))
    return sources


def with_times(
    batches: Iterable[RecordBatch], wanted: OffsetRange, written: Sequence[tuple[int, int]]
) -> Iterator[RecordBatch]:
    """The batches of a range, each with its times.

    ``written`` has pairs (first offset, microseconds since the epoch UTC), ascending; a time holds
    up to the next pair's offset.
    """
    table = np.array([(0, UNKNOWN_US), *written], dtype=np.int64)
    counts = np.diff(table[:, 0].clip(wanted.start, wanted.end), append=wanted.end)
    times = np.column_stack((counts, table[:, 1]))
    for batch in batches:
        first, stop = batch.offset - wanted.start, batch.end - wanted.start
        yield replace(batch, times=times_between(times, first, stop))


def _asked(wanted: OffsetRange) -> dict[str, Any]:
    lives = {"life": wanted.life, "after": wanted.after}
    known = {name: life for name, life in lives.items() if life != NO_LIFE}
    return {"tp": wanted.tp, "start": wanted.start, "end": wanted.end, **known}


def _of_history(batches: Iterable[RecordBatch], wanted: OffsetRange) -> Iterator[RecordBatch]:
    """The batches; raises ``HistoryChangedError`` for one of a producer that took over since."""
    for batch in batches:
        epoch = batch.epoch
        for life, end in ((wanted.after, wanted.start), (wanted.life, wanted.end)):
            if epoch is not None and NO_LIFE < life < epoch.life and epoch.start < end:
                raise HistoryChangedError(*wanted.tp, epoch.start, None, CHANGED, end)
        yield batch


def _why_not_here(location: StoreLocation) -> str:
    if not location.directory:
        return "the store does not say where it is"
    if not location.here:
        return "it is on another machine"
    return f"this process cannot read {location.directory}, or the store has been restarted there"
