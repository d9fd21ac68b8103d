"""The reader of streaming queries: it says where batches end, plans them and reads them.

Spark makes one for the query's life, on the driver, for offsets and plans, and another one for
each batch, which it copies to the executors, for ``read``.  Neither connects before it must.
"""

# ruff: noqa: N802 -- Spark names these methods

from __future__ import annotations

import time
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from dafka_core.errors import ConfigError, StoreUnreachableError
from dafka_core.records import PartitionInfo, TopicPartition
from dafka_spark.cluster import connections, timing
from dafka_spark.cluster.timing import Deadline
from dafka_spark.option_values import LATEST
from dafka_spark.options import MESH, SourceOptions
from dafka_spark.source.latest_offsets import Heads, OffsetsSnapshot, fetch_latest_offsets
from dafka_spark.source.offset_range_limit import starting_offsets
from dafka_spark.source.range_planner import Holders, OffsetRange, plan_tasks, rate_limit
from dafka_spark.source.range_reader import RangeReader
from dafka_spark.source.regression_detector import RegressionDetector
from dafka_spark.source.source_offset import SourceOffset


class DafkaStreamReader(RangeReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows the selected partitions; new ones are read from their first record on."""

    def __init__(
        self,
        schema: StructType,
        options: SourceOptions,
        connect: connections.Connect = connections.lend,
    ) -> None:
        super().__init__(schema, options, connect)
        self._frozen: Heads | None = None
        self._snapshot: OffsetsSnapshot | None = None
        self._snapshot_at = 0.0
        self._furthest: dict[TopicPartition, int] = {}
        self._regressions = RegressionDetector(options)
        self._refused: ConfigError | None = None

    def initialOffset(self) -> dict[str, Any]:
        """Where a query without a checkpoint starts (``startingOffsets``).

        Spark asks again when it repeats a first batch, and then the answer does not matter: that
        batch's end says where it began.  ``startingOffsets`` beyond the end of a partition, which
        may only look shorter now, is therefore an error of ``latestOffset``, which Spark does not
        call then.

        Raises:
            ConfigError: option ``fetch`` asks for what no store offers.
        """
        limit = self._options.starting_offsets or LATEST
        heads = self._heads(thorough=True)
        self._refused = None
        try:
            positions = starting_offsets(limit, heads)
        except ConfigError as error:
            self._refused, positions = error, {}
        return SourceOffset.initial(positions).as_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        """``maxOffsetsPerTrigger``."""
        limit = self._options.max_offsets_per_trigger
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def prepareForTriggerAvailableNow(self) -> None:
        """Fixes the partitions and their ends: the query reads up to there and stops."""
        self._frozen = self._look(thorough=True)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Where the next batch ends; ``start`` itself, unchanged, when there is nothing new.

        Raises:
            ConfigError: the checkpoint cannot be read, or ``startingOffsets`` lies beyond the end
                of a partition.
            SourceLossError: for ``fetchTimeoutMs`` no store has known a partition, or it has ended
                before what was read of it, and option ``failOnDataLoss`` is true.
        """
        begin = SourceOffset.parse(start)
        if self._refused is not None and not begin.positions:
            raise self._refused
        if not isinstance(limit, ReadMaxRows | ReadAllAvailable):
            raise TypeError(f"a limit of {type(limit).__name__} is not one this source declared")
        max_rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        heads = self._trusted_heads(begin)
        firsts = {tp: self._first(tp, begin, info) for tp, info in heads.items()}
        waiting = {tp: info.end - firsts[tp] for tp, info in heads.items()}
        taken = rate_limit(waiting, max_rows, turn=sum(begin.positions.values()))
        if not taken:
            return start
        positions, lives = dict(begin.positions), dict(begin.lives)
        started = dict(begin.start) if begin.is_initial else {}
        for tp, count in taken.items():
            positions[tp] = firsts[tp] + count
            lives[tp] = heads[tp].life
            if firsts[tp] != begin.positions.get(tp):
                started[tp] = firsts[tp]
        return SourceOffset(positions, started, lives).as_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """The furthest end seen of each partition, for the progress report."""
        return SourceOffset(dict(self._furthest)).as_json() if self._furthest else None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[OffsetRange]:
        """The tasks of a batch; none when it is empty.

        Where ``end`` says where the batch began, that counts and not ``start``, which is a new
        answer of ``initialOffset`` when Spark repeats a first batch.  Nothing else decides which
        tasks there are, nor which one reads what (``plan_tasks``).

        Raises:
            ConfigError: the checkpoint cannot be read, or the batch would go backwards.
        """
        if start == end:
            return []
        ranges = SourceOffset.parse(end).since(SourceOffset.parse(start))
        return plan_tasks(ranges, self._holders(), self._options)

    def _heads(self, *, thorough: bool = False) -> Heads:
        return self._look(thorough=thorough) if self._frozen is None else self._frozen

    def _look(self, *, thorough: bool = False) -> Heads:
        # The first look is thorough also if the query goes on from its checkpoint: it fails at
        # once where option fetch asks for what no store offers.
        thorough = thorough or self._snapshot is None
        snapshot = self._snapshot = self._patient_look(thorough=thorough)
        self._snapshot_at = time.monotonic()
        self._regressions.take(snapshot)
        for tp, info in snapshot.heads.items():
            self._furthest[tp] = max(info.end, self._furthest.get(tp, 0))
        return snapshot.heads

    def _patient_look(self, *, thorough: bool) -> OffsetsSnapshot:
        """Asks the stores until one answers: they may be starting."""
        lost: StoreUnreachableError | None = None
        for _ in Deadline(self._options.fetch_timeout_s).attempts():
            try:
                return fetch_latest_offsets(self._options, self._connect, thorough=thorough)
            except StoreUnreachableError as error:
                lost = error
        assert lost is not None  # there is one attempt at least
        raise lost

    def _holders(self) -> Holders:
        """The stores and what they have, as it was at the last look if that is not too old."""
        if self._options.fetch == MESH:
            return {}
        if self._snapshot is None or time.monotonic() - self._snapshot_at > timing.RANGES_S:
            self._look()
        assert self._snapshot is not None
        return self._snapshot.holders

    def _first(self, tp: TopicPartition, begin: SourceOffset, info: PartitionInfo) -> int:
        """The next offset to read of a partition."""
        position = begin.positions.get(tp, info.earliest)
        # The task that reads lost records asks every store, and fails then.
        return position if self._options.fail_on_data_loss else max(position, info.earliest)

    def _trusted_heads(self, begin: SourceOffset) -> Heads:
        """The heads, without partitions that look shorter than they were and may not remain so.

        A query waits for these here if it reads only what there is now, or looks seldom.
        """
        heads = self._heads()
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
