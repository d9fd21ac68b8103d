"""Records and transactions that writers put into a store's append queue."""

import gc
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np
import pytest

from dafka_core import Store
from dafka_core.errors import (
    ClosedError,
    FencedError,
    InvalidRequestError,
    OffsetConflictError,
    StoreError,
)
from dafka_core.flight.store_client import StoreClient
from dafka_core.flight.store_location import StoreLocation
from dafka_core.model.log_entries import Forget, Stage, TransactionExistsError
from dafka_core.model.records import RecordBatch, TopicPartition, Transaction, TransactionState
from dafka_core.model.values import Values
from dafka_core.nodes import append_queue
from dafka_core.testing import wait_until
from tests.integration.nodes.conftest import Start
from tests.integration.nodes.content import values
from tests.integration.nodes.peers import PATIENCE_S
from tests.integration.nodes.staging import (
    PARTITION,
    TP,
    client_of,
    commit,
    new_attempt,
    put,
    read,
    stage,
    state_of,
)


def queued(store: Store, offset: int, content: Sequence[bytes], topic: str = "t") -> Future[int]:
    return store.append_queue.put(RecordBatch.of(TopicPartition(topic, PARTITION), offset, content))


def test_a_record_that_the_mesh_would_not_take_is_refused_and_nothing_of_it_stays(
    start: Start,
) -> None:
    limit = 4_096
    store = start(max_record_bytes=limit)
    too_large = RecordBatch.of(TP, 0, [b"0", bytes(limit + 1)])
    queue = store.append_queue
    location = StoreLocation(store.address, store.locations)
    with StoreClient(location) as client, client.put(TP, 0, timeout_s=PATIENCE_S) as stream:

        def put_over_flight() -> None:
            stream.write(too_large.values.to_arrow())
            stream.finish(PATIENCE_S)

        refusals: list[Callable[[], object]] = [
            lambda: queue.put(too_large).result(PATIENCE_S),
            lambda: queue.put(Stage(too_large, "A" * 32)).result(PATIENCE_S),
            put_over_flight,
        ]
        for refused in refusals:
            with pytest.raises(InvalidRequestError, match=f"4097 bytes.*{limit} .*max_record"):
                refused()
    assert store.log.end(TP) == 0
    assert queued(store, 0, [bytes(limit)]).result(PATIENCE_S) == 1


def test_the_error_that_ended_the_store_fails_all_requests(store: Store) -> None:
    error = StoreError(store.log.directory, "the disk has failed")
    store.append_queue.close(error)
    store.append_queue.close()
    for requested in (queued(store, 0, [b"0"]), store.append_queue.put(Forget("S" * 32))):
        assert requested.exception(PATIENCE_S) is error


def test_puts_wait_for_room(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(append_queue, "MAX_PUT_BYTES", 1000)
    content = [bytes(600)]
    promises = []
    for offset in range(50):
        promises.append(queued(store, offset, content))
        assert store.append_queue.size_bytes <= 1_000
    assert [promise.result(PATIENCE_S) for promise in promises] == list(range(1, 51))
    # One that is larger than all room finds room when nothing else is on its way.
    assert queued(store, 50, [bytes(1_001)]).result(PATIENCE_S) == 51


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
        queued(store, 0, values(1)).result(PATIENCE_S)
    with pytest.raises(ClosedError):
        queued(store, 1, values(1)).result(PATIENCE_S)
    with pytest.raises(ClosedError):
        store.append_queue.wait(TP, 2, PATIENCE_S)


def test_waiting_ends_when_the_time_has_passed(store: Store) -> None:
    queued(store, 0, values(1)).result(PATIENCE_S)
    assert store.append_queue.wait(TP, 1, PATIENCE_S) == 1
    assert store.append_queue.wait(TP, 2, 0.01) == 1
    assert store.append_queue.wait(TopicPartition("none", PARTITION), 1, 0.01) == 0


OWN_PARTITION_TP = TopicPartition("__dafka.t", "A" * 32)


def own_values(store: Store) -> list[bytes]:
    return [
        bytes(value)
        for batch in store.log.read(OWN_PARTITION_TP, 0, store.log.end(OWN_PARTITION_TP))
        for value in batch.values
    ]


def test_of_many_that_write_there_each_is_written_once(store: Store) -> None:
    def write(name: bytes) -> list[int]:
        append = partial(store.append_queue.append, OWN_PARTITION_TP, [name], timeout_s=30)
        return [append().start for _ in range(20)]

    with ThreadPoolExecutor(3) as threads:
        found = [*threads.map(write, (b"a", b"b", b"c"))]
    assert sorted(chain(*found)) == list(range(60))
    assert sorted(own_values(store)) == [b"a"] * 20 + [b"b"] * 20 + [b"c"] * 20


def test_others_that_write_there_all_the_time_are_an_error_in_the_end(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = store.append_queue.put

    def late(batch: RecordBatch) -> object:
        put(RecordBatch.of(OWN_PARTITION_TP, store.log.end(OWN_PARTITION_TP), [b"other"])).result(
            30
        )
        wait([refused := put(batch)])  # however slow the loop is
        return refused

    monkeypatch.setattr(store.append_queue, "put", late)
    with pytest.raises(OffsetConflictError):
        store.append_queue.append(OWN_PARTITION_TP, [b"mine"], timeout_s=0.2)
    assert set(own_values(store)) == {b"other"}


def test_batches_on_disk_are_reported_while_the_loop_is_busy(store: Store) -> None:
    queued(store, 0, [b"0"]).result(PATIENCE_S)
    proceed, futures = threading.Event(), list[Future[int]]()

    def occupy(now: float) -> None:
        store.loop.on_round(now)  # hands the batch to the log writer
        proceed.wait(PATIENCE_S)

    futures.append(queued(store, 1, [b"1"]))
    store.mesh.call_soon(occupy)
    try:
        assert futures[0].result(PATIENCE_S / 2) == 2
    finally:
        proceed.set()
    assert queued(store, 2, [b"2"]).result(PATIENCE_S) == 3


@pytest.fixture
def client(store: Store) -> Iterator[StoreClient]:
    with client_of(store) as asking:
        yield asking


def test_commits_and_stages_of_many_writers_at_once(client: StoreClient) -> None:
    """Each partition's transactions come one after the other, whatever its neighbours do."""

    def work(partition: str) -> None:
        for number in range(5):
            start = 100 * number
            commit(client, stage(client, new_attempt(), start, start + 100, number, partition))

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(work, (f"P{number}" for number in range(8))))
    for number in range(8):
        assert read(client, 500, f"P{number}") == values(500)
        assert state_of(client, f"P{number}").transaction == Transaction(4, 400, 500)


def test_a_wait_for_a_transaction_sets_its_state(client: StoreClient) -> None:
    put(client, 0, 10)
    for end, transaction in (
        (10, Transaction(3, 4, 8)),
        (10, Transaction(4, 5, 10)),
        (9, Transaction(3, 4, 8)),
    ):
        assert client.wait(TP, end, transaction=transaction, timeout_s=PATIENCE_S) == 10
    assert state_of(client).transaction == Transaction(4, 5, 10)
    with pytest.raises(TransactionExistsError) as exists:
        client.wait(TP, 10, transaction=Transaction(4, 6, 10), timeout_s=PATIENCE_S)
    assert exists.value.transaction == Transaction(4, 5, 10)
    assert client.wait(TP, 11, transaction=Transaction(5, 10, 11), timeout_s=0.05) == 10
    assert state_of(client).transaction == Transaction(4, 5, 10)
    with pytest.raises(TransactionExistsError):
        stage(client, new_attempt(), 10, 20, 4)


def test_the_most_transactions_of_one_commit(client: StoreClient) -> None:
    """Names as long as they may be; nothing of it was staged."""
    name = "x" * 250
    transaction = stage(client, new_attempt(), 0, 1)
    many = [
        transaction._replace(topic=f"{name}{n:05}", partition=f"{name}{n:05}")
        for n in range(10_000)
    ]
    with pytest.raises(FencedError):
        commit(client, *many)
    found = client.transaction_states([each.tp for each in many] + [TP], timeout_s=PATIENCE_S)
    assert found == [TransactionState(0, 0, "", None)] * 10_000 + [
        TransactionState(0, 1, transaction.attempt, None)
    ]
