"""The reader of streaming queries: how far to go, and what to read to get there.

Spark makes it twice: once for the query's life, on the driver, for offsets and plans; and once in
each batch, as a copy for the executors, for ``read``.  Neither opens anything before it must.
"""

# ruff: noqa: N802 -- Spark names these methods

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from dafka_core.errors import DataLossError
from dafka_core.records import PartitionInfo
from dafka_spark import bounds, connections
from dafka_spark.dataloss import DataLossPolicy
from dafka_spark.heads import Seen, look
from dafka_spark.offsets import SourceOffset, TopicPartition
from dafka_spark.options import LATEST, MESH, SourceOptions
from dafka_spark.planning import Holders, OffsetRange, planned, rate_limit
from dafka_spark.reading import read_range

if TYPE_CHECKING:
    import pyarrow as pa


LOOK_AGAIN_S: Final = 0.2
"""Between looks at a partition that ends too early, when the query reads only what there is."""

HOLDERS_S: Final = 5.0
"""How old what is known of the stores may be for a plan.  A query that reads only what there was
asks for no heads, but stores come and go meanwhile."""


class DafkaStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows the selected partitions; new ones are read from their first record on."""

    def __init__(
        self,
        schema: StructType,
        options: SourceOptions,
        connect: connections.Connect = connections.lend,
    ) -> None:
        self._schema = schema
        self._options = options.for_stream()
        self._connect = connect
        self._policy = DataLossPolicy(options.fail_on_data_loss)
        self._frozen: bounds.Heads | None = None
        self._seen: Seen | None = None
        self._seen_at = 0.0
        self._furthest: dict[TopicPartition, int] = {}
        self._behind_since: dict[TopicPartition, float] = {}

    def initialOffset(self) -> dict[str, Any]:
        """Where a query without a checkpoint starts (``startingOffsets``).

        Raises:
            ConfigError: ``startingOffsets`` lies beyond the end of a partition, or option
                ``fetch`` asks for what no store offers.
        """
        bound = self._options.starting_offsets or LATEST
        heads = self._heads(thorough=True)
        return SourceOffset.initial(bounds.starting(bound, heads)).as_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        """``maxOffsetsPerTrigger``."""
        limit = self._options.max_offsets_per_trigger
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def prepareForTriggerAvailableNow(self) -> None:
        """Fixes the partitions and their ends: the query stops when it has read up to them."""
        self._frozen = self._look(thorough=True)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Where the next batch ends; ``start`` itself, unchanged, when there is nothing new.

        Raises:
            ConfigError: the checkpoint cannot be read.
            DataLossError: a partition ends before what was read of it, for ``fetchTimeoutMs``,
                and option ``failOnDataLoss`` is true.
        """
        begin = SourceOffset.parse(start)
        heads = self._heads()
        firsts = {key: self._first(key, begin, info) for key, info in heads.items()}
        waiting = {key: info.end - firsts[key] for key, info in heads.items()}
        if isinstance(limit, ReadMaxRows):
            turn = sum(begin.positions.values())
            taken = rate_limit(waiting, limit.max_rows, turn=turn)
        elif isinstance(limit, ReadAllAvailable):
            taken = {key: count for key, count in waiting.items() if count > 0}
        else:
            raise TypeError(f"a limit of {type(limit).__name__} is not one this source declared")
        if not taken:
            return start
        positions = dict(begin.positions)
        started = dict(begin.start) if begin.is_initial else {}
        for key, count in taken.items():
            positions[key] = firsts[key] + count
            before = begin.positions.get(key)
            if firsts[key] != before:
                started[key] = firsts[key]
                if before is not None:
                    why = "the records before it have been trimmed"
                    self._policy.meet(DataLossError(*key, before, firsts[key], why))
        return SourceOffset(positions, started).as_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """The furthest ends seen of all partitions, for the progress report."""
        return SourceOffset(dict(self._furthest)).as_json() if self._furthest else None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[OffsetRange]:
        """The tasks of a batch; none when it is empty.

        Where ``end`` says where the batch began it is believed over ``start``: in a first batch
        that is run again, ``start`` is a new answer of ``initialOffset``.
        """
        if start == end:
            return []
        begin, stop = SourceOffset.parse(start), SourceOffset.parse(end)
        ranges = []
        for key in sorted(stop.positions):
            first = stop.start.get(key, begin.positions.get(key, 0))
            ranges.append(OffsetRange(*key, first, stop.positions[key]))
        return planned(ranges, self._holders(), self._options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one range."""
        if not isinstance(partition, OffsetRange):
            return iter(())
        return read_range(partition, self._schema, self._options, self._connect)

    def _heads(self, *, thorough: bool = False) -> bounds.Heads:
        return self._look(thorough=thorough) if self._frozen is None else self._frozen

    def _look(self, *, thorough: bool = False) -> bounds.Heads:
        # A query that goes on from its checkpoint is told so at its first look, too, if option
        # fetch asks for what cannot be.
        thorough = thorough or self._seen is None
        seen = self._seen = look(self._options, self._connect, thorough=thorough)
        self._seen_at = time.monotonic()
        heads = self._options.selection.of(seen.infos)
        for key, info in heads.items():
            self._furthest[key] = max(info.end, self._furthest.get(key, 0))
        return heads

    def _holders(self) -> Holders:
        """Who has what, as it was when the heads were asked for, or a moment ago."""
        if self._options.fetch == MESH:
            return {}
        if self._seen is None or time.monotonic() - self._seen_at > HOLDERS_S:
            self._look()
        assert self._seen is not None
        return self._seen.holders

    def _first(self, key: TopicPartition, begin: SourceOffset, info: PartitionInfo) -> int:
        """The next offset to read of a partition."""
        if key not in begin.positions:
            return info.earliest
        position = begin.positions[key]
        self._check_not_behind(key, position, info)
        # What is lost fails in the task that reads it, after it has asked every store.
        return position if self._policy.fail else max(position, info.earliest)

    def _check_not_behind(self, key: TopicPartition, position: int, info: PartitionInfo) -> None:
        """A store that is catching up ends too early for a while; one that lost records stays."""
        if info.end >= position:
            self._behind_since.pop(key, None)
            return
        if not self._policy.fail and key in self._behind_since:
            return  # it has been warned of
        since = self._behind_since.setdefault(key, time.monotonic())
        while self._policy.fail and time.monotonic() - since < self._options.fetch_timeout_s:
            if self._frozen is None:
                return  # the next trigger looks again
            time.sleep(LOOK_AGAIN_S)
            found = self._look().get(key)
            if found is not None and found.end >= position:
                return
        why = f"it ends at {info.end} now, before what was read of it"
        self._policy.meet(DataLossError(*key, position, None, why))
