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
from dafka_spark.offsets import SourceOffset, TopicPartition
from dafka_spark.options import LATEST, SourceOptions
from dafka_spark.planning import OffsetRange, rate_limit, split
from dafka_spark.reading import read_range

if TYPE_CHECKING:
    import pyarrow as pa


LOOK_AGAIN_S: Final = 0.2
"""Between looks at a partition that ends too early, when the query reads only what there is."""


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
        self._seen: bounds.Heads = {}
        self._behind_since: dict[TopicPartition, float] = {}

    def initialOffset(self) -> dict[str, Any]:
        """Where a query without a checkpoint starts (``startingOffsets``).

        Raises:
            ConfigError: ``startingOffsets`` lies beyond the end of a partition.
        """
        bound = self._options.starting_offsets or LATEST
        return SourceOffset.initial(bounds.starting(bound, self._heads())).as_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        """``maxOffsetsPerTrigger``."""
        limit = self._options.max_offsets_per_trigger
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def prepareForTriggerAvailableNow(self) -> None:
        """Fixes the partitions and their ends: the query stops when it has read up to them."""
        self._seen = self._frozen = self._look()

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
        """The ends of all partitions when they were last looked at, for the progress report."""
        if not self._seen:
            return None
        return SourceOffset({key: info.end for key, info in self._seen.items()}).as_json()

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
        return split(
            ranges,
            min_partitions=self._options.min_partitions,
            max_records=self._options.max_records_per_partition,
        )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one range."""
        if not isinstance(partition, OffsetRange):
            return iter(())
        return read_range(partition, self._schema, self._options, self._connect)

    def _heads(self) -> bounds.Heads:
        if self._frozen is None:
            self._seen = self._look()
            return self._seen
        return self._frozen

    def _look(self) -> bounds.Heads:
        selection, timeout_s = self._options.selection, self._options.fetch_timeout_s
        with self._connect(self._options.via) as source:
            return selection.of(source.partitions(selection.asked, timeout_s=timeout_s))

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
