"""Who waits for his turn does not wait for all that somebody else may name."""

from __future__ import annotations

from dafka_core.protocol.fair_queue import FairQueue
from dafka_core.protocol.partition_fetcher import PartitionFetcher, ReorderBudget
from dafka_core.records import TopicPartition

MALLORY, HONEST = "A" * 12, "B" * 12


def fetcher(owner: str, number: int) -> PartitionFetcher:
    return PartitionFetcher(TopicPartition("t", f"{owner}{number:020}"), 0, ReorderBudget())


def test_owners_take_turns_and_each_has_its_own_order() -> None:
    waiting = FairQueue()
    many = [fetcher(MALLORY, i) for i in range(1_000)]
    few = [fetcher(HONEST, i) for i in range(2)]
    for each in (*many, *few):
        waiting.add(each)
        waiting.add(each)
    assert len(waiting) == 1_002
    assert waiting.first(5) == [many[0], few[0], many[1], few[1], many[2]]
    assert waiting.first(0) == waiting.first(-1) == []
    # One place at a time: every other one is for who has little to ask for.
    turns = []
    for _ in range(4):
        (each,) = waiting.first(1)
        waiting.remove(each.tp)
        turns.append(each)
    assert turns == [many[0], few[0], many[1], few[1]]
    assert len(waiting.all()) == len(waiting) == 998


def test_what_is_removed_is_gone_and_may_come_again() -> None:
    waiting = FairQueue()
    one, other = fetcher(HONEST, 1), fetcher(HONEST, 2)
    waiting.remove(one.tp)
    waiting.add(one)
    waiting.remove(other.tp)
    assert waiting.all() == [one]
    waiting.remove(one.tp)
    assert (len(waiting), waiting.first(9)) == (0, [])
    waiting.add(other)
    waiting.add(one)
    assert waiting.first(9) == [other, one]
