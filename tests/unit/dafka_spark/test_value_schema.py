"""Schemas in Spark's DDL, parsed without a Spark session."""

from __future__ import annotations

import pytest
from pyspark.sql import types

from dafka_spark.formats.ddl import parse_ddl


def test_every_type_of_sparks_ddl() -> None:
    struct = types.StructType(
        [
            types.StructField("id", types.LongType()),
            types.StructField("two words, `quoted`", types.StringType()),
            types.StructField("d", types.DecimalType(20, 3)),
            types.StructField("l", types.ArrayType(types.ArrayType(types.DoubleType()))),
            types.StructField("m", types.MapType(types.StringType(), types.DateType())),
            types.StructField(
                "s", types.StructType([types.StructField("t", types.TimestampNTZType())])
            ),
            types.StructField("e", types.StructType()),
        ]
    )
    text = "id bigint, `two words, ``quoted``` STRING, d Decimal(20,3), l array<array<double>>, "
    text += "m MAP<STRING, DATE>, s struct<t: timestamp_ntz>, e STRUCT<>"
    assert parse_ddl(text) == struct


def test_not_null_is_ignored() -> None:
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
        ("a DECIMAL(x)", r"',' is missing before '\(x\)'"),
        ("a INT, A INT", "duplicate column 'A'"),
        ("a INT; b INT", "',' is missing before '; b INT'"),
        ("a INT)", "',' is missing before '\\)'"),
        ("a " + "ARRAY<" * 200, "types are nested more than 100 deep"),
    ],
)
def test_invalid_schemas(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=f"^must be columns like 'id BIGINT.*{why}"):
        parse_ddl(text)
