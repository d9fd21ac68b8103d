"""Transactions staged and committed at one store over Flight: each is complete or absent."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing

import pytest
from pyarrow import flight

from dafka_core import Store
from dafka_core.errors import DataLossError, FencedError
from dafka_core.flight.local_log import LocalLog, LocalLogs
from dafka_core.flight.requests import GetRequest, RecordRange
from dafka_core.flight.store_client import StoreClient
from dafka_core.model.log_entries import TransactionExistsError
from dafka_core.model.records import PartitionInfo, Transaction, TransactionState
from tests.integration.nodes.content import values
from tests.integration.nodes.peers import PATIENCE_S
from tests.integration.nodes.staging import (
    OTHER,
    PARTITION,
    TOPIC,
    TP,
    client_of,
    commit,
    new_attempt,
    put,
    read,
    stage,
    state_of,
)


@pytest.fixture
def client(store: Store) -> Iterator[StoreClient]:
    with client_of(store) as asking:
        yield asking


def local_count(client: StoreClient, local: LocalLog, partition: str, start: int, end: int) -> int:
    request = GetRequest((RecordRange(TOPIC, partition, start, end),))
    batches = local.records(client, request)
    return sum(len(batch.values) for batch in batches)


def test_no_client_sees_staged_records(store: Store, client: StoreClient) -> None:
    """Neither over Flight nor in the file; the simulator has nodes of the mesh."""
    put(client, 0, 10)
    transaction = stage(client, new_attempt(), 10, 100, 1)
    other = stage(client, new_attempt(), 0, 100, 1, OTHER)
    [info] = client.heads(None, timeout_s=PATIENCE_S)
    assert info == PartitionInfo(TOPIC, PARTITION, 0, 10, info.life)
    with pytest.raises(Exception, match="offset 10 "):
        read(client, 11)
    assert client.wait(TP, 11, timeout_s=0.05) == 10
    assert client.offset_for_times([(TOPIC, OTHER, 0)], timeout_s=PATIENCE_S) == [None]
    with flight.connect(store.locations[-1]) as plain:
        (listed,) = plain.list_flights()
        found = plain.get_flight_info(flight.FlightDescriptor.for_path(TOPIC))
    assert (listed.total_records, len(found.endpoints)) == (10, 1)
    with closing(LocalLogs()) as logs:
        local = logs.open(client.describe(timeout_s=PATIENCE_S))
        assert local is not None
        for partition, start in ((PARTITION, 10), (OTHER, 0)):
            with pytest.raises(DataLossError):
                local_count(client, local, partition, start, 100)
        commit(client, transaction, other)
        assert [local_count(client, local, each, 0, 100) for each in (PARTITION, OTHER)] == [
            100
        ] * 2
    assert read(client, 100) == values(100)


def test_commits_and_stages_of_many_writers_at_once(client: StoreClient) -> None:
    """Each partition's transactions come one after the other, whatever its neighbours do."""
    failures: list[BaseException] = []

    def work(partition: str) -> None:
        try:
            for number in range(5):
                start = 100 * number
                transaction = stage(client, new_attempt(), start, start + 100, number, partition)
                commit(client, transaction)
        except BaseException as error:  # noqa: BLE001 -- it is compared below
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
