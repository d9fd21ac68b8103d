"""Parsers of option values: what each accepts, and the errors for everything else."""

import datetime as dt
import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dafka_core.errors import ConfigError
from dafka_core.model.positions import (
    AGO,
    AT_EARLIEST,
    AT_LATEST,
    EARLIEST,
    LATEST,
    OFFSET,
    TIME,
    Position,
)
from dafka_core.model.records import PartitionInfo, TopicPartition
from dafka_core.model.timestamps import shown_time
from dafka_spark import option_types as values
from dafka_spark.option_types import UNLIMITED_BYTES, OffsetRangeLimit
from dafka_spark.options import Bound, SourceOptions
from dafka_spark.source.offset_reader import OffsetReader, OffsetsSnapshot, Resolved
from tests.memory_reader import MemoryReader

A, B, C = (TopicPartition("t", name) for name in "ABC")
NEW_YEAR_US = 1_767_225_600_000_000
NEW_YEAR = Position(TIME, NEW_YEAR_US)
DIGITS = "9" * 5_000
"""More than Python parses as a number."""
DEEP = '{"t": ' + "[" * 100_000  # deeper than Python's JSON parser goes


def parse(kind: str, value: str) -> Any:
    if kind == "position":
        return values.parse_offset_range_limit(value).everywhere
    return getattr(values, f"parse_{kind}")(value)


@pytest.mark.parametrize(
    ("kind", "value", "parsed"),
    [
        ("tower", "10.0.0.1", "10.0.0.1:5556:5557"),
        ("tower", "a:1:2, [::1]:3:4", "a:1:2,[::1]:3:4"),
        ("names", " a,b c ", ("a", "b c")),
        ("assign", '{"t": ["A", "B", "A"], "u": ["A"]}', {A, B, TopicPartition("u", "A")}),
        ("size", "512m", 512 << 20),
        ("size", "4 GB", 4 << 30),
        ("size", "Unlimited", UNLIMITED_BYTES),
        ("size", "99999999999999999p", UNLIMITED_BYTES),
        ("duration_ms", "250", 250),
        ("position", "EARLIEST", AT_EARLIEST),
        ("position", "latest-100", Position(LATEST, 100)),
        ("position", "Latest - 1", Position(LATEST, 1)),
        ("position", "latest-0", AT_LATEST),
        ("position", "earliest+10", Position(EARLIEST, 10)),
        ("position", "2026-01-01T00:00:00Z", NEW_YEAR),
        ("position", "2026-01-01T01:00:00+01:00", NEW_YEAR),
        ("position", "2026-01-01T00:00:00.000001Z", Position(TIME, NEW_YEAR_US + 1)),
        ("timestamp", " 1767225600000 ", OffsetRangeLimit(NEW_YEAR)),
        ("timestamp", "253402300799999", OffsetRangeLimit(Position(TIME, 253402300799999000))),
        (
            "offsets_by_timestamp",
            '{"t": {"A": 1000, "B": "1767225600000"}, "u": "2026-01-01T00:00:00Z"}',
            OffsetRangeLimit(None, {"u": NEW_YEAR}, {A: Position(TIME, 1_000_000), B: NEW_YEAR}),
        ),
        (
            "offset_range_limit",
            """{"t": {"A": 5, "B": -1, "C": "latest-7"}, "u": "-1h",
                "v": "2026-01-01T00:00:00Z", "w": -2}""",
            OffsetRangeLimit(
                None,
                {"u": Position(AGO, 3_600_000_000), "v": NEW_YEAR, "w": AT_EARLIEST},
                {A: Position(OFFSET, 5), B: AT_LATEST, C: Position(LATEST, 7)},
            ),
        ),
    ],
)  # fmt: skip
def test_valid_values(kind: str, value: str, parsed: object) -> None:
    assert parse(kind, value) == parsed


UNITS = {"ms": 1, "s": 1_000, "m": 60_000, " min": 60_000, "H": 3_600_000, " d": 86_400_000}


@given(unit=st.sampled_from([*UNITS]), number=st.integers(0, 10_000))
def test_durations_in_every_unit(unit: str, number: int) -> None:
    ms = number * UNITS[unit]
    assert parse("duration_ms", f"{number}{unit}") == ms
    assert parse("position", f"-{number}{unit}") == Position(AGO, ms * 1_000)


NAME = "must have 1 to 255 bytes"
ASSIGN = 'must be JSON like {"topic": ["partition", ...]}'
LIMIT = "must be earliest, latest or JSON"
OFFSET_FORM = "must be a whole number, the offset of the next record; -2 is the earliest and -1"
TIMESTAMP = "must be milliseconds since 1970 or a time like 2026-01-01T00:00:00Z"
DURATION = "must be a time like 500ms, 30s, 15m, 2h, 1d or 1w"


@pytest.mark.parametrize(
    ("kind", "value", "error"),
    [
        ("tower", "a:1:2,", "HOST[:SUB_PORT:PUB_PORT]"),
        ("tower", "a:1:65536", "ports in 1 to 65535"),
        ("names", "a\0b", "NUL"),
        ("pattern", "(", "regular expression: missing )"),
        ("pattern", "", "regular expression that is not empty"),
        ("pattern", "(" * 9_999, "must be a regular expression"),
        ("assign", "{}", ASSIGN),
        ("assign", '["t"]', ASSIGN),
        ("assign", '{"t": []}', ASSIGN),
        ("assign", DEEP, ASSIGN),
        ("assign", '{"t": ["A"], "t": ["B"]}', f"{ASSIGN}; a name occurs twice"),
        ("assign", '{"t": {"A": 1}}', ASSIGN),
        ("assign", '{"t": ["A", 1]}', f"{ASSIGN}, not 1: 'dafka heads' lists a topic's"),
        ("size", "much", "must be a number of bytes, a size like 512m or 4g, or"),
        ("duration_ms", "15 weeks", DURATION),
        ("duration_ms", "-15m", DURATION),
        ("position", "lates", "did you mean 'latest'?"),
        ("position", "earlest+10", "did you mean 'earliest'?"),
        ("position", "latest+10", "has no records: write earliest+10 or latest-10"),
        ("position", "-100", "has no unit: write latest-100 for records before the end, or -100s"),
        ("position", "-" + DIGITS + "d", LIMIT),
        ("position", "-999999999999999999d", "at most 4611686018427387 ms after it"),
        ("position", "2026-01-01", "has no time zone: write Z"),
        ("position", "2026-13-01T00:00:00Z", "must be a time like 2026-01-01T00:00:00Z (month"),
        ("position", "1969-12-31T00:00:00Z", "must be a time since 1970"),
        ("position", "[]", LIMIT),
        ("position", '{"t": {}}', LIMIT),
        ("position", '{"t": 3}', LIMIT),
        ("position", '{"t": "now"}', "'now' of topic t must be earliest, latest"),
        ("position", DEEP, LIMIT),
        ("position", f'{{"t": {{"A": {DIGITS}}}}}', LIMIT),
        ("position", '{"t": {"A": -3}}', OFFSET_FORM),
        ("position", '{"t": {"A": true}}', OFFSET_FORM),
        ("position", '{"t": {"A": 1.0}}', OFFSET_FORM),
        ("position", '{"t": {"A": "3"}}', OFFSET_FORM),
        ("position", '{"t": {"A": "lattest-3"}}', "of partition A must be earliest"),
        ("position", '{"t": {"": 3}}', NAME),
        ("position", '{"t": {"A": 3, "B": 4, "A": 5}}', "a name occurs twice in one object"),
        ("timestamp", "-1", TIMESTAMP),
        ("timestamp", "1.5", TIMESTAMP),
        ("timestamp", DIGITS, TIMESTAMP),
        ("timestamp", "9999999999999999999", "at most 4611686018427387 ms after it"),
        ("offsets_by_timestamp", '{"t": {"A": -1}}', f"-1 of partition A {TIMESTAMP}"),
        ("offsets_by_timestamp", '{"t": {"A": true}}', f"True of partition A {TIMESTAMP}"),
        ("offsets_by_timestamp", '{"t": ["A"]}', "must be JSON like"),
    ],
    ids=lambda value: value[:40],
)  # fmt: skip
def test_invalid_values(kind: str, value: str, error: str) -> None:
    with pytest.raises(ValueError, match=re.escape(error)):
        parse(kind, value)


@given(st.text(max_size=30) | st.from_regex(r"(earliest|latest|-)[0-9+-]{0,20}[smhd]?"))
def test_any_text_is_parsed_or_refused_with_a_value_error(text: str) -> None:
    for kind in ("offset_range_limit", "timestamp", "offsets_by_timestamp"):
        try:
            found = parse(kind, text).all
        except ValueError:
            continue
        assert all(each.number >= 0 for each in found)


PLAUSIBLE_S = st.integers(978_307_200, 4_133_980_799)  # the years 2001 to 2100


@given(
    PLAUSIBLE_S, st.sampled_from([("seconds", 1), ("microseconds", 10**6), ("nanoseconds", 10**9)])
)
def test_a_time_in_another_unit_is_refused_with_milliseconds(
    second: int, unit: tuple[str, int]
) -> None:
    name, per_second = unit
    number = second * per_second
    error = f"is a time in {name} instead of milliseconds since 1970; did you mean {second}000 "
    shown = dt.datetime.fromtimestamp(second, dt.UTC).isoformat().replace("+00:00", "Z")
    early = dt.datetime.fromtimestamp(second // 1_000, dt.UTC).isoformat().replace("+00:00", "Z")
    error += f"({shown})?" + (f" Write {early} if you mean 1970" if per_second == 1 else "")
    for kind, value in (
        ("timestamp", str(number)),
        ("offsets_by_timestamp", f'{{"t": {number}}}'),
        ("offsets_by_timestamp", f'{{"t": {{"A": {number}}}}}'),
        ("offsets_by_timestamp", f'{{"t": {{"A": "{number}"}}}}'),
    ):
        with pytest.raises(ValueError, match=f"{re.escape(error)}$"):
            parse(kind, value)


@given(PLAUSIBLE_S.map(lambda second: second * 1_000) | st.integers(0, 978_307_199))
def test_milliseconds_and_small_numbers_are_times(number: int) -> None:
    """A startingTimestamp of 0 or 1 means everything."""
    assert values.parse_timestamp(str(number)).everywhere == Position(TIME, number * 1_000)


def test_values_in_messages() -> None:
    limit = values.parse_offset_range_limit('{"t": {"A": 5},\n "u": -2}')
    assert values.as_written(limit) == '{"t": {"A": 5}, "u": -2}'
    assert shown_time(NEW_YEAR_US) == "2026-01-01T00:00:00Z"
    assert shown_time(1 << 62) == "4611686018427387 ms after 1970"
    assert values.as_written(("t", "\x1b")) == r"t,\x1b"
    assert values.as_written(frozenset([B, A])) == '{"t": ["A", "B"]}'
    assert values.as_written(values.parse_timestamp("1 ")) == "1"


ADDRESS = "EB0A5E4C1F3B4D7C8C1B0F8E2D3C4B5A"
ODD = TopicPartition("bad\udcff\n", "\x1b")


@pytest.mark.parametrize(
    ("options", "requested", "read", "unread"),
    [
        ({"subscribe": "hello,t"}, ["hello", "t"], ["hello", "t"], ["hello2", "t2"]),
        ({"subscribePattern": "hel+o|t."}, None, ["hello", "t2"], ["hello2", "a hello", "hello\n"]),
        ({"subscribePattern": r"bad\\xff.*"}, None, [ODD.topic], ["bad"]),
        ({"subscribePattern": "bad"}, None, ["bad"], [ODD.topic]),
        ({"subscribe": r" bad\xff\x0a , a\x2cb\x20"}, ["a,b ", ODD.topic], [ODD.topic], ["bad"]),
        ({"subscribePattern": ".*"}, None, ["any"], ["__dafka.queries"]),
        ({"subscribe": "__dafka.queries"}, ["__dafka.queries"], ["__dafka.queries"], ["any"]),
        ({"metadata": "topics"}, None, ["any\n", "__dafka.queries"], []),
    ],
)
def test_topics_that_a_query_reads(
    options: dict[str, str], requested: list[str] | None, read: list[str], unread: list[str]
) -> None:
    """Whole names as column ``topic`` shows them; patterns match no internal topic."""
    selection = SourceOptions.of(options).selection
    assert selection.asked == requested
    infos = [PartitionInfo(topic, ADDRESS, 0, 9) for topic in (*read, *unread)]
    assert [info.topic for info in selection.of(infos)] == read
    assert all(selection.has_topic(topic) for topic in read)


def test_assigned_partitions() -> None:
    given = {"t": [ADDRESS, "C"], "a": ["B"], r"bad\xff\x0a": [r"\x1b"]}
    selection = SourceOptions.of({"assign": json.dumps(given)}).selection
    assert selection.asked == ["a", ODD.topic, "t"]
    read = [TopicPartition("t", ADDRESS), ODD, TopicPartition("a", "B")]
    assert [tp for tp in (*read, B) if selection.has(tp)] == read
    assert selection.has_topic("a")
    assert not selection.has_topic("u")
    assert selection.missing([C, ODD]) == [TopicPartition("a", "B"), TopicPartition("t", ADDRESS)]
    assert values.TopicSelection(frozenset("tu")).missing([A]) == [TopicPartition("u", "")]


# Resolved to offsets of the partitions that the stores hold


HEADS = {A: PartitionInfo("t", "A", 5, 50), B: PartitionInfo("t", "B", 0, 7)}
NOW_US = 1_000_000_000
BOUNDS = "startingOffsets", "endingOffsets"
OPTIONS = SourceOptions.of({"subscribe": "t", "fetchTimeoutMs": "1000"})


def resolved(name: str, limit: OffsetRangeLimit, *, is_empty: bool = False) -> Resolved:
    default = AT_EARLIEST if name == "startingOffsets" else AT_LATEST
    reader = OffsetReader(OPTIONS, MemoryReader().connect)
    snapshot = OffsetsSnapshot({} if is_empty else HEADS)
    return reader.resolve(Bound(name, limit, default), snapshot, NOW_US)


@pytest.mark.parametrize(
    ("text", "starts", "ends"),
    [
        ("earliest", (5, 0), (5, 0)),
        ("latest", (50, 7), (50, 7)),
        ("latest-10", (40, 0), (40, 0)),
        ("latest-999", (5, 0), (5, 0)),
        ("earliest+10", (15, 7), (15, 7)),
        ('{"t": "latest-3"}', (47, 4), (47, 4)),
        ('{"t": {"A": 20}}', (20, 0), (20, 7)),
        ('{"t": {"A": -1, "B": -2}}', (50, 0), (50, 0)),
        ('{"t": {"A": "latest-2"}}', (48, 0), (48, 7)),
        ('{"t": {"A": 50, "C": -2}}', (50, 0), (50, 7)),  # no store has C
        ('{"t": {"A": 3}}', (3, 0), (3, 7)),  # failOnDataLoss decides about trimmed records
    ],
)
def test_positions(text: str, starts: tuple[int, int], ends: tuple[int, int]) -> None:
    limit = values.parse_offset_range_limit(text)
    for name, (a, b) in zip(BOUNDS, (starts, ends), strict=True):
        assert resolved(name, limit).offsets == {A: a, B: b}


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('{"t": {"A": 51}}', "= 51: .* offsets 5 up to, not including, 50"),
        ('{"t": {"C": 1}}', "= 1: no store has topic 't', partition C"),
        ("-10m", "= '-10m': no store can find times in topic 't', partition"),
    ],
)
def test_positions_without_an_offset(text: str, error: str) -> None:
    for name in BOUNDS:
        with pytest.raises(ConfigError, match=f"'{name}' {error}"):
            resolved(name, values.parse_offset_range_limit(text))


@pytest.mark.parametrize(
    ("limit", "since_us"),
    [
        (OffsetRangeLimit(AT_EARLIEST), None),
        (OffsetRangeLimit(AT_LATEST), NOW_US),
        (values.parse_offset_range_limit("latest-5"), NOW_US),
        (values.parse_offset_range_limit("-10s"), NOW_US - 10_000_000),
        (values.parse_timestamp("500"), 500_000),
        (values.parse_timestamp("99999999"), NOW_US),
        (values.parse_offset_range_limit('{"t": "latest"}'), None),
    ],
)
def test_the_start_of_later_partitions(limit: OffsetRangeLimit, since_us: int | None) -> None:
    assert resolved("startingOffsets", limit, is_empty=True).since_us == since_us
