"""Offsets and times as users write them."""

from __future__ import annotations

import time

import pytest

from dafka_core.cli.flags import parse_offset
from dafka_core.model.positions import parse_time_us
from dafka_core.model.records import PartitionInfo

INFO = PartitionInfo("t", "p", 10, 100)


@pytest.mark.parametrize(
    ("text", "offset"),
    [
        *(("earliest", 10), ("beginning", 10), ("Latest", 100), ("end", 100)),
        *(("0", 0), ("42", 42), ("+5", 15), ("-5", 95), ("-1000", 10), ("-0", 100)),
    ],
)
def test_an_offset_is_absolute_or_counted_from_an_end(text: str, offset: int) -> None:
    assert parse_offset(text).offset_in(INFO) == offset


@pytest.mark.parametrize("text", ["", "first", "1.5", "--1", "٣", "1" * 20])
def test_what_is_no_offset_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must be earliest, latest, an offset"):
        parse_offset(text)


def test_a_time_is_absolute_or_so_long_ago() -> None:
    assert parse_time_us("1970-01-01T00:00:01.5Z") == 1_500_000
    assert parse_time_us("1970-01-01T01:00:01+01:00") == 1_000_000
    assert parse_time_us("1970-01-02") == 86_400_000_000
    now = time.time() * 1e6
    for text, seconds in (
        ("500ms", 0.5),
        ("15m", 900),
        ("2H", 7_200),
        ("1.5h", 5_400),
        ("1d", 86_400),
    ):
        assert abs(parse_time_us(text) + seconds * 1e6 - now) < 60e6


@pytest.mark.parametrize(
    "text", ["", "yesterday", "15", "15x", "2026-13-01T00:00:00Z", "2026-13-01"]
)
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must be a time like 2026"):
        parse_time_us(text)
    with pytest.raises(ValueError, match="has no time zone: write Z at its end"):
        parse_time_us("2026-11-23 18:00:00")
