"""The reader of streaming queries: initial offset, end of each batch, tasks of a batch.

Spark makes one for the query's life, on the driver, and a second one for each batch, which it
pickles to the executors for ``read``.  Neither opens a connection before it needs one.
"""

# ruff: noqa: N802 -- Spark names these methods

from __future__ import annotations

import datetime as dt
import logging
import time
from functools import cached_property
from typing import Any, Final, NoReturn

from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from dafka_core.errors import ConfigError, DafkaError, StoreUnreachableError
from dafka_core.model.records import TopicPartition
from dafka_core.queries.source_offset import SourceOffset
from dafka_spark.cluster import connections, timing
from dafka_spark.cluster.timing import Deadline
from dafka_spark.option_types import AT_LATEST
from dafka_spark.options import MESH, SourceOptions
from dafka_spark.source.data_loss import RegressionDetector
from dafka_spark.source.offset_ranges import DafkaInputPartition, OffsetRange, plan_tasks
from dafka_spark.source.offset_reader import (
    Heads,
    OffsetReader,
    OffsetsSnapshot,
    RequestedTime,
    Resolved,
)
from dafka_spark.source.partition_reader import RangeReader
from dafka_spark.source.progress_publisher import ProgressPublisher, ReportedLag, described
from dafka_spark.source.read_limit import BatchLimit, Sizes, Waiting
from dafka_spark.tracebacks import hide_frames

SPARK_POLLING_S: Final = 0.01
"""Spark's sleep between two questions (default of ``spark.sql.streaming.pollingDelay``)."""

POLLING_GAP_S: Final = 0.03
"""The longest gap between two questions while Spark does nothing else.  A longer one is due to
other sources, which wait as well, or to a short trigger interval: then the wait stays short."""

SHORT_S, LONG_S, SHARE = 0.05, 0.25, 0.05
"""The first and the longest wait, and the wait as a share of the time without new records.  Four
questions a second cost little, and delay the query's other sources by at most 0.25 s."""

PAUSE_S: Final = 0.5
"""A gap of a query with a trigger interval, which never waits."""

MARGIN_US: Final = 60_000_000
"""The tolerance for clocks that differ (docs/guarantees.md): records of later partitions that are
older than the query's start by less are read, too."""

_log = logging.getLogger("dafka_spark")


class IdleWait:
    """The wait for new records before an idle query answers Spark.

    Without a trigger interval Spark asks again after 10 ms.  A later answer saves work in all
    processes, and delays the query's other sources.
    """

    def __init__(self) -> None:
        self._idle_since: float | None = None
        self._answered_at = 0.0

    def answered(self, *, idle: bool) -> None:
        """Note an answer: no new records, or some."""
        self._answered_at = time.monotonic()
        if not idle:
            self._idle_since = None
        elif self._idle_since is None:
            self._idle_since = self._answered_at

    def allowed_s(self) -> float:
        """Return how long the question that has just come may wait."""
        now = time.monotonic()
        gap_s = now - self._answered_at
        if self._idle_since is None or gap_s > PAUSE_S:
            self._idle_since = None
            return 0.0
        if gap_s > POLLING_GAP_S:
            return SHORT_S
        return min(max(SHARE * (now - self._idle_since), SHORT_S), LONG_S)


class LaterPartitions:
    """Finds where a query that starts at ``latest`` or a time begins in partitions of later.

    A partition may be new: the query reads it from its first record on.  Or it has a history, and
    its store was unreachable.  The store finds the first record since then by its own clock.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._timeout_s = options.fetch_timeout_s
        self._unanswered: dict[TopicPartition, Deadline] = {}

    def starts(
        self, begun_us: int, later: Heads, snapshot: OffsetsSnapshot, reader: OffsetReader
    ) -> dict[TopicPartition, int]:
        """Return the first offsets of these partitions, without those that no store answers for.

        ``begun_us`` is the start time of the query, in microseconds since the epoch UTC.
        """
        # The driver's clock may be wrong by hours: each store subtracts from its own.
        ago = RequestedTime(time.time_ns() // 1_000 - begun_us + MARGIN_US, is_ago=True)
        times = dict.fromkeys(later, ago)
        answers = reader.offsets_for_times(times, snapshot._replace(heads=later))
        for error in {each for tp, each in answers.failures.items() if tp not in self._unanswered}:
            _log.warning("%s", error)
        found: dict[TopicPartition, int] = {}
        for tp, info in later.items():
            if tp in answers.found:
                offset = answers.found[tp]
                found[tp] = info.end if offset is None else offset
                if found[tp] > info.earliest:
                    begun = dt.datetime.fromtimestamp(begun_us // 1_000_000, dt.UTC).isoformat()
                    count, ends = found[tp] - info.earliest, (info.earliest, found[tp])
                    _log.warning(_LEFT_OUT, tp, begun, count, *ends)
                continue
            deadline = self._unanswered.setdefault(tp, Deadline(self._timeout_s))
            if tp not in snapshot.holders or deadline.is_over:
                # C stores keep no timestamps: a record too many is better than one too few.
                found[tp] = info.earliest
                _log.warning(_NOT_LEFT_OUT, tp, info.earliest)
        for tp in found:
            self._unanswered.pop(tp, None)
        return found


_LEFT_OUT: Final = (
    "%s appeared after the query's start, %s: %d older records are left out, offsets "
    "%d to %d (exclusive)"
)
_NOT_LEFT_OUT: Final = (
    "%s appeared after the query's start, and no store can find which of its records are "
    "older: the query reads it from offset %d on"
)


class DafkaMicroBatchStream(RangeReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows the selected partitions; later ones are read from their first record on.

    After a start at ``latest`` or a time, a later partition is read from that time on
    (``LaterPartitions``).
    """

    def __init__(
        self,
        schema: StructType,
        options: SourceOptions,
        connect: connections.Connect = connections.borrow_reader_for_query,
    ) -> None:
        super().__init__(schema, options, connect)
        self._frozen: Heads | None = None
        self._snapshot: OffsetsSnapshot | None = None
        self._snapshot_at = 0.0
        self._parsed: tuple[dict[str, Any], SourceOffset] = {}, SourceOffset({})
        self._idle = IdleWait()
        self._limit = BatchLimit(options)
        self._finished: tuple[dict[str, Any] | None, Heads] = None, {}
        """The offset without new records at the last trigger, and the heads at that time."""
        self._read: dict[TopicPartition, int] = {}
        """The positions at the end of the batch that was planned last."""
        self._lag = ReportedLag()
        self._report: dict[str, Any] | None = None
        self._regressions = RegressionDetector(options)
        self._later_partitions = LaterPartitions(options)
        self._start_error: ConfigError | None = None
        self._is_begun = False

    # Neither the connections nor the threads of these can be pickled.
    @cached_property
    def _offsets(self) -> OffsetReader:
        return OffsetReader(self._options, self._connect)

    @cached_property
    def _progress(self) -> ProgressPublisher:
        return ProgressPublisher(self._options, self._connect)

    @hide_frames
    def initialOffset(self) -> dict[str, Any]:
        """Return the start of a query without a checkpoint (``startingOffsets``).

        Spark calls this again when it repeats a first batch, and ignores the result: the end of
        that batch holds its start.  So ``latestOffset``, which Spark does not call in that case,
        raises the error for ``startingOffsets`` beyond the end of a partition, which may look
        shorter now.

        Raises:
            ArchiveError: option ``archive`` is not an archive, or it is damaged.
            ConfigError: no store can do what option ``fetch`` demands.
        """
        bound, begun_us = self._options.starting(AT_LATEST), time.time_ns() // 1_000
        heads = self._heads(thorough=True)
        assert self._snapshot is not None
        start, self._start_error = Resolved({}), None
        try:
            start = self._offsets.resolve(bound, self._snapshot._replace(heads=heads), begun_us)
        except ConfigError as error:
            self._start_error = error
        return self._as_json(SourceOffset.initial(start.offsets, start.since_us))

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return one of the limits; ``BatchLimit`` applies each of them."""
        return self._limit.default

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the partitions and their ends: the query reads up to them and stops."""
        self._frozen = self._refresh(thorough=True)

    @hide_frames
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end of the next batch; ``start`` itself without new records.

        Called again without new records, it first waits until a store has some (``IdleWait``).

        Raises:
            ConfigError: the checkpoint cannot be read, ``startingOffsets`` is beyond the end of a
                partition, or no store has a named partition.
            TypeError: the limit has a type that ``getDefaultReadLimit`` never returns.
            SourceLossError: for ``fetchTimeoutMs`` no store has had a partition, or it has ended
                before the query's position, and option ``failOnDataLoss`` is true.
        """
        heads, (finished, known) = None, self._finished
        if start == finished and self._frozen is None:
            heads = self._next_heads(known)
            if heads is known and not self._limit.is_due:
                self._regressions.begin_trigger()
                self._idle.answered(idle=True)
                return start
        end = self._end(start, heads, limit)
        self._idle.answered(idle=end is start)
        self._progress.moved(start, is_last=end is start and self._frozen is not None)
        return end

    @hide_frames
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[DafkaInputPartition]:
        """Return the tasks of a batch; none if it is empty.

        The start of a partition that ``end`` holds overrides ``start``, which is a new result of
        ``initialOffset`` when Spark repeats a first batch.  The two offsets and the options alone
        decide which task reads which range (``plan_tasks``).

        Raises:
            ConfigError: the checkpoint cannot be read, or the batch would go backwards.
        """
        if start == end:
            return []
        ranges = [
            OffsetRange(*each[:4], life=each.life, after=each.after)
            for each in self._parse(end).since(self._parse(start))
            if each.start < each.end
        ]
        # ``availableNow`` takes no snapshots, but stores come and go meanwhile.
        is_old = time.monotonic() - self._snapshot_at > timing.SNAPSHOT_MAX_AGE_S
        needs_stores = self._options.fetch != MESH or self._options.archive
        if needs_stores and (self._snapshot is None or is_old):
            self._refresh()
        found = self._snapshot or OffsetsSnapshot({})
        return plan_tasks(ranges, found.holders, self._options, archived=found.archived)

    def commit(self, end: dict[str, Any]) -> None:
        """Publish the end of a finished batch; Spark calls this when it plans the next one."""
        self._progress.moved(end)

    def stop(self) -> None:
        """End the threads of the query."""
        self._progress.close()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the ends of all partitions and the lag, for Spark's progress report.

        Many partitions are summed up.
        """
        heads = self._snapshot.heads if self._snapshot else {}
        if self._report is None and heads:
            ends = {tp: max(info.end, self._read.get(tp, 0)) for tp, info in heads.items()}
            waiting = {tp: end - self._read.get(tp, end) for tp, end in ends.items()}
            report = SourceOffset({**self._read, **ends}).report()
            lag = self._lag.of(waiting, self._sizes)
            self._report = {**report, "lag": lag, "source": described(self._options)}
        return self._report

    def _sizes(self, waiting: Waiting) -> Sizes:
        assert self._snapshot is not None
        return self._limit.sizes(waiting, self._read, self._snapshot.holders)

    # -- the end of a batch ------------------------------------------------------------------------

    def _end(self, start: dict[str, Any], known: Heads | None, limit: ReadLimit) -> dict[str, Any]:
        begin = self._parse(start)
        heads = self._trusted_heads(begin, self._heads() if known is None else known)
        if not self._is_begun:
            self._begin(begin, heads)
        assert self._snapshot is not None
        self._finished = None, {}
        later, heads = self._later(begin, heads)
        firsts = {tp: begin.positions.get(tp, info.earliest) for tp, info in heads.items()} | later
        if not self._options.fail_on_data_loss:
            # Otherwise the task that reads trimmed records asks every store, and fails then.
            firsts = {tp: max(first, heads[tp].earliest) for tp, first in firsts.items()}
        waiting = {tp: count for tp, info in heads.items() if (count := info.end - firsts[tp]) > 0}
        taken: dict[TopicPartition, int] = {}
        if self._frozen is not None or not self._limit.is_delayed(limit, waiting):
            turn, holders = sum(begin.positions.values()), self._snapshot.holders
            taken = self._limit.taken(limit, waiting, firsts, holders, turn=turn)
        ends = {tp: firsts[tp] + count for tp, count in taken.items()}
        self._read = {**begin.positions, **firsts, **ends}
        self._report = None
        if not taken and not later:
            # While a partition looks shorter than it was, each trigger takes a new snapshot.
            if heads is self._snapshot.heads:
                self._finished = start, heads
            return start
        # A partition of which nothing is taken keeps its start from now on, too.
        moved = {tp: firsts[tp] for tp in taken if firsts[tp] != begin.positions.get(tp)}
        offset = SourceOffset(
            {**begin.positions, **later, **ends},
            {**(begin.start if begin.is_initial else {}), **later, **moved},
            {**begin.lives, **{tp: heads[tp].life for tp in taken}},
            begun_us=begin.begun_us,
        )
        return self._as_json(offset)

    def _begin(self, begin: SourceOffset, heads: Heads) -> None:
        """Compare the options with the stores and the checkpoint before anything is read."""
        held = {*heads, *begin.positions}  # the store of a checkpointed partition may be away
        self._offsets.check_stores()
        self._offsets.warn_of_unselected(begin.positions)
        if self._frozen is not None or self._options.assign:
            self._offsets.check_found(held)
        self._offsets.warn_of_missing(held)
        if self._start_error is not None and not begin.positions:
            raise self._start_error
        self._is_begun = True

    def _later(self, begin: SourceOffset, heads: Heads) -> tuple[dict[TopicPartition, int], Heads]:
        """Return the starts of partitions that a query from ``latest`` finds later, and the heads.

        The heads are without partitions that no store answers for yet.
        """
        if begin.begun_us is None or not (unknown := heads.keys() - begin.positions.keys()):
            return {}, heads
        assert self._snapshot is not None
        found = {tp: heads[tp] for tp in sorted(unknown)}
        starts = self._later_partitions.starts(begin.begun_us, found, self._snapshot, self._offsets)
        waiting = unknown - starts.keys()
        return starts, {tp: heads[tp] for tp in heads if tp not in waiting} if waiting else heads

    def _trusted_heads(self, begin: SourceOffset, heads: Heads) -> Heads:
        """Return the heads without partitions that look shorter than they were, for now.

        A query with frozen ends, or with rare triggers, waits for them.
        """
        self._regressions.begin_trigger()
        while waiting := self._regressions.check(begin.positions, heads):
            others = {tp: heads[tp] for tp in heads if tp not in waiting}
            if self._frozen is None and not self._regressions.is_slow:
                return others  # the next trigger takes a new snapshot
            time.sleep(timing.POLL_INTERVAL_S)
            found = self._refresh()
            # The others keep their ends, which may be frozen.
            heads = others | {tp: found[tp] for tp in waiting if tp in found}
            if self._frozen is not None:
                self._frozen = heads
        return heads

    # The offset that Spark hands back is nearly always the last one, so it is parsed once.
    def _as_json(self, offset: SourceOffset) -> dict[str, Any]:
        self._parsed = offset.as_json(), offset
        return self._parsed[0]

    def _parse(self, given: dict[str, Any]) -> SourceOffset:
        tree, offset = self._parsed
        return offset if given == tree else SourceOffset.parse(given)

    # -- snapshots ---------------------------------------------------------------------------------

    def _heads(self, *, thorough: bool = False) -> Heads:
        return self._refresh(thorough=thorough) if self._frozen is None else self._frozen

    def _next_heads(self, known: Heads) -> Heads:
        """Wait for other heads than the known ones, for as long as ``IdleWait`` allows."""
        deadline = Deadline(self._idle.allowed_s())
        while True:
            # A store watch covers the stores with Flight, not those that only the mesh reaches.
            snapshot = self._snapshot
            if snapshot and snapshot.is_complete and not deadline.is_over:
                may_be_new = self._offsets.wait(snapshot, deadline.left_s)
                # A store sends a change within milliseconds: after a long wait without one, no
                # record from before the question is missed, as ``processAllAvailable`` demands.
                is_recent = time.monotonic() - self._snapshot_at < timing.IDLE_CHECK_S
                if not may_be_new and is_recent and deadline.timeout_s >= LONG_S:
                    return known
            heads = self._refresh()
            if heads is not known or deadline.is_over:
                return heads
            time.sleep(SPARK_POLLING_S)

    def _refresh(self, *, thorough: bool = False) -> Heads:
        """Take a snapshot, with retries until a store answers: stores may be starting."""
        # The first snapshot of a restarted query is thorough, too: the query then fails at once if
        # no store can do what option ``fetch`` demands.
        thorough = thorough or self._snapshot is None
        failure: StoreUnreachableError | None = None
        for _ in Deadline(self._options.fetch_timeout_s).attempts():
            try:
                snapshot = self._offsets.snapshot(thorough=thorough)
                break
            except StoreUnreachableError as error:
                failure = error
        else:
            assert failure is not None  # at least one attempt was made
            raise failure
        self._snapshot_at = time.monotonic()
        if snapshot is not self._snapshot:
            self._snapshot, self._report = snapshot, None
            self._regressions.add(snapshot)
        return snapshot.heads


class RefusedStream(DataSourceStreamReader):
    """The reader of a query with invalid options: each method raises the error."""

    def __init__(self, error: DafkaError) -> None:
        self._error = error

    @hide_frames
    def initialOffset(self, *given: Any, **named: Any) -> NoReturn:
        """Raise the error."""
        raise self._error

    latestOffset = partitions = read = initialOffset  # noqa: N815
