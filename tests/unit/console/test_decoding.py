"""Formats guessed from bytes, and their display."""

import datetime as dt
import decimal
import io
import json
import random
import time
import uuid
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from dafka_console import decoding
from dafka_console.decoding import decoded, guessed, image_type, preview
from dafka_core.errors import ConfigError

PNG = b"\x89PNG\r\n\x1a\n" + bytes(50)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"", "text"),
        (b"hello\tworld\n", "text"),
        ("h\u00e9llo".encode(), "text"),
        (("\u00e9" * 300).encode(), "text"),  # cut within a character
        (b' {"a": 1}', "json"),
        (b"[1, 2]", "json"),
        (b"\x00\x01", "hex"),
        (b"\xff\xfe", "hex"),
        (PNG, "image"),
        (b"\xff\xd8\xff\xe0", "image"),
        (b"GIF89a...", "image"),
        (b"RIFF....WEBPVP8 ", "image"),
        (b"RIFF....WAVE", "text"),
        (b"<svg onload='alert(1)'/>", "text"),
        (b"Obj\x01...", "avro"),
        (b"ARROW1\0\0...", "arrow"),
    ],
)
def test_what_octets_look_like(value: bytes, expected: str) -> None:
    assert guessed(value) == expected
    assert preview(value).format == expected


def test_a_picture_is_none_that_runs_anything() -> None:
    assert image_type(b"<svg xmlns='http://www.w3.org/2000/svg'/>") == ""
    assert image_type(b"<html>") == ""
    assert image_type(PNG) == "image/png"
    assert decoded(PNG).media == "image/png"


def test_json_is_shown_with_every_digit_as_it_was_written() -> None:
    value = (
        b'{"a":1.10,"big":123456789012345678901234567890,"t":"x,{}\\"\\u00e9","e":[],'
        b'"o":{},"n":null}'
    )
    assert decoded(value).text == (
        '{\n  "a": 1.10,\n  "big": 123456789012345678901234567890,\n  "t": "x,{}\\"\\u00e9",\n'
        '  "e": [],\n  "o": {},\n  "n": null\n}'
    )
    assert decoded(b"[[1,2],3]").text == "[\n  [\n    1,\n    2\n  ],\n  3\n]"
    assert decoded(b'"x"', "json").text == '"x"'


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (b"{", "json"),
        (b"[" * 200_000, "json"),
        (b"{'a': 1}", "json"),
        (b"x", "avro"),
        (b"x", "arrow"),
    ],
)
def test_what_is_not_what_it_is_taken_for_is_shown_as_it_is(value: bytes, wanted: str) -> None:
    found = decoded(value, wanted)
    assert found.note.startswith(f"not {wanted}: ")
    assert found.format == "text"
    assert found.text == value[: decoding.MAX_TEXT_BYTES].decode()


def test_what_is_made_of_a_value_is_bounded() -> None:
    assert decoded(b"x" * 10_000_000).note == "9,737,856 more bytes"
    deep = b"[" * 900 + b"1," * 100_000 + b"1" + b"]" * 900
    assert decoded(deep).text == deep.decode()  # indented it would be 200 MB
    found = decoded(b"[" * 50 + b"1," * 100_000 + b"1" + b"]" * 50)
    assert (len(found.text), found.note) == (decoding.MAX_TEXT_BYTES, "the rest is left out")
    assert "larger than" in decoded(b"[" + b" " * (2 << 20) + b"]").note
    assert len(decoded(bytes(100_000)).text) < 100_000
    assert len(preview(b"x" * 10_000_000).text) <= decoding.PREVIEW_BYTES + 1
    assert len(preview(b"\xff" * 1_000).text) < 200


def test_what_cannot_be_seen_is_shown() -> None:
    assert decoded("a\u202eb\nc\td".encode()).text == "a\\xe2\\x80\\xaeb\nc\td"
    assert decoded(b"ok \xff", "text").text == "ok \\xff"
    assert decoded(b"\x00AZ\xff").text == f"{'000000  00 41 5a ff':<58}·AZ·"
    assert preview(b"two\nlines  here").text == "two lines here"


def test_null_is_not_empty_and_a_format_that_is_none_is_refused() -> None:
    assert (decoded(None).format, preview(None).format) == ("null", "null")
    assert decoded(b"").format == "text"
    with pytest.raises(ConfigError, match="must be one of auto, text"):
        decoded(b"", "yaml")


def test_values_that_json_does_not_have() -> None:
    made = decoding._dumped(
        {
            "b": b"\x01\xff",
            "t": dt.datetime(2024, 1, 2, tzinfo=dt.UTC),
            "d": decimal.Decimal("1.50"),
            "u": uuid.UUID(int=1),
            "r": range(3),
        }
    )
    for expected in ("0x01ff", "2024-01-02T00:00:00+00:00", "1.50", "-000000000001", "range(0, 3)"):
        assert expected in made


def test_any_octets_in_any_format_are_shown() -> None:
    chance = random.Random(7)
    heads = [b"", b"Obj\x01", b"ARROW1\0\0", b"\xff\xff\xff\xff", b"{", b"["]
    for number in range(600):
        value = heads[number % len(heads)] + chance.randbytes(chance.randrange(80))
        for wanted in decoding.FORMATS:
            assert len(decoded(value, wanted, '{"type": "string"}').text) < 10_000


TABLE = pa.table(
    {
        "a": [1, 2, 3],
        "b": ["x", None, "z"],
        "d": pa.array(["p", "q", "p"]).dictionary_encode(),
        "l": [[1], [], None],
    }
)


def stream_of(table: pa.Table, **options: Any) -> bytes:
    made = io.BytesIO()
    with pa.ipc.new_stream(made, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table)
    return made.getvalue()


def file_of(table: pa.Table) -> bytes:
    made = io.BytesIO()
    with pa.ipc.new_file(made, table.schema) as writer:
        writer.write_table(table)
    return made.getvalue()


def test_streams_and_files() -> None:
    for value in (stream_of(TABLE), file_of(TABLE)):
        assert decoding.is_arrow(value)
        assert decoding.arrow_rows(value) == (TABLE.to_pylist(), "")


def test_only_the_first_rows_are_made() -> None:
    found, note = decoding.arrow_rows(stream_of(pa.table({"a": range(1_000)})))
    assert (len(found), note) == (50, "the first 50 rows")


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_what_is_compressed_is_not_opened(codec: str) -> None:
    for table in (TABLE, TABLE.select(["d"])):
        with pytest.raises(ValueError, match="compressed"):
            decoding.arrow_rows(stream_of(table, compression=codec))


@pytest.mark.parametrize(
    "kind",
    [
        pa.list_(pa.null()),
        pa.list_(pa.struct([])),
        pa.struct([("u", pa.list_(pa.binary(0)))]),
        pa.list_(pa.int8(), 100_000),
        pa.list_(pa.run_end_encoded(pa.int32(), pa.int8())),
        pa.list_(pa.dictionary(pa.int8(), pa.string())),
        pa.list_(pa.string_view()),
        pa.list_view(pa.int8()),
    ],
)
def test_types_by_which_few_octets_are_much_are_refused(kind: pa.DataType) -> None:
    made = io.BytesIO()
    with pa.ipc.new_stream(made, pa.schema([("c", kind)])):
        pass
    with pytest.raises(ValueError, match="not opened here"):
        decoding.arrow_rows(made.getvalue())


def test_a_type_that_is_too_deep_and_too_many_columns() -> None:
    kind = pa.int8()
    for _ in range(40):
        kind = pa.list_(kind)
    with pytest.raises(ValueError, match="too deep"):
        decoding._check_type(kind)
    with pytest.raises(ValueError, match="columns"):
        decoding.arrow_rows(stream_of(pa.table({f"c{n}": [1] for n in range(300)})))


def test_a_stream_that_is_damaged_anywhere_is_refused_or_read() -> None:
    good = stream_of(TABLE)
    for place in range(8, len(good), 7):
        bad = bytearray(good)
        bad[place] ^= 0xFF
        try:
            found, _ = decoding.arrow_rows(bytes(bad))
        except Exception:  # noqa: BLE001 -- any error is one; the process lives
            continue
        assert len(found) <= 51


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


def avro_values_file_of(rows: list[Any], schema: Any = ROW, codec: str = "null") -> bytes:
    made = io.BytesIO()
    fastavro.writer(made, schema, rows, codec=codec)
    return made.getvalue()


def value_of(row: Any, schema: Any = ROW) -> bytes:
    made = io.BytesIO()
    fastavro.schemaless_writer(made, schema, row)
    return made.getvalue()


def test_a_file_has_its_schema() -> None:
    assert decoding.avro_rows(avro_values_file_of([VALUE, VALUE])) == ([VALUE, VALUE], "")
    found, note = decoding.avro_rows(avro_values_file_of([VALUE] * 60, codec="deflate"))
    assert (len(found), note) == (50, "the first 50 rows")


def test_a_value_needs_one_and_may_have_a_registrys_header() -> None:
    schema = json.dumps(ROW)
    assert decoding.avro_rows(value_of(VALUE), schema) == (VALUE, "")
    found, note = decoding.avro_rows(b"\0\0\0\0\7" + value_of(VALUE), schema)
    assert (found, "schema registry" in note) == (VALUE, True)
    with pytest.raises(ValueError, match="give the schema"):
        decoding.avro_rows(value_of(VALUE))
    _, note = decoding.avro_rows(value_of(VALUE) + b"more", schema)
    assert "4 bytes follow the value" in note


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"type": "array", "items": "null"}, "take no byte"),
        ({"type": "array", "items": {"type": "record", "name": "e", "fields": []}}, "take no byte"),
        ({"type": "array", "items": {"type": "fixed", "name": "f", "size": 0}}, "take no byte"),
        (
            {"type": "record", "name": "L", "fields": [{"name": "n", "type": ["null", "L"]}]},
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
    began_s = time.process_time()
    with pytest.raises(ValueError, match=expected):
        decoding.avro_rows(b"\x02" * 100_000, json.dumps(schema))
    assert time.process_time() - began_s < 10


def test_a_schema_that_is_too_deep_or_too_long_is_refused() -> None:
    deep: Any = "int"
    for _ in range(60):
        deep = {"type": "array", "items": deep}
    with pytest.raises(ValueError, match="deeper than"):
        decoding.avro_rows(b"\0", json.dumps(deep))
    with pytest.raises(ValueError, match="characters"):
        decoding.avro_rows(b"\0", " " * 100_000)


def test_files_that_expand_are_opened_only_where_they_stay_small() -> None:
    rows = [{"x": n, "y": str(hash(str(n))), "l": [n, n]} for n in range(20_000)]
    with pytest.raises(ValueError, match="compressed, and larger than 65,536 bytes"):
        decoding.avro_rows(avro_values_file_of(rows, codec="deflate"))
    zeros = avro_values_file_of([VALUE | {"l": [0] * 2_000_000}], codec="deflate")
    assert len(zeros) < 65_536
    with pytest.raises(ValueError, match="a block is larger than 1,048,576 bytes"):
        decoding.avro_rows(zeros)
    for codec in ("bzip2", "xz"):
        with pytest.raises(ValueError, match=f"{codec}.*only deflate"):
            decoding.avro_rows(avro_values_file_of([VALUE], codec=codec))


def test_a_schema_of_a_thousand_characters_is_no_billion_values() -> None:
    kind: Any = "null"
    for depth in range(14):
        fields = [{"name": f"f{n}", "type": kind if not n else f"r{depth - 1}"} for n in range(3)]
        fields = fields[:1] if not depth else fields
        kind = {"type": "record", "name": f"r{depth}", "fields": fields}
    with pytest.raises(ValueError, match="too many values that take no byte"):
        decoding.avro_rows(b"\2\2\2", json.dumps(kind))


def test_a_file_that_says_it_has_endless_nothings_ends() -> None:
    made = avro_values_file_of([None] * 3, "null")
    assert decoding.avro_rows(made) == ([None] * 3, "")


def test_only_decimals_of_a_usual_size_are_converted() -> None:
    """For a large one fastavro takes minutes, in which no other thread runs."""
    kind = {"type": "bytes", "logicalType": "decimal", "precision": 30, "scale": 2}
    one = decoding.avro_rows(value_of(b"\1\2", "bytes"), json.dumps(kind))
    assert one == (decimal.Decimal("2.58"), "")
    large = b"\1" * 20_000
    assert decoding.avro_rows(value_of(large, "bytes"), json.dumps(kind)) == (large, "")
