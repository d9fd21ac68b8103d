"""The reader of streaming queries: initial offset, limits and end of each batch, its tasks.

Spark makes one for the query's life, on the driver, and a second one for each batch, which it
pickles to the executors for ``read``.  Neither opens a connection before it needs one.
"""

# ruff: noqa: N802 -- Spark names these methods

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, Final, NoReturn

from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from dafka_core.errors import ConfigError, DafkaError, StoreUnreachableError
from dafka_core.model.epochs import MAX_END, NO_LIFE
from dafka_core.model.positions import AGO, AT_LATEST, Position
from dafka_core.model.records import TopicPartition
from dafka_core.queries.source_offset import SourceOffset
from dafka_spark.cluster import connections, timing
from dafka_spark.cluster.timing import Deadline
from dafka_spark.option_types import UNLIMITED_BYTES
from dafka_spark.options import MESH, SourceOptions
from dafka_spark.python_workers import hide_frames
from dafka_spark.source.data_loss import RegressionDetector
from dafka_spark.source.offset_ranges import (
    DafkaInputPartition,
    OffsetRange,
    Sizes,
    StoreRange,
    Waiting,
    plan_input_partitions,
    rate_limit,
)
from dafka_spark.source.offset_reader import Heads, OffsetReader, OffsetsSnapshot, Resolved
from dafka_spark.source.partition_reader import PartitionReader
from dafka_spark.source.progress_publisher import ProgressPublisher, ReportedLag, described

_log = logging.getLogger("dafka_spark")

# -- limits of batches -----------------------------------------------------------------------------

UNASKED_BYTES: Final = 1 << 20
"""If records of this size would all fit into the limit, no store is asked for their size: a small
batch costs no request."""

ASSUMED_BYTES: Final = 1_024  # the size of a record where no store knows it: C stores

_LIMITED_BY_DEFAULT: Final = (
    "the next micro-batch takes %d of the %d waiting records, later ones take the others: as "
    "neither maxBytesPerTrigger nor maxOffsetsPerTrigger is set, maxBytesPerTrigger is %d "
    "('unlimited' takes all)"
)


def records_within(limit_bytes: int, waiting: Waiting, sizes: Sizes) -> int:
    """Return how many records have that many bytes if each partition gives the same share.

    At least one.  Partitions without sizes have the mean of the others.  A pure function.
    """
    total = sum(waiting.values())
    sampled = {tp: sizes[tp] for tp in waiting if sizes.get(tp)}
    known = sum(waiting[tp] for tp in sampled) or 1
    parts = max(map(len, sampled.values()), default=1)
    taken, left = 0.0, float(limit_bytes)
    for part in range(parts):
        part_bytes = sum(
            waiting[tp] * each[part * len(each) // parts] for tp, each in sampled.items()
        )
        size = (part_bytes / known if sampled else ASSUMED_BYTES) * total / parts
        if size > left:
            taken += total * left / size / parts
            break
        taken, left = taken + total / parts, left - size
    # Sums of fractions may be a little below the number that they stand for.
    return max(min(math.floor(taken + 1e-6), total), 1)


class BatchLimit:
    """The records that the micro-batches of one query take."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._last_s = -math.inf
        self._is_delayed = False
        self._has_warned = False

    @property
    def default(self) -> ReadLimit:
        """The limit for Spark, which hands it back; ``taken`` applies the others as well."""
        rows, size = self._options.max_offsets_per_trigger, self._options.max_trigger_bytes
        if rows is not None:
            return ReadMaxRows(rows)
        if size == UNLIMITED_BYTES and self._options.min_offsets_per_trigger is None:
            return ReadAllAvailable()
        return ReadMaxBytes(size)

    def is_delayed(self, limit: ReadLimit, waiting: Waiting) -> bool:
        """Return whether the next batch waits for ``minOffsetsPerTrigger``."""
        least, total = self._options.min_offsets_per_trigger or 0, sum(waiting.values())
        is_limited = not isinstance(limit, ReadAllAvailable)
        self._is_delayed = is_limited and 0 < total < least and not self._is_time
        if total and not self._is_delayed:
            self._last_s = time.monotonic()
        return self._is_delayed

    @property
    def is_due(self) -> bool:
        """A delayed batch has waited for ``maxTriggerDelay``."""
        return self._is_delayed and self._is_time

    @property
    def _is_time(self) -> bool:
        return time.monotonic() - self._last_s >= self._options.max_trigger_delay / 1000

    def taken(
        self,
        limit: ReadLimit,
        waiting: Waiting,
        sizes: Callable[[Waiting], Sizes],
        *,
        turn: int,
    ) -> dict[TopicPartition, int]:
        """Return how many records to take of each partition; ``sizes`` asks for their sizes."""
        if isinstance(limit, ReadAllAvailable):
            return rate_limit(waiting, None)
        most = total = sum(waiting.values())
        size = self._options.max_trigger_bytes
        if isinstance(limit, ReadMaxRows):
            most = min(total, limit.max_rows)
        elif isinstance(limit, ReadMaxBytes):
            size = limit.max_bytes
        else:
            raise TypeError(f"a limit of {type(limit).__name__} is not one this source declared")
        if most * UNASKED_BYTES > size:
            within = records_within(size, waiting, sizes(waiting))
            if within < total and self._options.is_limited_by_default and not self._has_warned:
                self._has_warned = True
                _log.warning(_LIMITED_BY_DEFAULT, within, total, size)
            most = min(most, within)
        return rate_limit(waiting, most, turn=turn)


# -- the reader ------------------------------------------------------------------------------------

SPARK_POLLING_S: Final = 0.01
"""Spark's sleep between two triggers (default of ``spark.sql.streaming.pollingDelay``)."""

POLLING_GAP_S: Final = 0.03  # the longest gap between two triggers while Spark does nothing else
PAUSE_S: Final = 0.5  # the shortest gap that only a trigger interval explains

SHORT_S, LONG_S = 0.05, 0.25

MARGIN_US: Final = 60_000_000
"""The tolerance for clocks that differ (docs/guarantees.md): records of later partitions that are
older than the query's start by less are read, too."""

_LEFT_OUT: Final = (
    "%s appeared after the query's start: its older records, offsets %d to %d (exclusive), are "
    "left out"
)


def idle_wait_s(gap_s: float) -> float:
    """Return how long an idle query waits for records, ``gap_s`` after its previous answer.

    Without a trigger interval Spark asks again after 10 ms.  A later answer saves work in all
    processes, and delays the query's other sources; if these wait as well, the wait is short.
    """
    if gap_s > PAUSE_S:
        return 0.0
    return LONG_S if gap_s <= POLLING_GAP_S else SHORT_S


class DafkaMicroBatchStream(PartitionReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows the selected partitions; later ones are read from their first record on.

    After a start at ``latest`` or a time, a later partition is read from that time on.
    """

    def __init__(
        self,
        schema: StructType,
        options: SourceOptions,
        connect: connections.Connect = connections.borrow_reader_for_query,
    ) -> None:
        super().__init__(schema, options, connect)
        self._frozen: Heads | None = None
        self._snapshot = OffsetsSnapshot({})
        self._snapshot_at = -math.inf
        self._parsed: tuple[dict[str, Any], SourceOffset] = {}, SourceOffset({})
        self._limit = BatchLimit(options)
        self._finished: dict[str, Any] | None = None
        """The offset of the last trigger if the snapshot has no records behind it."""
        self._answered_at = -math.inf
        self._read: dict[TopicPartition, int] = {}
        """The positions at the end of the batch that was planned last."""
        self._lag = ReportedLag()
        self._report: dict[str, Any] | None = None
        self._regressions = RegressionDetector(options)
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

        Spark calls this again when it plans or repeats the first batch, and the end of that batch
        holds its start.  So ``latestOffset``, which Spark does not call before it repeats a batch,
        raises the error for ``startingOffsets`` beyond a partition's end: it may look shorter now.
        """
        bound, begun_us = self._options.starting(AT_LATEST), time.time_ns() // 1_000
        heads = self._refresh(thorough=True) if self._frozen is None else self._frozen
        start, self._start_error = Resolved({}), None
        try:
            start = self._offsets.resolve(bound, self._snapshot._replace(heads=heads), begun_us)
        except ConfigError as error:
            self._start_error = error
        return self._as_json(SourceOffset.initial(start.offsets, start.since_us))

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return one of the limits; ``BatchLimit`` applies each of them."""
        return self._limit.default

    @hide_frames
    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the partitions and their ends: the query reads up to them and stops."""
        self._frozen = self._refresh(thorough=True)

    @hide_frames
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end of the next batch; ``start`` itself without new records.

        Called again without new records, it first waits for some (``idle_wait_s``).
        """
        if self._frozen is not None:
            heads = self._frozen
        elif start != self._finished:
            heads = self._refresh()
        else:
            known = self._snapshot.heads
            heads = self._next_heads()
            if heads is known and not self._limit.is_due:
                self._regressions.begin_trigger()
                self._answered_at = time.monotonic()
                return start
        end = self._end(start, heads, limit)
        self._progress.moved(start, is_last=end is start and self._frozen is not None)
        self._answered_at = time.monotonic()
        return end

    @hide_frames
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[DafkaInputPartition]:
        """Return the tasks of a batch; none if it is empty.

        The start of a partition that ``end`` holds overrides ``start``, which is a new result of
        ``initialOffset`` when Spark repeats a first batch.  The two offsets and the options alone
        decide which task reads which range (``plan_input_partitions``).
        """
        if start == end:
            return []
        ranges = [
            OffsetRange(*each[:4], life=each.life, after=each.after)
            for each in self._parse(end).since(self._parse(start))
        ]
        # ``availableNow`` takes no snapshots, but stores come and go meanwhile.
        is_old = time.monotonic() - self._snapshot_at > timing.SNAPSHOT_MAX_AGE_S
        if is_old and (self._options.fetch != MESH or self._options.archive):
            self._refresh()
        found = self._snapshot

        def holders(tp: TopicPartition) -> Sequence[StoreRange]:
            if (held := found.holders(tp)) or self._options.selection.has(tp):
                return held
            # The options do not select it any more, but this batch was planned before.
            return [StoreRange(at, 0, MAX_END) for at in found.locations]

        return plan_input_partitions(ranges, holders, self._options, archived=found.archived)

    def commit(self, end: dict[str, Any]) -> None:
        """Publish the end of a finished batch; Spark calls this when it plans the next one."""
        self._progress.moved(end)

    def stop(self) -> None:
        """End the threads of the query."""
        self._progress.close()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the ends of all partitions, or their sum, and the lag, for Spark's progress."""
        heads = self._snapshot.heads
        if self._report is None and heads:
            ends = {tp: max(info.end, self._read.get(tp, 0)) for tp, info in heads.items()}
            waiting = {tp: end - self._read.get(tp, end) for tp, end in ends.items()}
            report = SourceOffset({**self._read, **ends}).report()
            lag = self._lag.of(waiting, self._sizes_from(self._read))
            self._report = {**report, "lag": lag, "source": described(self._options)}
        return self._report

    def _sizes_from(self, firsts: Mapping[TopicPartition, int]) -> Callable[[Waiting], Sizes]:
        return partial(self._offsets.record_sizes, firsts=firsts, snapshot=self._snapshot)

    def _end(self, start: dict[str, Any], heads: Heads, limit: ReadLimit) -> dict[str, Any]:
        begin = self._parse(start)
        heads = self._trusted_heads(begin, heads)
        if not self._is_begun:
            self._begin(begin, heads)
        self._finished = None
        later, heads = self._later(begin, heads)
        firsts = {tp: begin.positions.get(tp, info.earliest) for tp, info in heads.items()} | later
        if not self._options.fail_on_data_loss:
            # Otherwise the task that reads trimmed records asks every store, and fails then.
            firsts = {tp: max(first, heads[tp].earliest) for tp, first in firsts.items()}
        waiting = {tp: count for tp, info in heads.items() if (count := info.end - firsts[tp]) > 0}
        taken: dict[TopicPartition, int] = {}
        if self._frozen is not None or not self._limit.is_delayed(limit, waiting):
            turn, sizes = sum(begin.positions.values()), self._sizes_from(firsts)
            taken = self._limit.taken(limit, waiting, sizes, turn=turn)
        ends = {tp: firsts[tp] + count for tp, count in taken.items()}
        self._read = {**begin.positions, **firsts, **ends}
        self._report = None
        if not taken and not later:
            # While a partition looks shorter than it was, each trigger takes a new snapshot.
            if heads is self._snapshot.heads:
                self._finished = start
            return start
        # A partition of which nothing is taken keeps its start from now on, too.
        moved = {
            tp: firsts[tp]
            for tp in taken
            if firsts[tp] != begin.positions.get(tp)
            or heads[tp].life < begin.lives.get(tp, NO_LIFE)
        }
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
        waits = self._frozen is None and not self._options.assign
        self._offsets.check_found(held, waits=waits)
        if self._start_error is not None and not begin.positions:
            raise self._start_error
        if begin.is_initial:
            self._offsets.check_found(held, self._options.starting(AT_LATEST), waits=waits)
        self._is_begun = True

    def _later(self, begin: SourceOffset, heads: Heads) -> tuple[dict[TopicPartition, int], Heads]:
        """Return the starts of partitions that a query from ``latest`` finds later, and the heads.

        A partition may be new: the query reads it from its first record on.  Or it has a history,
        and its store was unreachable: the store finds the first record since the query's start.
        While it does not answer, the heads are without the partition.
        """
        unknown = sorted(heads.keys() - begin.positions.keys())
        if begin.begun_us is None or not unknown:
            return {}, heads
        later = {tp: heads[tp] for tp in unknown}
        # The driver's clock may be wrong by hours: each store subtracts from its own.
        elapsed_us = max(time.time_ns() // 1_000 - begin.begun_us, 0)  # it may be set back, too
        ago = Position(AGO, elapsed_us + MARGIN_US)
        snapshot = self._snapshot._replace(heads=later)
        answers = self._offsets.offsets_for_times(dict.fromkeys(later, ago), snapshot)
        failures = {tp: each for tp, each in answers.failures.items() if tp not in answers.found}
        for error in set(failures.values()):
            _log.warning("%s", error)
        starts: dict[TopicPartition, int] = {}
        for tp, info in later.items():
            if tp in answers.found:
                offset = answers.found[tp]
                starts[tp] = info.end if offset is None else offset
                if starts[tp] > info.earliest:
                    _log.warning(_LEFT_OUT, tp, info.earliest, starts[tp])
            elif tp not in failures:
                # C stores keep no timestamps: a record too many is better than one too few.
                starts[tp] = info.earliest
        return starts, {tp: heads[tp] for tp in heads if tp not in failures} if failures else heads

    def _trusted_heads(self, begin: SourceOffset, heads: Heads) -> Heads:
        """Return the heads without partitions that look shorter than they were, for now.

        A query with frozen ends, or with rare triggers, waits for them.
        """
        self._regressions.begin_trigger()
        while waiting := self._regressions.check(begin, heads):
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

    def _next_heads(self) -> Heads:
        """Wait for a snapshot that differs from the last one, at most for ``idle_wait_s``."""
        known = self._snapshot
        deadline = Deadline(idle_wait_s(time.monotonic() - self._answered_at))
        while True:
            # A store watch covers the stores with Flight, not those that only the mesh reaches.
            if known.is_complete and not deadline.is_over:
                may_be_new = self._offsets.wait(known, deadline.left_s)
                # A store sends a change within milliseconds: after a long wait without one, no
                # record from before the question is missed, as ``processAllAvailable`` demands.
                is_recent = time.monotonic() - self._snapshot_at < timing.IDLE_CHECK_S
                if not may_be_new and is_recent and deadline.timeout_s >= LONG_S:
                    return known.heads
            heads = self._refresh()
            if heads is not known.heads or deadline.is_over:
                return heads
            time.sleep(SPARK_POLLING_S)

    def _refresh(self, *, thorough: bool = False) -> Heads:
        """Take a snapshot, with retries until a store answers: stores may be starting."""
        # The first snapshot of a restarted query is thorough, too: the query then fails at once if
        # no store can do what option ``fetch`` demands.
        thorough = thorough or self._snapshot_at == -math.inf
        deadline = Deadline(self._options.fetch_timeout_s)
        while True:
            try:
                snapshot = self._offsets.snapshot(thorough=thorough)
                break
            except StoreUnreachableError:
                if deadline.is_over:
                    raise
                deadline.pause()
        self._snapshot_at = time.monotonic()
        if snapshot is not self._snapshot:
            self._snapshot, self._report, self._finished = snapshot, None, None
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
