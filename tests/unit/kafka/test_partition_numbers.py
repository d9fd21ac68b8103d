"""The numbers of partitions."""

from __future__ import annotations

import asyncio

from dafka_core.kafka.partition_numbers import PartitionNumbers


def test_a_topic_that_is_made_has_partitions_from_0_on() -> None:
    numbers = PartitionNumbers("A" * 32)
    asyncio.run(numbers.create("t", 2))
    asyncio.run(numbers.create("t", 3))
    found = numbers.partitions("t")
    assert [each.number for each in found] == [0, 1, 2]
    assert len({each.tp for each in found}) == 3
    assert numbers.get("t", 2) == found[2]
    assert numbers.get("t", 3) is None
