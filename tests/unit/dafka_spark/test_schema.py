"""Columns a user may ask for."""

from __future__ import annotations

import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from dafka_spark.errors import ColumnError
from dafka_spark.schema import NEVER_NULL, check, full, is_table, table_options


def test_all_columns() -> None:
    assert [field.simpleString() for field in full().fields] == [
        "key:binary",
        "value:binary",
        "topic:string",
        "partition:string",
        "offset:bigint",
        "timestamp:timestamp",
        "timestampType:int",
    ]
    headers = full(headers=True)["headers"]
    assert headers.simpleString() == "headers:array<struct<key:string,value:binary>>"


def test_any_subset_in_any_order() -> None:
    schema = StructType([full()["offset"], full()["value"], StructField("Topic", StringType())])
    check(schema, full(), NEVER_NULL)
    check(full(headers=True), full(headers=True), NEVER_NULL)


@pytest.mark.parametrize(
    ("field", "says"),
    [
        (StructField("values", StringType()), "column 'values'.*did you mean 'value'"),
        (StructField("offset", StringType()), "column 'offset': is bigint, not string"),
        (StructField("topic", LongType()), "column 'topic': is string, not bigint"),
        (StructField("key", full()["key"].dataType, nullable=False), "cannot be NOT NULL"),
        (StructField("value", full()["key"].dataType, nullable=False), "cannot be NOT NULL"),
        (full(headers=True)["headers"], "'headers': exists with option includeHeaders = true"),
        (StructField("TIMESTAMPTYPE", LongType()), "'TIMESTAMPTYPE': is int, not bigint"),
    ],
)
def test_wrong_columns_are_named(field: StructField, says: str) -> None:
    with pytest.raises(ColumnError, match=says):
        check(StructType([full()["value"], field]), full(), NEVER_NULL)


def test_a_value_is_never_null_where_contents_are_values() -> None:
    value = StructField("value", full()["key"].dataType, nullable=False)
    check(StructType([value]), full(), NEVER_NULL | {"value"})


def test_a_table_keeps_its_options_in_its_schema() -> None:
    schema = StructType.fromJson(full({"subscribe": "t"}).jsonValue())
    assert table_options(schema) == {"subscribe": "t"}
    assert table_options(full()) == {}
    assert is_table(schema)
    assert is_table(full({"subscribe": "t"}, headers=True))
    assert not is_table(full())
    assert not is_table(StructType([schema["value"]]))
