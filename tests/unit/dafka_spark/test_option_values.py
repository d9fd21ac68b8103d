"""Values of options as users write them, and the sentences for those that make no sense."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from dafka_core.model.records import TopicPartition
from dafka_spark.option_types import (
    ALL_STORES,
    parse_acks,
    parse_assign,
    parse_names,
    parse_pattern,
    parse_tower,
    parse_word,
)

A, B = (TopicPartition("t", name) for name in "AB")


@pytest.mark.parametrize(
    ("parse", "value", "meaning"),
    [
        (parse_tower, "10.0.0.1", "10.0.0.1:5556:5557"),
        (parse_tower, "a:1:2, [::1]:3:4", "a:1:2,[::1]:3:4"),
        (parse_names, " a,b c ", ("a", "b c")),
        (parse_names, "é" * 127, ("é" * 127,)),
        (parse_word, " Local ", "local"),
        (parse_acks, "1", 1),
        (parse_acks, "3", 3),
        (parse_acks, "all", ALL_STORES),
        (parse_acks, " ALL ", ALL_STORES),
        (parse_pattern, "hel+o", "hel+o"),
        (parse_assign, '{"t": ["A", "B", "A"], "u": ["A"]}', {A, B, TopicPartition("u", "A")}),
    ],
)
def test_what_values_mean(parse: Callable[[Any], Any], value: str, meaning: object) -> None:
    assert parse(value) == meaning


NAME = "must have 1 to 255 bytes"
DIGITS = "9" * 5_000
"""More than Python makes a number of."""
DEEP = '{"t": ' + "[" * 100_000
"""More than Python's parser goes into."""


@pytest.mark.parametrize(
    ("parse", "value", "says"),
    [
        (parse_tower, "", "HOST[:SUB_PORT:PUB_PORT]"),
        (parse_tower, "a:1:2,", "HOST[:SUB_PORT:PUB_PORT]"),
        (parse_tower, "a:1:65536", "ports in 1 to 65535"),
        (parse_names, "", NAME),
        (parse_names, "t,,u", NAME),
        (parse_names, "é" * 128, NAME),
        (parse_names, "a\0b", "NUL"),
        (parse_acks, "0", "at least 1, or all"),
        (parse_acks, "-1", "at least 1, or all"),
        (parse_acks, "every", "must be a whole number or all"),
        (parse_acks, "1.5", "must be a whole number or all"),
        pytest.param(parse_acks, DIGITS, "must be a whole number or all", id="digits"),
        (parse_pattern, "(", "regular expression: missing )"),
        (parse_pattern, "", "regular expression that is not empty"),
        (parse_assign, "t", "must be JSON like"),
        (parse_assign, "{}", "must be JSON like"),
        (parse_assign, '["t"]', "must be JSON like"),
        (parse_assign, '{"t": []}', "must be JSON like"),
        pytest.param(parse_assign, DEEP, "must be JSON like", id="deep"),
        (parse_pattern, "a{99999999999999}", "must be a regular expression"),
        pytest.param(parse_pattern, "(" * 9_999, "must be a regular expression", id="nested"),
        (parse_assign, '{"t": "A"}', "must be JSON like"),
        (parse_assign, '{"t": {"A": 1}}', "must be JSON like"),
        (parse_assign, '{"t": [1]}', "must be a text"),
        (parse_assign, '{"t": [["A"]]}', "must be a text"),
        (parse_assign, '{"": ["A"]}', NAME),
        (parse_assign, '{"t": [""]}', NAME),
    ],
)
def test_values_that_make_no_sense(parse: Callable[[Any], Any], value: str, says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        parse(value)
