"""Transactions staged and committed at one store: all of each is there or nothing, and once."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import flight

from dafka_core import Store
from dafka_core.errors import (
    DataLossError,
    FencedError,
    InvalidRequestError,
    OffsetConflictError,
    StoreUnreachableError,
)
from dafka_core.flight.columns import VALUES_SCHEMA
from dafka_core.flight.local_log import LocalLog, LocalLogs
from dafka_core.flight.requests import PutRequest
from dafka_core.flight.store_client import StoreClient
from dafka_core.model.log_entries import Discard, TransactionExistsError
from dafka_core.model.records import (
    NO_VERSION,
    PartitionInfo,
    TopicPartition,
    Transaction,
    TransactionState,
)
from dafka_core.protocol.codec import subscription
from dafka_core.protocol.messages import (
    DirectHead,
    DirectRecord,
    Fetch,
    GetHeads,
    Head,
    RecordMessage,
    StoreHello,
)
from tests.integration.nodes.content import stored, values
from tests.integration.nodes.peers import PATIENCE_S, RawPeer
from tests.integration.nodes.staging import (
    OTHER,
    PARTITION,
    TOPIC,
    TP,
    array,
    client_of,
    commit,
    ends,
    new_attempt,
    put,
    read,
    stage,
    state_of,
    write,
)


@pytest.fixture
def client(store: Store) -> Iterator[StoreClient]:
    with client_of(store) as asking:
        yield asking


def test_what_is_staged_becomes_visible_when_it_is_committed(
    store: Store, client: StoreClient
) -> None:
    assert state_of(client) == TransactionState(0, 0, "", None)
    first, second = new_attempt(), new_attempt()
    transaction = stage(client, first, 0, 1000, 4)
    assert state_of(client) == TransactionState(0, 1000, first, None)
    commit(client, transaction)
    assert state_of(client) == TransactionState(1000, 1000, first, Transaction(4, 0, 1000))
    transaction = stage(client, second, 1000, 1500, 5)
    # The attempt goes on where it is, in another stream.
    transaction = stage(client, second, 1500, 1600, 5)._replace(start=1000)
    assert state_of(client) == TransactionState(1000, 1600, second, Transaction(4, 0, 1000))
    commit(client, transaction)
    assert state_of(client) == TransactionState(1600, 1600, second, Transaction(5, 1000, 1600))
    assert read(client, 1600) == values(1600)
    assert stored(store, TOPIC, PARTITION) == values(1600)


def local_count(client: StoreClient, local: LocalLog, partition: str, start: int, end: int) -> int:
    tp = TopicPartition(TOPIC, partition)
    batches = local.read(client, tp, start, end, max_records=1000, max_bytes=1 << 20)
    return sum(len(batch.values) for batch in batches)


def test_nobody_sees_what_is_staged(
    store: Store, client: StoreClient, raw: Callable[..., RawPeer], tmp_path: Path
) -> None:
    put(client, 0, 10)
    peer = raw(subscription(RecordMessage), subscription(Head))
    for kind in (DirectHead, DirectRecord, StoreHello):
        peer.subscribe(subscription(kind, peer.address))
    peer.wait_for(StoreHello)
    peer.wait_until_subscribed(subscription(GetHeads))
    peer.wait_until_subscribed(subscription(Fetch))
    peer.forget_heard()
    transaction = stage(client, new_attempt(), 10, 100, 1)
    other = stage(client, new_attempt(), 0, 100, 1, OTHER)
    [info] = client.heads(None, timeout_s=PATIENCE_S)
    assert info == PartitionInfo(TOPIC, PARTITION, 0, 10, info.life)
    assert ends(client, [TOPIC]) == [10]
    with pytest.raises(Exception, match="offset 10 "):
        read(client, 11)
    assert client.wait(TP, 11, timeout_s=0.05) == 10
    assert client.offset_for_times([(TOPIC, OTHER, 0)], timeout_s=PATIENCE_S) == [None]
    plain = flight.connect(store.locations[-1])
    (listed,) = plain.list_flights()
    assert listed.total_records == 10
    found = plain.get_flight_info(flight.FlightDescriptor.for_path(TOPIC))
    assert len(found.endpoints) == 1
    plain.close()
    peer.send(GetHeads("", peer.address))
    for partition in (PARTITION, OTHER):
        peer.send(Fetch(partition, peer.address, TOPIC, 0, 100))
    assert peer.wait_for(DirectHead) == [DirectHead(peer.address, TOPIC, PARTITION, 9)]
    assert len(peer.wait_for(DirectRecord, 10)) == 10
    assert peer.wait_for(Head)[-1] == Head(TOPIC, PARTITION, 9)
    assert peer.messages(RecordMessage) == []
    with closing(LocalLogs()) as logs:
        local = logs.open(client.describe(timeout_s=PATIENCE_S))
        assert local is not None
        assert local_count(client, local, PARTITION, 0, 10) == 10
        for partition, start in ((PARTITION, 10), (OTHER, 0)):
            with pytest.raises(DataLossError):
                local_count(client, local, partition, start, 100)
        commit(client, transaction, other)
        assert (
            local_count(client, local, PARTITION, 0, 100)
            == local_count(client, local, OTHER, 0, 100)
            == 100
        )
    live = peer.wait_for(RecordMessage, 190)
    found_at = {(record.partition, record.sequence): record.value for record in live}
    assert len(live) == len(found_at) == 190
    peer.forget_heard()
    peer.send(Fetch(PARTITION, peer.address, TOPIC, 5, 100))
    fetched = peer.wait_for(DirectRecord, 95)
    assert [(each.sequence, each.value) for each in fetched] == [*enumerate(values(95, 5), 5)]
    assert all(value == values(1, sequence)[0] for (_, sequence), value in found_at.items())


def test_several_partitions_are_committed_at_once_or_not_at_all(client: StoreClient) -> None:
    partitions = [f"P{number}" for number in range(50)]
    attempts = [new_attempt() for _ in partitions]
    transactions = [
        stage(client, attempt, 0, 10 + number, partition=partition)
        for number, (attempt, partition) in enumerate(zip(attempts, partitions, strict=True))
    ]
    for wrong, expected in (
        (transactions[49]._replace(attempt=new_attempt()), FencedError),
        (transactions[49]._replace(start=1), OffsetConflictError),
        (transactions[49]._replace(end=60), OffsetConflictError),
        (transactions[49]._replace(partition="none"), FencedError),
    ):
        with pytest.raises(expected, match=f"partition {wrong.partition}:"):
            commit(client, *transactions[:49], wrong)
        assert client.heads(None, timeout_s=PATIENCE_S) == []
    commit(client, *transactions)
    assert sorted(ends(client)) == list(range(10, 60))
    # Without a version it is no last transaction, so the next one may have any.
    assert state_of(client, "P7") == TransactionState(17, 17, attempts[7], None)


def test_a_commit_whose_answer_was_lost_is_repeated(client: StoreClient) -> None:
    transaction = stage(client, new_attempt(), 0, 10, 1)
    other = stage(client, new_attempt(), 0, 20, 1, OTHER)
    for _ in range(3):
        commit(client, transaction, other)
    assert sorted(ends(client)) == [10, 20]
    # Not when another transaction has followed, or another one is meant.
    later = write(client, 10, 15, 2)
    for wrong in (transaction, later._replace(start=9), later._replace(end=16)):
        with pytest.raises((FencedError, OffsetConflictError)):
            commit(client, wrong)
    assert sorted(ends(client)) == [15, 20]


def test_a_zombie_is_fenced(client: StoreClient) -> None:
    zombie, attempt = new_attempt(), new_attempt()
    old = stage(client, zombie, 0, 10, 1)
    with client.put(TP, 10, attempt=zombie, version=1, timeout_s=PATIENCE_S) as stream:
        stream.write(array(10, 20))
        assert stream.wait_durable(20, timeout_s=PATIENCE_S) == 20
        transaction = stage(client, attempt, 0, 7, 1)
        # In the middle of its stream, then when it wants to commit, then when it comes again.
        stream.write(array(20, 30))
        with pytest.raises(FencedError) as fenced:
            stream.finish(PATIENCE_S)
    facts = fenced.value
    assert (facts.topic, facts.partition, facts.attempt) == (TOPIC, PARTITION, zombie)
    for late in (old, old._replace(end=20)):
        with pytest.raises(FencedError):
            commit(client, late)
    with pytest.raises(FencedError):
        stage(client, zombie, 20, 30, 1)
    client.discard([Discard(TP, zombie)], timeout_s=PATIENCE_S)  # nothing of its own
    commit(client, transaction)
    for late in (old, old._replace(end=20)):
        with pytest.raises(FencedError):
            commit(client, late)
    assert read(client, 7) == values(7)
    assert state_of(client) == TransactionState(7, 7, attempt, Transaction(1, 0, 7))


def test_an_attempt_at_an_older_transaction_is_fenced(client: StoreClient) -> None:
    transaction = stage(client, new_attempt(), 0, 10, 7)
    with pytest.raises(FencedError):
        stage(client, new_attempt(), 0, 10, 6)
    commit(client, transaction)


def test_a_transaction_that_is_there_is_not_written_again(client: StoreClient) -> None:
    write(client, 0, 10, 7)
    for number in (7, 6, 0):
        with pytest.raises(TransactionExistsError) as exists:
            stage(client, new_attempt(), 10, 20, number)
        assert (exists.value.topic, exists.value.partition) == (TOPIC, PARTITION)
        assert exists.value.transaction == Transaction(7, 0, 10)
    write(client, 10, 20)  # without a number it is none of these
    write(client, 20, 30, 8)
    assert state_of(client).transaction == Transaction(8, 20, 30)


def test_records_that_are_put_fence_what_is_staged(client: StoreClient) -> None:
    transaction = stage(client, new_attempt(), 0, 10, 1)
    put(client, 0, 5)
    with pytest.raises(FencedError):
        commit(client, transaction)
    assert state_of(client) == TransactionState(5, 5, "", None)
    assert read(client, 5) == values(5)


def test_a_stage_begins_where_the_partition_or_what_is_staged_ends(client: StoreClient) -> None:
    put(client, 0, 10)
    attempt = new_attempt()
    for start, end in ((0, 10), (9, 10)):
        with pytest.raises(OffsetConflictError) as conflict:
            stage(client, attempt, start, 20)
        assert (conflict.value.offset, conflict.value.end) == (start, end)
    with pytest.raises(FencedError):  # only staged records can have been there
        stage(client, attempt, 11, 20)
    stage(client, attempt, 10, 20)
    for start in (5, 15, 21):
        with pytest.raises(OffsetConflictError) as conflict:
            stage(client, attempt, start, 30)
        assert (conflict.value.offset, conflict.value.end) == (start, 20)
    # From its beginning again: what was staged is replaced.
    commit(client, stage(client, attempt, 10, 13))
    assert read(client, 13) == values(13)


def test_what_is_discarded_is_gone(client: StoreClient) -> None:
    first, second = new_attempt(), new_attempt()
    transaction = stage(client, first, 0, 10)
    stage(client, second, 0, 10, partition=OTHER)
    other = TopicPartition(TOPIC, OTHER)
    client.discard([Discard(TP, second), Discard(other, first)], timeout_s=PATIENCE_S)
    assert [state_of(client, each).staged_end for each in (PARTITION, OTHER)] == [10, 10]
    client.discard([Discard(TP, first), Discard(other, second)], timeout_s=PATIENCE_S)
    none = TopicPartition(TOPIC, "none")
    client.discard([Discard(TP, first), Discard(none, second)], timeout_s=PATIENCE_S)
    client.discard([], timeout_s=PATIENCE_S)
    assert [state_of(client, each).staged_end for each in (PARTITION, OTHER)] == [0, 0]
    with pytest.raises(FencedError):
        commit(client, transaction)


def test_a_stage_that_breaks_leaves_what_is_staged_and_nothing_visible(client: StoreClient) -> None:
    attempt = new_attempt()
    stream = client.put(TP, 0, attempt=attempt, version=1, timeout_s=PATIENCE_S)
    with stream:  # which ends before it is finished
        stream.write(array(0, 10))
        stream.wait_durable(10, timeout_s=PATIENCE_S)
    assert state_of(client) == TransactionState(0, 10, attempt, None)
    assert client.heads(None, timeout_s=PATIENCE_S) == []
    commit(client, stage(client, attempt, 10, 20, 1)._replace(start=0))
    assert read(client, 20) == values(20)


def test_a_stream_that_is_cancelled_leaves_what_is_staged(
    store: Store, client: StoreClient
) -> None:
    attempt = new_attempt()
    plain = flight.connect(store.locations[-1])
    descriptor = flight.FlightDescriptor.for_command(
        PutRequest(TOPIC, PARTITION, 0, attempt, 1).packed()
    )
    writer, reader = plain.do_put(descriptor, VALUES_SCHEMA)
    writer.write_batch(pa.record_batch([array(0, 10)], schema=VALUES_SCHEMA))
    assert json.loads(reader.read().to_pybytes()) == {"v": 1, "end": 10}
    plain.close()
    del writer, reader
    assert state_of(client) == TransactionState(0, 10, attempt, None)
    commit(client, stage(client, attempt, 10, 20, 1)._replace(start=0))
    assert read(client, 20) == values(20)


def test_commits_and_stages_of_many_writers_at_once(client: StoreClient) -> None:
    """Each partition's transactions come one after the other, whatever its neighbours do."""
    failures: list[BaseException] = []

    def work(partition: str) -> None:
        try:
            for number in range(5):
                start = 100 * number
                transaction = stage(client, new_attempt(), start, start + 100, number, partition)
                commit(client, transaction)
        except BaseException as error:  # noqa: BLE001 -- it is told below
            failures.append(error)

    threads = [threading.Thread(target=work, args=(f"P{number}",)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    for number in range(8):
        assert read(client, 500, f"P{number}") == values(500)
        assert state_of(client, f"P{number}").transaction == Transaction(4, 400, 500)


def test_who_waits_for_a_transaction_has_its_state_set(client: StoreClient) -> None:
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


def test_what_cannot_be_asked_is_refused_before_it_is_sent(client: StoreClient) -> None:
    good = stage(client, new_attempt(), 0, 10, 1)
    for wrong in (
        lambda: client.put(TP, 0, attempt="A", timeout_s=1),
        lambda: client.put(TP, 0, attempt="0" * 32, timeout_s=1),
        lambda: client.put(TP, 0, attempt="a" * 32, timeout_s=1),
        lambda: client.put(TP, 0, version=5, timeout_s=1),
        lambda: client.put(TP, 0, attempt="A" * 32, version=-2, timeout_s=1),
        lambda: client.commit([good._replace(end=0)], timeout_s=1),
        lambda: client.commit([good, good], timeout_s=1),
        lambda: client.commit([good] * 10_001, timeout_s=1),
        lambda: client.discard([Discard(TP, "")], timeout_s=1),
        lambda: client.transaction_states([TopicPartition("t", "")], timeout_s=1),
        lambda: client.wait(TP, 5, transaction=Transaction(1, 0, 6), timeout_s=1),
        lambda: client.wait(TP, 5, transaction=Transaction(NO_VERSION, 0, 5), timeout_s=1),
        lambda: client.wait(TP, 5, transaction=Transaction(1, 5, 5), timeout_s=1),
    ):
        with pytest.raises(InvalidRequestError):
            wrong()


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


def test_a_writer_of_a_stopped_store_hears_of_it(
    tower: str, tmp_path: Path, open_nodes: ExitStack
) -> None:
    with Store(tmp_path / "s", tower=tower) as store:
        client = open_nodes.enter_context(client_of(store))
        transaction = stage(client, new_attempt(), 0, 10)
    with pytest.raises(StoreUnreachableError):
        commit(client, transaction)
    with pytest.raises(StoreUnreachableError):
        client.transaction_states([TP], timeout_s=1)
