"""Lines, JSON objects and rows of CSV as records."""

import json
import re
import time
from types import SimpleNamespace
from typing import Any

import pytest

from dafka_core.cli import produce_command
from dafka_core.cli.produce_command import Columns, CsvRecords, Decoder, JsonRecords, Publisher
from dafka_core.cli.produce_command import LineRecords as Lines


def test_a_line_is_a_value_and_what_is_before_a_separator_its_key() -> None:
    assert Lines(None, ()).decode([b"a", b""]) == (([b"a", b""], None, None), "")
    pairs = (("n", b"1"),)
    assert Lines(b"k", pairs).decode([b"a"]) == (([b"a"], [b"k"], [pairs]), "")
    parted, _ = Lines(b"k", (), b"::").decode([b"x::y::z", b"none", b"::e"])
    assert parted == ([b"y::z", b"none", b"e"], [b"x", b"k", b""], None)
    assert Columns([b"a", b"b"], [b"c", b"d"]).part(1, 9) == ([b"b"], [b"d"], None)


def test_json_is_what_consume_prints() -> None:
    lines = [
        (
            b'{"topic": "t", "value": "a", "key": "k", "headers": [{"name": "n", "value": "1"}, '
            b'{"name": "m", "value": null, "value_base64": "/w=="}]}'
        ),
        b'{"value": null, "value_base64": "/w==", "key": null}',
        b'{"value": {"a": [1]}, "headers": {"h": null}}',
        b'{"value": null}',
    ]
    (values, keys, headers), why = JsonRecords(b"all", (("g", b""),)).decode(lines)
    assert not why
    assert values == [b"a", b"\xff", b'{"a":[1]}', None]
    assert keys == [b"k", b"all", b"all", b"all"]
    assert headers is not None
    assert headers[0] == (("g", b""), ("n", b"1"), ("m", b"\xff"))
    assert headers[2] == (("g", b""), ("h", None))


def test_a_row_of_csv_has_a_value_or_is_an_object() -> None:
    valued = CsvRecords(None, (), None)
    lines = [b"\xef\xbb\xbfkey,value\r", b'k,"a ""quoted""', b'text, two lines"\r', b"", b"l,\xff"]
    assert valued.decode(lines[:2]) == (([], [], []), "")
    (values, keys, _), why = valued.decode(lines[2:])
    assert values == [b'a "quoted"\ntext, two lines', b"\xff"]
    assert keys == [b"k", b"l"]
    assert not why
    assert not valued.end()
    objects = CsvRecords(None, (), "id")
    (values, keys, _), _ = objects.decode([b"id,name", "7,ü".encode(), b"008,b"])
    assert keys == [b"7", b"008"]
    assert [json.loads(value or b"") for value in values] == [
        {"id": "7", "name": "ü"},
        {"id": "008", "name": "b"},
    ]


MANY_HEADERS = b", ".join([b'{"name": "n", "value": "v"}'] * 9_000)


@pytest.mark.parametrize(
    ("decoder", "lines", "number", "says"),
    [
        (JsonRecords(None, ()), [b'{"value": "a"}', b"{"], 2, "JSON is malformed|truncated"),
        (JsonRecords(None, ()), [b'{"value": "a"}', b"[1]"], 2, "it is not a JSON object"),
        (JsonRecords(None, ()), [b'{"value": "a"}', b'{"key": "k"}'], 2, "neither value nor"),
        (JsonRecords(None, ()), [b'{"value": "a"}', b'{"value_base64": "?"}'], 2, "base64"),
        (
            JsonRecords(None, ()),
            [b'{"value": "a"}', b'{"value": "", "headers": [1]}'],
            2,
            "headers",
        ),
        (JsonRecords(None, ()), [b'{"value": "a"}', b'{"value": "", "headers": 1}'], 2, "head"),
        (CsvRecords(None, (), None), [b"value,b", b"a,b", b"c"], 3, "1 columns instead of 2"),
        (CsvRecords(None, (), None), [b"value", b"a", b'"x"y'], 3, "expected"),
        (
            JsonRecords(None, ()),
            [b'{"value": "a"}', b'{"value": "b", "headers": [%s]}' % MANY_HEADERS],
            2,
            "too many headers",
        ),
    ],
)
def test_those_before_a_line_that_is_no_record_are_kept(
    decoder: Decoder, lines: list[bytes], number: int, says: str
) -> None:
    before, why = decoder.decode(lines)
    assert re.search(says, why)
    assert before.values == [b"a"]
    assert decoder.line == number


def test_a_column_or_a_quotation_mark_that_is_missing_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, why = CsvRecords(None, (), "nmae").decode([b"id,name"])
    assert "column 'nmae' is missing (did you mean 'name'" in why
    _, why = CsvRecords(None, (), None).decode([b"id,name,id"])
    assert why == "there are several columns 'id'"
    open_ended = CsvRecords(None, (), None)
    open_ended.decode([b"value", b'"a', b"b"])
    assert open_ended.end() == "a quotation mark is not closed"
    monkeypatch.setattr(produce_command, "MAX_ROW_BYTES", 10)
    _, why = CsvRecords(None, (), None).decode([b"value", b'"a', b"b" * 20])
    assert why == "a quotation mark is not closed"


def test_the_rate_is_kept_after_a_pause_of_the_input(monkeypatch: pytest.MonkeyPatch) -> None:
    now, published = 1_000.0, list[float]()

    def pass_time(wait: Any) -> None:
        nonlocal now
        now += wait.args[0]

    clock = SimpleNamespace(monotonic=lambda: now, sleep=time.sleep)
    monkeypatch.setattr(produce_command, "time", clock)
    producer: Any = SimpleNamespace(publish_many=lambda *_: published.append(now))
    publisher = Publisher(producer, rate=10.0, let_in=pass_time)
    for _ in range(2):
        now += 3_600  # nothing arrives
        publisher._publish(Columns([b""] * 20))
    assert published[19] - published[0] == pytest.approx(1.85)
    assert published[39] - published[20] == pytest.approx(1.85)
