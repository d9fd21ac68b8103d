"""Fetch: its responses in each version, and when they are sent."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dafka_core import Store
from dafka_core.model.log_entries import StoreSeen
from dafka_core.model.records import RecordBatch, TopicPartition
from dafka_core.storage import Log
from dafka_kafka import fetch
from dafka_kafka.api import Api
from dafka_kafka.errors import KafkaError
from dafka_kafka.fetch import LAG_S, NO_EPOCH, BeyondEnd, Fetch, readable
from dafka_kafka.gateway_node import GatewayNode
from dafka_kafka.records.kafka_batch import KafkaBatch
from dafka_kafka.records.record_batch import decode_batches
from tests.integration.kafka.fixed_node import asked, fixed_node
from tests.unit.kafka.messages import NEWEST, versions

A, B = TopicPartition("t", "A"), TopicPartition("t", "B")
LONG_MS = 60_000


def append(store: Store, tp: TopicPartition, *values: bytes) -> None:
    store.append_queue.put(RecordBatch.of(tp, store.log.end(tp), values)).result()


class Asking:
    """A client of a node's Fetch, in a loop that runs meanwhile."""

    def __init__(self, node: GatewayNode) -> None:
        self.node = node

    def whole(
        self,
        *wanted: tuple[int, int],
        version: int = NEWEST,
        work: Callable[[], object] | None = None,
        **limits: int,
    ) -> Any:
        """Ask for numbers and offsets; call ``work`` in a thread meanwhile."""
        parts = [
            {"partition": number, "fetch_offset": at, "partition_max_bytes": 1 << 20}
            for number, at in wanted
        ]
        fields: dict[str, Any] = {"min_bytes": 1, "max_bytes": 1 << 20, "max_wait_ms": 0}
        fields["session_epoch"] = -1
        fields["topics"] = [{"topic": "t", "partitions": parts}]

        async def scenario() -> Any:
            feature = Fetch(self.node)
            await feature.start()
            asking = asyncio.ensure_future(asked(feature, Api.FETCH, version, **fields | limits))
            if work is not None:
                await asyncio.sleep(0.2)
                assert not asking.done()
                await asyncio.to_thread(work)
            try:
                return await asking
            finally:
                await feature.close()

        return asyncio.run(scenario())

    def __call__(self, *wanted: tuple[int, int], **named: Any) -> list[Any]:
        """Return the records by partition."""
        answer = self.whole(*wanted, **named)
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


def test_records_come_in_each_version(store: Store, ask: Asking) -> None:
    append(store, A, b"a", b"b", b"c")
    time_us = store.log.times(A, 1, 2)[0][1]
    for version in versions(Api.FETCH):
        with taking(0, 20):  # records that exist are not waited for
            one, other = ask((0, 1), (1, 0), version=version, max_wait_ms=LONG_MS)
        assert (one.error_code, one.high_watermark, values(one)) == (0, 3, [b"b", b"c"])
        [batch] = batches(one)
        assert batch.offsets.tolist() == [1, 2]
        assert batch.magic == (2 if version >= 4 else 1 if version >= 2 else 0)
        assert batch.timestamps_ms.tolist() == [time_us // 1000 if version >= 2 else -1] * 2
        assert one.last_stable_offset == (3 if version >= 4 else -1)
        assert one.log_start_offset == (0 if version >= 5 else -1)
        assert not one.aborted_transactions
        assert (other.error_code, other.high_watermark, values(other)) == (0, 0, [])


def test_enough_bytes_end_the_wait(store: Store, ask: Asking) -> None:
    with taking(0.2, 20):
        one, other = ask((0, 0), (1, 0), max_wait_ms=LONG_MS, work=lambda: append(store, B, b"b"))
    assert (values(one), values(other)) == ([], [b"b"])

    def work() -> None:
        for _ in range(4):
            append(store, A, b"a" * 250)
            append(store, B, b"b")

    [one] = ask((0, 0), max_wait_ms=LONG_MS, min_bytes=1_000, work=work)
    assert len(values(one)) == 4


def test_the_wait_ends_in_time(store: Store, ask: Asking) -> None:
    append(store, A, b"a")
    for offset, min_bytes, found in ((1, 1, []), (0, 1_000, [b"a"])):
        with taking(0.4, 20):
            [one] = ask((0, offset), max_wait_ms=400, min_bytes=min_bytes)
        assert (one.error_code, one.high_watermark, values(one)) == (0, 1, found)


def test_an_error_is_told_at_once(store: Store, ask: Asking) -> None:
    append(store, A, b"a", b"b", b"c")
    store.log.trim(A, 1)
    outside = KafkaError.OFFSET_OUT_OF_RANGE
    for number, offset, error in (
        *((0, offset, outside) for offset in (4, -1, 0)),
        (9, 0, KafkaError.NOT_LEADER_OR_FOLLOWER),
        (77, 0, KafkaError.UNKNOWN_TOPIC_OR_PARTITION),
    ):
        with taking(0, 20):
            wrong, other = ask((number, offset), (0, 1), max_wait_ms=LONG_MS, min_bytes=9_999)
        assert (wrong.error_code, values(wrong)) == (error, [])
        assert (other.error_code, values(other), other.log_start_offset) == (0, [b"b", b"c"], 1)


def test_there_are_no_sessions(store: Store, ask: Asking) -> None:
    append(store, A, b"a")
    answer = ask.whole((0, 0), session_id=0, session_epoch=0)
    assert (answer.error_code, answer.session_id) == (0, 0)
    assert values(answer.responses[0].partitions[0]) == [b"a"]
    answer = ask.whole((0, 0), session_id=5, session_epoch=1, max_wait_ms=LONG_MS)
    assert answer.error_code == KafkaError.FETCH_SESSION_ID_NOT_FOUND
    assert (answer.session_id, answer.responses) == (0, [])


def test_what_clients_have_not_taken_leaves_less_room(store: Store, ask: Asking) -> None:
    append(store, A, *[b"a" * 1_000] * 500)
    room = ask.node.room
    room.add(room.size_bytes - 50_000)
    [one] = ask((0, 0))
    assert 25 <= len(values(one)) < 50
    assert room.taken_bytes == room.size_bytes - 50_000
    room.add(50_000)
    with taking(0.4, 20):
        [one] = ask((0, 0), max_wait_ms=400)
    assert (one.error_code, values(one)) == (0, [])
    room.give_back(room.size_bytes)
    [one] = ask((0, 0))
    assert len(values(one)) == 500


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with Log(tmp_path) as log:
        yield log


def see_another_store(log: Log) -> None:
    log.write([StoreSeen("E" * 32, "tcp://127.0.0.1:1")])


def test_it_is_taken_for_lag_for_a_while_and_each_offset_for_its_own(log: Log) -> None:
    now = [0.0]
    beyond = BeyondEnd(log, lambda: now[0])
    assert not beyond.may_come(A, 5)  # it knows no other store
    see_another_store(log)
    assert beyond.may_come(A, 5)
    now[0] = LAG_S - 1
    assert beyond.may_come(A, 5)
    assert beyond.may_come(A, 6)
    now[0] = LAG_S
    assert not beyond.may_come(A, 5)
    assert beyond.may_come(A, 6)
    assert beyond.may_come(B, 5)
    now[0] = 2 * LAG_S + 1  # another client, later
    assert beyond.may_come(A, 5)


def test_it_remembers_so_many_and_no_more(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "MAX_KEPT", 10)
    see_another_store(log)
    now = [0.0]
    beyond = BeyondEnd(log, lambda: now[0])
    for offset in range(100):
        beyond.may_come(A, offset)
    now[0] = LAG_S  # those that it remembers are out of range
    assert not any(beyond.may_come(A, offset) for offset in range(90, 100))
    assert beyond.may_come(A, 89)


def test_what_is_read_here(store: Store) -> None:
    unknown = KafkaError.UNKNOWN_TOPIC_OR_PARTITION
    with fixed_node(store) as node:
        for topic, number, epoch, found in (
            ("t", 0, NO_EPOCH, A),
            ("t", 9, NO_EPOCH, KafkaError.NOT_LEADER_OR_FOLLOWER),
            ("t", 10, NO_EPOCH, unknown),
            ("t", -1, NO_EPOCH, unknown),
            ("u", 0, NO_EPOCH, unknown),
            ("t", 0, 0, A),  # librdkafka sends this for an unknown epoch
            ("t", 0, 1, KafkaError.UNKNOWN_LEADER_EPOCH),
        ):
            assert readable(node, topic, number, epoch) == found
