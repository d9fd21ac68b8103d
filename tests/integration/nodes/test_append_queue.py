"""A partition put straight into a store reaches everybody, as if a producer had sent it."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from threading import Event

import numpy as np
import pytest

from dafka_core import Consumer, Producer, Reader, Store
from dafka_core.errors import ClosedError, DafkaError, InvalidRequestError, OffsetConflictError
from dafka_core.flight.store_client import StoreClient
from dafka_core.flight.store_location import StoreLocation
from dafka_core.model.records import RecordBatch, TopicPartition
from dafka_core.model.values import Values
from dafka_core.nodes import append_queue
from dafka_core.nodes.append_queue import append
from dafka_core.protocol.codec import subscription
from dafka_core.protocol.messages import (
    ConsumerHello,
    DirectHead,
    DirectRecord,
    Fetch,
    Head,
    RecordBatchMessage,
    RecordMessage,
    StoreHello,
)
from dafka_core.testing import wait_until
from tests.integration.nodes.content import stored
from tests.integration.nodes.content import values as content_values
from tests.integration.nodes.peers import PATIENCE_S, RawPeer

PARTITION = "9A3F8E1BBB578999443B8818C5851AFC"
TP = TopicPartition("t", PARTITION)


def put(store: Store, offset: int, content: Sequence[bytes], topic: str = "t") -> Future[int]:
    return store.append_queue.put(RecordBatch.of(TopicPartition(topic, PARTITION), offset, content))


def test_consumers_are_given_what_is_put(
    store: Store, consume: Callable[..., Consumer], read: Callable[..., Reader]
) -> None:
    consumer = consume("t")
    early = put(store, 0, content_values(100))
    late = put(store, 100, content_values(100, 100))
    assert (early.result(PATIENCE_S), late.result(PATIENCE_S)) == (100, 200)
    assert stored(store, "t", PARTITION) == content_values(200)
    records = list(islice(consumer, 200))
    assert [record.value for record in records] == content_values(200)
    assert {record.partition for record in records} == {PARTITION}
    batches = read().read(TP, 50, 150, timeout_s=PATIENCE_S)
    assert [value for batch in batches for value in batch.values] == content_values(100, 50)


def test_a_c_consumer_and_store_get_everything(store: Store, raw: Callable[..., RawPeer]) -> None:
    """A peer in the C layout: live records one by one, HEAD, and FETCH for what it missed."""
    put(store, 0, content_values(50)).result(PATIENCE_S)
    peer = raw(subscription(RecordMessage), subscription(Head))
    for kind in (DirectHead, DirectRecord, StoreHello):
        peer.subscribe(subscription(kind, peer.address))
    peer.wait_until_subscribed(subscription(ConsumerHello, store.address))
    peer.wait_for(StoreHello)
    peer.send(ConsumerHello(store.address, peer.address, ("t",)))
    assert peer.wait_for(DirectHead) == [DirectHead(peer.address, "t", PARTITION, 49)]
    peer.send(Fetch(PARTITION, peer.address, "t", 0, 50))
    fetched = peer.wait_for(DirectRecord, 50)
    assert [(record.sequence, record.value) for record in fetched] == [
        *enumerate(content_values(50))
    ]
    put(store, 50, content_values(50, 50)).result(PATIENCE_S)
    live = peer.wait_for(RecordMessage, 50)
    assert [(record.sequence, record.value) for record in live] == [
        *enumerate(content_values(50, 50), 50)
    ]
    head = Head("t", PARTITION, 99)
    wait_until(lambda: peer.messages(Head)[-1:] == [head])  # not a repeated one of before
    assert peer.messages(RecordBatchMessage) == []
    peer.forget_heard()
    assert peer.wait_for(Head, 2)[:2] == [head] * 2  # it is repeated


def test_another_store_takes_it_over(
    store: Store, tower: str, open_nodes: ExitStack, tmp_path: Path
) -> None:
    put(store, 0, content_values(1000)).result(PATIENCE_S)
    other = open_nodes.enter_context(Store(tmp_path / "other", tower=tower))
    put(store, 1000, content_values(1000, 1000)).result(PATIENCE_S)
    assert other.append_queue.wait(TP, 2000, PATIENCE_S) == 2000
    # The writer goes on at the other one, and the first one follows.
    assert put(other, 2000, content_values(10, 2000)).result(PATIENCE_S) == 2010
    assert store.append_queue.wait(TP, 2010, PATIENCE_S) == 2010
    assert stored(store, "t", PARTITION) == stored(other, "t", PARTITION) == content_values(2010)


def test_a_put_that_overlaps_or_leaves_a_gap_is_refused(store: Store) -> None:
    put(store, 0, content_values(10)).result(PATIENCE_S)
    for offset in (0, 5, 9, 11, 1000):
        with pytest.raises(OffsetConflictError) as caught:
            put(store, offset, content_values(3)).result(PATIENCE_S)
        assert (caught.value.offset, caught.value.end) == (offset, 10)
    assert stored(store, "t", PARTITION) == content_values(10)


def test_a_put_and_a_producer_of_one_address(
    store: Store, produce: Callable[..., Producer]
) -> None:
    """A writer that finds no store publishes as a producer, and later puts again."""
    put(store, 0, content_values(10)).result(PATIENCE_S)
    with produce("t", address=PARTITION) as producer:
        assert producer.publish_many(content_values(10, 10)) == 10
        producer.flush(PATIENCE_S)
    assert put(store, 20, content_values(10, 20)).result(PATIENCE_S) == 30
    assert stored(store, "t", PARTITION) == content_values(30)


def test_notes_are_kept_with_a_batch_that_is_taken_and_not_with_one_that_is_not(
    store: Store,
) -> None:
    def batch(offset: int) -> RecordBatch:
        return RecordBatch.of(TP, offset, content_values(2))

    queue = store.append_queue
    kept = [queue.put(batch(2 * at), {"a": b"%d" % at, f"b{at}": b""}) for at in range(20)]
    late = [queue.put(batch(offset), {"a": b"lost"}) for offset in (0, 39, 1000)]
    kept += [queue.put(batch(40), {"b0": None})]
    assert [each.result(PATIENCE_S) for each in kept] == [*range(2, 44, 2)]
    for each in late:
        assert isinstance(each.exception(PATIENCE_S), OffsetConflictError)
    assert store.log.notes("a") == {"a": b"19"}
    assert store.log.notes("b") == {f"b{at}": b"" for at in range(1, 20)}
    for notes in ({"n" * 481: b""}, {"n": bytes(4097)}, {str(at): b"" for at in range(10_001)}):
        with pytest.raises(ValueError, match="note"):
            queue.put(batch(42), notes)
    assert store.log.end(TP) == 42


def test_a_record_that_the_mesh_would_not_take_is_refused_and_nothing_of_it_stays(
    tower: str, open_nodes: ExitStack, tmp_path: Path
) -> None:
    limit = 4_096
    store = open_nodes.enter_context(Store(tmp_path, tower=tower, max_record_bytes=limit))
    too_large = RecordBatch.of(TP, 0, [b"0", bytes(limit + 1)])
    queue = store.append_queue
    location = StoreLocation(store.address, store.locations)
    with (
        StoreClient(location) as client,
        client.put(TP, 0, timeout_s=PATIENCE_S) as stream,
    ):

        def put_over_flight() -> None:
            stream.write(too_large.values.to_arrow())
            stream.finish(PATIENCE_S)

        refusals: list[Callable[[], object]] = [
            lambda: queue.put(too_large).result(PATIENCE_S),
            lambda: queue.stage(too_large, "A" * 32).result(PATIENCE_S),
            put_over_flight,
        ]
        for refused in refusals:
            with pytest.raises(InvalidRequestError, match=f"4097 bytes.*{limit} .*max_record"):
                refused()
    assert store.log.end(TP) == 0
    assert put(store, 0, [bytes(limit)]).result(PATIENCE_S) == 1


def test_a_put_that_never_gets_to_the_log_fails_and_comes_again(store: Store) -> None:
    """What the store took before it was refused by its log: what was to follow is given up."""
    mesh, role, is_here, goes_on = store._mesh, store._role, Event(), Event()

    def hold(now: float) -> None:
        is_here.set()
        assert goes_on.wait(PATIENCE_S)

    def refuse(now: float) -> None:
        first = RecordBatch.of(TP, 0, content_values(10))
        role.on_stored([first], [OffsetConflictError(*TP, 0, 0)])

    mesh.call_soon(hold)
    assert is_here.wait(PATIENCE_S)
    other = TopicPartition("u", PARTITION)
    puts = [
        put(store, 0, content_values(10)),
        put(store, 10, content_values(5, 10)),
        put(store, 0, content_values(3), "u"),
    ]
    mesh.call_soon(refuse)
    goes_on.set()
    for each, offset in zip(puts, (0, 10), strict=False):
        with pytest.raises(OffsetConflictError) as caught:
            each.result(PATIENCE_S)
        assert (caught.value.offset, caught.value.end) == (offset, 0)
    assert puts[2].result(PATIENCE_S) == store.log.end(other) == 3
    assert put(store, 0, content_values(10)).result(PATIENCE_S) == 10
    assert stored(store, "t", PARTITION) == content_values(10)


def test_puts_wait_for_room(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(append_queue, "MAX_PUT_BYTES", 1000)
    content = [bytes(600)]
    promises = [put(store, offset, content) for offset in range(50)]
    assert [promise.result(PATIENCE_S) for promise in promises] == list(range(1, 51))
    # One that is larger than all room finds room when nothing else is on its way.
    assert put(store, 50, [bytes(1_001)]).result(PATIENCE_S) == 51


def test_nothing_keeps_what_is_on_disk_until_garbage_is_collected(store: Store) -> None:
    data, ends = np.zeros(1_000, np.uint8), np.arange(0, 1_001, 10)
    alive = weakref.ref(data)
    batch = RecordBatch(TP, 0, Values.from_columns(ends, data.data))
    gc.disable()
    try:
        future = store.append_queue.put(batch)
        del batch, data
        assert future.result(PATIENCE_S) == 100
        wait_until(lambda: alive() is None, "the records are let go of")
    finally:
        gc.enable()


def test_a_put_to_a_stopped_store_fails(tower: str, tmp_path: Path) -> None:
    with Store(tmp_path / "s", tower=tower) as store:
        put(store, 0, content_values(1)).result(PATIENCE_S)
    with pytest.raises(ClosedError):
        put(store, 1, content_values(1)).result(PATIENCE_S)
    with pytest.raises(ClosedError):
        store.append_queue.wait(TP, 2, PATIENCE_S)


def test_waiting_ends_when_the_time_has_passed(store: Store) -> None:
    put(store, 0, content_values(1)).result(PATIENCE_S)
    assert store.append_queue.wait(TP, 1, PATIENCE_S) == 1
    assert store.append_queue.wait(TP, 2, 0.01) == 1
    assert store.append_queue.wait(TopicPartition("none", PARTITION), 1, 0.01) == 0


OWN_PARTITION_TP = TopicPartition("__dafka.t", "A" * 32)


def values(store: Store) -> list[bytes]:
    return [
        bytes(value)
        for batch in store.log.read(OWN_PARTITION_TP, 0, store.log.end(OWN_PARTITION_TP))
        for value in batch.values
    ]


def test_records_are_on_disk_behind_each_other(store: Store) -> None:
    assert append(store, OWN_PARTITION_TP, [b"1", b"2"], timeout_s=30) == range(2)
    assert append(store, OWN_PARTITION_TP, [b"3"], timeout_s=30) == range(2, 3)
    assert values(store) == [b"1", b"2", b"3"]


def test_of_many_that_write_there_each_is_written_once(store: Store) -> None:
    found: list[range] = []

    def write(name: bytes) -> None:
        found.extend(append(store, OWN_PARTITION_TP, [name], timeout_s=30) for _ in range(20))

    threads = [threading.Thread(target=write, args=(name,)) for name in (b"a", b"b", b"c")]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert sorted(each.start for each in found) == list(range(60))
    assert sorted(values(store)) == [b"a"] * 20 + [b"b"] * 20 + [b"c"] * 20


def test_others_that_write_there_all_the_time_are_an_error_in_the_end(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = store.append_queue.put

    def late(batch: RecordBatch, notes: None = None) -> object:
        put(RecordBatch.of(OWN_PARTITION_TP, store.log.end(OWN_PARTITION_TP), [b"other"])).result(
            30
        )
        return put(batch)

    monkeypatch.setattr(store.append_queue, "put", late)
    with pytest.raises(OffsetConflictError):
        append(store, OWN_PARTITION_TP, [b"mine"], timeout_s=0.2)
    assert set(values(store)) == {b"other"}


def test_what_a_store_does_not_take_is_an_error(tower: str, tmp_path: Path) -> None:
    with Store(tmp_path, tower=tower, max_record_bytes=4_096) as store:
        with pytest.raises(InvalidRequestError):
            append(store, OWN_PARTITION_TP, [bytes(4_097)], timeout_s=30)
        assert append(store, OWN_PARTITION_TP, [bytes(4_096)], timeout_s=30) == range(1)
    with pytest.raises(DafkaError):
        append(store, OWN_PARTITION_TP, [b"1"], timeout_s=30)
