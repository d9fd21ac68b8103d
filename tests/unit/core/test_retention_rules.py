"""How retention rules are written, and which of them counts."""

from __future__ import annotations

import pytest

from dafka_core.retention_rules import RetentionRule, parse_rule, parse_rules, rule_of

MB = 1_000_000


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("flights*=7d,10GiB", RetentionRule("flights*", 7 * 86_400, 10 << 30)),
        ("flights*=10GiB,7d", RetentionRule("flights*", 7 * 86_400, 10 << 30)),
        ("a=90s", RetentionRule("a", 90)),
        ("a=1.5h", RetentionRule("a", 5_400)),
        ("a=500 MB", RetentionRule("a", None, 500 * MB)),
        ("a=500mb", RetentionRule("a", None, 500 * MB)),
        ("a=4w", RetentionRule("a", 28 * 86_400)),
        ("a=forever", RetentionRule("a")),
        ("a=b=1d", RetentionRule("a=b", 86_400)),
        (r"a\xff=1d", RetentionRule("a\udcff", 86_400)),
    ],
)
def test_a_rule_is_read_from_its_text_and_shown_as_it_is_read(
    text: str, rule: RetentionRule
) -> None:
    assert parse_rule(text) == rule
    assert parse_rule(str(rule)) == rule


@pytest.mark.parametrize(
    "text",
    ["flights", "=7d", "a=", "a=7", "a=7x", "a=7D", "a=5M", "a=0s", "a=0.1B", "a=-1d", "a=7d,8d",
     "a=1GB,2GB", "a=7d,", "a=1e9d", "a=99999999999d", "a=forever,7d", "a=٣d"],
)  # fmt: skip
def test_what_is_no_rule_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match=r"^must (be PATTERN=|have )") as raised:
        parse_rule(text)
    assert len(str(raised.value)) < 150


def test_rules_come_as_one_text_or_several() -> None:
    both = (RetentionRule("a", 60), RetentionRule("b", None, 1024))
    assert parse_rules("a=1m b=1KiB") == both
    assert parse_rules("a=1m;b=1KiB") == both
    assert parse_rules(["a=1m", "b=1KiB"]) == both
    assert parse_rules(both) == both
    assert parse_rules("") == ()
    with pytest.raises(ValueError, match="must be rules"):
        parse_rules(7)


def test_the_first_rule_that_fits_counts() -> None:
    rules = parse_rules("flights_raw=forever flights*=7d *=1GiB")
    assert str(rule_of("flights_raw", rules)) == "flights_raw=forever"
    assert str(rule_of("flights", rules)) == "flights*=1w"
    assert str(rule_of("other", rules)) == "*=1GiB"
    assert rule_of("other", rules[:2]) is None
    assert rule_of("Flights", rules[:2]) is None


def test_an_internal_topic_is_fitted_by_its_full_name_alone() -> None:
    assert rule_of("__dafka.queries", parse_rules("*=1d __dafka.*=1d")) is None
    assert rule_of("__dafka.queries", parse_rules("* =1d;__dafka.queries=1d".replace(" ", "")))
