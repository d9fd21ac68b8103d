"""The checkpointed offset."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dafka_core.errors import ConfigError
from dafka_core.records import PartitionInfo, TopicPartition
from dafka_spark.source.offset_range_limit import ending_offsets, starting_offsets
from dafka_spark.source.source_offset import SourceOffset

A, B = TopicPartition("t", "A"), TopicPartition("t", "B")
HEADS = {A: PartitionInfo("t", "A", 5, 50), B: PartitionInfo("t", "B", 0, 7)}


def test_equal_offsets_are_equal_text() -> None:
    """Trap: Spark compares offsets as text; another order of keys would be new data for ever."""
    first = SourceOffset({A: 1, B: 2}, {A: 0, B: 0})
    second = SourceOffset({B: 2, A: 1}, {B: 0, A: 0})
    assert json.dumps(first.as_json()) == json.dumps(second.as_json())
    text = json.dumps(first.as_json())
    assert text == json.dumps(first.as_json(), sort_keys=True)
    assert json.dumps(SourceOffset.parse(json.loads(text)).as_json()) == text


def test_parse_is_the_inverse() -> None:
    offset = SourceOffset({A: 1, TopicPartition("ü", "A"): 2}, {A: 0})
    assert SourceOffset.parse(json.loads(json.dumps(offset.as_json()))) == offset


def test_the_initial_offset_carries_itself() -> None:
    initial = SourceOffset.initial({A: 3})
    assert initial.is_initial
    assert initial.start == {A: 3}
    assert not SourceOffset({A: 3}, {A: 1}).is_initial


@pytest.mark.parametrize(
    "given",
    [
        {},
        [],
        {"topics": {}, "start": {}, "version": 2},
        {"topics": {}, "start": {}, "version": "1"},
        {"topics": {"t": {"A": "1"}}, "start": {}, "version": 1},
        {"topics": {"t": 5}, "start": {}, "version": 1},
        {"topics": {"t": {"A": True}}, "start": {}, "version": 1},
    ],
)
def test_a_foreign_checkpoint_is_refused(given: Any) -> None:
    with pytest.raises(ConfigError, match=r"new checkpoint"):
        SourceOffset.parse(given)


def test_words() -> None:
    assert starting_offsets("earliest", HEADS) == {A: 5, B: 0}
    assert starting_offsets("latest", HEADS) == {A: 50, B: 7}


def test_offsets_by_partition() -> None:
    assert starting_offsets({A: 20}, HEADS) == {A: 20, B: 0}
    assert starting_offsets({A: -1, B: -2}, HEADS) == {A: 50, B: 0}
    assert ending_offsets({A: 20}, HEADS) == {A: 20, B: 7}
    assert ending_offsets({A: -1}, HEADS) == {A: 50, B: 7}


def test_offsets_beyond_the_end() -> None:
    with pytest.raises(ConfigError, match=r"offsets 5 up to, not including, 50"):
        starting_offsets({A: 51}, HEADS)
    with pytest.raises(ConfigError, match=r"no store has topic 't', partition C"):
        ending_offsets({TopicPartition("t", "C"): 1}, HEADS)
    assert starting_offsets({A: 50, TopicPartition("t", "C"): -2}, HEADS)[A] == 50
