"""Fetch: its responses in each version, when they are sent, and the records that it reads."""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
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
from dafka_kafka.fetch import (
    LAG_S,
    MAX_BATCH_BYTES,
    MAX_FETCH_BYTES,
    NO_EPOCH,
    BeyondEnd,
    Fetch,
    LogReading,
    WantedRecords,
    Watermark,
    readable,
)
from dafka_kafka.gateway_node import GatewayNode
from dafka_kafka.records.formats import KafkaBatch, decode_batches
from tests.integration.kafka.fixed_node import asked, fixed_node
from tests.unit.kafka.messages import NEWEST, versions

A, B, C = (TopicPartition("t", name) for name in "ABC")
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
        assert batch.head.magic == (2 if version >= 4 else 1 if version >= 2 else 0)
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


# -- records of a log on disk ----------------------------------------------------------------------


def hundreds(log: Log, tp: TopicPartition, count: int) -> None:
    values = [b"%0100d" % (log.end(tp) + number) for number in range(count)]
    log.append([RecordBatch.of(tp, log.end(tp), values)])


def lines(batch: RecordBatch) -> bytes:
    """Stands for Kafka's formats, of similar size."""
    return b"".join(b"%d:%b " % each for each in zip(batch.offsets, batch.values, strict=True))


def offsets(wanted: WantedRecords) -> list[int]:
    return [int(each.partition(b":")[0]) for each in wanted.records.split()]


def wanted(tp: TopicPartition | None, offset: int, max_bytes: int = 1 << 20) -> WantedRecords:
    return WantedRecords(tp, 0, offset, max_bytes)


@pytest.fixture
def reading(log: Log) -> Callable[..., LogReading]:
    def made(
        *of: WantedRecords,
        min_bytes: int = 1,
        max_bytes: int = 1 << 20,
        watermark: Watermark = lambda tp, end: end,
    ) -> LogReading:
        beyond = BeyondEnd(log)
        return LogReading(log, beyond, watermark, of, min_bytes=min_bytes, max_bytes=max_bytes)

    return made


Reading = Callable[..., LogReading]


def read(reading: LogReading, changed: Sequence[TopicPartition] | None = None) -> None:
    """Look, which finds enough, and read."""
    assert reading.look(changed)
    reading.read(lines, reading.most_bytes)


def test_records_from_an_offset_on(log: Log, reading: Reading) -> None:
    hundreds(log, A, 50)
    one, at_the_end, unwritten = wanted(A, 20), wanted(A, 50), wanted(B, 0)
    read(reading(one, at_the_end, unwritten))
    assert offsets(one) == list(range(20, 50))
    assert (one.earliest, one.end, one.error) == (0, 50, KafkaError.NONE)
    assert (at_the_end.records, at_the_end.end) == (b"", 50)
    assert (unwritten.records, unwritten.earliest, unwritten.end) == (b"", 0, 0)


def test_nothing_is_due_until_something_is_written(log: Log, reading: Reading) -> None:
    hundreds(log, A, 5)
    one = wanted(A, 5)
    look = reading(one, wanted(B, 0))
    assert not look.look()
    assert not look.look([A])
    hundreds(log, A, 1)
    assert not look.look([B])
    read(look, [A])
    assert offsets(one) == [5]


def test_records_beyond_the_high_watermark_are_waited_for(log: Log, reading: Reading) -> None:
    hundreds(log, A, 50)
    known: dict[TopicPartition, int] = {}
    one, beyond = wanted(A, 20), wanted(A, 40)
    look = reading(one, beyond, watermark=lambda tp, end: known.get(tp))
    assert not look.look()
    assert (one.error, one.end, one.answer["high_watermark"]) == (KafkaError.NONE, -1, -1)
    known[A] = 30
    read(look, [A])
    assert offsets(one) == list(range(20, 30))
    assert (one.end, beyond.end, beyond.error, beyond.records) == (30, 30, KafkaError.NONE, b"")
    log.trim(A, 35)
    last = wanted(A, 35)
    assert not reading(last, watermark=lambda tp, end: 30).look()
    assert (last.earliest, last.end) == (35, 35)


def test_so_many_octets_are_waited_for(log: Log, reading: Reading) -> None:
    one, other = wanted(A, 0), wanted(B, 0)
    look = reading(one, other, min_bytes=1_000)
    hundreds(log, A, 5)
    assert not look.look()
    hundreds(log, B, 3)
    assert not look.look([B])
    hundreds(log, B, 2)
    read(look, [B])
    assert (offsets(one), offsets(other)) == (list(range(5)), list(range(5)))


def test_more_than_may_come_is_not_waited_for(log: Log, reading: Reading) -> None:
    hundreds(log, A, 50)
    assert reading(wanted(A, 0), min_bytes=10_000, max_bytes=500).look()
    assert not reading(wanted(A, 0, 500), wanted(B, 0), min_bytes=10_000).look()
    assert reading(wanted(A, 50), min_bytes=0).look()


@pytest.mark.parametrize("offset", [-1, 3, 51, 2**63 - 1])
def test_an_offset_that_is_not_there_is_told_at_once(
    log: Log, reading: Reading, offset: int
) -> None:
    hundreds(log, A, 50)
    log.trim(A, 10)
    wrong, other = wanted(A, offset), wanted(A, 10)
    read(reading(wrong, other, min_bytes=1 << 20))
    assert wrong.error is KafkaError.OFFSET_OUT_OF_RANGE
    assert (wrong.earliest, wrong.end, wrong.records) == (-1, -1, b"")
    assert offsets(other) == list(range(10, 50))


def test_an_offset_that_another_store_may_have_is_waited_for(log: Log, reading: Reading) -> None:
    see_another_store(log)
    hundreds(log, A, 5)
    ahead = wanted(A, 7)
    look = reading(ahead)
    assert not look.look()
    hundreds(log, A, 1)
    assert not look.look([A])
    hundreds(log, A, 2)
    read(look, [A])
    assert offsets(ahead) == [7]


def test_what_is_trimmed_between_look_and_read_is_told(log: Log, reading: Reading) -> None:
    hundreds(log, A, 50)
    one = wanted(A, 0)
    look = reading(one)
    look.look()
    log.trim(A, 10)
    look.read(lines, look.most_bytes)
    assert (one.error, one.records) == (KafkaError.OFFSET_OUT_OF_RANGE, b"")


def test_what_is_trimmed_while_it_waits_is_told(log: Log, reading: Reading) -> None:
    hundreds(log, A, 50)
    one = wanted(A, 0)
    look = reading(one, min_bytes=1 << 20)
    assert not look.look()
    log.trim(A, 10)
    assert look.look([A])
    assert one.error is KafkaError.OFFSET_OUT_OF_RANGE


def test_limits_hold_and_partitions_are_served_in_their_order(log: Log, reading: Reading) -> None:
    for tp in (A, B, C):
        hundreds(log, tp, 1_000)
    parts = [wanted(tp, 0, 50_000) for tp in (B, A, C)]
    read(reading(*parts, max_bytes=80_000))
    assert 30_000 < len(parts[0].records) <= 50_000
    assert len(parts[1].records) > 10_000
    assert sum(len(each.records) for each in parts) <= 80_000
    assert offsets(parts[1]) == list(range(len(offsets(parts[1]))))


def test_one_record_comes_however_large_it_is(log: Log, reading: Reading) -> None:
    hundreds(log, A, 1)
    log.append([RecordBatch.of(A, 1, [b"x" * (3 << 20), b"y"])])
    large, other = wanted(A, 1, 1_000), wanted(B, 0, 1_000)
    hundreds(log, B, 5)
    read(reading(large, other, max_bytes=2_000))
    assert offsets(large) == [1]
    assert other.records == b""
    behind = wanted(A, 0, 1_000)
    read(reading(wanted(C, 0), behind, max_bytes=2_000))
    assert offsets(behind) == [0]


def test_records_come_in_batches_that_a_client_can_hold(log: Log, reading: Reading) -> None:
    hundreds(log, A, 40_000)
    sizes: list[int] = []
    one = wanted(A, 0, 3 << 20)

    def noting(batch: RecordBatch) -> bytes:
        sizes.append(batch.values.size_bytes)
        return lines(batch)

    look = reading(one, max_bytes=3 << 20)
    look.look()
    look.read(noting, look.most_bytes)
    assert max(sizes) <= MAX_BATCH_BYTES
    assert offsets(one) == list(range(len(offsets(one))))
    assert len(offsets(one)) > 20_000


def test_a_partition_named_twice_is_read_twice(log: Log, reading: Reading) -> None:
    hundreds(log, A, 5)
    one, other = wanted(A, 0), wanted(A, 3)
    read(reading(one, other), [A])
    assert (offsets(one), offsets(other)) == ([0, 1, 2, 3, 4], [3, 4])


def test_damage_is_an_error_of_its_partition_alone(
    log: Log, reading: Reading, caplog: pytest.LogCaptureFixture
) -> None:
    hundreds(log, A, 50_000)
    hundreds(log, B, 5)
    (found,), _ = log.lease([(A, 0, 1)], max_blocks=1, max_bytes=1)
    ((_, position, size_bytes),) = found.blocks
    damaged, other = wanted(A, 0), wanted(B, 0)
    with (log.directory / "data.mdb").open("r+b") as file:
        file.seek(position + size_bytes // 2)
        file.write(b"\xff" * 8)
    read(reading(damaged, other))
    assert damaged.error is KafkaError.KAFKA_STORAGE_ERROR
    assert offsets(other) == [0, 1, 2, 3, 4]
    assert str(A) in caplog.text


def test_no_client_gets_more_than_a_gateway_gives(log: Log, reading: Reading) -> None:
    hundreds(log, A, 1)
    look = reading(wanted(A, 0, 2**31 - 1), wanted(A, 0, 2**31 - 1), max_bytes=2**31 - 1)
    look.look()
    assert look.most_bytes == MAX_FETCH_BYTES
