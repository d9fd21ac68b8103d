"""The reader of batch queries."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from dafka_core.errors import ConfigError
from dafka_core.where import Comparison
from dafka_spark.cluster.worker_process import warn_if_reused
from dafka_spark.positions import AT_EARLIEST
from dafka_spark.source.archived_offsets import ArchiveLook
from dafka_spark.source.latest_offsets import fetch_latest_offsets
from dafka_spark.source.missing_stores import check_stores
from dafka_spark.source.missing_topics import check_found
from dafka_spark.source.narrowing import Narrowing
from dafka_spark.source.offset_range_limit import resolved
from dafka_spark.source.range_planner import OffsetRange, plan_tasks
from dafka_spark.source.range_reader import RangeReader
from dafka_spark.source.reported_lag import described


class DafkaBatchReader(RangeReader, DataSourceReader):
    """Reads what the stores hold when the query is planned."""

    _pushed: Sequence[Comparison] = ()
    """What Spark's filters say of columns by which stores find records."""

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of a task, as ``RangeReader`` reads them."""
        warn_if_reused(self._planned_ns, described(self._options))
        return super().read(partition)

    def partitions(self) -> list[InputPartition]:
        """The tasks, each with the ranges that it reads; none when there is nothing to read.

        Raises:
            ArchiveError: option ``archive`` names what is no archive, or is damaged.
            ConfigError: where it starts or ends lies outside of a partition, no
                store has a topic or partition that is named, option ``fetch`` asks for what no
                store offers, or there are fewer stores than ``minStores``.
        """
        options = self._options
        check_stores(options, self._connect)
        snapshot = fetch_latest_offsets(options, self._connect, thorough=True)
        if options.archive:
            snapshot = ArchiveLook(options).added_to(snapshot)
        check_found(options, snapshot.heads, self._connect)
        begin, stop = options.starting(AT_EARLIEST), options.ending()
        start = resolved(begin, snapshot, options.fetch_timeout_s).offsets
        end = resolved(stop, snapshot, options.fetch_timeout_s).offsets
        for tp in start:
            if start[tp] > end[tp]:
                why = f"{tp} starts after it, at {start[tp]}"
                raise ConfigError(stop.option, end[tp], why)
        planned = {tp: (start[tp], end[tp]) for tp in start}
        needed = options.where.needed if options.where else ()
        spans = Narrowing.of([*self._pushed, *needed]).narrowed(
            planned, snapshot, options.fetch_timeout_s
        )
        ranges = [OffsetRange(*tp, *spans[tp], life=snapshot.heads[tp].life) for tp in spans]
        return list(plan_tasks(ranges, snapshot.holders, options, archived=snapshot.archived))
