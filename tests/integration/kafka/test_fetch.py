"""Fetch: its responses in each version, and when they are sent."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dafka_core import Store
from dafka_core.errors import StoreError
from dafka_core.model.log_entries import StoreSeen
from dafka_core.model.records import RecordBatch, TopicPartition
from dafka_core.storage import Log
from dafka_kafka import fetch
from dafka_kafka.api import Api
from dafka_kafka.errors import KafkaError
from dafka_kafka.fetch import LAG_S, NO_EPOCH, BeyondEnd, Fetch, readable, say_damaged
from dafka_kafka.gateway import APIS
from dafka_kafka.gateway_node import GatewayNode
from dafka_kafka.records.kafka_batch import KafkaBatch
from dafka_kafka.records.record_batch import decode_batches
from dafka_kafka.schemas import FetchRequest
from tests.integration.kafka.fixed_node import asked, fixed_node

A, B = TopicPartition("t", "A"), TopicPartition("t", "B")
LONG_MS = 60_000
NEWEST = APIS[Api.FETCH].versions[-1]


def append(store: Store, tp: TopicPartition, *values: bytes) -> None:
    store.append_queue.put(RecordBatch.of(tp, store.log.end(tp), values)).result()


def request(
    *wanted: tuple[int, int],
    topic: str = "t",
    max_wait_ms: int = 0,
    min_bytes: int = 1,
    max_bytes: int = 1 << 20,
    leader_epoch: int = -1,
    session: tuple[int, int] = (0, -1),
) -> Any:
    """Request (number, offset)."""
    kind = FetchRequest.FetchTopic
    partitions = [
        kind.FetchPartition(
            partition=number,
            current_leader_epoch=leader_epoch,
            fetch_offset=offset,
            log_start_offset=-1,
            partition_max_bytes=1 << 20,
        )
        for number, offset in wanted
    ]
    return FetchRequest(
        replica_id=-1,
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        isolation_level=0,
        session_id=session[0],
        session_epoch=session[1],
        topics=[kind(topic=topic, partitions=partitions)],
        forgotten_topics_data=[],
        rack_id="",
    )


class Asking:
    """Send a Fetch to a node, in a loop that runs meanwhile."""

    def __init__(self, node: GatewayNode) -> None:
        self.node = node

    def whole(self, request: Any, version: int = NEWEST, **meanwhile: Any) -> Any:
        """Return the response; ``meanwhile`` is called in a thread."""

        async def scenario() -> Any:
            feature = Fetch(self.node)
            await feature.start()
            asking = asyncio.ensure_future(asked(feature, Api.FETCH, request, version))
            if work := meanwhile.get("work"):
                await asyncio.sleep(0.2)
                assert not asking.done()
                await asyncio.to_thread(work)
            try:
                return await asking
            finally:
                await feature.close()

        return asyncio.run(scenario())

    def __call__(self, request: Any, version: int = NEWEST, **meanwhile: Any) -> list[Any]:
        """Return the records by partition."""
        answer = self.whole(request, version, **meanwhile)
        return [partition for topic in answer.responses for partition in topic.partitions]


@pytest.fixture
def ask(store: Store) -> Iterator[Asking]:
    with fixed_node(store) as node:
        yield Asking(node)


def values(partition: Any) -> list[bytes]:
    return [value for batch in batches(partition) for value in batch.values.to_pylist()]


def batches(partition: Any) -> list[KafkaBatch]:
    return list(decode_batches(bytes(partition.records or b"")))


@contextmanager
def taking(least_s: float, most_s: float) -> Iterator[None]:
    begin = time.monotonic()
    yield
    assert least_s <= time.monotonic() - begin <= most_s


@pytest.mark.parametrize("version", APIS[Api.FETCH].versions)
def test_records_come_in_each_version(store: Store, ask: Asking, version: int) -> None:
    append(store, A, b"a", b"b", b"c")
    one, other = ask(request((0, 1), (1, 0)), version)
    assert (one.error_code, one.high_watermark, values(one)) == (0, 3, [b"b", b"c"])
    [batch] = batches(one)
    assert batch.offsets.tolist() == [1, 2]
    assert batch.magic == (2 if version >= 4 else 1 if version >= 2 else 0)
    time_us = store.log.times(A, 1, 2)[0][1]
    assert batch.timestamps_ms.tolist() == [time_us // 1000 if version >= 2 else -1] * 2
    assert one.last_stable_offset == (3 if version >= 4 else -1)
    assert one.log_start_offset == (0 if version >= 5 else -1)
    assert not one.aborted_transactions
    assert (other.error_code, other.high_watermark, values(other)) == (0, 0, [])


def test_records_that_are_there_are_not_waited_for(store: Store, ask: Asking) -> None:
    append(store, A, b"a")
    with taking(0, 20):
        [one] = ask(request((0, 0), max_wait_ms=LONG_MS))
    assert values(one) == [b"a"]


def test_a_record_ends_the_wait(store: Store, ask: Asking) -> None:
    with taking(0.2, 20):
        one, other = ask(
            request((0, 0), (1, 0), max_wait_ms=LONG_MS), work=lambda: append(store, B, b"b")
        )
    assert (values(one), values(other)) == ([], [b"b"])


def test_the_wait_ends_in_time(store: Store, ask: Asking) -> None:
    append(store, A, b"a")
    with taking(0.4, 20):
        [one] = ask(request((0, 1), max_wait_ms=400))
    assert (one.error_code, one.high_watermark, values(one)) == (0, 1, [])
    with taking(0.4, 20):
        [one] = ask(request((0, 0), max_wait_ms=400, min_bytes=1_000))
    assert values(one) == [b"a"]


def test_so_many_octets_are_waited_for(store: Store, ask: Asking) -> None:
    append(store, A, b"a" * 400)

    def work() -> None:
        for _ in range(3):
            append(store, A, b"a" * 200)
            append(store, B, b"b")

    [one] = ask(request((0, 0), max_wait_ms=LONG_MS, min_bytes=1_000), work=work)
    assert len(values(one)) == 4


@pytest.mark.parametrize(
    ("number", "offset", "error"),
    [
        (0, 4, KafkaError.OFFSET_OUT_OF_RANGE),
        (0, -1, KafkaError.OFFSET_OUT_OF_RANGE),
        (0, 0, KafkaError.OFFSET_OUT_OF_RANGE),
        (9, 0, KafkaError.NOT_LEADER_OR_FOLLOWER),
        (77, 0, KafkaError.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
def test_an_error_is_told_at_once(
    store: Store, ask: Asking, number: int, offset: int, error: KafkaError
) -> None:
    append(store, A, b"a", b"b", b"c")
    store.log.trim(A, 1)
    with taking(0, 20):
        wrong, other = ask(request((number, offset), (0, 1), max_wait_ms=LONG_MS, min_bytes=9_999))
    assert (wrong.error_code, values(wrong)) == (error, [])
    assert (other.error_code, values(other), other.log_start_offset) == (0, [b"b", b"c"], 1)


def test_what_a_client_knows_of_another_cluster_is_refused(store: Store, ask: Asking) -> None:
    [one] = ask(request((0, 0), leader_epoch=3))
    assert one.error_code == KafkaError.UNKNOWN_LEADER_EPOCH
    [one] = ask(request((0, 0), topic="u"))
    assert one.error_code == KafkaError.UNKNOWN_TOPIC_OR_PARTITION


def test_there_are_no_sessions(store: Store, ask: Asking) -> None:
    append(store, A, b"a")
    answer = ask.whole(request((0, 0), session=(0, 0)))
    assert (answer.error_code, answer.session_id) == (0, 0)
    assert values(answer.responses[0].partitions[0]) == [b"a"]
    answer = ask.whole(request((0, 0), session=(5, 1), max_wait_ms=LONG_MS))
    assert answer.error_code == KafkaError.FETCH_SESSION_ID_NOT_FOUND
    assert (answer.session_id, answer.responses) == (0, [])


def test_what_clients_have_not_taken_leaves_less_room(store: Store, ask: Asking) -> None:
    append(store, A, *[b"a" * 1_000] * 500)
    room = ask.node.room
    room.add(room.size_bytes - 50_000)
    [one] = ask(request((0, 0)))
    assert 25 <= len(values(one)) < 50
    assert room.taken_bytes == room.size_bytes - 50_000
    room.add(50_000)
    with taking(0.4, 20):
        [one] = ask(request((0, 0), max_wait_ms=400))
    assert (one.error_code, values(one)) == (0, [])
    room.give_back(room.size_bytes)
    [one] = ask(request((0, 0)))
    assert len(values(one)) == 500


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def with_another_store(log: Log) -> Log:
    log.write([StoreSeen("E" * 32, "tcp://127.0.0.1:1")])
    return log


def test_a_store_that_knows_no_other_has_all_there_is(tmp_path: Path) -> None:
    with Log(tmp_path) as log:
        assert not BeyondEnd(log).may_come(A, 5)
        assert BeyondEnd(with_another_store(log)).may_come(A, 5)


def test_it_is_taken_for_lag_for_a_while_and_each_offset_for_its_own(tmp_path: Path) -> None:
    clock = Clock()
    with Log(tmp_path) as log:
        beyond = BeyondEnd(with_another_store(log), clock)
        assert beyond.may_come(A, 5)
        clock.now = LAG_S - 1
        assert beyond.may_come(A, 5)
        assert beyond.may_come(A, 6)
        clock.now = LAG_S
        assert not beyond.may_come(A, 5)
        assert beyond.may_come(A, 6)
        assert beyond.may_come(B, 5)
        clock.now = 2 * LAG_S + 1  # another client, later
        assert beyond.may_come(A, 5)


def test_it_remembers_so_many_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "MAX_KEPT", 10)
    with Log(tmp_path) as log:
        beyond = BeyondEnd(with_another_store(log))
        for offset in range(100):
            beyond.may_come(A, offset)
        assert len(beyond._since) == 10


@pytest.mark.parametrize(
    ("topic", "number", "epoch", "found"),
    [
        ("t", 0, NO_EPOCH, TopicPartition("t", "A")),
        ("t", 9, NO_EPOCH, KafkaError.NOT_LEADER_OR_FOLLOWER),
        ("t", 10, NO_EPOCH, KafkaError.UNKNOWN_TOPIC_OR_PARTITION),
        ("t", -1, NO_EPOCH, KafkaError.UNKNOWN_TOPIC_OR_PARTITION),
        ("u", 0, NO_EPOCH, KafkaError.UNKNOWN_TOPIC_OR_PARTITION),
        ("t", 0, 0, TopicPartition("t", "A")),  # as librdkafka says that it knows no epoch
        ("t", 0, 1, KafkaError.UNKNOWN_LEADER_EPOCH),
    ],
)
def test_what_is_read_here(
    store: Store, topic: str, number: int, epoch: int, found: TopicPartition | KafkaError
) -> None:
    with fixed_node(store) as node:
        assert readable(node, topic, number, epoch) == found


def test_damage_is_logged_and_told(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    damage = StoreError(store.log.directory, "topic t, partition A is damaged")
    assert say_damaged(damage) is KafkaError.KAFKA_STORAGE_ERROR
    assert "topic t, partition A is damaged" in caplog.text
