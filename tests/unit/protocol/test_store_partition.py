"""A partition as a store keeps it: its state is what its facts say, and it can be given up."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dafka_core.epochs import Epoch, EpochId
from dafka_core.protocol.fetch_scheduler import FetchScheduler
from dafka_core.protocol.partition_states import StoreState
from dafka_core.protocol.store_partition import StorePartition
from dafka_core.records import Transaction
from tests.unit.protocol.model import TP

A = Epoch(1, 0xA, 1, 0, 0)
B = Epoch(2, 0xB, 1, 5, A.digest)


def partition(end: int = 9) -> StorePartition:
    return StorePartition(FetchScheduler("S").fetcher(TP, end), end, end, (A, B))


@pytest.mark.parametrize(
    ("facts", "state"),
    [
        ({}, StoreState.FOLLOWING),
        ({"staged": Transaction(1, 9, 12)}, StoreState.IN_PART),
        ({"staged": Transaction(1, 9, 12), "commits": 1}, StoreState.COMMITTING),
        ({"asides": 1}, StoreState.COMMITTING),
    ],
)
def test_its_state(facts: dict[str, object], state: StoreState) -> None:
    made = partition()
    for name, value in facts.items():
        setattr(made, name, value)
    assert made.state == state


@pytest.mark.parametrize(("start", "history"), [(7, (A, B)), (5, (A,)), (3, (A,))])
def test_records_that_are_given_up_are_asked_for(start: int, history: tuple[Epoch, ...]) -> None:
    made = replace(partition(), staged=Transaction(1, 9, 12))
    made.give_up(start, 20, EpochId(9, 9, 1))
    assert made.newest == EpochId(9, 9, 1)
    assert (made.durable, made.visible_end) == (start, start)
    assert made.staged is None
    assert made.history == history
    assert (made.fetcher.next_offset, made.fetcher.head) == (start, 20)
    assert made.state == StoreState.BEHIND
