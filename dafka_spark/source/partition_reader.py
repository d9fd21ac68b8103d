"""Reader of a task's offset ranges: the sources of records, failures, and the final check.

Option ``fetch`` selects among a store's log on this machine, a store's Flight server, archive and
mesh. A source checks what it receives: of one range it returns each record once and in order, or
raises an error.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
from msgspec import structs
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from dafka_core.archive import archive
from dafka_core.archive.manifest import ArchivedFile, ArchiveError
from dafka_core.errors import (
    CHANGED,
    DafkaError,
    DataLossError,
    HistoryChangedError,
    StoreUnreachableError,
)
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
    merge_heads,
    times_between,
)
from dafka_core.model.where import TIMESTAMP, Where, matched
from dafka_spark.cluster import connections
from dafka_spark.cluster.timing import Deadline
from dafka_spark.errors import (
    FetchError,
    IncompleteBatchError,
    RetentionAheadError,
    SourceLossError,
)
from dafka_spark.options import AUTO, FLIGHT, LOCAL, MESH, SourceOptions
from dafka_spark.python_workers import hide_frames, settle
from dafka_spark.source.arrow_batches import ArrowBatches, groups
from dafka_spark.source.data_loss import DataLossPolicy, classify, denial, replaced
from dafka_spark.source.offset_ranges import DafkaInputPartition, OffsetRange, StoreRange

_log = logging.getLogger("dafka_spark")

# -- sources of records ----------------------------------------------------------------------------


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
            batches = self._of_history(reader.read(*bounds, timeout_s=timeout_s), wanted)
            if self.times:
                written = reader.times(*bounds, timeout_s=timeout_s)
                batches = _with_times(batches, wanted, written)
            for batch in coalesce(batches, *limits):
                yield from batch.split(*limits)

    def _of_history(
        self, batches: Iterable[RecordBatch], wanted: OffsetRange
    ) -> Iterator[RecordBatch]:
        """Yield the batches; raise HistoryChangedError at one of a producer that took over since.

        Raise DafkaError if they are older, and no store that answers knows the newest producer.
        """
        newest = max(wanted.life, wanted.after)
        for batch in batches:
            epoch = batch.epoch
            for life, end in ((wanted.after, wanted.start), (wanted.life, wanted.end)):
                if epoch is not None and NO_LIFE < life < epoch.life and epoch.start < end:
                    raise HistoryChangedError(*wanted.tp, epoch.start, None, CHANGED, end)
            if epoch is not None and epoch.life < newest:
                held = merge_heads(self.heads(wanted.topic)).get(wanted.tp)
                if held is not None and NO_LIFE < held.life < newest:
                    why = f"no store that answers has records of life {newest.number} yet"
                    raise DafkaError(f"{wanted.tp}: {why}")
                newest = NO_LIFE  # one question is enough
            yield batch

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


def _why_not_local(location: StoreLocation) -> str:
    if not location.directory:
        return "the store does not report its directory"
    if not location.here:
        return "it is on another machine"
    return f"this process cannot read {location.directory}, or the store was restarted there"


# -- tasks -----------------------------------------------------------------------------------------


class QueryReader:
    """Common state of all readers: the query's columns and options, and access to the mesh."""

    def __init__(
        self,
        schema: StructType,
        options: SourceOptions,
        connect: connections.Connect = connections.borrow_reader,
    ) -> None:
        self._schema = schema
        self._options = options
        self._connect = connect
        self._planned_ns = time.time_ns()


class PartitionReader(QueryReader):
    """Reads the ranges of a task, for batch and for streaming queries."""

    @hide_frames
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of the partition's ranges, all of them, with the query's columns."""
        if not isinstance(partition, DafkaInputPartition):
            return  # Spark makes ``InputPartition(None)`` of a batch without ranges
        ranges, options, where = partition.ranges, self._options, self._options.where
        arrow = ArrowBatches(self._schema, options)
        times = "timestamp" in arrow.fields or (where is not None and TIMESTAMP in where.columns)
        batches = complete(fetch(ranges, options, self._connect, times=times), ranges)
        if where is not None:
            batches = _matching(batches, where, opens=options.opens_envelopes)
        limits = options.max_records_per_batch, options.max_bytes_per_batch
        # Sources have already joined the small batches of one range.
        is_joined = len(ranges) == 1 and where is None
        for group in ([each] for each in batches) if is_joined else groups(batches, *limits):
            yield arrow.of(group)
        settle()


class LostOffsets(NamedTuple):
    """Offsets up to ``end`` (exclusive) that ``failOnDataLoss=false`` lets a query skip."""

    tp: TopicPartition
    offset: int
    end: int


Fetched = Records | LostOffsets


def complete(fetched: Iterable[Fetched], ranges: Sequence[OffsetRange]) -> Iterator[Records]:
    """Yield the records; check that every offset of the ranges comes once and in order.

    Batches of option ``where`` count with all offsets that were examined for them.
    """
    planned = {each.tp: each for each in ranges}
    positions = {each.tp: each.start for each in ranges}
    for each in fetched:
        wanted = planned.get(each.tp) or OffsetRange(*each.tp, 0, 0)
        position = positions.get(each.tp, 0)
        if each.offset != position or each.end > wanted.end:
            why = "rows are missing, came twice, or are more than were planned"
            raise _incomplete(wanted, position, each.offset, why)
        positions[each.tp] = each.end
        if not isinstance(each, LostOffsets):
            yield each
    for tp, wanted in planned.items():
        if positions[tp] != wanted.end:
            raise _incomplete(wanted, positions[tp], None, "rows end before what was planned")


def _incomplete(
    wanted: OffsetRange, expected: int, found: int | None, why: str
) -> IncompleteBatchError:
    bounds = wanted.start, wanted.end
    return IncompleteBatchError(*wanted.tp, *bounds, expected=expected, found=found, why=why)


def _matching(batches: Iterable[Records], where: Where, *, opens: bool) -> Iterator[Records]:
    """Yield the records that match; only Flight has filtered its records already."""
    for batch in batches:
        found = matched(batch, where, opens=opens) if isinstance(batch, RecordBatch) else batch
        if found.count:
            yield found


def fetch(
    ranges: Sequence[OffsetRange],
    options: SourceOptions,
    connect: connections.Connect,
    *,
    times: bool,
) -> Iterator[Fetched]:
    """Yield the records of ranges, with timestamps if ``times``; see ``RangeFetch.batches``.

    A request costs as much as some thousand records, so each store gets one for all ranges that
    it holds. Missing records are then fetched range by range, which finds out the reason.
    """
    left = {each.tp: each for each in ranges}
    failed: set[StoreLocation] = set()
    if len(left) > 1 and options.fetch != MESH:
        failed = yield from _fetch_from_stores(left, options, times=times)
    for wanted in left.values():
        stores = sorted(wanted.stores, key=lambda each: each.location in failed)
        ordered = replace(wanted, stores=tuple(stores))
        sources = open_sources(ordered, options, connect, times=times)
        yield from RangeFetch(wanted, options, sources).batches()


def _fetch_from_stores(
    left: dict[TopicPartition, OffsetRange], options: SourceOptions, *, times: bool
) -> Generator[Records, None, set[StoreLocation]]:
    """Read from each store all ranges that it holds, the best store of each range first.

    Removes from ``left`` what came, and returns the stores that failed.
    """
    is_local = options.fetch == LOCAL
    kind = LocalLogSource if is_local else FlightSource
    failed: set[StoreLocation] = set()
    for rank in range(max(len(each.stores) for each in left.values())):
        requests = defaultdict(list)
        for wanted in left.values():
            for store in wanted.stores[rank : rank + 1]:
                if store.earliest <= wanted.start and wanted.end <= store.end:
                    requests[store.location].append(wanted)
        for location, ranges in requests.items():
            if len(ranges) == 1 or location in failed:
                continue
            try:
                for batch in kind(ranges[0].stores[rank], options, times=times).read(*ranges):
                    rest = left.pop(batch.tp, None)
                    if rest is not None and batch.end < rest.end:
                        left[batch.tp] = rest.between(batch.end, rest.end)
                    yield batch
            except DafkaError as error:
                failed.add(location)
                if not isinstance(error, NotLocalError):
                    _log.warning("%s; continuing with another source", error)
    return failed


# -- one range from all sources --------------------------------------------------------------------

Failures = list[tuple[RecordSource, DafkaError]]


class RangeFetch:
    """Fetches one range: each source continues where the previous one stopped."""

    def __init__(
        self, wanted: OffsetRange, options: SourceOptions, sources: Sequence[RecordSource]
    ) -> None:
        self._left = wanted  # begins at the next offset
        self._options = options
        self._sources = list(sources)
        self._has_mesh = any(source.known is None for source in sources)
        self._policy = DataLossPolicy(options)
        self._contradicted_at: int | None = None
        self._archive_checked_at: int | None = None

    def batches(self) -> Iterator[Fetched]:
        """Yield the records, and the offsets that are lost where ``failOnDataLoss`` is false.

        Raises:
            SourceLossError: records are lost, and ``failOnDataLoss`` is true.
            IncompleteBatchError: stores report records that they do not return.
            FetchError: no source returned the next record for ``fetchTimeoutMs``.
            FetchTimeoutError: the mesh was the only source, and did not return it.
        """
        patience = Deadline(self._options.fetch_timeout_s)
        while (begun := self._left.start) < self._left.end:
            failures = yield from self._read_all()
            if self._left.start > begun:
                patience.restart()  # other sources may have the records that follow
            else:
                yield from self._resolve(failures, patience)

    def _read_all(self) -> Generator[Records, None, Failures]:
        """Read from every source once what it has of the range."""
        begun, end = self._left.start, self._left.end
        failures: Failures = []
        for source in self._sources:
            yield from self._read(source, self._reach(source), failures)
        if self._left.start == begun and not self._has_mesh:
            # Sources may have more than was known, and a record is lost only if all lack it.
            for source in [each for each in self._sources if self._reach(each) == begun]:
                yield from self._read(source, end, failures)
        return failures

    def _reach(self, source: RecordSource) -> int:
        """Return the end of what to ask a source for; the next offset if it has nothing there."""
        position, end = self._left.start, self._left.end
        known = range(end) if source.known is None else source.known
        if position not in known:
            return position
        ends = [known.stop, end]
        if source.known is None or isinstance(source, ArchiveSource):
            # The mesh is slow, and the archive does not learn of newer histories: both are asked
            # only for what other sources do not have.
            others = [each.known for each in self._sources if each is not source and each.known]
            ends += [each.start for each in others if each.start > position]
        return min(ends)

    def _read(
        self, source: RecordSource, stop: int, failures: Failures
    ) -> Generator[Records, None, None]:
        is_archive, begun = isinstance(source, ArchiveSource), self._left.start
        is_changed = any(isinstance(error, HistoryChangedError) for _, error in failures)
        if stop <= begun or (is_archive and is_changed):
            return  # the archive has the previous history
        try:
            for batch in source.read(self._left.between(begun, stop)):
                self._left = self._left.between(batch.end, self._left.end)
                if isinstance(source, ArchiveSource):
                    self._left = replace(self._left, after=source.life_before(batch.end))
                yield batch
        except DafkaError as error:
            if isinstance(error, DataLossError) and begun == self._left.start < error.wanted < stop:
                # The source lacks the end of what it was asked for, and may have the beginning.
                yield from self._read(source, error.wanted, failures)
                if not isinstance(error, HistoryChangedError):  # which keeps out the archive
                    return
            failures.append((source, error))
            if source is not self._sources[-1] and not isinstance(error, NotLocalError):
                text = "%s: %s; continuing with another source at offset %d"
                _log.warning(text, source.name, error, self._left.start)

    def _resolve(self, failures: Failures, patience: Deadline) -> Iterator[LostOffsets]:
        """Decide what to do as no source returned the next record: wait, fail, or skip it."""
        left, errors = self._left, [error for _, error in failures]
        for error in errors:
            if isinstance(error, HistoryChangedError):
                self._policy.fail_or_warn(replaced(error, left.start))
                # Continue with the records of the current history.
                self._left = replace(left, life=NO_LIFE, after=NO_LIFE)
                return
        if any(isinstance(error, ArchiveError) for error in errors):
            raise self._error(failures)  # archived records that cannot be read are not lost
        away = [error.store for error in errors if isinstance(error, StoreUnreachableError)]
        # The mesh is the last source. It asks every store, and waits for those that are away.
        denied = denial(errors[-1:] if self._has_mesh else errors, left.start, left.end)
        if denied is None:
            if self._has_mesh or not away or patience.is_over:
                raise self._error(failures)
            patience.pause()
            return
        if self._find_in_archive():
            return
        if self._policy.waits(denied, patience.waited_s) and not self._has_mesh:
            patience.pause()
            return
        loss: SourceLossError | None
        if isinstance(denied, SourceLossError):
            loss = denied
        else:
            bounds, info, store = (left.start, left.end), self._info(), away[0] if away else ""
            loss = classify(left.tp, *bounds, info, away=store, waited_s=patience.waited_s)
        if loss is None or loss.wanted > left.start:
            # The stores report the record that they did not return: read once more.
            if self._contradicted_at == left.start:
                raise self._error(failures, denied)
            self._contradicted_at = left.start
            return
        lost_end = loss.lost_end or left.end
        # A loss that stores report ends where the archive begins.
        archives = (each.known.start for each in self._sources if isinstance(each, ArchiveSource))
        if later := [each for each in archives if left.start < each < lost_end]:
            lost_end = min(later)
            loss = RetentionAheadError(*left.tp, left.start, lost_end, lost_end=lost_end)
        self._policy.fail_or_warn(loss)
        yield LostOffsets(left.tp, left.start, lost_end)
        self._left = left.between(lost_end, left.end)

    def _find_in_archive(self) -> bool:
        """Update the archive's sources; return whether one has the next record.

        Records that stores trimmed after the range was planned were archived before.
        """
        position, directory = self._left.start, self._options.archive
        if not directory or self._archive_checked_at == position:
            return False
        self._archive_checked_at = position
        archives = archive_sources(directory, self._left)
        others = [each for each in self._sources if not isinstance(each, ArchiveSource)]
        at = len(others) - self._has_mesh
        self._sources = [*others[:at], *archives, *others[at:]]
        return any(position in each.known for each in archives)

    def _info(self) -> PartitionInfo | None:
        """Return the offsets that all sources together have of the partition now."""
        infos: list[PartitionInfo] = []
        for source in self._sources:
            if isinstance(source, ArchiveSource) and source.known.stop <= self._left.start:
                continue  # it has no information on later offsets
            try:
                infos += source.heads(self._left.topic)
            except DafkaError as error:
                _log.warning("%s: %s", source.name, error)
        return merge_heads(infos).get(self._left.tp)

    def _error(self, failures: Failures, denied: DataLossError | None = None) -> DafkaError:
        left, errors = self._left, [error for _, error in failures]
        if denied is not None and all(isinstance(error, DataLossError) for error in errors):
            why = f"stores report records that they do not return ({denied})"
            return _incomplete(left, left.start, None, why)
        if self._has_mesh and len(errors) == 1:
            return errors[0]
        tried = [f"{source.name}: {error}" for source, error in failures]
        return FetchError(*left.tp, left.start, left.end, self._options.fetch, tried)
