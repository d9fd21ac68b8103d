"""The reader of streaming queries: ends of batches, plans, and waits for news.

Spark makes one for the query's life, on the driver, for offsets and plans, and another one for
each batch, which it copies to the executors, for ``read``.  Neither connects before it must.
"""

from __future__ import annotations

import datetime as dt
import logging
import time
from collections.abc import Mapping
from functools import cached_property
from typing import Any, Final, NoReturn

from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from dafka_core.errors import ConfigError, DafkaError, StoreUnreachableError
from dafka_core.model.records import PartitionInfo, TopicPartition
from dafka_core.queries.source_offset import SourceOffset
from dafka_spark.cluster import connections, timing
from dafka_spark.cluster.timing import Deadline
from dafka_spark.option_types import AT_LATEST
from dafka_spark.options import MESH, SourceOptions
from dafka_spark.source.data_loss import RegressionDetector
from dafka_spark.source.offset_ranges import (
    NOT_ARCHIVED,
    Archived,
    Holders,
    OffsetRange,
    Task,
    plan_tasks,
)
from dafka_spark.source.offset_reader import (
    ArchiveLook,
    AskedTime,
    Heads,
    OffsetsSnapshot,
    Resolved,
    StoreWatch,
    check_stores,
    fetch_latest_offsets,
    offsets_of_times,
    resolved,
    wait_or_fail,
)
from dafka_spark.source.partition_reader import RangeReader
from dafka_spark.source.progress_publisher import ProgressPublisher, ReportedLag, described
from dafka_spark.source.read_limit import BatchLimit, Sizes, Waiting
from dafka_spark.tracebacks import hide_frames

# How long a query that has nothing to do may wait for news before it answers Spark.
#
# Without a trigger interval Spark asks for the latest offset, sleeps for 10 ms if it is the one
# before, and asks again.  An answer that comes later saves all processes work, and delays whatever
# else the query has to do: its other sources, and its end in some cases.


SPARK_POLLING_S: Final = 0.01
"""How long Spark sleeps unless it is told otherwise (``spark.sql.streaming.pollingDelay``)."""

POLLING_GAP_S: Final = 0.03
"""What passes between two questions at most while Spark does nothing else.  After more there are
other sources, which wait as well, or a short trigger interval: then nobody waits for long."""

SHORT_S: Final = 0.05
"""How long to wait at first."""

LONG_S: Final = 0.25
"""The longest wait: four questions a second cost little.  A query's other sources, if they do not
wait, are asked so late at worst when nothing has come for seconds."""

SHARE: Final = 0.05
"""Of the time for which nothing has come: who was idle for long may wait for longer."""

PAUSE_S: Final = 0.5
"""A query that asks so seldom has a trigger interval, and is never kept waiting."""


class IdleWait:
    """One query's questions, and whether there was something new."""

    def __init__(self) -> None:
        self._idle_since: float | None = None
        self._answered_at = 0.0

    def answered(self, *, idle: bool) -> None:
        """Notes an answer: that there is nothing new, or something."""
        self._answered_at = time.monotonic()
        if not idle:
            self._idle_since = None
        elif self._idle_since is None:
            self._idle_since = self._answered_at

    def allowed_s(self) -> float:
        """How long the question that has just come may wait."""
        now = time.monotonic()
        gap_s = now - self._answered_at
        if self._idle_since is None or gap_s > PAUSE_S:
            self._idle_since = None
            return 0.0
        if gap_s > POLLING_GAP_S:
            return SHORT_S
        return min(max(SHARE * (now - self._idle_since), SHORT_S), LONG_S)


# Where a query that began at ``latest`` begins in partitions that it finds later.
#
# Such a partition may be new, and then all of it was written since the query began. Or it has a
# history, and the store that has it was away: the query asked for no history. The timestamps of
# its records tell (docs/guarantees.md), so a store that has the partition is asked for the first
# record since then, by its own clock: the driver's may differ from all others'.


MARGIN_US: Final = 60_000_000
"""How much older than the query's beginning a record may be that is read: clocks of producers and
stores that differ by a minute lose none (docs/guarantees.md)."""

_log = logging.getLogger("dafka_spark")


class LaterPartitions:
    """Finds the first offset of each partition that a query which began at ``latest`` reads."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._unanswered: dict[TopicPartition, Deadline] = {}

    def starts(
        self, begun_us: int, later: Mapping[TopicPartition, PartitionInfo], holders: Holders
    ) -> dict[TopicPartition, int]:
        """The first offsets of these partitions; of some there is none yet, as no store answers.

        ``begun_us`` is when the query began, in microseconds since the epoch UTC.
        """
        found = self._ask(begun_us - MARGIN_US, later, holders)
        for tp, info in later.items():
            if tp in found:
                self._unanswered.pop(tp, None)
                self._warn(begun_us, info, found[tp])
            elif tp not in holders or self._is_over(tp):
                # C stores know no timestamps.  To have too much is better than to lack something.
                found[tp] = info.earliest
                self._unanswered.pop(tp, None)
                _log.warning(
                    "%s appeared after the query began at 'latest', and no store can tell which of "
                    "its records are older: it is read from offset %d on",
                    tp,
                    info.earliest,
                )
        return found

    def _ask(
        self, since_us: int, later: Mapping[TopicPartition, PartitionInfo], holders: Holders
    ) -> dict[TopicPartition, int]:
        # The driver's clock may be wrong by hours: each store goes back from its own.
        ago = AskedTime(time.time_ns() // 1_000 - since_us, is_ago=True)
        timeout_s = min(self._options.fetch_timeout_s, timing.ANSWER_S)
        asked = dict.fromkeys(later, ago)
        answers = offsets_of_times(asked, later, holders, timeout_s, keys=self._options.keys)
        known = {id(answers.failures[tp]) for tp in answers.failures if tp in self._unanswered}
        for error in {id(each): each for each in answers.failures.values()}.values():
            _log.log(logging.DEBUG if id(error) in known else logging.WARNING, "%s", error)
        return {
            tp: later[tp].end if offset is None else offset for tp, offset in answers.found.items()
        }

    def _is_over(self, tp: TopicPartition) -> bool:
        """Whether a partition's stores have not answered for ``fetchTimeoutMs``."""
        deadline = self._unanswered.setdefault(tp, Deadline(self._options.fetch_timeout_s))
        return deadline.is_over

    def _warn(self, begun_us: int, info: PartitionInfo, first: int) -> None:
        if first == info.earliest:
            return
        begun = dt.datetime.fromtimestamp(begun_us // 1_000_000, dt.UTC).isoformat()
        _log.warning(
            "%s appeared after the query began at 'latest', at %s: %d records that were written "
            "before are left out, offsets %d to %d (exclusive)",
            info.tp,
            begun,
            first - info.earliest,
            info.earliest,
            first,
        )


# ruff: noqa: N802, N815 -- Spark names these methods


class DafkaMicroBatchStream(RangeReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows the selected partitions; new ones are read from their first record on.

    A query that began at ``latest`` reads of them what was written since (``later_partitions``).
    """

    def __init__(
        self,
        schema: StructType,
        options: SourceOptions,
        connect: connections.Connect = connections.lend_kept,
    ) -> None:
        super().__init__(schema, options, connect)
        self._frozen: Heads | None = None
        self._snapshot: OffsetsSnapshot | None = None
        self._snapshot_at = 0.0
        self._idle = IdleWait()
        self._limit = BatchLimit(options)
        self._finished: tuple[dict[str, Any] | None, Heads] = None, {}
        """Where there was nothing new at the last trigger, and what there was."""
        self._furthest: dict[TopicPartition, int] = {}
        self._read: dict[TopicPartition, int] = {}
        """How far each partition is read when the batch that was asked for last is done."""
        self._lag = ReportedLag()
        self._report: dict[str, Any] | None = None
        self._regressions = RegressionDetector(options)
        self._later_partitions = LaterPartitions(options)
        self._refused: ConfigError | None = None
        self._is_begun = False

    @hide_frames
    def initialOffset(self) -> dict[str, Any]:
        """Where a query without a checkpoint starts (``startingOffsets``).

        Spark asks again when it repeats a first batch, and then the answer does not matter: that
        batch's end says where it began.  ``startingOffsets`` beyond the end of a partition, which
        may only look shorter now, is therefore an error of ``latestOffset``, which Spark does not
        call then.

        Raises:
            ArchiveError: option ``archive`` names what is no archive, or is damaged.
            ConfigError: option ``fetch`` asks for what no store offers.
        """
        bound, begun_us = self._options.starting(AT_LATEST), time.time_ns() // 1_000
        heads = self._heads(thorough=True)
        assert self._snapshot is not None
        snapshot = self._snapshot._replace(heads=heads)
        self._refused = None
        try:
            start = resolved(bound, snapshot, self._options.fetch_timeout_s, begun_us)
        except ConfigError as error:
            self._refused, start = error, Resolved({})
        return SourceOffset.initial(start.offsets, start.since_us).as_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        """``maxOffsetsPerTrigger`` or ``maxBytesPerTrigger``; both hold (``BatchLimit``)."""
        return self._limit.default

    def prepareForTriggerAvailableNow(self) -> None:
        """Fixes the partitions and their ends: the query reads up to there and stops."""
        self._frozen = self._look(thorough=True)

    @hide_frames
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Where the next batch ends; ``start`` itself, unchanged, when there is nothing new.

        Asked again where there was nothing new, it waits for a while until a store says that there
        is (``IdleWait``).

        Raises:
            ConfigError: the checkpoint cannot be read, ``startingOffsets`` lies beyond the end of
                a partition, or no store has what is named (``latest_offsets``).
            TypeError: the limit is none that ``getDefaultReadLimit`` says.
            SourceLossError: for ``fetchTimeoutMs`` no store has known a partition, or it has ended
                before what was read of it, and option ``failOnDataLoss`` is true.
        """
        heads, (finished, known) = None, self._finished
        if start == finished and self._frozen is None:
            heads = self._news(known)
            if heads is known and not self._limit.is_due:
                self._regressions.begin_trigger()
                self._idle.answered(idle=True)
                return start
        end = self._end(start, heads, limit)
        self._idle.answered(idle=end is start)
        self._progress.moved(start, is_last=end is start and self._frozen is not None)
        return end

    def commit(self, end: dict[str, Any]) -> None:
        """Spark has done a batch, and says so when it plans the next one."""
        self._progress.moved(end)

    def stop(self) -> None:
        """Ends what goes on beside the query."""
        self._progress.close()

    @cached_property  # it does not travel
    def _progress(self) -> ProgressPublisher:
        return ProgressPublisher(self._options, self._connect)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """For the progress report: the furthest end seen of each partition, and the query's lag.

        Many partitions are summed up.
        """
        if self._report is None and self._furthest:
            report = SourceOffset(dict(self._furthest)).report()
            waiting = {
                tp: max(end - self._read.get(tp, end), 0) for tp, end in self._furthest.items()
            }
            lag = self._lag.of(waiting, self._sizes)
            self._report = {**report, "lag": lag, "source": described(self._options)}
        return self._report

    def _sizes(self, waiting: Waiting) -> Sizes:
        return self._limit.sizes(waiting, self._read, self._held)

    @hide_frames
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[Task]:
        """The tasks of a batch; none when it is empty.

        Where ``end`` says where the batch began, that counts and not ``start``, which is a new
        answer of ``initialOffset`` when Spark repeats a first batch.  Nothing else decides which
        tasks there are, nor which one reads what (``plan_tasks``).

        Raises:
            ConfigError: the checkpoint cannot be read, or the batch would go backwards.
        """
        if start == end:
            return []
        offset = SourceOffset.parse(end)
        ranges = [
            OffsetRange(*each[:4], life=each.life, after=each.after)
            for each in offset.since(SourceOffset.parse(start))
        ]
        return plan_tasks(ranges, self._holders(), self._options, archived=self._archived())

    def _begin(self, begin: SourceOffset, heads: Heads) -> None:
        """Sees, before anything is read, whether there is what the options name."""
        check_stores(self._options, self._connect)
        held = {*heads, *begin.positions}  # what was read before may only be away
        wait_or_fail(self._options, held, self._connect, ends=self._frozen is not None)
        if self._refused is not None and not begin.positions:
            raise self._refused
        self._is_begun = True

    def _end(self, start: dict[str, Any], known: Heads | None, limit: ReadLimit) -> dict[str, Any]:
        begin = SourceOffset.parse(start)
        heads = self._trusted_heads(begin, self._heads() if known is None else known)
        if not self._is_begun:
            self._begin(begin, heads)
        self._finished = None, {}
        later, heads = self._later(begin, heads)
        firsts = {tp: self._first(tp, begin, info) for tp, info in heads.items()} | later
        waiting = {tp: info.end - firsts[tp] for tp, info in heads.items()}
        taken: dict[TopicPartition, int] = {}
        if self._frozen is not None or not self._limit.is_delayed(limit, waiting):
            turn, holders = sum(begin.positions.values()), self._held
            taken = self._limit.taken(limit, waiting, firsts, holders, turn=turn)
        # What is read is where it began, and what this batch takes.
        self._read = {tp: firsts[tp] + taken.get(tp, 0) for tp in firsts}
        self._report = None
        if not taken and not later:
            # Not while some partitions look shorter than they were: then each trigger looks again.
            if self._snapshot is not None and heads is self._snapshot.heads:
                self._finished = start, heads
            return start
        # Also of partitions of which nothing is taken: where they begin does not change any more.
        positions, lives = {**begin.positions, **later}, dict(begin.lives)
        started = {**begin.start, **later} if begin.is_initial else dict(later)
        for tp, count in taken.items():
            positions[tp] = firsts[tp] + count
            lives[tp] = heads[tp].life
            if firsts[tp] != begin.positions.get(tp):
                started[tp] = firsts[tp]
        return SourceOffset(positions, started, lives, begun_us=begin.begun_us).as_json()

    def _later(self, begin: SourceOffset, heads: Heads) -> tuple[dict[TopicPartition, int], Heads]:
        """Where to begin in partitions that a query from ``latest`` has not known, and the heads.

        Those are without the partitions of which no store says it yet.
        """
        unknown = {tp: info for tp, info in heads.items() if tp not in begin.positions}
        if begin.begun_us is None or not unknown:
            return {}, heads
        starts = self._later_partitions.starts(begin.begun_us, unknown, self._held)
        if len(starts) < len(unknown):
            heads = {tp: heads[tp] for tp in heads if tp in starts or tp not in unknown}
        return starts, heads

    def _heads(self, *, thorough: bool = False) -> Heads:
        return self._look(thorough=thorough) if self._frozen is None else self._frozen

    def _news(self, known: Heads) -> Heads:
        deadline = Deadline(self._idle.allowed_s())
        while True:
            # Where the mesh had to be asked, too, nobody tells when something changes.
            stores = [location for location, _ in self._snapshot.answers] if self._snapshot else []
            if stores and not deadline.is_over:
                may_be_new = self._watch.wait(stores, deadline.left_s)
                if not may_be_new and self._trusts_watch(deadline):
                    return known
            heads = self._look()
            if heads is not known or deadline.is_over:
                return heads
            time.sleep(SPARK_POLLING_S)

    def _trusts_watch(self, deadline: Deadline) -> bool:
        """Whether to believe that there is nothing new without a look.

        A store tells of a record within milliseconds.  Who waits for long would have heard of one
        that was there before the question, as ``processAllAvailable`` expects.
        """
        looked_s = time.monotonic() - self._snapshot_at
        return deadline.timeout_s >= LONG_S and looked_s < timing.LOOK_S

    @cached_property  # it does not travel
    def _watch(self) -> StoreWatch:
        return StoreWatch(self._options.selection, self._options.keys)

    def _look(self, *, thorough: bool = False) -> Heads:
        # The first look is thorough also if the query goes on from its checkpoint: it fails at
        # once where option fetch asks for what no store offers.
        thorough = thorough or self._snapshot is None
        before = self._snapshot
        snapshot = self._snapshot = self._patient_look(thorough=thorough)
        self._snapshot_at = time.monotonic()
        if snapshot is before:
            return snapshot.heads
        self._report = None
        self._regressions.take(snapshot)
        for tp, info in snapshot.heads.items():
            self._furthest[tp] = max(info.end, self._furthest.get(tp, 0))
        return snapshot.heads

    def _patient_look(self, *, thorough: bool) -> OffsetsSnapshot:
        """Asks the stores until one answers: they may be starting."""
        lost: StoreUnreachableError | None = None
        for _ in Deadline(self._options.fetch_timeout_s).attempts():
            try:
                self._watch.begin_look()
                found = fetch_latest_offsets(
                    self._options,
                    self._connect,
                    thorough=thorough,
                    watch=self._watch,
                    before=self._snapshot,
                )
                is_new = self._options.archive and found is not self._snapshot
                return self._archive.added_to(found) if is_new else found
            except StoreUnreachableError as error:
                lost = error
        assert lost is not None  # there is one attempt at least
        raise lost

    @property
    def _held(self) -> Holders:
        return self._snapshot.holders if self._snapshot is not None else {}

    def _holders(self) -> Holders:
        """The stores and what they have, as it was at the last look if that is not too old."""
        if self._options.fetch == MESH:
            return {}
        if self._snapshot is None or time.monotonic() - self._snapshot_at > timing.RANGES_S:
            self._look()
        assert self._snapshot is not None
        return self._snapshot.holders

    def _archived(self) -> Archived:
        if self._options.archive and self._snapshot is None:
            self._look()
        return self._snapshot.archived if self._snapshot is not None else NOT_ARCHIVED

    @cached_property  # it does not travel
    def _archive(self) -> ArchiveLook:
        return ArchiveLook(self._options)

    def _first(self, tp: TopicPartition, begin: SourceOffset, info: PartitionInfo) -> int:
        position = begin.positions.get(tp, info.earliest)
        # The task that reads lost records asks every store, and fails then.
        return position if self._options.fail_on_data_loss else max(position, info.earliest)

    def _trusted_heads(self, begin: SourceOffset, heads: Heads) -> Heads:
        """These heads, without partitions that look shorter than they were and may not remain so.

        A query waits for these here if it reads only what there is now, or looks seldom.
        """
        self._regressions.begin_trigger()
        while waiting := self._regressions.check(begin.positions, heads):
            if self._frozen is None and not self._regressions.is_slow:
                # The next trigger looks again.
                return {tp: heads[tp] for tp in heads if tp not in waiting}
            time.sleep(timing.LOOK_AGAIN_S)
            found = self._look()
            # The others keep the ends that they had, which may be frozen.
            heads = {tp: heads[tp] for tp in heads if tp not in waiting}
            heads |= {tp: found[tp] for tp in waiting if tp in found}
            if self._frozen is not None:
                self._frozen = heads
        return heads


class RefusedStream(DataSourceStreamReader):
    """The reader of a query that cannot be run: its first answer is why."""

    def __init__(self, why: DafkaError) -> None:
        self._why = why

    @hide_frames
    def initialOffset(self, *given: Any, **named: Any) -> NoReturn:
        """Raises why, whatever is asked."""
        raise self._why

    latestOffset = partitions = read = initialOffset
