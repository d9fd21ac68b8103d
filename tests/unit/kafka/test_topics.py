"""Names of topics that Kafka clients may make, and their configs as rules."""

from types import SimpleNamespace
from typing import Any

import pytest

from dafka_core.config.topic_rules import parse_rules, rule_of
from dafka_kafka.configs import AGE, SIZE, Limits, changed, own_rule, values_of
from dafka_kafka.errors import RefusedError
from dafka_kafka.topics import KAFKAS_OWN, wrong_name


def test_kafkas_names_are_fine_and_others_are_not() -> None:
    fine = ("t", "a.b_c-D9", "...", "x" * 249, "_schemas", "__consumer", "__Consumer_offsets")
    assert {*map(wrong_name, fine)} == {""}
    for name in ("", None, ".", "..", "a b", "ü", "a/b", "x" * 250, "a\n", "\udcff", "٣"):
        assert "name" in wrong_name(name)
    assert "Dafka's own" in wrong_name("__dafka.queries")
    assert len(KAFKAS_OWN) == 5
    for name in KAFKAS_OWN:
        assert f"{name} is internal to Kafka's brokers" in wrong_name(name)


@pytest.mark.parametrize(
    ("rules", "limits", "after"),
    [
        ("", {AGE: 1_000}, "t=1s"),
        ("", {AGE: -1, SIZE: -1}, ""),
        ("", {SIZE: 5, AGE: None}, "t=5B"),
        ("t=1d", {SIZE: 5}, "t=1d,5B"),
        ("t=1d", {AGE: -1}, ""),
        ("t=1d", {AGE: None}, ""),
        ("*=1d", {AGE: 86_400_000}, "*=1d"),
        ("*=1d", {AGE: -1}, "t=forever *=1d"),
        ("*=1d t=2d", {AGE: 1_000}, "t=1s *=1d"),
        ("u=1d t=5B,1s v=1d", {SIZE: None}, "t=1s u=1d v=1d"),
        ("u=1d t=5B,1s v=1d", {SIZE: None, AGE: None}, "u=1d v=1d"),
    ],
)
def test_a_topics_own_rule_is_changed(rules: str, limits: Limits, after: str) -> None:
    assert changed("t", parse_rules(rules), limits) == parse_rules(after)


def test_what_is_not_named_is_as_the_other_rules_say() -> None:
    rules = parse_rules("t=1s,5B t*=2d,6B")
    assert changed("t", rules, {AGE: 9_000}, anew=True) == parse_rules("t=9s,6B t*=2d,6B")
    assert changed("t", rules, {}, anew=True) == parse_rules("t*=2d,6B")


def test_a_name_is_no_pattern() -> None:
    (rule,) = changed("a[b]*?", (), {AGE: 1_000})
    assert rule_of("a[b]*?", [rule]) == rule == own_rule("a[b]*?", [rule])
    assert rule_of("ab", [rule]) is None
    assert parse_rules(str(rule)) == (rule,)


@pytest.mark.parametrize("number", [1, 999, 1_001, 86_400_001, 10**12 - 1, 10**12])
def test_a_rule_says_all_digits(number: int) -> None:
    for limits in ({AGE: number}, {SIZE: number}, {SIZE: 10**15 - number}):
        rules = changed("t", (), limits)
        assert parse_rules(" ".join(map(str, rules))) == rules


DELETE = 1


def parsed(name: str, value: str | None, operation: int = 0) -> int | None:
    node: Any = SimpleNamespace(store=SimpleNamespace(options=None))
    asked = SimpleNamespace(name=name, value=value, config_operation=operation)
    return values_of(node, [asked])[name]


def test_values_are_whole_numbers_within_bounds() -> None:
    assert parsed(AGE, "1") == parsed(AGE, " 1 ") == parsed(AGE, "+1") == 1
    assert parsed(SIZE, str(10**15 - 1)) == 10**15 - 1
    assert parsed(SIZE, "-1") == -1
    assert parsed(AGE, None, DELETE) is None
    assert parsed(AGE, str(2**63 - 1)) == parsed(SIZE, str(10**15)) == -1
    for value in ("", "0", "-2", "1.5", "1_0", "soon", "\u0665", "1" + 30 * "0"):
        with pytest.raises(RefusedError) as refused:
            parsed(AGE, value)
        assert "at least 1, or -1 to keep all" in refused.value.why
    with pytest.raises(RefusedError, match="has no value: leave it out"):
        parsed(AGE, None)
