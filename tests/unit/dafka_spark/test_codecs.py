"""Codecs by the names of their formats, and bad values among good ones."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dafka_spark.formats.codecs import FORMATS, StringCodec, codec_of, concat_parts, decode_parts
from dafka_spark.formats.ddl import parse_ddl
from dafka_spark.formats.extras import import_extra
from tests.unit.dafka_spark.descriptors import INT64, File


def test_every_format_has_a_codec() -> None:
    file = File()
    file.message("M", id=INT64)
    avro = '{"type":"record","name":"R","fields":[{"name":"id","type":"long"}]}'
    schemas = {"avro": avro, "protobuf": file.text}
    codecs = {name: codec_of(name, schemas.get(name, "id BIGINT"), "M") for name in FORMATS}
    assert {name: codec.kind.simpleString() for name, codec in codecs.items() if codec} == {
        "string": "string",
        "json": "struct<id:bigint>",
        "arrow": "array<struct<id:bigint>>",
        "avro": "struct<id:bigint>",
        "protobuf": "struct<id:bigint>",
    }
    codec = codec_of("json", parse_ddl("id BIGINT"))
    assert codec is not None
    assert codec.kind == parse_ddl("id BIGINT")


@pytest.mark.parametrize("name", ["avro", "protobuf"])
def test_a_format_with_its_own_schemas_needs_the_option(name: str) -> None:
    with pytest.raises(ValueError, match="name it with option valueSchema"):
        codec_of(name, parse_ddl("id BIGINT"))


def numbers(values: pa.Array) -> pa.Array:
    return values.cast(pa.utf8()).cast(pa.int64())


@given(st.lists(st.none() | st.integers(0, 9) | st.just("bad"), max_size=30))
def test_each_bad_value_is_found(wanted: list[int | str | None]) -> None:
    values = pa.array([None if each is None else str(each).encode() for each in wanted])
    parts = list(decode_parts(values.cast(pa.binary()), numbers))
    column = concat_parts(parts, pa.int64()) if parts else pa.array([], pa.int64())
    assert column.to_pylist() == [None if each == "bad" else each for each in wanted]
    bad = [part.start for part in parts if part.why]
    assert bad == [row for row, each in enumerate(wanted) if each == "bad"]


def test_good_values_are_decoded_at_once() -> None:
    (part,) = decode_parts(pa.array([b"1"] * 1000), numbers)
    assert (part.start, len(part.column), part.why) == (0, 1000, "")


def test_a_value_that_decodes_to_two_rows_is_bad() -> None:
    parts = list(
        decode_parts(pa.array([b"1", b"2"]), lambda values: pa.array([1] * (len(values) + 1)))
    )
    assert [part.why for part in parts] == ["it is more than one value"] * 2


def test_text() -> None:
    codec = StringCodec()
    assert codec.decode(pa.array(["é".encode(), None])).to_pylist() == ["é", None]
    with pytest.raises(ValueError, match="it is not UTF-8"):
        codec.decode(pa.array([b"\xff"]))


def test_a_missing_package_is_named_with_its_extra() -> None:
    assert import_extra("json", extra="x") is json
    why = r"needs not_there on the driver and the executors: pip install 'dafka-spark\[odd\]'"
    with pytest.raises(ImportError, match=why):
        import_extra("not_there.part", extra="odd")
