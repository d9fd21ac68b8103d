"""Stores that do not answer for a moment, or were not there when others looked, still count."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from dafka_core import EmbeddedCluster
from dafka_core.errors import FencedError, NotAcknowledgedError, StoreUnreachableError
from dafka_core.flight.store_client import PutStream, StoreClient
from dafka_core.flight.store_location import StoreLocation
from dafka_core.model.log_entries import Discard
from dafka_core.model.records import (
    StagedTransaction,
    TopicPartition,
    Transaction,
    TransactionState,
)
from dafka_core.testing import wait_until
from dafka_spark.cluster import timing
from dafka_spark.cluster.timing import Deadline
from dafka_spark.sink.store_session import StoreSession
from dafka_spark.sink.transaction_writer import fence
from tests.integration.cluster.transactions import (
    PARTITION,
    PATIENCE_S,
    held,
    host_of,
    numbers,
    options,
    restarts,
    soon,
    texts_of,
    transaction,
)

FIRST = "0A3F8E1ABBB578999443B8818C5851AF"
SECOND = "0A3F8E1BBBB578999443B8818C5851AF"
"""Partitions.  Of two stores with as much, the first in order hosts one, the second the other."""

MUCH = pa.array([b"x" * 1000] * 30_000)
"""Enough for a store to be stopped while another one has sent it only a part."""


def written(cluster: EmbeddedCluster, partition: str, values: pa.Array, **given: Any) -> int:
    """Writes one transaction; the index of the store that took it."""
    writer = transaction(cluster, "t", partition=partition, **given)
    writer.write(values)
    writer.finish(soon())
    return host_of(cluster, writer)


def stage(client: StoreClient, version: int, start: int, attempt: str) -> StagedTransaction:
    """Stages ten rows at a store."""
    tp = TopicPartition("t", FIRST)
    with client.put(tp, start, attempt=attempt, version=version, timeout_s=PATIENCE_S) as put:
        put.write(numbers(0, 10))
        put.finish(PATIENCE_S)
    return StagedTransaction(*tp, attempt, start, start + 10, version)


def both_have_hosted(cluster: EmbeddedCluster) -> None:
    """So neither's last attempt says anything of the next transaction; the first one hosts it."""
    with StoreSession(options(cluster).mesh_address) as session:
        first, second = session.refresh()
        for version, client in enumerate((second, first)):
            staged = stage(client, version, 10 * version, f"{version + 1:032}")
            client.commit([staged], timeout_s=PATIENCE_S)
            for each in (first, second):
                end = each.wait(
                    staged.tp, staged.end, transaction=staged.transaction, timeout_s=PATIENCE_S
                )
                assert end == staged.end


def session_of(cluster: EmbeddedCluster) -> StoreSession:
    return StoreSession(options(cluster).mesh_address)


@pytest.mark.parametrize("partition", [FIRST, SECOND])
def test_a_store_that_may_come_back_is_waited_for_at_the_first_look(
    own: EmbeddedCluster, partition: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # On a busy machine a store does not start in what they give it.
    monkeypatch.setattr(timing, "SILENT_S", PATIENCE_S)
    host = written(own, partition, numbers(0, 10), acks="all")
    store = own.stores[host]
    writer = transaction(own, "t", partition=partition)
    assert host_of(own, writer) == host
    with own.paused_store(1 - host):
        writer.write(MUCH)
        writer.finish(soon())
        own.kill_store(host)

    def come_back() -> None:
        with session_of(own) as session:
            wait_until(lambda: store in session.silent)
        own.start_store(host)

    coming = threading.Thread(target=come_back)
    coming.start()
    try:
        written(own, partition, numbers(10, 20), acks="all")
    finally:
        coming.join()
    for index in range(2):
        has = held(own, "t", index, partition)
        assert has.values == texts_of(pa.concat_arrays([numbers(0, 10), MUCH, numbers(10, 20)]))


def wall_before(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store is in the mesh, and its Flight is not reached from here."""
    describe = StoreClient.describe

    def refused(client: StoreClient, *, timeout_s: float) -> StoreLocation:
        if client.location.store == store:
            raise StoreUnreachableError(store, "there is a wall")
        return describe(client, timeout_s=timeout_s)

    monkeypatch.setattr(StoreClient, "describe", refused)


def test_a_store_that_is_never_reached_is_waited_for_once(
    own: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = own.stores[1]
    wall_before(lost, monkeypatch)
    monkeypatch.setattr(timing, "SILENT_S", 0.5)

    def silent() -> list[str]:
        with session_of(own) as session:
            assert [client.location.store for client in session.refresh()] == [own.stores[0]]
            return session.silent

    assert silent() == [lost]
    wait_until(lambda: silent() == [])
    with session_of(own) as session:
        session.current()
        assert session.silent == []
    # It has answered meanwhile, so it counts anew.
    monkeypatch.undo()
    with session_of(own) as session:
        assert len(session.refresh()) == 2
    wall_before(lost, monkeypatch)
    assert silent() == [lost]


def test_a_silent_store_is_waited_for_however_long_others_were(
    own: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = own.stores[1]
    wall_before(silent, monkeypatch)
    monkeypatch.setattr(timing, "SILENT_S", 1.0)
    deadline = soon()
    time.sleep(timing.SILENT_S)  # in which there was no store
    with session_of(own) as session:
        looks = session.looks(session.refresh(), lambda _: "an answer", deadline)
        heard, lost = next(looks)
        assert [answer for _, answer in heard] == ["an answer"]
        assert lost is not None
        assert lost.store == silent
        (client, _) = next(heard[0] for heard, lost in looks if lost is None)
        assert client.location.store == own.stores[0]
        assert deadline.waited_s >= 2 * timing.SILENT_S


def test_no_look_counts_where_no_store_answers(own: EmbeddedCluster) -> None:
    with session_of(own) as session:
        known = session.refresh()
        for index in range(2):
            own.kill_store(index)

        def ask(client: StoreClient) -> StoreLocation:
            return client.describe(timeout_s=1.0)

        for heard, lost in session.looks(known, ask, Deadline(timing.SILENT_S + 1.0)):
            assert heard == []
            assert lost is not None
        assert session.silent == []  # the mesh has given them up
        assert "no such store with Arrow Flight is there" in str(lost)


def test_a_store_that_is_there_and_does_not_answer_is_waited_for_until_the_deadline(
    own: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It may have more than the one that answers, and describes itself, so the mesh keeps it.
    monkeypatch.setattr(timing, "SILENT_S", 0.5)
    busy = own.stores[1]

    def ask(client: StoreClient) -> str:
        if client.location.store == busy:
            raise StoreUnreachableError(busy, "it is busy")
        return "an answer"

    with session_of(own) as session:
        deadline = Deadline(3 * timing.SILENT_S)
        for heard, lost in session.looks(session.refresh(), ask, deadline):
            assert [answer for _, answer in heard] == ["an answer"]
            assert lost is not None
            assert lost.store == busy
        assert deadline.waited_s >= 3 * timing.SILENT_S


def test_a_process_that_was_told_of_stores_does_not_look_for_them(own: EmbeddedCluster) -> None:
    with session_of(own) as session:
        locations = [client.location for client in session.refresh()]
    assert len(locations) == 2
    # Nobody answers here, so looking would find nothing.
    nowhere = options(own, tower="127.0.0.1:9:9").mesh_address
    with StoreSession(nowhere, locations) as told:
        for find in (told.current, told.known):
            clients = find()
            assert [client.location for client in clients] == locations
            for client in clients:
                client.put(TopicPartition("told", PARTITION), 0, timeout_s=PATIENCE_S).close()


def test_a_transaction_goes_on_where_a_part_of_it_has_come_from_the_lost_host(
    own: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    both_have_hosted(own)
    first, second = sorted(own.stores)
    host, other = own.stores.index(first), own.stores.index(second)
    writer = transaction(own, "t", acks="all", partition=FIRST)
    assert host_of(own, writer) == host
    writer.write(MUCH)
    commit = StoreClient.commit

    def killed_before_it_answers(
        client: StoreClient, some: Sequence[StagedTransaction], *, timeout_s: float
    ) -> None:
        monkeypatch.undo()
        with own.paused_store(other):
            commit(client, some, timeout_s=timeout_s)
            # The first records wait at the other one's socket.
            own.kill_store(host)
        raise StoreUnreachableError(first, "it was killed before it answered")

    monkeypatch.setattr(StoreClient, "commit", killed_before_it_answers)
    assert writer.finish(soon()).end == 20 + len(MUCH)
    assert len(held(own, "t", own.stores.index(second), FIRST).values) == 20 + len(MUCH)


def test_what_still_comes_of_an_older_transaction_is_left_alone(
    own: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    discarded: list[Discard] = []
    taken_over: list[int] = []

    class Store(StoreClient):
        def put(self, tp: TopicPartition, start: int, **given: Any) -> PutStream:
            taken_over.append(start)
            raise StoreUnreachableError(self.location.store, "it has gone meanwhile")

        def discard(self, discards: Sequence[Discard], *, timeout_s: float) -> None:
            discarded.extend(discards)

    tp = TopicPartition("t", PARTITION)
    host, other = (Store(StoreLocation(name, ("grpc://127.0.0.1:1",))) for name in "AB")
    older = TransactionState(end=10, staged_end=15, attempt="", transaction=Transaction(3, 0, 10))
    this = TransactionState(end=20, staged_end=25, attempt="", transaction=Transaction(4, 10, 20))
    zombie = TransactionState(
        end=10, staged_end=15, attempt="F" * 32, transaction=Transaction(3, 0, 10)
    )
    for state in (older, this, zombie):
        fence(tp, [(host, zombie), (other, state)], host, 20)
    assert taken_over == [this.end]
    assert discarded == [Discard(tp, zombie.attempt)]


def test_a_named_attempt_at_the_next_host_has_taken_over(own: EmbeddedCluster) -> None:
    both_have_hosted(own)
    writer = transaction(own, "t", partition=FIRST)
    writer.write(numbers(0, 10))
    host = host_of(own, writer)
    with session_of(own) as session:
        (other,) = (each for each in session.refresh() if each.location.store != own.stores[host])
        stage(other, 2, 20, "F" * 32)
    own.kill_store(host)
    with pytest.raises(FencedError):
        writer.finish(soon())


@pytest.mark.parametrize("steps", [6, 0])
def test_a_store_that_catches_up_is_waited_for(
    own: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    """One that stands still is not, and the error names it."""
    with transaction(own, "t") as writer:
        host, wait = own.stores[host_of(own, writer)], StoreClient.wait
        (other,) = set(own.stores) - {host}
        looks: list[int] = []

        def catching_up(client: StoreClient, *args: Any, timeout_s: float, **given: Any) -> int:
            if client.location.store == host or 0 < steps < len(looks):
                return wait(client, *args, timeout_s=timeout_s, **given)
            looks.append(len(looks))
            time.sleep(timeout_s)
            return min(len(looks), steps)

        monkeypatch.setattr(StoreClient, "wait", catching_up)
        anew = restarts(monkeypatch)
        writer.write(numbers(0, 10))
        if steps:
            assert writer.finish(soon()).end == 10
            assert len(anew) >= steps - 1
            return
        with pytest.raises(NotAcknowledgedError) as caught:
            writer.finish(Deadline(0.5))
    (note,) = caught.value.__notes__
    assert f"store {other} has the partition up to 0 and not, as others, up to 10" in note


@pytest.mark.parametrize(
    ("end", "last", "is_there"),
    [
        (20, Transaction(7, 10, 20), True),
        (30, Transaction(8, 20, 30), True),
        (19, Transaction(7, 10, 20), False),
        (20, None, False),  # a C node had the records, and knows nothing of transactions
        (20, Transaction(6, 0, 10), False),
        (20, Transaction(7, 10, 15), False),
    ],
)
def test_of_many_transactions_only_those_that_are_not_there_are_waited_for(
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
    with StoreSession(options(own).mesh_address) as session:
        first, second = session.refresh()
        have = {first.location.store}
        session.wait_for_all_acks(written, [first, second], 2, have, Deadline(PATIENCE_S))
    assert waited == (["C"] if is_there else ["C", "A", "B"])
    assert have == {first.location.store}
