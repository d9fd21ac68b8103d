"""Which topics are compressed, and how."""

import pytest

from dafka_core.config.topic_rules import (
    CompressionRule,
    RetentionRule,
    codec_of,
    parse_compression,
    parse_rules,
    rule_of,
)


def test_the_first_matching_compression_rule_applies() -> None:
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
def test_invalid_compression_rules(wrong: object) -> None:
    with pytest.raises(ValueError, match=r"must be.*PATTERN=zstd\|lz4\|none"):
        parse_compression(wrong)


MB = 1_000_000


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("flights*=7d,10GiB", RetentionRule("flights*", 7 * 86_400, 10 << 30)),
        ("flights*=10GiB,7d", RetentionRule("flights*", 7 * 86_400, 10 << 30)),
        ("a=90s", RetentionRule("a", 90)),
        ("a=1.5h", RetentionRule("a", 5_400)),
        ("a=1.001s", RetentionRule("a", 1.001)),
        ("a=500 MB", RetentionRule("a", None, 500 * MB)),
        ("a=500mb", RetentionRule("a", None, 500 * MB)),
        ("a=4w", RetentionRule("a", 28 * 86_400)),
        ("a=0.001ms", RetentionRule("a", 1e-6)),
        ("a=999999999.999999s", RetentionRule("a", 999_999_999.999999)),
        ("a=1024.123457TiB", RetentionRule("a", None, 1_126_035_649_249_654)),
        ("a=9223372036854775807B", RetentionRule("a", None, 2**63 - 1)),
        ("a=forever", RetentionRule("a")),
        ("a=b=1d", RetentionRule("a=b", 86_400)),
        (r"a\xff=1d", RetentionRule("a\udcff", 86_400)),
    ],
)
def test_valid_retention_rules(text: str, rule: RetentionRule) -> None:
    assert RetentionRule.parse(text) == rule
    assert RetentionRule.parse(str(rule)) == rule


@pytest.mark.parametrize(
    "text",
    ["flights", "=7d", "a=", "a=7", "a=7x", "a=7D", "a=5M", "a=0s", "a=0.1B", "a=-1d", "a=7d,8d",
     "a=1GB,2GB", "a=7d,", "a=1e9d", "a=99999999999d", "a=forever,7d", "a=٣d"],
)  # fmt: skip
def test_invalid_retention_rules(text: str) -> None:
    with pytest.raises(ValueError, match=r"^must (be PATTERN=|have )") as raised:
        RetentionRule.parse(text)
    assert len(str(raised.value)) < 150


def test_rules_are_parsed_from_one_text_or_several() -> None:
    both = (RetentionRule("a", 60), RetentionRule("b", None, 1024))
    assert parse_rules("a=1m b=1KiB") == both
    assert parse_rules("a=1m;b=1KiB") == both
    assert parse_rules(["a=1m", "b=1KiB"]) == both
    assert parse_rules(both) == both
    assert parse_rules("") == ()
    with pytest.raises(ValueError, match="must be rules"):
        parse_rules(7)


def test_the_first_matching_retention_rule_applies() -> None:
    rules = parse_rules("flights_raw=forever flights*=7d *=1GiB")
    assert str(rule_of("flights_raw", rules)) == "flights_raw=forever"
    assert str(rule_of("flights", rules)) == "flights*=1w"
    assert str(rule_of("other", rules)) == "*=1GiB"
    assert rule_of("other", rules[:2]) is None
    assert rule_of("Flights", rules[:2]) is None


def test_an_internal_topic_matches_only_its_full_name() -> None:
    assert rule_of("__dafka.queries", parse_rules("*=1d __dafka.*=1d")) is None
    assert rule_of("__dafka.queries", parse_rules("* =1d;__dafka.queries=1d".replace(" ", "")))
