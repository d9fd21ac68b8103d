"""Options of which records to read, by what they are."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import ClassVar

from dafka_core.options import Options, option
from dafka_spark.spark_options import camel


@dataclasses.dataclass(frozen=True)
class FilterOptions(Options):
    """What filters are taken over from Spark."""

    RENAME: ClassVar[Callable[[str], str]] = staticmethod(camel)

    push_filters: bool = option(
        False,
        "batches only: filters of the query on topic, partition, offset and timestamp narrow what "
        "is read. Needs `spark.sql.python.filterPushdown.enabled` = true. Spark 4.3 then reads all "
        "queries of one DataFrame as the one that it planned last, so that others may lack rows: "
        "load a DataFrame for each filter (docs/spark.md)",
    )

    def unused_of_filters(self, *, batch: bool) -> list[tuple[str, str]]:
        """Which of these say nothing, and why."""
        return [] if batch else [("push_filters", "Spark pushes filters of batches only")]
