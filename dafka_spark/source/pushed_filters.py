"""Filters that Spark pushes down to a batch query, which narrow what it reads: ``pushFilters``."""

# ruff: noqa: N802 -- Spark names the method

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Iterable
from typing import Any, Final

from pyspark.sql import datasource as spark
from pyspark.sql.datasource import DataSourceReader, Filter

from dafka_spark.source.batch_reader import DafkaBatchReader
from dafka_spark.source.narrowing import (
    AT_LEAST,
    AT_MOST,
    EQUAL,
    GREATER,
    IN,
    LESS,
    Condition,
    Narrowing,
)

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

_EPOCH: Final = dt.datetime.fromtimestamp(0, dt.UTC)

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
        self._narrowing = Narrowing.of(found for each in used for found in conditions(each))
        return filters


def conditions(pushed: Filter) -> list[Condition]:
    """The condition that a filter is, if it is one that narrows; else none."""
    operator = _OPERATORS.get(type(pushed))
    path: tuple[str, ...] = getattr(pushed, "attribute", ())
    column = ".".join(path).lower()
    if operator is None or column not in _TYPES:
        return []
    values = getattr(pushed, "value", None)
    listed = list(values) if operator == IN else [values]  # type: ignore[arg-type]
    # Nothing equals null, so that those do not matter in a list.
    numbers = [_known(each) for each in listed if each is not None or operator != IN]
    if any(type(each) is not _TYPES[column] for each in listed if each is not None):
        return []
    if any(each is None for each in numbers):
        return []
    return [Condition(column, operator, numbers if operator == IN else numbers[0])]


def _known(value: Any) -> Any:
    """A value as conditions have it; None for a time without a zone."""
    if not isinstance(value, dt.datetime):
        return value
    if value.tzinfo is None:
        return None
    return (value - _EPOCH) // dt.timedelta(microseconds=1)
