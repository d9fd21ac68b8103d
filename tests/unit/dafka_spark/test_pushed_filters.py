"""Filters of Spark's, as conditions that narrow a batch."""

from __future__ import annotations

import datetime as dt
import logging
from typing import Any

import pytest
from pyspark.sql import datasource as spark

from dafka_core.where import Comparison
from dafka_spark.datasource import DafkaDataSource
from dafka_spark.options import SourceOptions
from dafka_spark.schema import full
from dafka_spark.source import pushed_filters
from dafka_spark.source.pushed_filters import PushingBatchReader, conditions

MOMENT = dt.datetime(2026, 1, 1, 0, 0, 0, 5, dt.UTC)


@pytest.mark.parametrize(
    ("pushed", "condition"),
    [
        (spark.EqualTo(("topic",), "t"), ("topic", "=", "t")),
        (spark.EqualNullSafe(("Partition",), "P"), ("partition", "=", "P")),
        (spark.In(("topic",), ("t", None, "u")), ("topic", "IN", ["t", "u"])),
        (spark.In(("offset",), (1, 2)), ("offset", "IN", [1, 2])),
        (spark.LessThan(("offset",), 5), ("offset", "<", 5)),
        (spark.LessThanOrEqual(("offset",), 5), ("offset", "<=", 5)),
        (spark.GreaterThan(("timestamp",), MOMENT), ("timestamp", ">", MOMENT)),
        (spark.GreaterThanOrEqual(("timestamp",), MOMENT), ("timestamp", ">=", MOMENT)),
        (spark.EqualNullSafe(("topic",), None), None),
        (spark.EqualTo(("offset",), True), None),
        (spark.EqualTo(("offset",), 5.5), None),
        (spark.EqualTo(("timestamp",), MOMENT.replace(tzinfo=None)), None),
        (spark.In(("timestamp",), (MOMENT, MOMENT.replace(tzinfo=None))), None),
        (spark.EqualTo(("value",), b"x"), None),
        (spark.EqualTo(("value", "offset"), 1), None),
        (spark.IsNotNull(("offset",)), None),
        (spark.StringStartsWith(("topic",), "t"), None),
        (spark.Not(spark.EqualTo(("offset",), 5)), None),
    ],
)
def test_conditions(pushed: spark.Filter, condition: tuple[Any, ...] | None) -> None:
    assert conditions(pushed) == ([] if condition is None else [Comparison(*condition)])


@pytest.mark.parametrize("shares", [True, False])
def test_all_filters_remain_sparks(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, *, shares: bool
) -> None:
    """One that narrows is warned of where Spark may use the plan for other queries."""
    monkeypatch.setattr(pushed_filters, "SHARES_PLANS", shares)
    options = SourceOptions.of({"subscribe": "t", "pushFilters": "true"}).for_batch()
    reader = PushingBatchReader(full(), options)
    one, other = spark.EqualTo(("offset",), 5), spark.IsNotNull(("value",))
    with caplog.at_level(logging.WARNING, "dafka_spark"):
        assert reader.pushFilters([other]) == [other]
        assert not caplog.records
        assert reader.pushFilters([one, other]) == [one, other]
    assert len(caplog.records) == shares
    for record in caplog.records:
        assert "would lack rows: load another one for each filter" in record.message


def test_only_who_asks_for_it_gets_a_reader_that_spark_may_refuse() -> None:
    def kind(**given: str) -> type:
        return type(DafkaDataSource({"subscribe": "t", **given}).reader(full()))

    assert kind(pushFilters="true") is PushingBatchReader
    assert not hasattr(kind(), "pushFilters") or (
        kind().pushFilters is spark.DataSourceReader.pushFilters  # type: ignore[attr-defined]
    )
