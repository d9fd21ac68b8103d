"""A rule that never counts is refused where a user writes it."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dafka_core.compression_rules import CompressionRule, checked_compression
from dafka_core.errors import ConfigError
from dafka_core.node_options import StoreOptions
from dafka_core.retention_rules import checked_rules, parse_rules
from dafka_core.rule_order import check_each_counts


@pytest.mark.parametrize(
    "rules",
    ["*=1d audit=forever", "t*=1d a=2d t_*x=3d", "a?=1d ab=2d", "[ab]=1d [ab]=2d", "*=1d *=1GB"],
)
def test_a_rule_behind_one_that_fits_all_of_its_topics_is_refused(rules: str) -> None:
    with pytest.raises(
        ValueError, match=r"which never counts: '.*' before it fits the same topics"
    ):
        checked_rules(rules)
    assert len(parse_rules(rules)) == len(rules.split())  # a store may have kept them


@pytest.mark.parametrize(
    "rules", ["audit=forever *=1d", "*=1d __dafka.queries=1d", "a?=1d a*=2d", "*[*]=1d a*=2d"]
)
def test_others_count(rules: str) -> None:
    assert checked_rules(rules) == parse_rules(rules)


def test_options_are_refused() -> None:
    says = "'audit=1w', which never counts: '*=1d' before it fits the same topics; put it first"
    with pytest.raises(ConfigError, match=re.escape(says)):
        StoreOptions.build({"retain": ["*=1d", "audit=7d"]})
    with pytest.raises(ValueError, match="which never counts"):
        checked_compression("*=zstd __dafka.queries=none")


@given(*[st.text("ab*?[]", min_size=1, max_size=4)] * 2, st.text("ab", min_size=1, max_size=4))
def test_what_is_refused_never_counts(earlier: str, later: str, topic: str) -> None:
    try:
        check_each_counts([CompressionRule(earlier, "lz4"), CompressionRule(later, "zstd")])
    except ValueError:
        assert fnmatchcase(topic, earlier) or not fnmatchcase(topic, later)
