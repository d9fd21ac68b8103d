"""Which topics are compressed, and how."""

from __future__ import annotations

import pytest

from dafka_core.compression_rules import CompressionRule, codec_of, parse_compression


def test_the_first_pattern_that_fits_counts() -> None:
    rules = parse_compression("flights.raw=none flights*=zstd; ?=lz4")
    assert rules == (
        CompressionRule("flights.raw", "none"),
        CompressionRule("flights*", "zstd"),
        CompressionRule("?", "lz4"),
    )
    topics = ("flights.raw", "flights", "x", "xy")
    assert [codec_of(topic, rules) for topic in topics] == ["none", "zstd", "lz4", "none"]
    assert parse_compression([*rules]) == parse_compression(map(str, rules)) == rules
    assert parse_compression("a=b=lz4") == (CompressionRule("a=b", "lz4"),)
    assert parse_compression(rules[0]) == rules[:1]
    assert parse_compression("") == ()


@pytest.mark.parametrize("wrong", ["zstd", "=zstd", "a=", "a=gzip", "a=ZSTD", 7])
def test_what_is_no_rule_is_refused(wrong: object) -> None:
    with pytest.raises(ValueError, match=r"must be.*PATTERN=zstd\|lz4\|none"):
        parse_compression(wrong)
