"""Batches are written in order and once, whatever else writes to their partition."""

import asyncio
import itertools
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import pytest

from dafka_core import Store
from dafka_core.errors import OffsetConflictError, StoreError
from dafka_core.model.log_entries import SetAside
from dafka_core.model.records import RecordBatch, TopicPartition
from dafka_core.nodes.append_queue import Addition
from dafka_core.testing import wait_until
from dafka_kafka import partition_writer, produce
from dafka_kafka.errors import KafkaError, RefusedError
from dafka_kafka.partition_writer import Put, Written
from dafka_kafka.produce import ProduceRounds
from dafka_kafka.producer_states import NOTES, ProducerStates
from dafka_kafka.records import formats
from dafka_kafka.registry_table import NumberedPartition
from tests.integration.kafka.fixed_node import OWN, fixed_node
from tests.unit.kafka.records.batches import batch

TP = TopicPartition("t", "A")
PARTITION = NumberedPartition("t", 0, TP.partition, OWN.address, True)
Outcome = Written | RefusedError


def stored(store: Store) -> list[bytes]:
    return [value for each in store.log.read(TP, 0, 1 << 30) for value in each.values]


def written(store: Store, *sent: bytes, partition: NumberedPartition = PARTITION) -> list[Outcome]:
    """Put all batches at once; return their outcomes."""

    async def run() -> list[Outcome]:
        with fixed_node(store) as node:
            states = ProducerStates()
            states.restore(store.log.notes(NOTES))
            rounds = ProduceRounds(node, states)
            puts = [Put(partition, partition.tp, memoryview(each), 8) for each in sent]
            for put in puts:
                rounds.put(put)
            return await asyncio.wait_for(asyncio.gather(*(put.outcome for put in puts)), 60)

    return asyncio.run(run())


def sequenced(count: int) -> list[bytes]:
    return [batch([b"%d" % at] * 3, producer=(5, 0, 3 * at)) for at in range(count)]


def codes_of(outcomes: Sequence[Outcome]) -> list[int]:
    return [each.code if isinstance(each, RefusedError) else 0 for each in outcomes]


def test_small_batches_share_a_write_and_large_ones_do_not(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    puts: list[RecordBatch] = []
    host = store.role.host

    def counted(now: float, records: RecordBatch) -> Any:
        puts.append(records)
        return host(now, records)

    monkeypatch.setattr(store.role, "host", counted)
    assert written(store, *sequenced(100))[-1] == Written(297, 300)
    assert len(puts) < 20
    puts.clear()
    monkeypatch.setattr(produce, "WRITE_BYTES", 1_000)
    large = [batch([bytes(600)] * 2, codec=1) for _ in range(10)]
    assert written(store, *large)[-1] == Written(318, 320)
    assert [each.count for each in puts] == [2] * 10


def test_others_who_write_there_again_and_again_are_made_way_for(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(produce, "ROUND_PUTS", 3)
    put_next, calls = store.append_queue.put_next, itertools.count()

    def other(start: int, losses: int, written: Future[int]) -> RecordBatch:
        return RecordBatch.of(TP, start, [b"other"] * 2)

    def late(additions: Sequence[Addition]) -> Any:
        if next(calls) % 7 == 0:
            put_next([Addition(TP, 10, other)])
        return put_next(additions)

    monkeypatch.setattr(store.append_queue, "put_next", late)
    outcomes = written(store, *sequenced(200))
    assert codes_of(outcomes) == [0] * 200
    values = stored(store)
    assert values.count(b"other") > 10
    for at, outcome in enumerate(outcomes):
        assert isinstance(outcome, Written)
        assert values[outcome.offset : outcome.end] == [b"%d" % at] * 3
    assert [each for each in values if each != b"other"] == [b"%d" % (at // 3) for at in range(600)]
    # The notes have the batches' real offsets.
    assert written(store, sequenced(200)[-1]) == outcomes[-1:]


@pytest.mark.parametrize("error", [RuntimeError("a defect"), MemoryError()])
def test_a_defect_is_told_to_those_who_wait_and_ends_nothing(
    store: Store, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    first, second, third = sequenced(3)

    decode = formats.open_record_batch

    def broken(octets: memoryview, *others: Any) -> Any:
        if octets == second:
            raise error
        return decode(octets, *others)

    monkeypatch.setattr(formats, "open_record_batch", broken)
    monkeypatch.setattr(partition_writer, "open_record_batch", broken)
    outcomes = written(store, first, second, third, batch([b"plain"]))
    unknown, late = KafkaError.UNKNOWN_SERVER_ERROR, KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert codes_of(outcomes) == [0, unknown, late, 0]
    monkeypatch.undo()
    assert codes_of(written(store, first)) == [0]
    assert stored(store) == [*[b"0"] * 3, b"plain"]


def test_a_log_that_cannot_be_read_is_a_storage_error_and_then_all_goes_on(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> Any:
        raise StoreError(store.log.directory, "damaged")

    monkeypatch.setattr(store.append_queue, "put_next", broken)
    storage = KafkaError.KAFKA_STORAGE_ERROR
    assert codes_of(written(store, *sequenced(3))) == [storage] * 3
    monkeypatch.undo()
    assert codes_of(written(store, *sequenced(3))) == [0, 0, 0]


@pytest.mark.parametrize("failing", range(4))
def test_lost_batches_are_written_again_in_order_with_those_behind_them(
    store: Store, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    """It fails when those before it are on disk, and those behind it on their way."""
    monkeypatch.setattr(produce, "ROUND_PUTS", 2)
    host, calls = store.role.host, itertools.count()
    made: list[ProduceRounds] = []

    def are_on_their_way() -> bool:
        writer = made[0]._writers[TP]
        return writer.under_way > 2 or not writer.waiting

    def lost(now: float, records: RecordBatch) -> Any:
        if records.tp == TP and next(calls) == failing:
            wait_until(lambda: store.log.end(TP) == records.offset and are_on_their_way())
            return OffsetConflictError(*TP, records.offset, 0)
        return host(now, records)

    monkeypatch.setattr(store.role, "host", lost)

    async def send(rounds: ProduceRounds) -> list[Outcome]:
        puts = [Put(PARTITION, TP, memoryview(each), 8) for each in sequenced(10)]
        for put in puts:
            rounds.put(put)
        return await asyncio.wait_for(asyncio.gather(*(put.outcome for put in puts)), 60)

    async def run() -> tuple[list[Outcome], list[Outcome]]:
        with fixed_node(store) as node:
            rounds = ProduceRounds(node, ProducerStates())
            made.append(rounds)
            return await send(rounds), await send(rounds)

    first, second = asyncio.run(run())
    assert first == [Written(3 * at, 3 * at + 3) for at in range(10)]
    assert second[5:] == first[5:]
    assert next(calls) > 5
    assert stored(store) == [b"%d" % at for at in range(10) for _ in range(3)]


def test_records_that_another_history_replaced_are_written_again(store: Store) -> None:
    first, second = sequenced(2)

    async def send(rounds: ProduceRounds, octets: bytes) -> Outcome:
        put = Put(PARTITION, TP, memoryview(octets), 8)
        rounds.put(put)
        return await asyncio.wait_for(put.outcome, 60)

    async def run() -> list[Outcome]:
        with fixed_node(store) as node:
            rounds = ProduceRounds(node, ProducerStates())
            sent = [await send(rounds, first), await send(rounds, second)]
            # As when another store's newer history begins at offset 3.
            store.mesh.call(lambda _: store.role.write(SetAside(TP, 3)))
            store.mesh.call(lambda _: store.role.partitions[TP].restart_at(3, ()))
            await asyncio.to_thread(
                wait_until, lambda: not store.role.partitions[TP].pending_replacements
            )
            again = [await send(rounds, each) for each in (first, second, second)]
            return [*sent, *again]

    offsets = [(0, 3), (3, 6), (0, 3), (3, 6), (3, 6)]
    assert asyncio.run(run()) == [Written(*each) for each in offsets]
    assert stored(store) == [b"0"] * 3 + [b"1"] * 3


def test_nothing_is_written_for_a_number_that_was_taken_away(store: Store) -> None:
    deleted = PARTITION._replace(address="Z" * 32)  # the owner of number 0 is another gateway
    unknown = KafkaError.UNKNOWN_TOPIC_OR_PARTITION
    assert codes_of(written(store, *sequenced(2), partition=deleted)) == [unknown] * 2
    assert codes_of(written(store, *sequenced(2), partition=PARTITION)) == [0, 0]
    assert [each.tp for each in store.log.partitions("t")] == [TP]
