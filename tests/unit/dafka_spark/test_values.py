"""Codecs of values: encoded rows are decoded again, and a bad value spoils no other."""

import datetime as dt
import decimal
import io
import json
from collections.abc import Callable
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types
from pyspark.sql.pandas.types import to_arrow_type

from dafka_spark.errors import BatchTooLargeError
from dafka_spark.formats.arrow_values import MAX_BATCH, MAX_OPENED, ArrowCodec
from dafka_spark.formats.avro_values import AvroCodec
from dafka_spark.formats.codecs import FORMATS, Codec, codec_of, concat_parts, decode_parts
from dafka_spark.formats.json_values import JsonCodec
from dafka_spark.formats.protobuf_values import ProtobufCodec
from dafka_spark.schema import parse_ddl
from tests.unit.dafka_spark import descriptors as pb
from tests.unit.dafka_spark.descriptors import File, decoded, stream, trade


def record(kind: Any, name: str = "a") -> str:
    """Return an Avro schema with one field."""
    return json.dumps({"type": "record", "name": "R", "fields": [{"name": name, "type": kind}]})


def proto(**fields: Any) -> ProtobufCodec:
    """Return the codec of a message with these fields."""
    file = File()
    file.enum("Side", "NONE", "BUY")
    file.message("Small", **fields)
    return ProtobufCodec(file.text, "a.Small")


SMALL = parse_ddl("id BIGINT, name STRING")
CODECS: dict[str, Codec] = {
    "json": JsonCodec(SMALL),
    "arrow": ArrowCodec(parse_ddl("id BIGINT, name STRING, at STRUCT<t: TIMESTAMP>")),
    "avro": AvroCodec(record("int", "id")),
    "protobuf": proto(id=pb.INT32, name=pb.STRING),
}


GOOD: dict[str, Callable[[int], bytes]] = {
    "json": lambda number: b'{"id":%d}' % number,
    "arrow": lambda number: stream({"id": [number]}),
    "avro": lambda number: bytes([2 * number]),
    "protobuf": lambda number: bytes([8, number]),
}
"""Makes a valid value of a format with this id."""


def column(codec: Codec, *rows: Any) -> pa.Array:
    return pa.array(rows, to_arrow_type(codec.kind, timezone="UTC"))


# All formats


def test_every_format_has_a_codec() -> None:
    file = File()
    file.message("M", id=pb.INT64)
    schemas = {"avro": record("long", "id"), "protobuf": file.text}
    codecs = {name: codec_of(name, schemas.get(name, "id BIGINT"), "M") for name in FORMATS}
    assert {name: codec.kind.simpleString() for name, codec in codecs.items() if codec} == {
        "string": "string",
        "json": "struct<id:bigint>",
        "arrow": "array<struct<id:bigint>>",
        "avro": "struct<id:bigint>",
        "protobuf": "struct<id:bigint>",
    }
    for name in schemas:
        with pytest.raises(ValueError, match="name it with option valueSchema"):
            codec_of(name, SMALL)


NOT_ARROW, NOT_AVRO = "not an Arrow stream", "it is not a record of this Avro schema: "
NOT_JSON, NOT_PROTOBUF = "not one JSON value", "it is not such a message: "


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("json", b"", NOT_JSON),
        ("json", b"{", "Missing a name"),
        ("json", b'{"id":1} {"id":2}', "Missing a comma"),
        ("json", b'{"id":1},{"id":2}', NOT_JSON),
        ("json", b'{"id":1}]}{"v":[{"id":2}', NOT_JSON),
        ("json", b'{"id":1},"v":{"id":2}', ""),
        ("json", b'{"id":1},"w":5', ""),
        ("json", b'{"id":1}],"w":[5', ""),
        ("json", b'null ],"w":[{}', ""),
        ("json", b'{"id":1}],"v":[{"id":2}', "twice"),
        ("json", b"[1]", "from object to array"),
        ("json", b'{"id":"1"}', "from number to string"),
        ("json", b'{"id":1.5}', "couldn't parse:1.5"),
        ("json", b'{"id":9223372036854775808}', "couldn't parse:9223372036854775808"),
        ("json", b'{"id":1,"id":1}', "twice"),
        ("json", b'{"name":1}', "from string to number"),
        ("json", b'{"name":"\xff"}', "not UTF-8"),
        ("json", b'{"name":"\\ud800"}', "surrogate"),
        ("json", b'{"id":' + b"[" * 100_000, ""),
        ("arrow", b"", NOT_ARROW),
        ("arrow", b"\xff" * 100, NOT_ARROW),
        ("arrow", stream({"id": [1, 2, 3]})[:-200], NOT_ARROW),
        ("arrow", stream({"name": pa.array([b"\xff"]).view(pa.utf8())}), NOT_ARROW),
        ("arrow", stream({"id": ["1"]}), "column 'id' is string, not bigint"),
        ("arrow", stream({"id": pa.array([1], pa.int32())}), "column 'id' is int32, not bigint"),
        ("arrow", stream([[1], [2]], names=["id", "id"]), "duplicate column 'id'"),
        ("avro", b"", NOT_AVRO),
        ("avro", b"\x80", NOT_AVRO),
        ("avro", b"\x02\x02", NOT_AVRO),
        ("avro", b"\xff" * 11, NOT_AVRO),
        ("protobuf", b"\x80", NOT_PROTOBUF),
        ("protobuf", b"\x08", NOT_PROTOBUF),
        ("protobuf", b"\x12\x05abc", NOT_PROTOBUF),
        ("protobuf", b"\x12\x01\xff", NOT_PROTOBUF),
        ("protobuf", b"\xff" * 11, NOT_PROTOBUF),
        ("protobuf", b"\x00", NOT_PROTOBUF),
    ],
)  # fmt: skip
def test_a_bad_value_spoils_no_other(name: str, value: bytes, why: str) -> None:
    values = [*map(GOOD[name], range(7))]
    rows, bad = decoded(CODECS[name], *values[:3], value, None, *values[3:], value)
    ids = [row and (row[0] if isinstance(row, list) else row)["id"] for row in rows]
    assert ids == [0, 1, 2, None, None, 3, 4, 5, 6, None]
    assert (list(bad), bad[3]) == ([3, 9], bad[9])
    assert why in bad[3]
    assert len(bad[3]) < 400


def numbers(values: pa.Array) -> pa.Array:
    return values.cast(pa.utf8()).cast(pa.int64())


@given(st.lists(st.none() | st.integers(0, 9) | st.just("bad"), max_size=30))
def test_each_bad_value_is_found(expected: list[int | str | None]) -> None:
    values = pa.array([None if each is None else str(each).encode() for each in expected])
    parts = list(decode_parts(values.cast(pa.binary()), numbers))
    found = concat_parts(parts, pa.int64()).to_pylist() if parts else []
    assert found == [None if each == "bad" else each for each in expected]
    bad = [part.start for part in parts if part.why]
    assert bad == [row for row, each in enumerate(expected) if each == "bad"]


def test_good_values_are_decoded_at_once_and_each_is_one_row() -> None:
    (part,) = decode_parts(pa.array([b"1"] * 1000), numbers)
    assert (part.start, len(part.column), part.why) == (0, 1000, "")
    parts = decode_parts(pa.array([b"1", b"2"]), lambda some: pa.array([1] * (len(some) + 1)))
    assert [part.why for part in parts] == ["it is more than one value"] * 2


def test_text() -> None:
    codec = codec_of("string", "")
    assert codec is not None
    rows, bad = decoded(codec, "é".encode(), None, b"\xff")
    assert (rows, bad) == (["é", None, None], {2: "it is not UTF-8"})


# JSON


WIDE = parse_ddl(
    "id BIGINT, name STRING, d DOUBLE, ok BOOLEAN, l ARRAY<INT>, s STRUCT<x TINYINT, t TIMESTAMP>, "
    "day DATE, price DECIMAL(10, 2), ll ARRAY<ARRAY<STRUCT<a STRING>>>, n TIMESTAMP_NTZ"
)
INTEGERS = st.integers(-(2**63), 2**63 - 1)
TIMES = st.datetimes(timezones=st.just(dt.UTC))
MEMBERS = {
    "id": INTEGERS,
    "name": st.text(st.characters(codec="utf-8"), max_size=5),
    "d": st.floats(allow_nan=False, allow_infinity=False),
    "ok": st.booleans(),
    "l": st.lists(st.none() | st.integers(-(2**31), 2**31 - 1), max_size=3),
    "s": st.fixed_dictionaries({"x": st.none() | st.integers(-128, 127), "t": st.none() | TIMES}),
    "day": st.dates(),
    "price": st.decimals(-(10**7), 10**7, places=2),
    "ll": st.lists(st.none() | st.lists(st.fixed_dictionaries({"a": st.text('ab"\\\n\0é')}))),
    "n": st.datetimes(),
}
STRUCTS = st.none() | st.fixed_dictionaries({k: st.none() | v for k, v in MEMBERS.items()})


@given(st.lists(STRUCTS, min_size=1, max_size=5), st.integers(0, 2))
def test_encoded_json_is_json_and_is_decoded(rows: list[Any], start: int) -> None:
    codec = JsonCodec(WIDE)
    part = column(codec, *rows).slice(start)
    values = codec.encode(part)
    for row, value in zip(part.to_pylist(), values.to_pylist(), strict=True):
        set_members = {name for name, each in (row or {}).items() if each is not None}
        assert value is row is None or set(json.loads(value)) == set_members
    assert codec.decode(values.cast(pa.binary())).equals(part)


def test_texts_are_those_of_to_json() -> None:
    """Spark may use large types, and timestamps in the session's time zone."""
    kind = '`i"d` BIGINT, s STRING, l ARRAY<INT>, price DECIMAL(10, 2), d DOUBLE, t TIMESTAMP'
    arrow = [pa.int64(), pa.large_utf8(), pa.large_list(pa.int32()), pa.decimal128(10, 2)]
    arrow += [pa.float64(), pa.timestamp("us", "Europe/Berlin")]
    old = dt.datetime(1850, 1, 1, microsecond=6, tzinfo=dt.UTC)
    row = 1, 'a"\\\n', [1, None], decimal.Decimal("1.50"), float("nan"), old
    names = ('i"d', "s", "l", "price", "d", "t")
    kinds = pa.struct([*zip(names, arrow, strict=True)])
    rows = pa.array([dict(zip(names, row, strict=True))], kinds)
    assert JsonCodec(parse_ddl(kind)).encode(rows).to_pylist() == [
        r'{"i\"d":1,"s":"a\"\\\u000a","l":[1,null],"price":1.50,"t":"1850-01-01T00:00:00.000006Z"}'
    ]


@pytest.mark.parametrize("name", ["t TIMESTAMP", "n TIMESTAMP_NTZ", "d DATE"])
def test_times_that_json_cannot_have_are_refused(name: str) -> None:
    """Arrow would write another year: of seconds in place of milliseconds for instance."""
    codec = JsonCodec(parse_ddl(name))
    (field,) = to_arrow_type(codec.kind, timezone="UTC")
    day = 1 if name == "d DATE" else 86_400_000_000

    def encoded(*days: int | None) -> list[str]:
        times = [each if each is None else each * day for each in days]
        column = pa.array(times, pa.int32() if day == 1 else pa.int64()).cast(field.type)
        texts = codec.encode(pa.StructArray.from_arrays([column], fields=[field]))
        return [str(each) for each in texts]

    old, last, none = encoded(-11_248_737, 11_248_737, None)
    assert "-28828-01-03" in old
    assert "32767-12-31" in last
    assert none == "{}"
    for days in 11_248_738, -11_248_738, 19_676_000:
        with pytest.raises(ValueError, match="has a time beyond the year 32767"):
            encoded(0, days)


def test_a_schema_that_has_changed() -> None:
    values = b'{"id":1,"more":{"deep":[1,"x"]},"name":"a"}', b"{}", b'{"id":null}', b"null", None
    rows, bad = decoded(CODECS["json"], *values, b'{\n"id":\r\n1}\n', b'\n\n{"id":2\n}')
    none = {"id": None, "name": None}
    assert rows[:5] == [{"id": 1, "name": "a"}, none, none, None, None]
    assert [row["id"] for row in rows[5:]] == [1, 2]
    assert not bad


def test_numbers_and_times_need_what_their_type_needs() -> None:
    kind = parse_ddl("t TIMESTAMP, n TIMESTAMP_NTZ, d DATE, s STRUCT<f FLOAT>, l ARRAY<DOUBLE>")
    rows, bad = decoded(
        JsonCodec(kind),
        b'{"t":"2026-01-01T01:00:00+01:00","n":"2026-01-01 00:00:00","d":"2026-01-01"}',
        b'{"t":"2026-01-01T00:00:00"}',
        b'{"n":"2026-01-01T00:00:00Z"}',
        b'{"d":"yesterday"}',
        b'{"t":1767225600}',
        b'{"s":{"f":1e300}}',
        b'{"l":[1e999]}',
        b'{"s":{"f":1},"l":[1,2]}',
    )
    midnight = dt.datetime(2026, 1, 1)  # noqa: DTZ001
    expected = {"t": midnight.replace(tzinfo=dt.UTC), "n": midnight, "d": midnight.date()}
    assert rows[0] == {**expected, "s": None, "l": None}
    assert (rows[-1]["s"], rows[-1]["l"]) == ({"f": 1.0}, [1.0, 2.0])
    assert sorted(bad) == [1, 2, 3, 4, 5, 6]
    assert "expected a zone offset" in bad[1]


# Arrow


ROW_OF = {"id": st.none() | INTEGERS, "name": st.none() | MEMBERS["name"], "at": st.none()}
ROWS = st.lists(st.fixed_dictionaries(ROW_OF), max_size=3)


@given(st.lists(st.none() | ROWS, min_size=1, max_size=4), st.integers(0, 2))
def test_encoded_arrow_is_decoded(rows: list[Any], start: int) -> None:
    codec = CODECS["arrow"]
    part = column(codec, *rows).slice(start)
    values = codec.encode(part)
    assert values.null_count == part.null_count
    assert codec.decode(values).to_pylist() == part.to_pylist()


def test_streams_of_several_schemas_and_layouts() -> None:
    names = pa.array(["a", "b", None], pa.large_utf8())
    stamps = pa.array([{"t": 7_000}], pa.struct([("t", pa.timestamp("ns", "Europe/Paris"))]))
    plain = {"more": [[1], None, []], "name": names}
    views = names.cast(pa.string_view())
    shared = pa.DictionaryArray.from_arrays(pa.array([0, 1, None]), views[:2])
    others = views, names.cast(pa.utf8()).dictionary_encode(), shared
    layouts = [stream({"name": column}) for column in others]
    values = [stream(plain), None, stream({"at": stamps, "id": [1]})]
    values += [*layouts, stream(plain, "zstd"), stream(plain, "lz4")]
    rows, bad = decoded(CODECS["arrow"], *values)
    assert not bad
    assert rows[0] == [{"id": None, "name": name, "at": None} for name in ("a", "b", None)]
    assert rows[1] is None
    assert rows[2][0]["at"]["t"].microsecond == 7
    assert [row == rows[0] for row in rows[3:]] == [True] * 5


def test_nested_views() -> None:
    """Polars writes them, in lists with 64-bit offsets."""
    lists = pa.array([["a", None], None]).cast(pa.large_list(pa.string_view()))
    structs = pa.StructArray.from_arrays([pa.array([b"x", b"y"]).cast(pa.binary_view())], ["b"])
    codec = ArrowCodec(parse_ddl("l ARRAY<STRING>, s STRUCT<b: BINARY>"))
    rows, bad = decoded(codec, stream({"l": lists, "s": structs}))
    assert rows == [[{"l": ["a", None], "s": {"b": b"x"}}, {"l": None, "s": {"b": b"y"}}]]
    assert not bad


@given(st.integers(0, 1 << 16), st.binary(min_size=1, max_size=8))
def test_a_damaged_stream_is_a_bad_value_or_a_table(at: int, damage: bytes) -> None:
    whole = stream({"id": [1, 2, 3], "name": ["a", "b", "c"]}, "zstd")
    at %= len(whole)
    rows, _ = decoded(CODECS["arrow"], (whole[:at] + damage + whole)[: len(whole)])
    assert len(rows) == 1


LONG = "x" * (MAX_OPENED // 4)
SHORT = b"x" * 1000


def shared() -> pa.Array:
    """A dictionary of one text, which 70,000 rows share."""
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(70_000, np.int8)), [SHORT.decode()])


def viewed() -> pa.Array:
    """Views of one text, which 70,000 rows share."""
    view = np.array([len(SHORT), int.from_bytes(SHORT[:4], "little"), 0, 0], np.int32)
    buffers = [None, pa.py_buffer(np.tile(view, 70_000)), pa.py_buffer(SHORT)]
    return pa.Array.from_buffers(pa.string_view(), 70_000, buffers)


@pytest.mark.parametrize(
    ("column", "made"),
    [
        ("name", lambda: pa.array([LONG] * 5)),
        ("unknown", lambda: pa.array([[LONG] * 5])),
        ("unknown", lambda: pa.nulls(2_000_000)),
        ("name", shared),
        ("name", viewed),
        ("at", lambda: pa.StructArray.from_arrays([shared()], ["name"])),
        ("names", lambda: pa.ListArray.from_arrays([0, 70_000], shared())),
    ],
)
def test_a_value_that_opens_to_too_much_is_bad_before_it_takes_memory(
    column: str, made: Callable[[], pa.Array]
) -> None:
    codec = ArrowCodec(parse_ddl("name STRING, at STRUCT<name: STRING>, names ARRAY<STRING>"))
    values = pa.array([stream({column: made()}, "zstd")], pa.binary())
    assert len(values[0].as_buffer()) < MAX_OPENED // 1000
    default = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(default)
    pa.set_memory_pool(pool)  # its peak counts from here
    try:
        with pytest.raises(ValueError, match="opens to more than 64 MiB; write fewer rows"):
            codec.decode(values)
    finally:
        pa.set_memory_pool(default)
    assert pool.max_memory() < MAX_OPENED // 4


def test_values_that_open_to_too_much_together_fail_the_query() -> None:
    """Each of them is good: none of them may be null in a result, or left out."""
    value = stream({"more": pa.nulls(500_000)}, "zstd")
    values = pa.array([value] * 30, pa.binary())
    why = rf"the 30 values .* open to \d+ bytes, more than {MAX_BATCH}\. .*maxRecordsPerBatch"
    with pytest.raises(BatchTooLargeError, match=why):
        list(decode_parts(values, CODECS["arrow"].decode))


# Avro


LOGICAL = {
    "day": ("int", "date", dt.date(2026, 1, 2)),
    "at": ("long", "timestamp-millis", dt.datetime(2026, 1, 2, 3, 4, 5, 6000, dt.UTC)),
    "local": ("long", "local-timestamp-micros", dt.datetime(2026, 1, 2, 3, 4, 5, 6)),  # noqa: DTZ001
    "uuid": ("string", "uuid", "6f0c2c5e-5d0b-5c0e-9a55-0d6b1c7f3a46"),
    "time": ("int", "time-millis", 5),
}
FIELDS: dict[str, tuple[Any, Any]] = {
    "id": ("long", 2**63 - 1),
    "name": (["null", "string"], None),
    "side": ({"type": "enum", "name": "Side", "symbols": ["BUY", "SELL"]}, "SELL"),
    "other": (["null", "Side"], "BUY"),
    "ok": (["null", "boolean"], None),
    "tags": ({"type": "array", "items": "string"}, ["a", ""]),
    "prices": ({"type": "map", "values": "double"}, [("x", 1.5)]),
    "sum": (
        {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
        decimal.Decimal("-1.50"),
    ),
    "raw": ({"type": "fixed", "name": "Raw", "size": 2}, b"\0\xff"),
    **{name: ({"type": t, "logicalType": kind}, row) for name, (t, kind, row) in LOGICAL.items()},
}


def test_encoded_avro_is_avro_and_is_decoded() -> None:
    fields = [{"name": name, "type": kind} for name, (kind, _) in FIELDS.items()]
    schema = {"type": "record", "name": "Trade", "namespace": "a.b", "fields": fields}
    codec = AvroCodec(json.dumps(schema))
    assert codec.kind.simpleString() == (
        "struct<id:bigint,name:string,side:string,other:string,ok:boolean,tags:array<string>,"
        "prices:map<string,double>,sum:decimal(9,2),raw:binary,day:date,at:timestamp,"
        "local:timestamp_ntz,uuid:string,time:int>"
    )
    row = {name: value for name, (_, value) in FIELDS.items()}
    rows = column(codec, row, None, {**row, "ok": True})
    for part in rows, rows.slice(1, 2):
        assert codec.decode(codec.encode(part)).to_pylist() == part.to_pylist()
    value = io.BytesIO(codec.encode(rows)[0].as_py())
    plain: Any = fastavro.schemaless_reader(value, fastavro.parse_schema(schema), None)
    assert (plain["side"], plain["prices"], str(plain["uuid"])) == ("SELL", {"x": 1.5}, row["uuid"])


BOOLEANS = {"type": "array", "items": "boolean"}
MAPPED = {"type": "map", "values": "boolean"}
FLAG = {"type": "record", "name": "F", "fields": [{"name": "ok", "type": "boolean"}]}
FLAGS = [{"name": "x", "type": FLAG}, {"name": "y", "type": "F"}]
TWICE = {"type": "record", "name": "T", "fields": FLAGS}
FORBIDDEN: list[tuple[Any, Any]] = [
    *(("int", None), ("boolean", None), (BOOLEANS, [True, None]), (MAPPED, {"x": None})),
    (TWICE, {"x": {"ok": True}, "y": {"ok": None}}),
]


@pytest.mark.parametrize(("kind", "value"), [*FORBIDDEN, (["null", BOOLEANS], [None])])
def test_a_null_that_avros_schema_forbids_is_refused(kind: Any, value: Any) -> None:
    """Of a boolean too, which fastavro would write as false."""
    codec = AvroCodec(record(kind))
    with pytest.raises(ValueError, match="a row does not fit the schema"):
        codec.encode(column(codec, {"a": value}, None))


def test_a_large_decimal_is_a_bad_value() -> None:
    """Its conversion would take time by the square of its size."""
    codec = AvroCodec(record(FIELDS["sum"][0]))
    (_, row), bad = decoded(codec, b"\x80\x80\x08" + bytes([1] * (1 << 16)), b"\x02\x05")
    why = "int or Decimal object expected, got bytes"
    assert bad == {0: f"it is not a record of this Avro schema: {why}"}
    assert row == {"a": decimal.Decimal("0.05")}


# Protobuf


ROW: dict[str, Any] = {
    "id": -5, "name": None, "small": -1, "large": -2, "side": "BUY", "tags": ["a", ""],
    "sub": None, "subs": [{"x": 1.5, "s": "q"}, {"x": 0.0, "s": ""}], "one": None, "two": 0,
    "raw": b"\xff", "ratio": 1.5, "ok": True, "sides": [(-1, "BUY")],
    "by_name": [("k", {"x": 2.0, "s": "z"})], "took": dt.timedelta(microseconds=-1_500_001),
    "at": dt.datetime(1960, 1, 1, 0, 0, 0, 5, dt.UTC),
    "times": [dt.datetime(2026, 1, 1, tzinfo=dt.UTC)],
}  # fmt: skip
OTHER = {
    **ROW, "name": "n", "sub": {"x": 1.0, "s": "s"}, "one": 7,
    **dict.fromkeys(("two", "at", "took")),
    **dict.fromkeys(("tags", "subs", "times", "by_name", "sides"), ()),
}  # fmt: skip


def test_encoded_rows_are_decoded_with_the_types_of_from_protobuf() -> None:
    codec = ProtobufCodec(trade().text, "Trade")
    assert codec.kind.simpleString() == (
        "struct<id:bigint,name:string,small:int,large:bigint,at:timestamp,"
        "took:interval day to second,side:string,tags:array<string>,"
        "sub:struct<x:double,s:string>,subs:array<struct<x:double,s:string>>,one:int,two:int,"
        "raw:binary,ratio:float,ok:boolean,times:array<timestamp>,"
        "by_name:map<string,struct<x:double,s:string>>,sides:map<int,string>>"
    )
    rows = column(codec, ROW, None, OTHER, ROW)
    for part in rows, rows.slice(1, 2), rows.slice(3), rows.slice(0, 0):
        found = codec.decode(codec.encode(part))
        assert found.to_pylist() == part.to_pylist()
        assert found.type == rows.type


def test_the_bytes_are_those_of_protobuf() -> None:
    codec = proto(id=pb.INT32, name=pb.STRING, side=pb.SIDE)
    value = b"\x08\x96\x01\x12\x02hi\x18\x01"
    row = {"id": 150, "name": "hi", "side": "BUY"}
    assert codec.encode(column(codec, row)).to_pylist() == [value]
    more = b"\x78\x05" + value + b"\x18\x09"  # an unknown field, and a symbol of a newer schema
    rows, bad = decoded(codec, more, b"")
    assert rows[0] == {**row, "side": "UNKNOWN_ENUM_VALUE_Side_9"}
    assert rows[1] == {"id": 0, "name": "", "side": "NONE"}
    assert not bad
    rows, bad = decoded(proto(at=pb.TIME), b"\x0a\x0a\x08" + b"\xff" * 8 + b"\x7f")
    assert "overflow" in bad[0]


def test_required_fields_of_proto2() -> None:
    file = File(syntax="proto2")
    old = {"type": pb.MESSAGE, "type_name": ".a.Old"}
    required = {"type": pb.INT32, "label": 2}
    file.message(
        "Old", id=required, with_default={"type": pb.INT32, "default_value": "5"}, other=pb.INT32
    )
    file.message("One", field=old)
    file.message("Many", field={**old, **pb.MANY})
    file.map(file.message("Mapped"), "field", pb.STRING, **old)
    codec = ProtobufCodec(file.text, "Old")
    row = {"id": 1, "with_default": 5, "other": None}
    assert decoded(codec, b"\x08\x01", None, b"") == (
        [row, None, None],
        {2: "it is not such a message: required fields are missing: id"},
    )
    for name in "One", "Many", "Mapped":
        value = b"\x0a\x02\x12\x00" if name == "Mapped" else b"\x0a\x00"
        assert [*decoded(ProtobufCodec(file.text, name), b"", value)[1]] == [1]
    for field, why in ("with_default", "null in field 'with_default'"), ("id", "does not fit"):
        with pytest.raises(ValueError, match=why):
            codec.encode(column(codec, {**row, field: None}))


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"id": None}, "null in field 'id', which always has a value"),
        ({"tags": None}, "null in field 'tags'"),
        ({"tags": ["a", None]}, "null in field 'tags'"),
        ({"sub": {"x": None, "s": ""}}, "null in field 'x'"),
        ({"by_name": [("a", None)]}, "null in field 'value'"),
        ({"one": 1}, r"only one of \['one', 'two'\] may be set"),
        ({"side": "HOLD"}, "field 'side' has no symbol 'HOLD'"),
    ],
)
def test_rows_that_do_not_fit_are_refused(given: dict[str, Any], why: str) -> None:
    codec = ProtobufCodec(trade().text, "a.Trade")
    with pytest.raises(ValueError, match=why):
        codec.encode(column(codec, None, {**ROW, **given}))


def test_messages_are_found_by_name() -> None:
    def check(name: str, why: str) -> None:
        with pytest.raises(ValueError, match=why):
            ProtobufCodec(file.text, name)

    file = trade()
    check("Trad", r"has no message 'Trad'; there are a\.Nothing, a\.Sub, a\.Trade")
    check("Nothing", "has no fields in message 'Nothing'")
    file.message("Self", inner={"type": pb.MESSAGE, "type_name": ".a.Self"})
    check("Self", r"has the recursive type 'a\.Self'")
    file.message("Sub", file.made.message_type[-1], x=pb.INT32)
    check("Sub", r"has more than one message 'Sub'; there are a\.Self\.Sub, a\.Sub")
    assert ProtobufCodec(file.text, "a.Sub").kind.simpleString() == "struct<x:double,s:string>"
    file.made.dependency.append("other.proto")
    check("Sub", "include_imports.*other.proto")


TWO = types.StructType([types.StructField("a", types.LongType())] * 2)
NO_TYPE = "for which Spark has no type"
EMPTY = {"type": "record", "name": "E", "fields": []}
LONG_DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 50}


@pytest.mark.parametrize(
    ("name", "schema", "why"),
    [
        ("json", "b BINARY", "unbase64"),
        ("json", "m ARRAY<MAP<STRING, INT>>", "a STRUCT with the"),
        ("json", types.LongType(), "made of a struct"),
        ("json", TWO, "has the duplicate field 'a'"),
        ("json", types.StructType().add("s", TWO), "has the duplicate field 'a'"),
        ("arrow", types.ArrayType(TWO), "has the duplicate field 'a'"),
        ("arrow", types.LongType(), "a list of structs"),
        ("arrow", types.ArrayType(types.LongType()), "a list of structs"),
        ("avro", "id BIGINT", "must be an Avro schema as JSON, or FILE.avsc"),
        ("avro", record("what"), "what"),
        ("avro", '"long"', "must be the Avro schema of a record"),
        ("avro", record(["int", "string"]), "a union of several types"),
        ("avro", record(["null", "R"]), "has the recursive type 'R'"),
        ("avro", record("null"), NO_TYPE),
        ("avro", record({"type": "fixed", "name": "F", "size": 0}), NO_TYPE),
        ("avro", record(EMPTY), NO_TYPE),
        ("avro", record(LONG_DECIMAL), NO_TYPE),
        *(("protobuf", text, "must be a descriptor set") for text in ("id BIGINT", "AAAA", "")),
    ],
)
def test_invalid_schemas_are_refused(name: str, schema: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        codec_of(name, schema, "M")
