"""The blocks to delete, by age and by size."""

from typing import Any

import pytest

from dafka_core.model.records import TopicPartition
from dafka_core.storage.retention import before_by_size, old_blocks
from dafka_core.storage.snapshot import HeldBlock

A, B = TopicPartition("flights", "A" * 32), TopicPartition("flights", "B" * 32)
MB = 1_000_000


def blocks(*last_us: int, size_bytes: int = 10) -> list[HeldBlock]:
    return [HeldBlock(10 * n, 10 * n + 10, size_bytes, us) for n, us in enumerate(last_us)]


class Counted(list[HeldBlock]):
    """Blocks that count their reads."""

    looks = 0

    def __getitem__(self, number: Any) -> Any:
        self.looks += 1
        return super().__getitem__(number)


@pytest.mark.parametrize("count", [*range(10), 63, 64, 65])
def test_by_age_blocks_go_whose_last_record_is_old(count: int) -> None:
    held = blocks(*range(100, 100 + count))
    for before_us in range(99, 102 + count):
        assert old_blocks(held, before_us) == sum(block.newest_us < before_us for block in held)


def test_of_many_blocks_few_are_looked_at() -> None:
    held = Counted(blocks(*range(10_000)))
    for old, most in ((0, 1), (1, 2), (2, 4), (5_000, 30), (10_000, 30)):
        held.looks = 0
        assert old_blocks(held, old) == old
        assert held.looks <= most


def test_by_size_the_oldest_blocks_of_all_partitions_go() -> None:
    held = {A: blocks(100, 300, 500), B: blocks(200, 250, 600)}
    assert before_by_size(held, 60) == {}
    assert before_by_size(held, 55) == {}
    assert before_by_size(held, 50) == {A: 10}
    assert before_by_size(held, 40) == {A: 10, B: 10}
    assert before_by_size(held, 30) == {A: 10, B: 20}
    assert before_by_size(held, 11) == {A: 20, B: 20}
    assert before_by_size({A: [], B: blocks(1)}, 5) == {}
    assert before_by_size({}, 5) == {}


def test_by_size_a_topic_keeps_at_least_so_many_bytes() -> None:
    assert before_by_size({A: blocks(1, 2, size_bytes=16 * MB)}, 1) == {A: 10}
    assert before_by_size({A: blocks(1, size_bytes=16 * MB)}, 1) == {}
