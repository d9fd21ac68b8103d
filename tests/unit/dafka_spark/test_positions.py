"""Where to start and to end, as users write it, and the sentences for what makes no sense."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dafka_core.model.records import TopicPartition
from dafka_spark.option_types import (
    AGO,
    AT_EARLIEST,
    AT_LATEST,
    EARLIEST,
    LATEST,
    OFFSET,
    TIME,
    OffsetRangeLimit,
    Position,
    parse_duration_ms,
    parse_offset_range_limit,
    parse_offsets_by_timestamp,
    parse_timestamp,
    shown_time,
)

A, B, C = (TopicPartition("t", name) for name in "ABC")
NEW_YEAR_US = 1_767_225_600_000_000
NEW_YEAR = Position(TIME, NEW_YEAR_US)


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("EARLIEST", AT_EARLIEST),
        (" latest ", AT_LATEST),
        ("latest-100", Position(LATEST, 100)),
        ("Latest - 1", Position(LATEST, 1)),
        ("latest-0", AT_LATEST),
        ("earliest+10", Position(EARLIEST, 10)),
        ("-10m", Position(AGO, 600_000_000)),
        ("-2h", Position(AGO, 7_200_000_000)),
        ("-1d", Position(AGO, 86_400_000_000)),
        ("-1 min", Position(AGO, 60_000_000)),
        ("-5S", Position(AGO, 5_000_000)),
        ("-5ms", Position(AGO, 5_000)),
        ("2026-01-01T00:00:00Z", NEW_YEAR),
        ("2026-01-01T01:00:00+01:00", NEW_YEAR),
        ("2026-01-01 00:00:00Z", NEW_YEAR),
        ("2026-01-01T00:00:00.000001Z", Position(TIME, NEW_YEAR_US + 1)),
    ],
)
def test_one_for_all_partitions(text: str, position: Position) -> None:
    limit = parse_offset_range_limit(text)
    assert limit == OffsetRangeLimit(position)
    assert limit.all == [position]
    assert limit.of(A, AT_EARLIEST) == position


def test_by_topic_and_by_partition() -> None:
    text = """{"t": {"A": 5, "B": -1, "C": "latest-7"}, "u": "-1h",
        "v": "2026-01-01T00:00:00Z", "w": -2}"""
    limit = parse_offset_range_limit(text)
    assert limit.partitions == {A: Position(OFFSET, 5), B: AT_LATEST, C: Position(LATEST, 7)}
    hour = Position(AGO, 3_600_000_000)
    assert limit.topics == {"u": hour, "v": NEW_YEAR, "w": AT_EARLIEST}
    assert "\n" not in limit.text
    assert limit.of(TopicPartition("u", "X"), AT_LATEST) == hour
    assert limit.of(TopicPartition("t", "X"), AT_LATEST) == AT_LATEST
    assert parse_offset_range_limit('{"t": {"C": -2}}').partitions == {C: AT_EARLIEST}


def test_times() -> None:
    assert parse_timestamp("1000").everywhere == Position(TIME, 1_000_000)
    assert parse_timestamp(" 1767225600000 ").everywhere == NEW_YEAR
    assert parse_timestamp("2026-01-01T00:00:00Z").everywhere == NEW_YEAR
    limit = parse_offsets_by_timestamp('{"t": {"A": 1000, "B": "2026-01-01T00:00:00Z"}, "u": 2000}')
    assert limit.partitions == {A: Position(TIME, 1_000_000), B: NEW_YEAR}
    assert limit.topics == {"u": Position(TIME, 2_000_000)}
    assert limit.everywhere is None


@pytest.mark.parametrize(
    ("text", "size_ms"),
    [
        ("15m", 900_000),
        ("0", 0),
        ("250", 250),
        ("250ms", 250),
        ("2 H", 7_200_000),
        ("1min", 60_000),
    ],
)
def test_durations(text: str, size_ms: int) -> None:
    assert parse_duration_ms(text) == size_ms


def test_times_for_people() -> None:
    assert shown_time(NEW_YEAR_US) == "2026-01-01T00:00:00Z"
    assert shown_time(1 << 62) == "4611686018427387 ms after 1970"


LIMIT = "must be earliest, latest or JSON"
OFFSET_SAYS = "must be a whole number, the next record's; -2 is the earliest and -1 the latest"
DIGITS = "9" * 5_000
"""More than Python makes a number of."""
DEEP = '{"t": ' + "[" * 100_000
"""More than Python's parser goes into."""


@pytest.mark.parametrize(
    ("parse", "value", "says"),
    [
        (parse_offset_range_limit, "first", LIMIT),
        (parse_offset_range_limit, "lates", "did you mean 'latest'?"),
        (parse_offset_range_limit, "earlest+10", "did you mean 'earliest'?"),
        (parse_offset_range_limit, "latest+10", "where no records are: earliest+10 and latest-10"),
        (parse_offset_range_limit, "earliest-10", "where no records are: earliest+10"),
        (parse_offset_range_limit, "-100", "has no unit: latest-100 is so many records before"),
        (parse_offset_range_limit, "-10 weeks", LIMIT),
        (parse_offset_range_limit, "-" + DIGITS + "d", LIMIT),
        (parse_offset_range_limit, "-999999999999999999d", "not farther away than records can be"),
        (parse_offset_range_limit, "2026-01-01", "has no time zone: write Z"),
        (parse_offset_range_limit, "2026-01-01T00:00:00", "has no time zone: write Z"),
        (parse_offset_range_limit, "2026-13-01T00:00:00Z", "as 2026-01-01T00:00:00Z (month must"),
        (parse_offset_range_limit, "1969-12-31T00:00:00Z", "must be a time since 1970"),
        (parse_offset_range_limit, "1000", LIMIT),
        (parse_offset_range_limit, "", LIMIT),
        (parse_offset_range_limit, "[]", LIMIT),
        (parse_offset_range_limit, "{}", LIMIT),
        (parse_offset_range_limit, '{"t": {}}', "JSON like"),
        (parse_offset_range_limit, '{"t": 3}', LIMIT),
        (parse_offset_range_limit, '{"t": null}', LIMIT),
        (parse_offset_range_limit, '{"t": "now"}', "'now' of topic t must be earliest, latest"),
        (parse_offset_range_limit, '{"t": {"A": 3}', LIMIT),
        pytest.param(parse_offset_range_limit, DEEP, "JSON like", id="deep"),
        pytest.param(parse_offset_range_limit, f'{{"t": {{"A": {DIGITS}}}}}', LIMIT, id="digits"),
        (parse_offset_range_limit, '{"t": {"A": -3}}', OFFSET_SAYS),
        (parse_offset_range_limit, '{"t": {"A": true}}', OFFSET_SAYS),
        (parse_offset_range_limit, '{"t": {"A": 1.0}}', OFFSET_SAYS),
        (parse_offset_range_limit, '{"t": {"A": NaN}}', OFFSET_SAYS),
        (parse_offset_range_limit, '{"t": {"A": "3"}}', OFFSET_SAYS),
        (parse_offset_range_limit, '{"t": {"A": "lattest-3"}}', "of partition A must be earliest"),
        (parse_offset_range_limit, '{"t": {"": 3}}', "must have 1 to 255 bytes"),
        (parse_timestamp, "-1", "must be milliseconds since 1970 or a time"),
        (parse_timestamp, "1.5", "must be milliseconds since 1970 or a time"),
        (parse_timestamp, "latest", "must be milliseconds since 1970 or a time"),
        (parse_timestamp, DIGITS, "must be milliseconds since 1970 or a time"),
        (parse_timestamp, "9999999999999999999", "not farther away than records can be"),
        (parse_timestamp, "2026-01-01", "has no time zone"),
        (parse_offsets_by_timestamp, "1000", "must be JSON like"),
        (parse_offsets_by_timestamp, '{"t": {"A": -1}}', "-1 of partition A must be milliseconds"),
        (parse_offsets_by_timestamp, '{"t": {"A": true}}', "True of partition A must be millisec"),
        (parse_offsets_by_timestamp, '{"t": ["A"]}', "must be JSON like"),
        (parse_duration_ms, "15 weeks", "must be a time like 500ms, 30s, 15m, 2h or 1d"),
        (parse_duration_ms, "-15m", "must be a time like 500ms, 30s, 15m, 2h or 1d"),
        (parse_duration_ms, "", "must be a time like"),
    ],
)  # fmt: skip
def test_what_makes_no_sense(parse: Callable[[Any], Any], value: str, says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        parse(value)


@given(st.text(max_size=30) | st.from_regex(r"(earliest|latest|-)[0-9+-]{0,20}[smhd]?"))
def test_any_text_is_a_place_or_a_sentence(text: str) -> None:
    """Nothing else is raised, and no place is before 1970 or of negative numbers."""
    for parse in (parse_offset_range_limit, parse_timestamp, parse_offsets_by_timestamp):
        try:
            found = parse(text).all
        except ValueError:
            continue
        assert all(each.number >= 0 for each in found)
