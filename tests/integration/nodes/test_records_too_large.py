"""Records above a node's limit: refused where they are published, or passed over by name."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from dafka_core import Consumer, NotAcknowledgedError, Producer, RecordTooLargeError, Store
from dafka_core.config.node_options import LAYOUTS
from dafka_core.errors import InvalidRequestError
from dafka_core.model.records import RecordBatch, TopicPartition
from dafka_core.protocol.record_limits import LEAST_BYTES
from dafka_core.testing import wait_until
from tests.integration.nodes.peers import PATIENCE_S

SMALL_BYTES = 4_096
LARGE = bytes(LEAST_BYTES + 1)
"""Above what every node takes whatever its options."""

Produce = Callable[..., Producer]
Consume = Callable[..., Consumer]


def taken(consumer: Consumer, count: int) -> list[bytes | int | None]:
    """The next values, and in place of a record the size that an error names."""
    found: list[bytes | int | None] = []
    for _ in range(count):
        try:
            record = consumer.poll(PATIENCE_S)
            assert record is not None
            found.append(record.value)
        except RecordTooLargeError as error:
            found.append(error.size_bytes if error.limit_bytes == LEAST_BYTES else 0)
    return found


def small_store(tower: str, directory: Path) -> Store:
    return Store(directory, tower=tower, max_record_bytes=SMALL_BYTES)


@pytest.mark.parametrize("wire", LAYOUTS)
def test_a_large_live_record_reaches_nodes_that_accept_it_and_errors_reach_the_others(
    produce: Produce, consume: Consume, store: Store, wire: str
) -> None:
    small = consume("t", max_record_bytes=SMALL_BYTES)
    large = consume("t")
    producer = produce("t", wire=wire)
    wait_until(lambda: producer.mesh.limits._smallest_bytes == LEAST_BYTES)
    producer.publish_many([b"0", LARGE, b"2"])
    producer.publish(b"3")
    producer.flush(PATIENCE_S)
    assert taken(large, 4) == [b"0", LARGE, b"2", b"3"]
    assert taken(small, 4) == [b"0", len(LARGE), b"2", b"3"]
    tp = TopicPartition("t", producer.address)
    assert small.positions() == {tp: (4, 4)}
    for node in (small, large, producer, store):
        assert not node.mesh.peers.renewal_count


def test_a_producer_refuses_a_record_that_a_store_would_not_take(
    tower: str, open_nodes: ExitStack, produce: Produce, store: Store, tmp_path: Path
) -> None:
    small = open_nodes.enter_context(small_store(tower, tmp_path / "small"))
    producer = produce("t")
    says = f"store {small.address} takes at most {LEAST_BYTES}: .*max_record_bytes"
    wait_until(lambda: producer.limit[0] == LEAST_BYTES)
    with pytest.raises(RecordTooLargeError, match=says):
        producer.publish(LARGE)
    with pytest.raises(RecordTooLargeError, match=f"offset 1 has {len(LARGE)} bytes"):
        producer.publish_many([b"0", LARGE])
    assert producer.next_offset == 0
    # So does the other store for its own clients.
    wait_until(lambda: store.mesh.limits.smallest_store)
    put = store.append_queue.put(RecordBatch.of(TopicPartition("p", "P"), 0, [LARGE]))
    with pytest.raises(InvalidRequestError, match=f"{LEAST_BYTES} bytes at store {small.address}"):
        put.result(PATIENCE_S)
    small.close()
    wait_until(lambda: producer.limit[0] > LEAST_BYTES)
    assert producer.publish(LARGE) == 0
    producer.flush(PATIENCE_S)


def test_a_late_store_logs_a_record_above_its_limit_and_accepts_other_partitions(
    tower: str,
    open_nodes: ExitStack,
    produce: Produce,
    store: Store,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    producer, other = produce("t", acks=2), produce("other", acks=2)
    producer.publish_many([b"0", LARGE, b"2"])
    wait_until(lambda: store.log.end(TopicPartition("t", producer.address)) == 3)
    small = open_nodes.enter_context(small_store(tower, tmp_path / "small"))
    tp = TopicPartition("t", producer.address)
    says = f"{producer.address}: the record at offset 1 has {len(LARGE)} bytes, and store "
    wait_until(lambda: f"{says}{small.address} takes at most" in caplog.text)
    wait_until(lambda: small.log.end(tp) == 1)
    with pytest.raises(NotAcknowledgedError):
        producer.flush(0.2)
    other.publish(b"here")
    other.flush(PATIENCE_S)
    errors = [each for each in caplog.records if each.levelno >= logging.ERROR]
    assert len(errors) == 1
    for node in (small, store, producer):
        assert not node.mesh.peers.renewal_count
