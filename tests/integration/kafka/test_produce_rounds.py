"""What waits goes to the store together, and nobody waits for long for those who have more."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from typing import Any

import pytest

from dafka_core import Store
from dafka_core.kafka import produce_rounds
from dafka_core.kafka.number_table import NumberedPartition
from dafka_core.kafka.partition_writer import MUCH_BYTES, Put, Written
from dafka_core.kafka.produce_rounds import ProduceRounds
from dafka_core.kafka.produced_records import produced_together
from dafka_core.kafka.producer_states import ProducerStates
from dafka_core.log_entries import Notes
from dafka_core.records import RecordBatch, TopicPartition
from tests.integration.kafka.fixed_node import fixed_node
from tests.integration.kafka.produce_client import batch

LARGE = batch([bytes(MUCH_BYTES)])


def put(letter: str, octets: bytes) -> Put:
    tp = TopicPartition("t", letter)
    partition = NumberedPartition("t", ord(letter) - ord("A"), letter, "", True)
    return Put(partition, tp, memoryview(octets), 8)


@pytest.fixture
def rounds(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many puts each round had that was decoded."""
    found: list[int] = []
    decode = produced_together

    def counted(requests: Sequence[Any], *others: Any) -> Any:
        found.append(len(requests))
        return decode(requests, *others)

    monkeypatch.setattr(produce_rounds, "produced_together", counted)
    return found


def in_loop(store: Store, work: Callable[[ProduceRounds], Awaitable[None]]) -> None:
    async def run() -> None:
        with fixed_node(store) as node:
            await asyncio.wait_for(work(ProduceRounds(node, ProducerStates())), 60)

    asyncio.run(run())


def test_what_comes_at_once_of_all_partitions_is_one_round(store: Store, rounds: list[int]) -> None:
    async def work(all_rounds: ProduceRounds) -> None:
        puts = [put(letter, batch([b"%d" % at])) for at in range(20) for letter in "ABC"]
        for each in puts:
            all_rounds.put(each)
        await asyncio.gather(*(each.outcome for each in puts))

    in_loop(store, work)
    assert rounds == [60]
    for letter in "ABC":
        found = store.log.read(TopicPartition("t", letter), 0, 100)
        assert [value for each in found for value in each.values] == [
            b"%d" % at for at in range(20)
        ]


def test_what_comes_while_a_round_is_under_way_waits_for_the_next(
    store: Store, rounds: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(produce_rounds, "MAX_WAIT_S", 60.0)

    async def work(all_rounds: ProduceRounds) -> None:
        first = put("A", batch([b"first"]))
        later = [put("A", batch([b"later"])) for _ in range(10)]
        all_rounds.put(first)
        while not rounds:
            await asyncio.sleep(0)
        for each in later:
            all_rounds.put(each)
            await asyncio.sleep(0)
        await asyncio.gather(first.outcome, *(each.outcome for each in later))

    in_loop(store, work)
    assert rounds == [1, 10]


def test_producers_in_step_share_their_rounds(store: Store, rounds: list[int]) -> None:
    """Each sends when it has its answer: so few go in a round only at first."""

    async def producer(all_rounds: ProduceRounds, letter: str) -> None:
        for at in range(50):
            each = put(letter, batch([b"%d" % at]))
            all_rounds.put(each)
            assert await each.outcome == Written(at, at + 1)

    async def work(all_rounds: ProduceRounds) -> None:
        await asyncio.gather(*(producer(all_rounds, letter) for letter in "ABCDEFGH"))

    in_loop(store, work)
    assert sum(rounds) == 400
    assert len(rounds) < 200


def test_few_records_do_not_wait_for_a_round_that_does_not_end(
    store: Store, rounds: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    write = store.append_queue.put_all

    def hung(batches: Sequence[tuple[RecordBatch, Notes]]) -> list[Future[int]]:
        ((records, _),) = batches
        return [Future()] if records.tp.partition.startswith("A") else write(batches)

    monkeypatch.setattr(store.append_queue, "put_all", hung)

    async def work(all_rounds: ProduceRounds) -> None:
        hangs, goes = put("A", batch([b"a"])), put("B", batch([b"b"]))
        all_rounds.put(hangs)
        while not rounds:
            await asyncio.sleep(0)
        all_rounds.put(goes)
        assert await goes.outcome == Written(0, 1)
        assert not hangs.outcome.done()

    in_loop(store, work)


def test_large_batches_are_decoded_while_others_are_on_their_way(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(produce_rounds, "MAX_WAIT_S", 60.0)
    write, held = store.append_queue.put_all, list[tuple[Future[int], Future[int]]]()

    def held_up(batches: Sequence[tuple[RecordBatch, Notes]]) -> list[Future[int]]:
        (future,) = write(batches)
        held.append((Future(), future))
        if len(held) == 3:
            for told, written in held:
                told.set_result(written.result())
        return [held[-1][0] if len(held) <= 3 else held[-1][1]]

    monkeypatch.setattr(store.append_queue, "put_all", held_up)

    async def work(all_rounds: ProduceRounds) -> None:
        puts = [put("A", LARGE) for _ in range(8)]
        for each in puts:
            all_rounds.put(each)
        outcomes = await asyncio.gather(*(each.outcome for each in puts))
        assert outcomes[-1] == Written(7, 8)

    in_loop(store, work)


def test_writers_of_deleted_topics_are_forgotten(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(produce_rounds, "MANY_WRITERS", 2)

    async def work(all_rounds: ProduceRounds) -> None:
        for letter in "ZAYBXC":  # the last letters have no number any more
            each = put(letter, batch([b"v"]))
            all_rounds.put(each)
            assert isinstance(await each.outcome, Written) == (letter in "ABC")
        assert {tp.partition for tp in all_rounds._writers} <= {*"ABC", "X"}

    in_loop(store, work)
