"""Columns a user may ask for."""

from __future__ import annotations

import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from dafka_spark.errors import ColumnError
from dafka_spark.schema import checked, full, is_table, table_options


def test_all_columns() -> None:
    assert [field.simpleString() for field in full().fields] == [
        "key:binary",
        "value:binary",
        "topic:string",
        "partition:string",
        "offset:bigint",
        "timestamp:timestamp",
    ]


def test_any_subset_in_any_order() -> None:
    schema = StructType([full()["offset"], full()["value"], StructField("Topic", StringType())])
    assert checked(schema) is schema


@pytest.mark.parametrize(
    ("field", "says"),
    [
        (StructField("values", StringType()), "column 'values'.*did you mean 'value'"),
        (StructField("offset", StringType()), "column 'offset': is bigint, not string"),
        (StructField("topic", LongType()), "column 'topic': is string, not bigint"),
        (StructField("key", full()["key"].dataType, nullable=False), "cannot be NOT NULL"),
    ],
)
def test_wrong_columns_are_named(field: StructField, says: str) -> None:
    with pytest.raises(ColumnError, match=says):
        checked(StructType([full()["value"], field]))


def test_a_table_keeps_its_options_in_its_schema() -> None:
    schema = StructType.fromJson(full({"subscribe": "t"}).jsonValue())
    assert table_options(schema) == {"subscribe": "t"}
    assert table_options(full()) == {}
    assert is_table(schema)
    assert not is_table(full())
    assert not is_table(StructType([schema["value"]]))
