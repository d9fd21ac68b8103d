"""Filters that Spark pushes down to a batch query, which narrow what it reads: ``pushFilters``."""

# ruff: noqa: N802 -- Spark names the method

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Iterable
from typing import Any, Final

from pyspark.sql import datasource as spark
from pyspark.sql.datasource import DataSourceReader, Filter

from dafka_core.where import AT_LEAST, AT_MOST, EQUAL, GREATER, IN, LESS, Comparison
from dafka_spark.source.batch_reader import DafkaBatchReader

_OPERATORS: Final[dict[type[Filter], str]] = {
    spark.EqualTo: EQUAL,
    spark.EqualNullSafe: EQUAL,
    spark.In: IN,
    spark.LessThan: LESS,
    spark.LessThanOrEqual: AT_MOST,
    spark.GreaterThan: GREATER,
    spark.GreaterThanOrEqual: AT_LEAST,
}

_TYPES: Final = {"topic": str, "partition": str, "offset": int, "timestamp": dt.datetime}

SHARES_PLANS: Final = not hasattr(DataSourceReader, "pushLimit")
"""Whether Spark reads all that is made of one DataFrame with the plan that was made last: 4.3 does.
Later versions, which push limits down, too, keep a plan with its scan."""

_SHARED: Final = (
    "pushFilters: only what may pass %s is read. This version of Spark may read other queries of "
    "the same DataFrame so, too, and they would lack rows: load another one for each filter"
)

_log = logging.getLogger("dafka_spark")


class PushingBatchReader(DafkaBatchReader):
    """Reads only where records can be that pass Spark's filters, which Spark applies itself, too.

    A class of its own: Spark refuses to plan a reader that defines ``pushFilters`` while
    ``spark.sql.python.filterPushdown.enabled`` is false, which is the default.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Takes note of filters, all of which remain Spark's work."""
        used = [each for each in filters if conditions(each)]
        if SHARES_PLANS and used:
            _log.warning(_SHARED, " and ".join(map(str, used)))
        self._pushed = [found for each in used for found in conditions(each)]
        return filters


def conditions(pushed: Filter) -> list[Comparison]:
    """The comparison that a filter is, if it is one that narrows; else none."""
    operator = _OPERATORS.get(type(pushed))
    path: tuple[str, ...] = getattr(pushed, "attribute", ())
    column = ".".join(path).lower()
    if operator is None or column not in _TYPES:
        return []
    value: Any = getattr(pushed, "value", None)
    # Nothing equals null, so that those do not matter in a list.
    values = [each for each in value if each is not None] if operator == IN else [value]
    if not all(_narrows(each, _TYPES[column]) for each in values):
        return []
    return [Comparison(column, operator, values if operator == IN else value)]


def _narrows(value: Any, kind: type) -> bool:
    return type(value) is kind and getattr(value, "tzinfo", dt.UTC) is not None
