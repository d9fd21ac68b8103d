"""Reads ranges from one source after the other, and proves that they are complete.

A range comes with the stores that were seen to have some of it.  Option ``fetch`` says how these
may be read: their files, where they are on this machine; by Arrow Flight; and, without any
store in particular, over the mesh.  Each of these sources is asked for what it is known to have,
from the record on that the one before it had reached.
"""

from __future__ import annotations

import logging
import operator
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NoReturn, Protocol

import numpy as np

from dafka_core.archive import archive
from dafka_core.archive.layout import ArchiveError
from dafka_core.archive.manifest import ArchivedFile
from dafka_core.errors import (
    CHANGED,
    DafkaError,
    DataLossError,
    HistoryChangedError,
    StoreUnreachableError,
)
from dafka_core.flight.columns import OFFSET, TIMESTAMP, VALUE
from dafka_core.flight.requests import AskedRange, Part
from dafka_core.flight.store_client import StoreClient
from dafka_core.flight.store_location import StoreLocation
from dafka_core.flight.where_get import GetWhereRequest, read_where
from dafka_core.model.epochs import NO_LIFE, EpochId
from dafka_core.model.records import (
    UNKNOWN_US,
    PartitionInfo,
    RecordBatch,
    TopicPartition,
    coalesce,
    merge_heads,
    times_between,
)
from dafka_core.model.where import KeptRecords, Records, Where
from dafka_spark.cluster import connections
from dafka_spark.cluster.timing import Deadline
from dafka_spark.errors import (
    FetchError,
    IncompleteBatchError,
    RetentionAheadError,
    SourceLossError,
    StoreLostDataError,
)
from dafka_spark.options import AUTO, FLIGHT, LOCAL, MESH, SourceOptions
from dafka_spark.source.data_loss import DataLossPolicy, classify, denial, replaced
from dafka_spark.source.offset_ranges import HeldRange, OffsetRange


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
                yield from log.read(client, **_request_of(wanted), **self._limits)


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
                **_request_of(wanted),
                times=self._times,
                timeout_s=self._options.fetch_timeout_s,
                **self._limits,
            )

    def _kept(
        self, client: StoreClient, where: Where, wanted: OffsetRange
    ) -> Iterator[KeptRecords]:
        asked = _request_of(wanted)
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


def _request_of(wanted: OffsetRange) -> dict[str, Any]:
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


class CompletenessCheck:
    """Sees that the rows of a range come in order and once each, and that none is missing.

    It does not know where they came from, so the last check, before Spark gets them, finds a
    mistake made anywhere before it.  ``lost`` has the offsets that ``failOnDataLoss`` lets a query
    do without, as they are found: no others may be missing.  ``name`` is for errors.
    """

    def __init__(
        self, wanted: OffsetRange, lost: Sequence[range] = (), name: str = "the whole range"
    ) -> None:
        self.position = wanted.start
        self._wanted = wanted
        self._lost = lost
        self._name = name

    def take(self, offset: int, rows: int) -> None:
        """Counts the next rows, the first of them at ``offset``, also those left out by ``where``.

        Raises:
            IncompleteBatchError: others were to come next.
        """
        self._pass_over_lost()
        if offset != self.position or offset + rows > self._wanted.end:
            why = f"{self._name}: rows are missing, came twice, or are more than were planned"
            raise incomplete(self._wanted, self.position, offset, why)
        self.position += rows

    def finish(self) -> None:
        """Raises ``IncompleteBatchError`` unless all rows have come."""
        self._pass_over_lost()
        if self.position != self._wanted.end:
            why = f"{self._name}: the rows end before what was planned"
            raise incomplete(self._wanted, self.position, None, why)

    def _pass_over_lost(self) -> None:
        for lost in self._lost:
            if lost.start == self.position:
                self.position = lost.stop


def checked_reply(name: str, asked: OffsetRange, batches: Iterable[Records]) -> Iterator[Records]:
    """The batches of the reply of the source with this name.

    Raises:
        StoreLostDataError: records are missing before others that came.
        IncompleteBatchError: other records came than those asked for, or too few.
    """
    check = CompletenessCheck(asked, name=name)
    for batch in batches:
        if batch.offset > check.position:
            why = f"the records of {name} do not go on where those before them ended"
            lost_end = min(batch.offset, asked.end)
            raise StoreLostDataError(
                *asked.tp, check.position, batch.offset, why, lost_end=lost_end
            )
        check.take(batch.offset, batch.end - batch.offset)
        yield batch
    check.finish()


def incomplete(
    wanted: OffsetRange, expected: int, found: int | None, why: str
) -> IncompleteBatchError:
    """The error of a range of which another offset came than the expected one; None: no more."""
    return IncompleteBatchError(
        *wanted.tp, wanted.start, wanted.end, expected=expected, found=found, why=why
    )


Failures = list[tuple[RecordSource, DafkaError]]
"""The sources that have not given what they were asked for, and why."""


class RangeFetch:
    """The records of one range: complete and in order, from the sources that have them.

    Attributes:
        lost: the offsets that option ``failOnDataLoss`` has let the query do without, so far.
    """

    def __init__(
        self, wanted: OffsetRange, options: SourceOptions, sources: Sequence[RecordSource]
    ) -> None:
        self.lost: list[range] = []
        self._wanted = wanted
        self._options = options
        self._sources = sources
        self._has_mesh = any(source.known is None for source in sources)
        self._policy = DataLossPolicy(options)
        self._position = wanted.start
        self._denied_at: int | None = None
        self._looked_at: int | None = None
        self._archived: tuple[int, EpochId] = wanted.start, NO_LIFE
        """How far the archive was read, and the newest life that was known of it."""

    def batches(self) -> Iterator[Records]:
        """The records without those in ``lost``.

        Raises:
            SourceLossError: records are lost, and option ``failOnDataLoss`` is true.
            IncompleteBatchError: what came is not what was asked for.
            FetchError: no source that option ``fetch`` allows gave them for ``fetchTimeoutMs``.
            FetchTimeoutError: no node of the mesh sent them for ``fetchTimeoutMs``.
        """
        patience = Deadline(self._options.fetch_timeout_s)
        while self._position < self._wanted.end:
            begun = self._position
            failures = yield from self._round()
            if self._position > begun:
                # One source had the next records; the others may have those that follow.
                patience = Deadline(self._options.fetch_timeout_s)
            else:
                self._meet(failures, patience)

    def _round(self) -> Generator[Records, None, Failures]:
        begun, end = self._position, self._wanted.end
        failures: Failures = []
        idle: list[RecordSource] = []
        for source in self._sources:
            is_changed = any(isinstance(error, HistoryChangedError) for _, error in failures)
            if is_changed and isinstance(source, ArchiveSource):
                continue  # it has what was before
            stop = self._reach(source)
            if stop > self._position:
                yield from self._read(source, stop, failures)
            else:
                idle.append(source)
            if self._position >= end:
                return failures
        if self._position == begun and not self._has_mesh:
            # What was known may be old, and a record is lost only if every source lacks it.
            for source in idle:
                yield from self._read(source, end, failures)
        return failures

    def _reach(self, source: RecordSource) -> int:
        """The offset up to which to ask a source; the position reached: it is not asked."""
        position, end = self._position, self._wanted.end
        known, is_archive = source.known, isinstance(source, ArchiveSource)
        if known is not None and not is_archive:
            return min(known.stop, end) if position in known else position
        if known is not None and position not in known:
            return position
        # The mesh is slow: it is asked for no more than what the other sources do not have.  And
        # the archive, as it does not hear of newer histories, for no more than stores have not.
        others = (each for each in self._sources if each is not source and each.known)
        later = [each.known.start for each in others if each.known]
        return min([end, known.stop if known else end, *(at for at in later if at > position)])

    def _read(
        self, source: RecordSource, stop: int, failures: Failures
    ) -> Generator[Records, None, None]:
        begun = self._position
        asked = self._wanted.part(begun, stop)
        if self._archived[0] == begun and asked.after == NO_LIFE:
            asked = replace(asked, after=self._archived[1])
        try:
            for batch in checked_reply(source.name, asked, source.read(asked)):
                self._position = batch.end
                if isinstance(source, ArchiveSource):
                    self._archived = batch.end, source.life_before(batch.end)
                yield batch
        except DafkaError as error:
            if isinstance(error, DataLossError) and begun == self._position < error.wanted < stop:
                # It has sent nothing, as it lacks the end of the range: it may have the beginning.
                yield from self._read(source, error.wanted, failures)
                return
            failures.append((source, error))
            if source is not self._sources[-1] and not isinstance(error, NotHereError):
                text = "%s: %s; going on elsewhere from offset %d"
                _log.warning(text, source.name, error, self._position)

    def _meet(self, failures: Failures, patience: Deadline) -> None:
        """No source has given the next record: waits, fails, or leaves out what is lost."""
        position, wanted = self._position, self._wanted
        errors = [error for _, error in failures]
        for error in errors:
            if isinstance(error, HistoryChangedError):
                self._policy.fail_or_warn(replaced(error, position))
                # From here on, those that are the partition's now.
                self._wanted = replace(wanted, life=NO_LIFE, after=NO_LIFE)
                self._archived = position, NO_LIFE
                return
        if any(isinstance(error, ArchiveError) for error in errors):
            # What the archive has is not lost, and cannot be read.
            self._fail(failures)
        away = [error.store for error in errors if isinstance(error, StoreUnreachableError)]
        # The mesh comes last: it asks every store, and waits itself for those that come back.
        said = denial(errors[-1:] if self._has_mesh else errors, position, wanted.end)
        if said is not None and self._look_at_archive():
            return
        if said is None:
            waits = bool(away) and not patience.is_over
        else:
            waits = self._policy.waits(said, patience.waited_s)
        if waits and not self._has_mesh:
            patience.pause()
            return
        if said is None:
            self._fail(failures)
        loss = said if isinstance(said, SourceLossError) else None
        if loss is None:
            loss = classify(
                wanted.tp,
                position,
                wanted.end,
                self._held(),
                away=away[0] if away else "",
                waited_s=patience.waited_s,
            )
        if loss is None or loss.wanted > position:
            # The stores have the record now after all, or say one thing and do another.
            if self._denied_at == position:
                self._fail(failures, said)
            self._denied_at = position
            return
        loss = self._up_to_archived(loss)
        self._policy.fail_or_warn(loss)
        assert loss.lost_end is not None  # the range has an end
        self.lost.append(range(position, loss.lost_end))
        self._position = loss.lost_end

    def _look_at_archive(self) -> bool:
        """Sees what the archive has now; whether it has the next record.

        What stores have given up since the range was planned, it had before they did.
        """
        position, tp = self._position, self._wanted.tp
        if not self._options.archive or self._looked_at == position:
            return False
        self._looked_at = position
        archived = sources_now(self._options.archive, tp, position, self._wanted.end)
        others = [each for each in self._sources if not isinstance(each, ArchiveSource)]
        at = len(others) - self._has_mesh
        self._sources = [*others[:at], *archived, *others[at:]]
        return any(position in each.known for each in archived)

    def _up_to_archived(self, loss: SourceLossError) -> SourceLossError:
        """The same without what the archive has behind it: stores know nothing of that."""
        position, lost_end = self._position, loss.lost_end or 0
        archives = [each for each in self._sources if isinstance(each, ArchiveSource)]
        later = [s.known.start for s in archives if position < s.known.start < lost_end]
        if not later:
            return loss
        available = min(later)
        return RetentionAheadError(*self._wanted.tp, position, available, lost_end=available)

    def _held(self) -> PartitionInfo | None:
        infos: list[PartitionInfo] = []
        for source in self._sources:
            if isinstance(source, ArchiveSource) and source.known.stop <= self._position:
                continue  # it says nothing of what is behind it
            try:
                infos += source.heads(self._wanted.topic)
            except DafkaError as error:
                _log.warning("%s: %s", source.name, error)
        return merge_heads(infos).get(self._wanted.tp)

    def _fail(self, failures: Failures, denied: DataLossError | None = None) -> NoReturn:
        errors = [error for _, error in failures]
        if denied is not None and all(isinstance(error, DataLossError) for error in errors):
            why = f"stores say that they have it and do not give it ({denied})"
            raise incomplete(self._wanted, self._position, None, why) from denied
        for error in errors:
            if isinstance(error, IncompleteBatchError):
                raise error
        if self._has_mesh and len(errors) == 1:
            raise errors[0]
        tried = [f"{source.name}: {error}" for source, error in failures]
        wanted, fetch = self._wanted, self._options.fetch
        cause = errors[-1] if errors else None
        raise FetchError(*wanted.tp, self._position, wanted.end, fetch, tried) from cause


# The records of a task's ranges: of many small ones with one request for each store.
#
# A request, an answer and what both sides do for them cost a few milliseconds, as much as some
# thousand records. So a task that has several ranges asks each store, in one request, for all
# those of which it was seen to have everything. What does not come so, because the store is gone
# or has lost records, is asked for at the next store, and in the end range by range
# (``range_fetch``), which finds out what it means.


class SharedFetch:
    """The records of ranges: each range's complete and in order.

    Args:
        times: whether those of the records are needed.
    """

    def __init__(
        self,
        ranges: Sequence[OffsetRange],
        options: SourceOptions,
        connect: connections.Connect,
        *,
        times: bool,
    ) -> None:
        self._ranges = ranges
        self._options = options
        self._connect = connect
        self._times = times
        self._left = dict(enumerate(ranges))
        """What has not come yet of each range, by its number; those without a record are not in."""
        self._failed: set[StoreLocation] = set()

    def batches(self) -> Iterator[Records]:
        """The records; raises what ``RangeFetch.batches`` raises."""
        if self._options.fetch != MESH and len(self._ranges) > 1:
            for choice in range(max(len(each.held) for each in self._ranges)):
                for location, numbers in self._by_store(choice).items():
                    if len(numbers) > 1 and location not in self._failed:
                        yield from self._ask(location, numbers)
        for _, wanted in sorted(self._left.items(), key=operator.itemgetter(0)):
            # Who did not answer for all of them is asked last.
            held = sorted(wanted.held, key=lambda each: each.location in self._failed)
            yield from self._alone(replace(wanted, held=tuple(held)))

    def _by_store(self, choice: int) -> dict[StoreLocation, list[int]]:
        stores: dict[StoreLocation, list[int]] = {}
        for number, wanted in sorted(self._left.items(), key=operator.itemgetter(0)):
            held = wanted.held[choice : choice + 1]
            if held and held[0].earliest <= wanted.start and wanted.end <= held[0].end:
                stores.setdefault(held[0].location, []).append(number)
        return stores

    def _ask(self, location: StoreLocation, numbers: Sequence[int]) -> Iterator[RecordBatch]:
        asked = [_asked(self._left[number]) for number in numbers]
        checks = [CompletenessCheck(self._left[number]) for number in numbers]
        try:
            with connections.lend_client(location, self._options.keys) as client:
                for parts in self._parts(client, asked):
                    for number, batch in parts:
                        checks[number].take(batch.offset, batch.count)
                        self._came(numbers[number], batch)
                        yield batch
        except DafkaError as error:
            self._failed.add(location)
            _log.warning("%s; going on elsewhere", error)

    def _parts(self, client: StoreClient, asked: Sequence[AskedRange]) -> Iterator[list[Part]]:
        options = self._options
        most_records, most_bytes = options.max_records_per_batch, options.max_bytes_per_batch
        sizes = {"max_records": most_records, "max_bytes": most_bytes}
        if options.fetch != LOCAL:
            timeout_s = options.fetch_timeout_s
            yield from client.read_many(asked, times=self._times, timeout_s=timeout_s, **sizes)
            return
        with connections.lend_logs() as logs:
            log = logs.open(client.location)
            if log is not None:  # else each range says why it cannot be read
                yield from log.read_many(client, asked, **sizes)

    def _came(self, number: int, batch: RecordBatch) -> None:
        wanted = self._left.pop(number)
        if batch.end < wanted.end:
            self._left[number] = wanted.part(batch.end, wanted.end)

    def _alone(self, wanted: OffsetRange) -> Iterator[Records]:
        sources = open_sources(
            wanted.held,
            self._options,
            self._connect,
            times=self._times,
            archived=archive_sources(self._options.archive, wanted.tp, wanted.archived),
        )
        fetch = RangeFetch(wanted, self._options, sources)
        completeness = CompletenessCheck(wanted, fetch.lost)
        for batch in fetch.batches():
            completeness.take(batch.offset, batch.end - batch.offset)
            yield batch
        completeness.finish()


def _asked(wanted: OffsetRange) -> AskedRange:
    lives = [None if life == NO_LIFE else life for life in (wanted.life, wanted.after)]
    return AskedRange(*wanted.tp, wanted.start, wanted.end, *lives)
