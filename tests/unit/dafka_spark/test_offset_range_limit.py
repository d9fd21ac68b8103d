"""Where to start and to end, as offsets of what the stores hold."""

from __future__ import annotations

import pytest

from dafka_core.errors import ConfigError
from dafka_core.records import PartitionInfo, TopicPartition
from dafka_spark.source.offset_range_limit import ending_offsets, starting_offsets

A, B, C = (TopicPartition("t", name) for name in "ABC")
HEADS = {A: PartitionInfo("t", "A", 5, 50), B: PartitionInfo("t", "B", 0, 7)}


def test_words() -> None:
    assert starting_offsets("earliest", HEADS) == {A: 5, B: 0}
    assert starting_offsets("latest", HEADS) == {A: 50, B: 7}
    assert ending_offsets("earliest", HEADS) == {A: 5, B: 0}
    assert ending_offsets("latest", HEADS) == {A: 50, B: 7}


def test_offsets_by_partition() -> None:
    assert starting_offsets({A: 20}, HEADS) == {A: 20, B: 0}
    assert starting_offsets({A: -1, B: -2}, HEADS) == {A: 50, B: 0}
    assert ending_offsets({A: 20}, HEADS) == {A: 20, B: 7}
    assert ending_offsets({A: -1}, HEADS) == {A: 50, B: 7}


def test_partitions_that_no_store_has_are_left_out() -> None:
    assert starting_offsets({A: 50, C: -2}, HEADS) == {A: 50, B: 0}
    assert ending_offsets({A: 50, C: 0}, HEADS) == {A: 50, B: 7}
    assert starting_offsets({C: -1}, {}) == {}


def test_offsets_beyond_the_end() -> None:
    says = r"'startingOffsets' = 51: .* offsets 5 up to, not including, 50"
    with pytest.raises(ConfigError, match=says):
        starting_offsets({A: 51}, HEADS)
    says = r"'endingOffsets' = 1: no store has topic 't', partition C"
    with pytest.raises(ConfigError, match=says):
        ending_offsets({C: 1}, HEADS)


def test_an_offset_before_the_earliest_stays_as_it_is() -> None:
    """Whoever reads it finds what was trimmed, and ``failOnDataLoss`` decides."""
    assert starting_offsets({A: 3}, HEADS)[A] == 3
