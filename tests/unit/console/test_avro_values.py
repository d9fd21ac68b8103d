"""Avro that people wrote, and Avro that is meant to harm."""

from __future__ import annotations

import io
import json
import time
from typing import Any

import fastavro
import pytest

from dafka_core.console import avro_values

ROW = {
    "type": "record",
    "name": "r",
    "namespace": "n",
    "fields": [
        {"name": "x", "type": "long"},
        {"name": "y", "type": ["null", "string"]},
        {"name": "l", "type": {"type": "array", "items": "int"}},
    ],
}
VALUE = {"x": 1, "y": "h\u00e9", "l": [1, 2]}


def file_of(rows: list[Any], schema: Any = ROW, codec: str = "null") -> bytes:
    made = io.BytesIO()
    fastavro.writer(made, schema, rows, codec=codec)
    return made.getvalue()


def value_of(row: Any, schema: Any = ROW) -> bytes:
    made = io.BytesIO()
    fastavro.schemaless_writer(made, schema, row)
    return made.getvalue()


def test_a_file_has_its_schema() -> None:
    assert avro_values.rows(file_of([VALUE, VALUE])) == ([VALUE, VALUE], "")
    found, note = avro_values.rows(file_of([VALUE] * 60, codec="deflate"))
    assert (len(found), note) == (50, "the first 50 rows")


def test_a_value_needs_one_and_may_have_a_registrys_header() -> None:
    schema = json.dumps(ROW)
    assert avro_values.rows(value_of(VALUE), schema) == (VALUE, "")
    found, note = avro_values.rows(b"\0\0\0\0\7" + value_of(VALUE), schema)
    assert (found, "schema registry" in note) == (VALUE, True)
    with pytest.raises(ValueError, match="give the schema"):
        avro_values.rows(value_of(VALUE))
    _, note = avro_values.rows(value_of(VALUE) + b"more", schema)
    assert "4 octets follow the value" in note


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"type": "array", "items": "null"}, "take no octet"),
        (
            {"type": "array", "items": {"type": "record", "name": "e", "fields": []}},
            "take no octet",
        ),
        ({"type": "array", "items": {"type": "fixed", "name": "f", "size": 0}}, "take no octet"),
        (
            {
                "type": "record",
                "name": "L",
                "fields": [{"name": "n", "type": ["null", "L"]}],
            },
            "L is within itself",
        ),
        (
            {
                "type": "record",
                "name": "a.L",
                "fields": [{"name": "n", "type": {"type": "map", "values": "a.L"}}],
            },
            "within itself",
        ),
    ],
)
def test_a_schema_by_which_few_octets_are_much_is_refused(schema: Any, expected: str) -> None:
    began = time.monotonic()
    with pytest.raises(ValueError, match=expected):
        avro_values.rows(b"\x02" * 100_000, json.dumps(schema))
    assert time.monotonic() - began < 10


def test_a_schema_that_is_too_deep_or_too_long_is_refused() -> None:
    deep: Any = "int"
    for _ in range(60):
        deep = {"type": "array", "items": deep}
    with pytest.raises(ValueError, match="deeper than"):
        avro_values.rows(b"\0", json.dumps(deep))
    with pytest.raises(ValueError, match="characters"):
        avro_values.rows(b"\0", " " * 100_000)


def test_a_large_file_that_is_compressed_is_not_opened() -> None:
    rows = [{"x": n, "y": str(hash(str(n))), "l": [n, n]} for n in range(20_000)]
    with pytest.raises(ValueError, match=r"compressed \(deflate\)"):
        avro_values.rows(file_of(rows, codec="deflate"))


def test_a_file_that_says_it_has_endless_nothings_ends() -> None:
    made = file_of([None] * 3, "null")
    assert avro_values.rows(made) == ([None] * 3, "")
