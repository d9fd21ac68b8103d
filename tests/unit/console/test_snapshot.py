"""Topics as sums of their partitions."""

from __future__ import annotations

from dafka_core.console.snapshot import NOTHING
from tests.unit.console.snapshots import US, snapshot


def test_topics_are_the_sums_of_their_partitions() -> None:
    made = snapshot()
    topics, row = made.topics, made.partitions.topics.index("t")
    assert topics.partitions[row] == 2
    assert topics.records[row] == 120
    assert topics.bytes[row] == 1_100 + 1_000
    assert topics.first_us[row] == US
    assert topics.last_us[row] == US + 1_000_000
    assert 0 < topics.rate[row] < 10
    assert topics.byte_rate[row] == topics.rate[row] * 10
    other = 1 - row
    assert (topics.records[other], topics.first_us[other]) == (7, 0)


def test_an_empty_cluster_has_no_topics() -> None:
    assert [len(column) for column in NOTHING.topics] == [0] * 8
