"""Produce: responses, and records on disk."""

import asyncio
import contextlib
import re
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from dafka_core import Store
from dafka_core.model.log_entries import Forget
from dafka_core.model.records import TopicPartition
from dafka_core.model.timestamps import StoreClock
from dafka_core.nodes.append_queue import Addition
from dafka_core.storage import Log
from dafka_core.testing import wait_until
from dafka_kafka import produce
from dafka_kafka.api import Api
from dafka_kafka.errors import KafkaError
from dafka_kafka.gateway import Gateway
from dafka_kafka.partition_writer import MUCH_BYTES, Put, Written, produced_together
from dafka_kafka.produce import ProduceRounds
from dafka_kafka.producer_states import ProducerStates
from dafka_kafka.registry_table import NumberedPartition
from tests.integration.kafka.admin import make
from tests.integration.kafka.fixed_node import OWN, FixedNumbers, fixed_node
from tests.integration.kafka.produce_client import (
    OTHERS,
    VERSION,
    Answer,
    ProduceClient,
    produce_server,
)
from tests.unit.kafka.messages import rows
from tests.unit.kafka.records.batches import batch, messages_of

FIRST = ("t", 0)
WHEN_MS = 1_700_000_000_000


@pytest.fixture
def client(store: Store) -> Iterator[ProduceClient]:
    with produce_server(store) as where, ProduceClient(where) as client:
        yield client


def tp(number: int) -> TopicPartition:
    return TopicPartition("t", "ABCDEF"[number] * 32)


def stored(store: Store, number: int = 0) -> list[bytes]:
    return [value for each in store.log.read(tp(number), 0, 1 << 30) for value in each.values]


def values(count: int, name: str = "v") -> list[bytes]:
    return [b"%s%d" % (name.encode(), at) for at in range(count)]


def refused(error: KafkaError, count: int = 1) -> list[Answer]:
    return [Answer(error, -1)] * count


def test_records_are_on_disk_when_they_are_answered_with_their_times(
    client: ProduceClient, store: Store
) -> None:
    assert client.ask({FIRST: batch(values(3))}) == [Answer(0, 0)]
    assert client.ask({FIRST: batch(values(2, "w"), codec=1)}, acks=-1) == [Answer(0, 3)]
    assert stored(store) == [*values(3), *values(2, "w")]
    times = [(at, (WHEN_MS + at) * 1000) for at in range(3)]
    assert store.log.times(tp(0), 0, 3) == times


def test_a_partitions_error_is_its_own_and_logged(
    client: ProduceClient, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    broken = bytearray(batch(values(1)))
    broken[-1] ^= 1
    parts = {
        ("t", 0): batch(values(1)),
        ("t", 6): batch(values(1)),
        ("t", 1): bytes(broken),
        ("t", 2): None,
        ("t", OTHERS): batch(values(1)),
        ("t", -1): batch(values(1)),
        ("t", 3): batch(values(1), transactional=True, producer=(1, 0, 0)),
        ("u", 0): batch(values(1)),
        ("__dafka.queries", 0): batch(values(1)),
    }
    unknown = KafkaError.UNKNOWN_TOPIC_OR_PARTITION
    errors = {
        ("t", 0): KafkaError.NONE,
        ("t", 6): unknown,
        ("u", 0): unknown,
        ("__dafka.queries", 0): KafkaError.INVALID_TOPIC_EXCEPTION,
        ("t", 1): KafkaError.CORRUPT_MESSAGE,
        ("t", 2): KafkaError.INVALID_RECORD,
        ("t", OTHERS): KafkaError.NOT_LEADER_OR_FOLLOWER,
        ("t", -1): unknown,
        ("t", 3): KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
    found = dict(zip(parts, client.ask(parts), strict=True))
    assert found == {at: Answer(error, -1 if error else 0) for at, error in errors.items()}
    assert [stored(store, number) for number in range(4)] == [values(1), [], [], []]
    logged = re.findall(r"records refused with (\w+), 1 times; .*: topic '(.*)': ", caplog.text)
    assert logged == [
        ("CORRUPT_MESSAGE", "t"),
        ("INVALID_RECORD", "t"),
        ("TRANSACTIONAL_ID_AUTHORIZATION_FAILED", "t"),
        ("INVALID_TOPIC_EXCEPTION", "__dafka.queries"),
    ]


def test_what_is_wrong_with_a_request_is_answered_for_all_its_partitions(
    client: ProduceClient, store: Store
) -> None:
    parts = {("t", 0): batch(values(1)), ("t", 6): batch(values(1))}
    assert client.ask(parts, acks=2) == refused(KafkaError.INVALID_REQUIRED_ACKS, 2)
    no_transactions = KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert client.ask(parts, transactional_id="x") == refused(no_transactions, 2)
    assert store.log.partitions() == []
    ids = [client.init_producer_id() for _ in range(3)]
    assert len({each.producer_id for each in ids}) == 3
    assert {(each.error_code, each.producer_epoch) for each in ids} == {(0, 0)}
    transactional = client.init_producer_id("t")
    assert (transactional.error_code, transactional.producer_id) == (no_transactions, -1)


def test_what_is_ahead_of_the_clock_is_refused_and_keeps_its_time_otherwise(
    client: ProduceClient, store: Store
) -> None:
    now_ms = store.log.now_us() // 1000
    soon, late = (
        batch(values(2), timestamp=now_ms + ahead_ms) for ahead_ms in (3_500_000, 3_700_000)
    )
    compressed = batch(values(2), timestamp=now_ms + 3_700_000, codec=1)
    for wrong in (late, compressed):
        answers = client.ask({("t", 0): soon, ("t", 1): wrong})
        assert answers[1:] == refused(KafkaError.INVALID_TIMESTAMP)
    assert [at // 1000 - now_ms for _, at in store.log.times(tp(0), 0, 2)] == [3_500_000, 3_500_001]
    assert stored(store, 1) == []


def test_times_in_any_order_are_kept(client: ProduceClient, store: Store) -> None:
    times_ms = [5_000, 1, -86_400_000, 9_000, 7_000]
    for offset, time_ms in enumerate(times_ms):
        assert client.ask({("t", 0): batch(values(1), timestamp=time_ms)}) == [Answer(0, offset)]
    assert [us // 1_000 for _, us in store.log.times(tp(0), 0, 5)] == times_ms
    for wanted, expected in ((6_000, 3), (5_000, 0), (9_001, None), (-90_000_000, 0)):
        assert store.log.offset_for_time(tp(0), wanted * 1_000) == expected


def test_a_time_is_not_refused_by_a_store_whose_clock_is_far_behind(
    client: ProduceClient, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = StoreClock(None, lambda: 946_684_800_000_000)
    for name in ("now_us", "latest_us"):
        monkeypatch.setattr(store.log, name, getattr(clock, name))
    now_ms = time.time_ns() // 1_000_000
    assert client.ask({("t", 0): batch(values(2), timestamp=now_ms)}) == [Answer(0, 0)]
    assert [at // 1000 - now_ms for _, at in store.log.times(tp(0), 0, 2)] == [0, 1]


def test_with_acks_0_there_is_no_answer_and_an_error_ends_the_connection(
    client: ProduceClient, store: Store
) -> None:
    client.send({FIRST: batch(values(2))}, acks=0)
    assert client.ask({FIRST: batch(values(1, "w"))}) == [Answer(0, 2)]
    client.send({("u", 0): batch(values(1))}, acks=0)
    assert client.is_ended()
    assert stored(store) == [*values(2), *values(1, "w")]


def test_a_timeout_is_for_other_stores_and_not_for_the_disk(
    client: ProduceClient, store: Store
) -> None:
    assert client.ask({FIRST: batch(values(1))}, acks=1, timeout_ms=0) == [Answer(0, 0)]
    client.send({FIRST: batch(values(1))}, acks=0, timeout_ms=0)
    assert client.ask({FIRST: batch(values(1))}, acks=1, timeout_ms=-1) == [Answer(0, 2)]
    assert len(stored(store)) == 3
    late = client.ask({FIRST: batch(values(1))}, acks=-1, timeout_ms=0)
    assert late == refused(KafkaError.REQUEST_TIMED_OUT)


@pytest.mark.parametrize("acks", [0, 1])
def test_what_waits_for_the_disk_takes_room_though_its_client_has_gone(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch, acks: int
) -> None:
    """Clients that send and disconnect use no memory; their unwritten batches are dropped."""
    make(AdminClient({"bootstrap.servers": str(gateway.listens), "log_level": 0}), "t")
    write, may_go_on, begun = Log.write, threading.Event(), threading.Event()

    def wait(log: Log, entries: Any) -> Any:
        begun.set()
        assert may_go_on.wait(60)
        return write(log, entries)

    monkeypatch.setattr(Log, "write", wait)
    monkeypatch.setattr(produce, "MAX_WAIT_S", 60)  # a second round would write more
    room = gateway.server.room
    octets = batch([bytes(100_000)])
    for before in (0, 0) if acks else (0, 2):
        with ProduceClient(gateway.listens) as client:
            client.send({FIRST: octets}, acks=acks)
            client.send({FIRST: octets}, acks=acks)
            assert begun.wait(60)
            least_bytes = (before + 2) * 100_000
            wait_until(lambda: room.taken_bytes > least_bytes)  # noqa: B023 -- it is waited for
        wait_until(lambda: gateway.connection_count == 0)
        if acks:
            wait_until(lambda: room.taken_bytes == 0)
    if not acks:
        assert room.taken_bytes > 4 * 100_000
    may_go_on.set()
    wait_until(lambda: room.taken_bytes == 0)
    with ProduceClient(gateway.listens) as client:
        (answer,) = client.ask({FIRST: octets})
    assert answer.offset <= 2 if acks else answer == Answer(0, 4)


def test_requests_are_answered_in_order_whatever_they_wait_for(
    client: ProduceClient, store: Store
) -> None:
    sent = 200
    for at in range(sent):
        parts = {("t", at % 3): batch([b"%d" % at] * (1 + at % 7))}
        client.send({**parts, ("t", 9): None} if at % 11 == 0 else parts)
    ends = [0, 0, 0]
    for at in range(sent):
        assert client.receive()[0] == Answer(0, ends[at % 3])
        ends[at % 3] += 1 + at % 7
    for number in range(3):
        sequence = [int(value) for value in stored(store, number)]
        assert sequence == sorted(sequence)
        assert len(sequence) == ends[number]


def test_a_majority_of_three_stores_is_needed_for_acks_all(
    client: ProduceClient, store: Store, tower: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = [Store(tmp_path / name, tower=tower) for name in "ab"]
    with contextlib.ExitStack() as running:
        for each in others:
            running.callback(each.close)
        wait_until(lambda: len(store.known.endpoints) == 2)
        assert client.ask({FIRST: batch(values(1))}, acks=-1) == [Answer(0, 0)]
        others[0].close()
        wait_until(lambda: len(store.known.endpoints) == 1)
        assert client.ask({FIRST: batch(values(1))}, acks=-1) == [Answer(0, 1)]
        assert others[1].log.end(tp(0)) == 2
    wait_until(lambda: not store.known.endpoints)
    error = KafkaError.NOT_ENOUGH_REPLICAS
    both = {FIRST: batch(values(1)), ("t", 1): batch(values(1))}
    assert client.ask(both, acks=-1) == [Answer(error, -1)] * 2
    assert store.log.end(tp(0)) == 2  # it may be sent again: nothing is written
    assert client.ask({FIRST: batch(values(1))}, acks=1) == [Answer(0, 2)]
    with monkeypatch.context() as patches:
        patches.setattr(FixedNumbers, "configs", lambda *_: {"min.insync.replicas": 1})
        assert client.ask({FIRST: batch(values(1))}, acks=-1) == [Answer(0, 3)]
    with Store(tmp_path / "a", tower=tower) as back:
        wait_until(lambda: len(store.known.endpoints) == 1)
        assert client.ask({FIRST: batch(values(1))}, acks=-1) == [Answer(0, 4)]
        assert back.log.end(tp(0)) == 5
    wait_until(lambda: not store.known.endpoints)
    store.append_queue.put(Forget(others[0].address)).result(30)
    assert client.ask({FIRST: batch(values(1))}, acks=-1) == [Answer(0, 5)]  # one of two stores


def test_a_topic_that_needs_more_stores_than_are_known_says_so(
    client: ProduceClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FixedNumbers, "configs", lambda *_: {"min.insync.replicas": 2})
    client.send({FIRST: batch(values(1))}, acks=-1)
    response = client.receive_response(Api.PRODUCE, VERSION)
    ((error, why),) = rows(response, "responses.partition_responses", "error_code", "error_message")
    assert error == KafkaError.NOT_ENOUGH_REPLICAS
    assert why == (
        "2 stores must have records of 't' (min.insync.replicas), and this gateway knows 1 in all: "
        "start more, or lower the config"
    )


def test_a_batch_of_an_idempotent_producer_that_comes_again_is_written_once(
    client: ProduceClient, store: Store
) -> None:
    producer_id = client.init_producer_id().producer_id
    batches = [batch(values(10, f"{at}/"), producer=(producer_id, 0, 10 * at)) for at in range(7)]
    for each in (0, 1, 1, 2, 0, 3, 4, 5, 5):
        client.send({FIRST: batches[each]})
    offsets = [client.receive()[0] for _ in range(9)]
    assert offsets == [Answer(0, 10 * at) for at in (0, 1, 1, 2, 0, 3, 4, 5, 5)]
    late = batch(values(1), producer=(producer_id, 0, 100))
    out_of_order = refused(KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER)
    assert client.ask({FIRST: late, ("t", 1): batches[0]}) == [*out_of_order, Answer(0, 0)]
    newer = batch(values(1, "newer"), producer=(producer_id, 1, 0))
    assert client.ask({FIRST: newer}) == [Answer(0, 60)]
    assert client.ask({FIRST: batches[6]}) == refused(KafkaError.INVALID_PRODUCER_EPOCH)
    assert stored(store)[::10] == [*(b"%d/0" % at for at in range(6)), b"newer0"]


def test_what_was_written_once_is_known_after_a_restart(store: Store) -> None:
    batches = [batch(values(10), producer=(77, 0, 10 * at)) for at in range(3)]
    for each in range(3):
        with produce_server(store) as where, ProduceClient(where) as client:
            assert client.ask({FIRST: batches[each]}) == [Answer(0, 10 * each)]
            assert client.ask({FIRST: batches[max(each - 1, 0)]})[0].error == 0
    assert len(stored(store)) == 30


VALUES = [bytes(1 << 20)] * 65  # more than 64 MiB, which every codec compresses well

LZ4, ZSTD = 3, 4


@pytest.mark.parametrize(("codec", "version"), [(LZ4, 3), (ZSTD, 8)])
def test_a_batch_that_is_decompressed_to_too_much_is_too_large(
    client: ProduceClient, store: Store, codec: int, version: int
) -> None:
    producer_id = client.init_producer_id().producer_id
    large = batch(VALUES, codec=codec, producer=(producer_id, 0, 0))
    small = batch(values(2), codec=codec, producer=(producer_id, 0, 0))
    parts = {FIRST: large, ("t", 1): small}
    too_large = refused(KafkaError.MESSAGE_TOO_LARGE)
    assert client.ask(parts, version=version) == [*too_large, Answer(0, 0)]
    changed = large[:-1] + bytes([large[-1] ^ 1])
    assert client.ask({FIRST: changed}, version=version) == refused(KafkaError.CORRUPT_MESSAGE)
    # A producer that splits it continues with the refused sequence.
    assert client.ask({FIRST: small}, version=version) == [Answer(0, 0)]
    assert stored(store) == values(2)
    old = {FIRST: messages_of(1, VALUES, LZ4)}
    assert client.ask(old, version=2) == too_large


def test_a_store_that_has_ended_is_a_storage_error(client: ProduceClient, store: Store) -> None:
    store.close()
    assert client.ask({FIRST: batch(values(1))}) == refused(KafkaError.KAFKA_STORAGE_ERROR)


def test_a_limit_of_the_store_is_named(tower: str, tmp_path: Path) -> None:
    options = {"tower": tower, "max_partitions": 1, "max_record_bytes": 4_096}
    with (
        Store(tmp_path / "small", **options) as small,
        produce_server(small) as where,
        ProduceClient(where) as client,
    ):
        most, more = batch([bytes(4_096)]), batch([bytes(4_097)])
        assert client.ask({FIRST: more}) == refused(KafkaError.MESSAGE_TOO_LARGE)
        assert client.ask({FIRST: most}) == [Answer(0, 0)]
        assert client.ask({("t", 1): most})[0].error == KafkaError.POLICY_VIOLATION


LARGE = batch([bytes(MUCH_BYTES)])


def put(letter: str, octets: bytes) -> Put:
    tp = TopicPartition("t", letter)
    partition = NumberedPartition("t", ord(letter) - ord("A"), letter, OWN.address, True)
    return Put(partition, tp, memoryview(octets), 8)


@pytest.fixture
def rounds(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count the puts in each decoded round."""
    found: list[int] = []
    decode = produced_together

    def counted(requests: Sequence[Any], *others: Any) -> Any:
        found.append(len(requests))
        return decode(requests, *others)

    monkeypatch.setattr(produce, "produced_together", counted)
    return found


Run = Callable[[Callable[[ProduceRounds], Awaitable[None]]], None]


@pytest.fixture
def run(store: Store) -> Run:
    """Run work with the rounds of a node, in a loop."""

    def run(work: Callable[[ProduceRounds], Awaitable[None]]) -> None:
        async def running() -> None:
            with fixed_node(store) as node:
                await asyncio.wait_for(work(ProduceRounds(node, ProducerStates())), 60)

        asyncio.run(running())

    return run


def test_what_comes_at_once_of_all_partitions_is_one_round(
    store: Store, run: Run, rounds: list[int]
) -> None:
    async def work(all_rounds: ProduceRounds) -> None:
        puts = [put(letter, batch([b"%d" % at])) for at in range(20) for letter in "ABC"]
        for each in puts:
            all_rounds.put(each)
        await asyncio.gather(*(each.outcome for each in puts))

    run(work)
    assert rounds == [60]
    for letter in "ABC":
        found = store.log.read(TopicPartition("t", letter), 0, 100)
        assert [value for each in found for value in each.values] == [
            b"%d" % at for at in range(20)
        ]


def test_what_comes_while_a_round_is_under_way_waits_for_the_next(
    store: Store, run: Run, rounds: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(produce, "MAX_WAIT_S", 60.0)
    write, told = store.append_queue.put_next, Future[int]()

    def held_up(additions: Sequence[Addition]) -> list[Future[int]]:
        return write(additions) if len(rounds) > 1 else [told]

    monkeypatch.setattr(store.append_queue, "put_next", held_up)

    async def work(all_rounds: ProduceRounds) -> None:
        first = put("A", batch([b"first"]))
        later = [put("B", batch([b"later"])) for _ in range(10)]
        all_rounds.put(first)
        while not rounds:
            await asyncio.sleep(0)
        for each in later:
            all_rounds.put(each)
            await asyncio.sleep(0)
        told.set_result(1)
        await asyncio.gather(first.outcome, *(each.outcome for each in later))

    run(work)
    assert rounds == [1, 10]


def test_producers_in_step_share_their_rounds(run: Run, rounds: list[int]) -> None:
    """Clients send again after their answer: only the first rounds are small."""

    async def producer(all_rounds: ProduceRounds, letter: str) -> None:
        for at in range(50):
            each = put(letter, batch([b"%d" % at]))
            all_rounds.put(each)
            assert await each.outcome == Written(at, at + 1)

    async def work(all_rounds: ProduceRounds) -> None:
        await asyncio.gather(*(producer(all_rounds, letter) for letter in "ABCDEFGH"))

    run(work)
    assert sum(rounds) == 400
    assert len(rounds) < 200


def test_few_records_do_not_wait_for_a_round_that_does_not_end(
    store: Store, run: Run, rounds: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    write = store.append_queue.put_next

    def hung(additions: Sequence[Addition]) -> list[Future[int]]:
        (addition,) = additions
        return [Future()] if addition.tp.partition == "A" else write(additions)

    monkeypatch.setattr(store.append_queue, "put_next", hung)

    async def work(all_rounds: ProduceRounds) -> None:
        hangs, goes = put("A", batch([b"a"])), put("B", batch([b"b"]))
        all_rounds.put(hangs)
        while not rounds:
            await asyncio.sleep(0)
        all_rounds.put(goes)
        assert await goes.outcome == Written(0, 1)
        assert not hangs.outcome.done()

    run(work)


def test_large_batches_are_decoded_while_others_are_on_their_way(
    store: Store, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(produce, "MAX_WAIT_S", 60.0)
    write, held = store.append_queue.put_next, list[tuple[Future[int], Future[int]]]()

    def held_up(additions: Sequence[Addition]) -> list[Future[int]]:
        (future,) = write(additions)
        held.append((Future(), future))
        if len(held) == 3:
            for told, written in held:
                told.set_result(written.result())
        return [held[-1][0] if len(held) <= 3 else held[-1][1]]

    monkeypatch.setattr(store.append_queue, "put_next", held_up)

    async def work(all_rounds: ProduceRounds) -> None:
        puts = [put("A", LARGE) for _ in range(8)]
        for each in puts:
            all_rounds.put(each)
        outcomes = await asyncio.gather(*(each.outcome for each in puts))
        assert outcomes[-1] == Written(7, 8)

    run(work)


def test_writers_of_deleted_topics_are_forgotten(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(produce, "MANY_WRITERS", 2)

    async def work(all_rounds: ProduceRounds) -> None:
        for letter in "ZAYBXC":  # the last letters have no number any more
            each = put(letter, batch([b"v"]))
            all_rounds.put(each)
            assert isinstance(await each.outcome, Written) == (letter in "ABC")
        assert {tp.partition for tp in all_rounds._writers} <= {*"ABC", "X"}

    run(work)
