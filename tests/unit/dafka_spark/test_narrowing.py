"""What conditions on topic, partition and offset leave of a batch; those on time have stores."""

from __future__ import annotations

import datetime as dt

import pytest

from dafka_core.records import TopicPartition
from dafka_core.where import Comparison
from dafka_spark.source.latest_offsets import OffsetsSnapshot
from dafka_spark.source.narrowing import EVERYTHING, Narrowing, Spans

A, B, C = (TopicPartition("t", name) for name in "ABC")
ODD = TopicPartition("u\udcff", "A")
SPANS: Spans = {A: (0, 10), B: (5, 20), ODD: (0, 3)}
MOMENT = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
NOTHING = OffsetsSnapshot({}, {})


def narrowed(*conditions: tuple[str, str, object]) -> Spans:
    made = Narrowing.of(Comparison(*each) for each in conditions)
    return made.narrowed(SPANS, NOTHING, 1.0)


@pytest.mark.parametrize(
    ("conditions", "left"),
    [
        ([], SPANS),
        ([("topic", "=", "t")], {A: (0, 10), B: (5, 20)}),
        ([("topic", "=", r"u\xff")], {ODD: (0, 3)}),
        ([("topic", "IN", ["t", "x"]), ("partition", "=", "B")], {B: (5, 20)}),
        ([("topic", "IN", ["t", "x"]), ("topic", "IN", ["x", "y"])], {}),
        ([("partition", "IN", [])], {}),
        ([("partition", "<", "B")], SPANS),
        ([("offset", "=", 7)], {A: (7, 8), B: (7, 8)}),
        ([("offset", "IN", [2, 12])], {A: (2, 10), B: (5, 13), ODD: (2, 3)}),
        ([("offset", "IN", [])], {}),
        ([("offset", ">", 2), ("offset", "<=", 6)], {A: (3, 7), B: (5, 7)}),
        ([("offset", ">=", 3), ("offset", "<", 3)], {}),
        ([("offset", ">=", -5)], SPANS),
        ([("value", "=", b"x"), ("key", "IN", [b"x"])], SPANS),
        # No store tells of these partitions.
        ([("timestamp", ">=", MOMENT)], SPANS),
        ([("timestamp", ">", MOMENT), ("timestamp", "<=", MOMENT)], {}),
    ],
)
def test_what_is_left(conditions: list[tuple[str, str, object]], left: Spans) -> None:
    assert narrowed(*conditions) == left


def test_nothing_said_is_everything() -> None:
    assert Narrowing.of([Comparison("value", "=", b"x")]) == EVERYTHING
