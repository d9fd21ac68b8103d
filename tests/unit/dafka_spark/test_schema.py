"""Columns of topics and metadata tables, and schemas in Spark's DDL."""

import pytest
from pyspark.sql import types
from pyspark.sql.types import LongType, StringType, StructField, StructType

from dafka_spark import metadata
from dafka_spark.errors import ColumnError
from dafka_spark.schema import NEVER_NULL, check, full, is_table, parse_ddl, table_options

TOPICS = metadata.full("topics")
BINARY = full()["value"].dataType


def test_all_columns() -> None:
    assert full(headers=True).simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:string,offset:bigint,"
        "timestamp:timestamp,timestampType:int,headers:array<struct<key:string,value:binary>>>"
    )
    assert full(errors=True).names == [*full().names, "_error", "_corrupt_record"]
    assert "headers" not in full().names


def test_any_subset_in_any_order() -> None:
    schema = StructType([full()["offset"], full()["value"], StructField("Topic", StringType())])
    check(schema, full(), NEVER_NULL)
    check(full(headers=True), full(headers=True), NEVER_NULL)
    check(StructType([StructField("Topic", StringType(), nullable=False)]), TOPICS, NEVER_NULL)
    value = StructField("value", BINARY, nullable=False)  # without envelopes
    check(StructType([value]), full(), NEVER_NULL | {"value"})


@pytest.mark.parametrize(
    ("whole", "field", "why"),
    [
        (full(), StructField("values", StringType()), "column 'values'.*did you mean 'value'"),
        (full(), StructField("offset", StringType()), "column 'offset': is bigint, not string"),
        (full(), StructField("value", BINARY, nullable=False), "cannot be NOT NULL"),
        (full(), full(headers=True)["headers"], "exists with option includeHeaders = true only"),
        (full(), StructField("_ERROR", StringType()), "exists with option mode = PERMISSIVE"),
        (TOPICS, StructField("records", LongType(), nullable=False), "cannot be NOT NULL"),
    ],
)
def test_invalid_columns(whole: StructType, field: StructField, why: str) -> None:
    with pytest.raises(ColumnError, match=why):
        check(StructType([whole.fields[1], field]), whole, NEVER_NULL)


def test_a_table_keeps_its_options_in_its_schema() -> None:
    schema = StructType.fromJson(full({"subscribe": "t"}).jsonValue())
    assert table_options(schema) == {"subscribe": "t"}
    assert table_options(full()) == {}
    assert is_table(schema)
    assert is_table(full({"subscribe": "t"}, headers=True))
    topics = metadata.full("topics", {"metadata": "topics"})  # a table that is only read
    assert table_options(topics) == {"metadata": "topics"}
    assert not any(map(is_table, (full(), StructType([schema["value"]]), topics)))


# DDL


def test_every_type_of_sparks_ddl() -> None:
    struct = StructType().add("id", LongType()).add("two words, `quoted`", StringType())
    struct.add("d", types.DecimalType(20, 3)).add("decimal", types.DecimalType(10, 0))
    struct.add("l", types.ArrayType(types.ArrayType(types.DoubleType())))
    struct.add("m", types.MapType(StringType(), types.DateType()))
    struct.add("s", StructType().add("t", types.TimestampNTZType())).add("e", StructType())
    text = "id bigint, `two words, ``quoted``` STRING, d Decimal(20,3), decimal DECIMAL, "
    text += "l array<array<double>>, m MAP<STRING, DATE>, s struct<t: timestamp_ntz>, e STRUCT<>"
    assert parse_ddl(text) == struct
    fields = parse_ddl("a INT NOT NULL, s STRUCT<b INT not null>")
    assert fields == parse_ddl("a INT, s STRUCT<b INT>")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "it is empty"),
        ("id", "a type is missing before the end"),
        ("id FOO", "unknown type 'FOO'"),
        ("id INT,", "a column name is missing before the end"),
        ("id INT name STRING", "',' is missing before 'name STRING'"),
        ("a ARRAY<INT", "'>' is missing before the end"),
        ("a ARRAY INT", "'<' is missing before 'INT'"),
        ("a DECIMAL(39, 1)", "DECIMAL has 1 to 38 digits"),
        ("a DECIMAL(2, 3)", "and no larger scale"),
        ("a DECIMAL(x)", r"',' is missing before '\(x\)'"),
        ("aB INT, Ab INT", "duplicate column 'Ab'"),
        ("a INT; b INT", "',' is missing before '; b INT'"),
        ("a INT)", "',' is missing before '\\)'"),
        ("a " + "ARRAY<" * 200, "types are nested more than 100 deep"),
    ],
)
def test_invalid_schemas(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=f"^must be columns like 'id BIGINT.*{why}"):
        parse_ddl(text)
