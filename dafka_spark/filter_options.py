"""Options of which records to read, by what they are."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

from dafka_core.options import Options, option
from dafka_core.where import Where
from dafka_spark.spark_options import camel


def parse_where(value: Any) -> Where:
    """A condition on records."""
    return Where.parse(str(value))


@dataclasses.dataclass(frozen=True)
class FilterOptions(Options):
    """What records are looked for, and what filters are taken over from Spark."""

    RENAME: ClassVar[Callable[[str], str]] = staticmethod(camel)

    where: Where | None = option(  # noqa: RUF009 -- a field
        None,
        "read only records that fit a condition, which stores evaluate: a part of SQL over `key`, "
        "`value`, `topic`, `partition`, `offset` and `timestamp`, as `key = 'a' AND offset >= 5` "
        "(docs/spark.md). Limits of batches count the records that are looked at",
        kind="condition",
        parse=parse_where,
    )
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
