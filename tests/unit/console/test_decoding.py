"""What octets are taken for, and how they are shown."""

from __future__ import annotations

import datetime as dt
import decimal
import random
import uuid

import pytest

from dafka_core.console import decoding
from dafka_core.console.decoding import decoded, guessed, image_type, preview
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
    assert decoded(b"x" * 10_000_000).note == "9,737,856 more octets"
    deep = b"[" * 900 + b"1," * 100_000 + b"1" + b"]" * 900
    found = decoded(deep)
    assert len(found.text) <= decoding.MAX_TEXT_BYTES
    assert found.note == "the rest is left out"
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
