"""Avro's records as values."""

from __future__ import annotations

import datetime as dt
import decimal
import io
import json
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_type

from dafka_spark.formats.avro_values import AvroCodec
from dafka_spark.formats.codecs import concat_parts, decode_parts

SCHEMA = {
    "type": "record",
    "name": "Trade",
    "namespace": "a.b",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "name", "type": ["null", "string"], "default": None},
        {"name": "side", "type": {"type": "enum", "name": "Side", "symbols": ["BUY", "SELL"]}},
        {"name": "other", "type": ["null", "Side"]},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "prices", "type": {"type": "map", "values": "double"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "local", "type": {"type": "long", "logicalType": "local-timestamp-micros"}},
        {
            "name": "sum",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
        },
        {"name": "uuid", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "time", "type": {"type": "int", "logicalType": "time-millis"}},
        {"name": "raw", "type": {"type": "fixed", "name": "Raw", "size": 2}},
    ],
}
ROW = {
    "id": 2**63 - 1,
    "name": None,
    "side": "SELL",
    "other": "BUY",
    "tags": ["a", ""],
    "prices": [("x", 1.5)],
    "day": dt.date(2026, 1, 2),
    "at": dt.datetime(2026, 1, 2, 3, 4, 5, 6000, dt.UTC),
    "local": dt.datetime(2026, 1, 2, 3, 4, 5, 6),  # noqa: DTZ001
    "sum": decimal.Decimal("-1.50"),
    "uuid": "6f0c2c5e-5d0b-5c0e-9a55-0d6b1c7f3a46",
    "time": 5,
    "raw": b"\0\xff",
}
SMALL = '{"type":"record","name":"R","fields":[{"name":"id","type":"int"}]}'


def test_what_is_encoded_is_decoded_and_is_avro() -> None:
    codec = AvroCodec(json.dumps(SCHEMA))
    kind = (
        "struct<id:bigint,name:string,side:string,other:string,tags:array<string>,"
        "prices:map<string,double>,day:date,at:timestamp,local:timestamp_ntz,sum:decimal(9,2),"
        "uuid:string,time:int,raw:binary>"
    )
    assert codec.kind.simpleString() == kind
    column = pa.array([ROW, None, ROW], to_arrow_type(codec.kind, timezone="UTC"))
    for part in column, column.slice(1, 2):
        values = codec.encode(part)
        assert codec.decode(values).to_pylist() == part.to_pylist()
    plain: Any = fastavro.schemaless_reader(
        io.BytesIO(codec.encode(column)[0].as_py()), fastavro.parse_schema(SCHEMA), None
    )
    assert (plain["side"], plain["prices"], str(plain["uuid"])) == ("SELL", {"x": 1.5}, ROW["uuid"])


@pytest.mark.parametrize("value", [b"", b"\x80", b"\x02\x02", b"\xff" * 11, b"\xfe" * 4 + b"\x7f"])
def test_a_bad_value_spoils_no_other(value: bytes) -> None:
    codec = AvroCodec(SMALL)
    parts = list(decode_parts(pa.array([b"\x02", value, None, b"\x04"], pa.binary()), codec.decode))
    column = concat_parts(parts, to_arrow_type(codec.kind))
    assert column.to_pylist() == [{"id": 1}, None, None, {"id": 2}]
    ((row, why),) = [(part.start, part.why) for part in parts if part.why]
    assert row == 1
    assert why.startswith("it is not a record of this Avro schema: ")


def test_a_null_that_the_schema_has_not_is_refused() -> None:
    codec = AvroCodec(SMALL)
    with pytest.raises(ValueError, match="a row does not fit the schema"):
        codec.encode(pa.array([{"id": None}], to_arrow_type(codec.kind)))


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("boolean", None),
        ({"type": "array", "items": "boolean"}, [True, None]),
        ({"type": "map", "values": "boolean"}, {"x": None}),
        (["null", {"type": "array", "items": "boolean"}], [None]),
    ],
)
def test_a_null_boolean_is_refused_too(kind: Any, value: Any) -> None:
    codec = AvroCodec(record(kind))
    rows = pa.array([{"a": value}, None], to_arrow_type(codec.kind))
    with pytest.raises(ValueError, match="a row does not fit the schema: null on boolean"):
        codec.encode(rows)


def test_a_null_boolean_that_may_be_is_written() -> None:
    codec = AvroCodec(record(["null", "boolean"]))
    rows = pa.array([{"a": None}, {"a": True}, None], to_arrow_type(codec.kind))
    assert codec.decode(codec.encode(rows)).to_pylist() == rows.to_pylist()


def record(kind: Any) -> str:
    return json.dumps({"type": "record", "name": "R", "fields": [{"name": "a", "type": kind}]})


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ("id BIGINT", "must be an Avro schema as JSON, or FILE.avsc"),
        ('{"type":"record","name":"R","fields":[{"name":"a","type":"what"}]}', "what"),
        ('"long"', "must be the Avro schema of a record"),
        (record(["int", "string"]), "a union of several types"),
        (record(["null", "R"]), "has the recursive type 'R'"),
        (record("null"), "for which Spark has no type"),
        (record({"type": "fixed", "name": "F", "size": 0}), "for which Spark has no type"),
        (record({"type": "record", "name": "E", "fields": []}), "for which Spark has no type"),
        (
            record({"type": "bytes", "logicalType": "decimal", "precision": 50}),
            "for which Spark has no type",
        ),
    ],
)
def test_schemas_that_cannot_be_read_are_refused(schema: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        AvroCodec(schema)
