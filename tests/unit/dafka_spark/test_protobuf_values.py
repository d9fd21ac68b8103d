"""Messages of Protocol Buffers as values."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_type

from dafka_spark.formats.codecs import concat_parts, decode_parts
from dafka_spark.formats.protobuf_values import ProtobufCodec
from tests.unit.dafka_spark.descriptors import (
    BOOL,
    BYTES,
    DOUBLE,
    ENUM,
    FLOAT,
    INT32,
    INT64,
    MESSAGE,
    STRING,
    UINT32,
    UINT64,
    File,
)

TIME = {"type": MESSAGE, "type_name": ".google.protobuf.Timestamp"}
SIDE = {"type": ENUM, "type_name": ".a.Side"}
SUB = {"type": MESSAGE, "type_name": ".a.Sub"}
MANY = {"label": 3}

ROW: dict[str, Any] = {
    "id": -5,
    "name": None,
    "small": -1,
    "large": -2,
    "at": dt.datetime(1960, 1, 1, 0, 0, 0, 5, dt.UTC),
    "took": dt.timedelta(microseconds=-1_500_001),
    "side": "BUY",
    "tags": ["a", ""],
    "sub": None,
    "subs": [{"x": 1.5, "s": "q"}, {"x": 0.0, "s": ""}],
    "one": None,
    "two": 0,
    "raw": b"\xff",
    "ratio": 1.5,
    "ok": True,
    "times": [dt.datetime(2026, 1, 1, tzinfo=dt.UTC)],
    "by_name": [("k", {"x": 2.0, "s": "z"})],
    "sides": [(-1, "BUY")],
}
OTHER = {
    **ROW,
    "name": "n",
    "sub": {"x": 1.0, "s": "s"},
    "one": 7,
    **dict.fromkeys(("two", "at", "took")),
    **dict.fromkeys(("tags", "subs", "times", "by_name", "sides"), ()),
}


def trade() -> File:
    file = File()
    file.enum("Side", "NONE", "BUY")
    file.message("Sub", x=DOUBLE, s=STRING)
    file.message("Nothing")
    made = file.message(
        "Trade",
        id=INT64,
        name={"type": STRING, "proto3_optional": True, "oneof_index": 1},
        small=UINT32,
        large=UINT64,
        at=TIME,
        took={"type": MESSAGE, "type_name": ".google.protobuf.Duration"},
        side=SIDE,
        tags={"type": STRING, **MANY},
        sub=SUB,
        subs={**SUB, **MANY},
        one={"type": INT32, "oneof_index": 0},
        two={"type": INT32, "oneof_index": 0},
        nothing={"type": MESSAGE, "type_name": ".a.Nothing"},
        raw=BYTES,
        ratio=FLOAT,
        ok=BOOL,
        times={**TIME, **MANY},
    )
    made.oneof_decl.add(name="which")
    made.oneof_decl.add(name="_name")
    file.map(made, "by_name", STRING, **SUB)
    file.map(made, "sides", UINT32, **SIDE)
    return file


def small(**fields: Any) -> ProtobufCodec:
    file = File()
    file.enum("Side", "NONE", "BUY")
    file.message("Small", **(fields or {"id": INT32}))
    return ProtobufCodec(file.text, "a.Small")


def arrow(codec: ProtobufCodec) -> pa.DataType:
    return to_arrow_type(codec.kind, timezone="UTC")


def test_encoded_rows_are_decoded_with_the_types_of_from_protobuf() -> None:
    codec = ProtobufCodec(trade().text, "Trade")
    assert codec.kind.simpleString() == (
        "struct<id:bigint,name:string,small:int,large:bigint,at:timestamp,"
        "took:interval day to second,side:string,tags:array<string>,"
        "sub:struct<x:double,s:string>,subs:array<struct<x:double,s:string>>,one:int,two:int,"
        "raw:binary,ratio:float,ok:boolean,times:array<timestamp>,"
        "by_name:map<string,struct<x:double,s:string>>,sides:map<int,string>>"
    )
    column = pa.array([ROW, None, OTHER, ROW], arrow(codec))
    for part in column, column.slice(1, 2), column.slice(3), column.slice(0, 0):
        values = codec.encode(part)
        decoded = codec.decode(values)
        assert decoded.to_pylist() == part.to_pylist()
        assert decoded.type == column.type


def test_the_bytes_are_those_of_the_format() -> None:
    codec = small(id=INT32, name=STRING, side=SIDE)
    octets = b"\x08\x96\x01\x12\x02hi\x18\x01"
    row = {"id": 150, "name": "hi", "side": "BUY"}
    assert codec.encode(pa.array([row], arrow(codec))).to_pylist() == [octets]
    more = b"\x78\x05" + octets + b"\x18\x09"  # a field that is not known, and a later symbol
    (found,) = codec.decode(pa.array([more], pa.binary())).to_pylist()
    assert found == {**row, "side": "UNKNOWN_ENUM_VALUE_Side_9"}
    (empty,) = codec.decode(pa.array([b""], pa.binary())).to_pylist()
    assert empty == {"id": 0, "name": "", "side": "NONE"}


@pytest.mark.parametrize(
    "value", [b"\x80", b"\x08", b"\x12\x05abc", b"\x12\x01\xff", b"\xff" * 11, b"\x00"]
)
def test_a_bad_value_spoils_no_other(value: bytes) -> None:
    codec = small(id=INT32, name=STRING)
    parts = list(decode_parts(pa.array([b"\x08\x01", value, None, b""], pa.binary()), codec.decode))
    column = concat_parts(parts, arrow(codec))
    assert column.to_pylist() == [{"id": 1, "name": ""}, None, None, {"id": 0, "name": ""}]
    ((row, why),) = [(part.start, part.why) for part in parts if part.why]
    assert row == 1
    assert why.startswith("it is not such a message: ")


def test_a_time_that_no_timestamp_holds_is_bad() -> None:
    codec = small(at=TIME)
    with pytest.raises(ValueError, match=r"it is not such a message: .*overflow"):
        codec.decode(pa.array([b"\x0a\x0a\x08" + b"\xff" * 8 + b"\x7f"], pa.binary()))


def test_required_fields_of_proto2() -> None:
    file = File(syntax="proto2")
    needed = {"type": INT32, "label": 2}
    file.message("Old", id=needed, with_default={"type": INT32, "default_value": "5"}, other=INT32)
    codec = ProtobufCodec(file.text, "Old")
    values = pa.array([b"\x08\x01", None], pa.binary())
    row = {"id": 1, "with_default": 5, "other": None}
    assert codec.decode(values).to_pylist() == [row, None]
    with pytest.raises(ValueError, match="required fields are missing: id"):
        codec.decode(pa.array([b""], pa.binary()))
    with pytest.raises(ValueError, match="null in field 'with_default'"):
        codec.encode(pa.array([{**row, "with_default": None}], arrow(codec)))
    with pytest.raises(ValueError, match="a row does not fit the schema"):
        codec.encode(pa.array([{**row, "id": None}], arrow(codec)))


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
    with pytest.raises(ValueError, match=f"{why}"):
        codec.encode(pa.array([None, {**ROW, **given}], arrow(codec)))


def test_schemas_that_cannot_be_read_are_refused() -> None:
    def refused(file: File, name: str, why: str) -> None:
        with pytest.raises(ValueError, match=why):
            ProtobufCodec(file.text, name)

    for text in "id BIGINT", "AAAA", "":
        with pytest.raises(ValueError, match="must be a descriptor set"):
            ProtobufCodec(text, "M")
    file = trade()
    refused(file, "Trad", r"has no message 'Trad'; there are a\.Nothing, a\.Sub, a\.Trade")
    refused(file, "Nothing", "has no fields in message 'Nothing'")
    file.message("Self", inner={"type": MESSAGE, "type_name": ".a.Self"})
    refused(file, "Self", r"has the recursive type 'a\.Self'")
    file.message("Sub", file.made.message_type[-1], x=INT32)
    refused(file, "Sub", r"has more than one message 'Sub'; there are a\.Self\.Sub, a\.Sub")
    assert ProtobufCodec(file.text, "a.Sub").kind.simpleString() == "struct<x:double,s:string>"
    file.made.dependency.append("other.proto")
    refused(file, "Sub", "include_imports.*other.proto")
