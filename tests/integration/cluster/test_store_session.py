"""Stores that do not answer for a moment, or have returned, still count."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from dafka_core import EmbeddedCluster
from dafka_core.errors import NotAcknowledgedError, StoreUnreachableError
from dafka_core.flight.store_client import StoreClient
from dafka_core.flight.store_location import StoreLocation
from dafka_core.model.records import TopicPartition, Transaction, TransactionState
from dafka_core.testing import PATIENCE_S, wait_until
from dafka_spark.cluster import timing
from dafka_spark.cluster.timing import Deadline
from dafka_spark.option_types import ALL_STORES
from dafka_spark.sink.store_session import StoreSession
from tests.integration.cluster.transactions import (
    PARTITION,
    commit,
    held,
    numbers,
    options,
    publish,
    restarts,
    soon,
    stage,
    texts_of,
    transaction,
)

MUCH = pa.array([b"x" * 1000] * 30_000)
"""Enough to stop a store before another store has sent it everything."""


def session_of(cluster: EmbeddedCluster) -> StoreSession:
    return StoreSession(options(cluster).mesh_address)


def store_of(client: StoreClient) -> str:
    return client.location.store


def test_a_store_that_may_come_back_is_waited_for(
    own: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It alone has the last records; the next writer begins behind them at the other store."""
    # A busy machine starts a store more slowly than the mesh expects.
    monkeypatch.setattr(timing, "STORE_TIMEOUT_S", PATIENCE_S)
    host = publish(own, "t", numbers(0, 10), acks="all")
    store, other = own.stores[host], own.stores[1 - host]
    with transaction(own, "t", store, acks="1") as writer, own.paused_store(1 - host):
        writer.write(MUCH)
        commit(options(own, acks="1"), store, writer.finish(soon()))
        own.kill_store(host)

    def come_back() -> None:
        with session_of(own) as session:
            wait_until(lambda: store in session.silent)
        own.start_store(host)

    coming = threading.Thread(target=come_back)
    coming.start()
    try:
        with transaction(own, "t", other) as writer:
            commit(options(own), other, stage(writer, 10, 20))
    finally:
        coming.join()
    wanted = texts_of(pa.concat_arrays([numbers(0, 10), MUCH, numbers(10, 20)]))
    assert [held(own, "t", index).values == wanted for index in range(2)] == [True, True]


def block(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the mesh report a store with an unreachable Flight server."""
    describe = StoreClient.describe

    def refused(client: StoreClient, *, timeout_s: float) -> StoreLocation:
        if store_of(client) == store:
            raise StoreUnreachableError(store, "a firewall")
        return describe(client, timeout_s=timeout_s)

    monkeypatch.setattr(StoreClient, "describe", refused)


def test_a_store_that_is_never_reached_is_waited_for_once(
    own: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    there, lost = own.stores
    block(lost, monkeypatch)
    monkeypatch.setattr(timing, "STORE_TIMEOUT_S", 1.0)
    deadline = soon()
    with session_of(own) as session:
        ((client, answer),) = session.ask(lambda _: "an answer", deadline)
    assert (store_of(client), answer) == (there, "an answer")
    assert deadline.waited_s >= timing.STORE_TIMEOUT_S

    def silent() -> list[str]:
        with session_of(own) as session:
            session.refresh()
            return session.silent

    wait_until(lambda: silent() == [])
    with session_of(own) as session:
        assert [store_of(client) for client in session.clients()] == [there]
        assert session.silent == []
    # Once it has answered, it counts anew.
    monkeypatch.undo()
    with session_of(own) as session:
        assert len(session.refresh()) == 2
    block(lost, monkeypatch)
    assert silent() == [lost]


def test_no_answer_counts_where_no_store_answers(own: EmbeddedCluster) -> None:
    with session_of(own) as session:
        session.refresh()
        for index in range(2):
            own.kill_store(index)
        with pytest.raises(StoreUnreachableError):
            session.ask(
                lambda client: client.describe(timeout_s=1.0),
                Deadline(timing.STORE_TIMEOUT_S + 1.0),
            )
        assert session.silent == []  # the mesh has given them up


def test_a_store_that_fails_one_request_is_waited_for_until_the_deadline(
    own: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have more than the one that answers; the mesh keeps it, as it describes itself."""
    monkeypatch.setattr(timing, "STORE_TIMEOUT_S", 0.5)
    busy = own.stores[1]

    def ask(client: StoreClient) -> str:
        if store_of(client) == busy:
            raise StoreUnreachableError(busy, "it is busy")
        return "an answer"

    deadline = Deadline(3 * timing.STORE_TIMEOUT_S)
    with session_of(own) as session, pytest.raises(StoreUnreachableError, match=busy):
        session.ask(ask, deadline)
    assert deadline.is_over


def test_a_process_with_known_locations_does_not_discover_stores(own: EmbeddedCluster) -> None:
    with session_of(own) as session:
        locations = [client.location for client in session.refresh()]
    assert len(locations) == 2
    # No tower answers here, so discovery would fail.
    nowhere = options(own, tower="127.0.0.1:9:9").mesh_address
    with StoreSession(nowhere, locations) as informed:
        clients = informed.clients()
        assert [client.location for client in clients] == locations
        for client in clients:
            client.put(TopicPartition("t", PARTITION), 0, timeout_s=PATIENCE_S).close()


@pytest.mark.parametrize("steps", [6, 0])
def test_a_store_that_catches_up_is_waited_for(
    own: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    """One without progress is not, and the error names it."""
    holder, other = own.stores
    waits: list[int] = []

    def catching_up(
        client: StoreClient, tp: TopicPartition, end: int, *, timeout_s: float, **_: Any
    ) -> int:
        assert store_of(client) == other
        waits.append(len(waits))
        if 0 < steps < len(waits):
            return end
        time.sleep(timeout_s)
        return min(len(waits), steps)

    monkeypatch.setattr(StoreClient, "wait", catching_up)
    again = restarts(monkeypatch)
    written = [(TopicPartition("t", PARTITION), Transaction(7, 0, 10))]
    with session_of(own) as session:
        if steps:
            session.wait_for_acks(written, 2, holder, soon())
            assert len(again) >= steps - 1
            return
        with pytest.raises(NotAcknowledgedError) as caught:
            session.wait_for_acks(written, ALL_STORES, holder, Deadline(0.5))
    (note,) = caught.value.__notes__
    assert f"store {other} has " in note
    assert "up to offset 0, and others up to 10" in note


@pytest.mark.parametrize(
    ("end", "last", "is_there"),
    [
        (20, Transaction(7, 10, 20), True),
        (30, Transaction(8, 20, 30), True),
        (19, Transaction(7, 10, 20), False),
        (20, None, False),  # from a C node, which knows no transactions
        (20, Transaction(6, 0, 10), False),
        (20, Transaction(7, 10, 15), False),
    ],
)
def test_only_missing_transactions_are_waited_for(
    monkeypatch: pytest.MonkeyPatch,
    own: EmbeddedCluster,
    end: int,
    last: Transaction | None,
    is_there: bool,
) -> None:
    waited: list[str] = []

    def states(
        client: StoreClient, partitions: Sequence[TopicPartition], timeout_s: float
    ) -> list[TransactionState]:
        return [TransactionState(end, end, "", last) for _ in partitions]

    def wait(client: StoreClient, tp: TopicPartition, end: int, **given: Any) -> int:
        waited.append(tp.partition)
        return end

    monkeypatch.setattr(StoreClient, "transaction_states", states)
    monkeypatch.setattr(StoreClient, "wait", wait)
    written = [(TopicPartition("t", name), Transaction(7, 10, 20)) for name in "ABC"]
    with session_of(own) as session:
        session.wait_for_acks(written, 2, own.stores[0], soon())
    assert waited == (["C"] if is_there else ["C", "B", "A"])
