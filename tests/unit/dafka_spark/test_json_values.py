"""JSON by column, beside Python's own."""

from __future__ import annotations

import datetime as dt
import decimal
import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types
from pyspark.sql.pandas.types import to_arrow_type

from dafka_spark.formats.codecs import concat_parts, decode_parts
from dafka_spark.formats.ddl import parse_ddl
from dafka_spark.formats.json_values import JsonCodec

SMALL = parse_ddl("id BIGINT, name STRING")
WIDE = parse_ddl(
    "id BIGINT, name STRING, d DOUBLE, ok BOOLEAN, l ARRAY<INT>, s STRUCT<x TINYINT, t TIMESTAMP>, "
    "day DATE, price DECIMAL(10, 2), ll ARRAY<ARRAY<STRUCT<a STRING>>>, n TIMESTAMP_NTZ"
)
INT64 = st.integers(-(2**63), 2**63 - 1)
TIMES = st.datetimes(timezones=st.just(dt.UTC))
STRUCTS = st.none() | st.fixed_dictionaries(
    {
        "id": st.none() | INT64,
        "name": st.none() | st.text(st.characters(codec="utf-8"), max_size=5),
        "d": st.none() | st.floats(allow_nan=False, allow_infinity=False),
        "ok": st.none() | st.booleans(),
        "l": st.none() | st.lists(st.none() | st.integers(-(2**31), 2**31 - 1), max_size=3),
        "s": st.none()
        | st.fixed_dictionaries({"x": st.none() | st.integers(-128, 127), "t": st.none() | TIMES}),
        "day": st.none() | st.dates(),
        "price": st.none() | st.decimals(-(10**7), 10**7, places=2),
        "ll": st.none()
        | st.lists(st.none() | st.lists(st.fixed_dictionaries({"a": st.text('ab"\\\n\0é')}))),
        "n": st.none() | st.datetimes(),
    }
)


def decoded(kind: types.StructType, *values: bytes | None) -> tuple[list[Any], dict[int, str]]:
    parts = list(decode_parts(pa.array(values, pa.binary()), JsonCodec(kind).decode))
    column = concat_parts(parts, to_arrow_type(kind, timezone="UTC"))
    column.validate(full=True)
    return column.to_pylist(), {part.start: part.why for part in parts if part.why}


@given(st.lists(STRUCTS, min_size=1, max_size=5), st.integers(0, 2))
def test_what_is_encoded_is_decoded(rows: list[Any], start: int) -> None:
    codec = JsonCodec(WIDE)
    column = pa.array(rows, to_arrow_type(WIDE, timezone="UTC")).slice(start)
    values = codec.encode(column)
    for row, value in zip(column.to_pylist(), values.to_pylist(), strict=True):
        there = {name for name, each in (row or {}).items() if each is not None}
        assert value is row is None or set(json.loads(value)) == there
    assert codec.decode(values.cast(pa.binary())).equals(column)


def test_texts_are_those_of_to_json() -> None:
    row = {
        "id": 1,
        "name": 'a"\\\n',
        "l": [1, None],
        "price": decimal.Decimal("1.50"),
        "s": {"x": None, "t": dt.datetime(2026, 1, 2, 3, 4, 5, 6, dt.UTC)},
        "d": float("nan"),
    }
    (text,) = JsonCodec(WIDE).encode(pa.array([row], to_arrow_type(WIDE, timezone="UTC")))
    assert text.as_py() == (
        r'{"id":1,"name":"a\"\\\u000a","l":[1,null],"s":{"t":"2026-01-02T03:04:05.000006Z"},'
        '"price":1.50}'
    )


def test_texts_do_not_depend_on_the_types_and_the_zone_that_spark_hands_over() -> None:
    kind = parse_ddl("s STRING, l ARRAY<STRING>, t TIMESTAMP")
    wide = pa.struct(
        [
            ("s", pa.large_utf8()),
            ("l", pa.large_list(pa.large_utf8())),
            ("t", pa.timestamp("us", "Europe/Berlin")),
        ]
    )
    row = {"s": '1,"a":true', "l": ["null"], "t": dt.datetime(1850, 1, 1, tzinfo=dt.UTC)}
    (text,) = JsonCodec(kind).encode(pa.array([row], wide))
    assert text.as_py() == r'{"s":"1,\"a\":true","l":["null"],"t":"1850-01-01T00:00:00.000000Z"}'


def test_numbers_that_are_too_large_are_bad() -> None:
    kind = parse_ddl("s STRUCT<f FLOAT>, l ARRAY<DOUBLE>")
    rows, bad = decoded(kind, b'{"s":{"f":1e300}}', b'{"s":{"f":1},"l":[1,2]}', b'{"l":[1e999]}')
    assert list(bad) == [0, 2]
    assert rows[1] == {"s": {"f": 1.0}, "l": [1.0, 2.0]}


def test_a_schema_that_has_changed() -> None:
    values = b'{"id":1,"more":{"deep":[1,"x"]},"name":"a"}', b"{}", b'{"id":null}', b"null", None
    rows, bad = decoded(SMALL, *values)
    none = {"id": None, "name": None}
    assert rows == [{"id": 1, "name": "a"}, none, none, None, None]
    assert not bad


def test_line_feeds_in_values_are_spaces() -> None:
    rows, bad = decoded(SMALL, b'{\n"id":\r\n1}\n', b'\n\n{"id":2\n}')
    assert [row["id"] for row in rows] == [1, 2]
    assert not bad


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (b"", "not one JSON value"),
        (b" \n", "not one JSON value"),
        (b"{", "Missing a name"),
        (b'{"id":1} {"id":2}', "Missing a comma"),
        (b'{"id":1},{"id":2}', "not one JSON value"),
        (b'{"id":1}]}{"v":[{"id":2}', "not one JSON value"),
        (b'{"id":1},"v":{"id":2}', ""),
        (b'{"id":1},"w":5', ""),
        (b'{"id":1}],"w":[5', ""),
        (b'null ],"w":[{}', ""),
        (b'{"id":1}],"v":[{"id":2}', "twice"),
        (b"[1]", "from object to array"),
        (b"1", "from object to number"),
        (b'{"id":"1"}', "from number to string"),
        (b'{"id":1.5}', "couldn't parse:1.5"),
        (b'{"id":9223372036854775808}', "couldn't parse:9223372036854775808"),
        (b'{"id":1,"id":1}', "twice"),
        (b'{"name":1}', "from string to number"),
        (b'{"name":"\xff"}', "not UTF-8"),
        (b'{"name":"\\ud800"}', "surrogate"),
        (b'{"id":' + b"[" * 100_000, ""),
    ],
)
def test_a_bad_value_spoils_no_other(value: bytes, why: str) -> None:
    good = [b'{"id":%d}' % n for n in range(7)]
    rows, bad = decoded(SMALL, *good[:3], value, *good[3:], value)
    assert [row and row["id"] for row in rows] == [0, 1, 2, None, 3, 4, 5, 6, None]
    assert list(bad) == [3, 8]
    assert why in bad[3]
    assert len(bad[3]) < 400
    assert bad[3] == bad[8]


def test_times_need_what_their_type_needs() -> None:
    kind = parse_ddl("t TIMESTAMP, n TIMESTAMP_NTZ, d DATE")
    rows, bad = decoded(
        kind,
        b'{"t":"2026-01-01T01:00:00+01:00","n":"2026-01-01 00:00:00","d":"2026-01-01"}',
        b'{"t":"2026-01-01T00:00:00"}',
        b'{"n":"2026-01-01T00:00:00Z"}',
        b'{"d":"yesterday"}',
        b'{"t":1767225600}',
    )
    midnight = dt.datetime(2026, 1, 1)  # noqa: DTZ001
    assert rows[0] == {"t": midnight.replace(tzinfo=dt.UTC), "n": midnight, "d": midnight.date()}
    assert sorted(bad) == [1, 2, 3, 4]
    assert "expected a zone offset" in bad[1]


def test_types_without_a_form_in_json_are_refused() -> None:
    for text, why in ("b BINARY", "unbase64"), ("m ARRAY<MAP<STRING, INT>>", "a STRUCT with the"):
        with pytest.raises(ValueError, match=why):
            JsonCodec(parse_ddl(text))
    with pytest.raises(ValueError, match="made of a struct"):
        JsonCodec(types.LongType())
