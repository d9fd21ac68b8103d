"""Transactions between nodes: another store has all of one, and its version, or shows nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path

import pytest

from dafka_core import EmbeddedCluster, Store
from dafka_core.errors import FencedError
from dafka_core.model.log_entries import TransactionExistsError
from dafka_core.model.records import NO_VERSION, Transaction, TransactionState
from dafka_core.protocol import timing
from dafka_core.protocol.codec import subscription
from dafka_core.protocol.messages import (
    Ack,
    DirectRecordBatch,
    Fetch,
    Head,
    RecordBatchMessage,
    RecordMessage,
)
from dafka_core.testing import wait_until
from tests.integration.nodes.content import stored, values
from tests.integration.nodes.peers import PATIENCE_S, RawPeer
from tests.integration.nodes.staging import (
    PARTITION,
    TOPIC,
    TP,
    array,
    client_in,
    client_of,
    commit,
    new_attempt,
    put,
    read,
    stage,
    write,
)
from tests.unit.protocol.strategies import packed

LARGE = 300_000
"""Records of a transaction that takes many messages, and many rounds of a store's loop."""


@pytest.fixture
def other(tower: str, open_nodes: ExitStack, tmp_path: Path) -> Store:
    return open_nodes.enter_context(Store(tmp_path / "other", tower=tower))


@contextmanager
def ends_seen(store: Store) -> Iterator[set[int]]:
    """Where the partition has ended while something was done."""
    seen = {store.log.end(TP)}
    over = threading.Event()

    def look() -> None:
        while not over.wait(0.0005):
            seen.add(store.log.end(TP))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()


def wait_for_end(store: Store, end: int) -> None:
    wait_until(lambda: store.log.end(TP) == end, f"an end of {end}")


@pytest.mark.parametrize("number", [3, NO_VERSION])
def test_another_store_shows_transactions_whole(store: Store, other: Store, number: int) -> None:
    with client_of(store) as client, ends_seen(other) as seen:
        put(client, 0, 100)
        wait_for_end(other, 100)
        write(client, 100, LARGE, number)
        wait_for_end(other, LARGE)
        last = None if number == NO_VERSION else Transaction(number, 100, LARGE)
        assert other.log.transaction_state(TP) == TransactionState(LARGE, LARGE, "", last)
        write(client, LARGE, LARGE + 50, number + 1)
        wait_for_end(other, LARGE + 50)
    assert seen <= {0, 100, LARGE, LARGE + 50}
    assert other.log.transaction_state(TP).transaction == Transaction(number + 1, LARGE, LARGE + 50)
    assert stored(other, TOPIC, PARTITION) == values(LARGE + 50)


def test_a_store_that_comes_later_has_the_last_transaction(
    store: Store, tower: str, tmp_path: Path, open_nodes: ExitStack
) -> None:
    with client_of(store) as client:
        put(client, 0, 1000)
        write(client, 1000, 2000, 1)
        write(client, 2000, LARGE, 2)
        put(client, LARGE, LARGE + 10)
    late = open_nodes.enter_context(Store(tmp_path / "late", tower=tower))
    with ends_seen(late) as seen:
        wait_for_end(late, LARGE + 10)
    assert not [end for end in seen if 2000 < end < LARGE]
    assert late.log.transaction_state(TP).transaction == Transaction(2, 2000, LARGE)
    assert stored(late, TOPIC, PARTITION) == values(LARGE + 10)


def test_heads_of_what_is_committed_are_repeated(
    store: Store, raw: Callable[..., RawPeer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timing, "HOSTED_HEAD_INTERVAL_S", 0.05)
    peer = raw(subscription(Head), subscription(RecordMessage))
    peer.wait_until_met(store.address)
    with client_of(store) as client:
        write(client, 0, 20_000, 1)
    heads = peer.wait_for(Head, 3)
    assert set(heads) == {Head(TOPIC, PARTITION, 19_999)}


def test_another_store_takes_over(store: Store, other: Store) -> None:
    """Its last transaction says what is there, and fences the attempts at the first store."""
    with client_of(store) as first, client_of(other) as second:
        write(first, 0, 10, 1)
        wait_for_end(other, 10)
        zombie = stage(first, new_attempt(), 10, 15, 2)
        with pytest.raises(TransactionExistsError):
            stage(second, new_attempt(), 10, 15, 1)
        write(second, 10, 20, 2)
        wait_for_end(store, 20)
        with pytest.raises(FencedError):
            commit(first, zombie)
        with pytest.raises(TransactionExistsError):
            stage(first, new_attempt(), 20, 30, 2)
        for each in (store, other):
            assert each.log.transaction_state(TP).transaction == Transaction(2, 10, 20)
            assert stored(each, TOPIC, PARTITION) == values(20)


def test_what_is_staged_here_gives_way_to_what_comes_from_elsewhere(
    store: Store, raw: Callable[..., RawPeer]
) -> None:
    peer = sender(raw, store)
    with client_of(store) as client:
        attempt = new_attempt()
        stage(client, attempt, 0, 5, 1)
        peer.send(batch_of(0, 10, Transaction(1, 0, 20)))
        wait_until(lambda: store.log.transaction_state(TP).staged_end == 10)
        # Both in part: the one that has all of it prevails.
        with pytest.raises(FencedError):
            stage(client, attempt, 5, 8, 1)
        peer.send(batch_of(10, 20, Transaction(1, 0, 20)))
        wait_for_end(store, 20)
        with pytest.raises(TransactionExistsError):
            stage(client, new_attempt(), 20, 25, 1)
    assert stored(store, TOPIC, PARTITION) == values(20)


def test_who_waits_for_a_transaction_has_its_state_set_at_another_store(
    store: Store, raw: Callable[..., RawPeer]
) -> None:
    """The records came from a node that knows nothing of transactions."""
    peer = sender(raw, store)
    for sequence, value in enumerate(values(10)):
        peer.send(RecordMessage(TOPIC, PARTITION, sequence, value))
    with client_of(store) as client:
        transaction = Transaction(7, 2, 10)
        assert client.wait(TP, 10, transaction=transaction, timeout_s=PATIENCE_S) == 10
        with pytest.raises(TransactionExistsError):
            stage(client, new_attempt(), 10, 20, 7)
    assert store.log.transaction_state(TP).transaction == transaction


# -- a store that is only a socket -----------------------------------------------------------------


def sender(raw: Callable[..., RawPeer], store: Store) -> RawPeer:
    peer = raw(subscription(Fetch, PARTITION), subscription(Ack, PARTITION))
    for kind in (RecordBatchMessage, DirectRecordBatch):
        peer.wait_until_subscribed(
            subscription(kind, "" if kind is RecordBatchMessage else store.address)
        )
    return peer


def batch_of(start: int, end: int, transaction: Transaction | None) -> RecordBatchMessage:
    content = values(end - start, start)
    return RecordBatchMessage(TOPIC, PARTITION, start, len(content), packed(content), transaction)


def acknowledged(peer: RawPeer) -> list[int]:
    return [ack.end for ack in peer.messages(Ack)]


def test_a_transaction_that_came_in_part_is_neither_shown_nor_acknowledged(
    store: Store, raw: Callable[..., RawPeer]
) -> None:
    peer = sender(raw, store)
    transaction = Transaction(4, 10, 40)
    for start, end in pairwise((0, 10)):
        peer.send(batch_of(start, end, None))
    for start, end in pairwise((10, 20, 25)):
        peer.send(batch_of(start, end, transaction))
    wait_until(lambda: store.log.transaction_state(TP).staged_end == 25)
    peer.send(Head(TOPIC, PARTITION, 39))
    # What is missing is asked for, and what is staged is not acknowledged however it is asked.
    (fetch,) = peer.wait_for(Fetch)
    assert (fetch.sequence, fetch.end) == (25, 40)
    peer.send(batch_of(10, 20, transaction))
    peer.send(Head(TOPIC, PARTITION, 9))
    wait_until(lambda: acknowledged(peer).count(10) >= 2)
    assert set(acknowledged(peer)) == {10}
    assert store.log.transaction_state(TP) == TransactionState(10, 25, "", None)
    direct = batch_of(25, 40, transaction)
    peer.send(
        DirectRecordBatch(fetch.requestor, TOPIC, PARTITION, 25, 15, direct.value, transaction),
    )
    wait_until(lambda: 40 in acknowledged(peer))
    assert store.log.transaction_state(TP) == TransactionState(40, 40, "", transaction)
    assert stored(store, TOPIC, PARTITION) == values(40)


@pytest.mark.parametrize(
    ("sent", "end"),
    [
        # The rest comes from one that knows the transaction as older: it was whole there.
        ([(0, 10, Transaction(1, 0, 20)), (10, 15, None)], 15),
        # The rest is of another transaction: forged, or newer.
        ([(0, 10, Transaction(1, 0, 20)), (10, 12, Transaction(2, 10, 12))], 12),
        (
            [
                (0, 10, Transaction(1, 0, 20)),
                (10, 12, Transaction(2, 10, 30)),
                (12, 15, Transaction(2, 10, 30)),
            ],
            15,
        ),
        ([(0, 10, Transaction(1, 0, 20)), (10, 12, Transaction(1, 10, 20)), (12, 15, None)], 15),
        # Out of order, and twice.
        (
            [
                (10, 20, Transaction(1, 0, 20)),
                (0, 10, Transaction(1, 0, 20)),
                (0, 20, Transaction(1, 0, 20)),
            ],
            20,
        ),
        # From its middle on: what was before it came from elsewhere.
        ([(0, 10, None), (10, 20, Transaction(1, 5, 20)), (20, 22, Transaction(2, 20, 30))], 22),
        (
            [
                (0, 5, Transaction(5, 0, 5)),
                (5, 9, Transaction(4, 5, 9)),
                (9, 10, Transaction(NO_VERSION, 9, 10)),
            ],
            10,
        ),
    ],
)
def test_whatever_comes_of_transactions_the_store_goes_on(
    store: Store,
    raw: Callable[..., RawPeer],
    sent: Sequence[tuple[int, int, Transaction | None]],
    end: int,
) -> None:
    peer = sender(raw, store)
    for start, stop, transaction in sent:
        peer.send(batch_of(start, stop, transaction))
    # How much of it is visible already depends on which batches come together.
    wait_until(lambda: store.log.transaction_state(TP).staged_end == end)
    peer.send(batch_of(end, end + 100, None))
    wait_for_end(store, end + 100)
    assert stored(store, TOPIC, PARTITION) == values(end + 100)


def test_a_writer_goes_on_where_a_transaction_came_in_part(
    store: Store, raw: Callable[..., RawPeer]
) -> None:
    """Its store may be gone for ever: what no store has whole holds no writer up."""
    peer = sender(raw, store)
    peer.send(batch_of(0, 10, None))
    peer.send(batch_of(10, 15, Transaction(1, 10, 20)))
    wait_until(lambda: store.log.transaction_state(TP).staged_end == 15)
    with client_of(store) as client:
        transaction = stage(client, new_attempt(), 10, 25, 1)
        # Unless it comes whole after all.
        peer.send(batch_of(15, 20, Transaction(1, 10, 20)))
        commit(client, transaction)
        assert store.log.transaction_state(TP).transaction == Transaction(1, 10, 25)
        peer.send(batch_of(25, 27, Transaction(2, 25, 30)))
        wait_until(lambda: store.log.transaction_state(TP).staged_end == 27)
        put(client, 25, 40)
        assert read(client, 40) == values(40)
        peer.send(batch_of(40, 42, Transaction(3, 40, 50)))
        wait_until(lambda: store.log.transaction_state(TP).staged_end == 42)
        fenced = stage(client, new_attempt(), 40, 45, 3)
        peer.send(batch_of(40, 50, Transaction(3, 40, 50)))
        wait_for_end(store, 50)
        with pytest.raises(FencedError):
            commit(client, fenced)
    assert stored(store, TOPIC, PARTITION) == values(50)
    assert store.log.transaction_state(TP).transaction == Transaction(3, 40, 50)


def test_a_store_killed_in_the_middle_of_a_transaction(
    cluster: EmbeddedCluster, open_nodes: ExitStack
) -> None:
    peer = open_nodes.enter_context(RawPeer(cluster.tower, subscription(Fetch, PARTITION)))
    transaction = Transaction(4, 100, 5000)
    peer.wait_until_subscribed(subscription(RecordBatchMessage))
    peer.send(batch_of(0, 100, None))
    peer.send(batch_of(100, 3000, transaction))
    with client_in(cluster) as client:
        wait_until(lambda: client.transaction_states([TP], timeout_s=9)[0].staged_end == 3000)
    cluster.kill_store()
    peer.subscribed.clear()
    cluster.start_store()
    with client_in(cluster) as client:
        (found,) = client.transaction_states([TP], timeout_s=PATIENCE_S)
        assert (found.end, found.transaction) == (100, None)
        assert read(client, 100) == values(100)
        peer.wait_until_subscribed(subscription(RecordBatchMessage))
        answered = 0

        def is_whole() -> bool:
            nonlocal answered
            peer.send(Head(TOPIC, PARTITION, 4999))
            for fetch in peer.messages(Fetch)[answered:]:
                answered += 1
                content = values(fetch.count, fetch.sequence)
                peer.send(
                    DirectRecordBatch(
                        fetch.requestor,
                        TOPIC,
                        PARTITION,
                        fetch.sequence,
                        fetch.count,
                        packed(content),
                        transaction,
                    )
                )
            (now,) = client.transaction_states([TP], timeout_s=PATIENCE_S)
            return now == TransactionState(5000, 5000, "", transaction)

        wait_until(is_whole)
        assert read(client, 5000) == values(5000)


def test_a_store_killed_while_it_takes_a_large_transaction(
    cluster: EmbeddedCluster,
) -> None:
    cluster.start_store(1)
    with client_in(cluster) as host:
        write(host, 0, 100, 1)
        with client_in(cluster, 1) as replica:
            assert replica.wait(TP, 100, timeout_s=PATIENCE_S) == 100
            write(host, 100, 4 * LARGE, 2)
            wait_until(lambda: replica.transaction_states([TP], timeout_s=9)[0].staged_end > 100)
        cluster.kill_store(1)
        cluster.start_store(1)
        with client_in(cluster, 1) as replica:
            seen = set()

            def is_whole() -> bool:
                (info,) = replica.transaction_states([TP], timeout_s=PATIENCE_S)
                seen.add(info.end)
                return info.end == 4 * LARGE

            wait_until(is_whole)
            assert seen <= {100, 4 * LARGE}
            (info,) = replica.transaction_states([TP], timeout_s=PATIENCE_S)
            assert info == TransactionState(
                4 * LARGE, 4 * LARGE, "", Transaction(2, 100, 4 * LARGE)
            )
            assert read(replica, 4 * LARGE) == values(4 * LARGE)


def test_a_transaction_of_a_host_that_is_gone_for_good_is_complete_at_another(
    cluster: EmbeddedCluster,
) -> None:
    """A store has it, or has nothing of it; the one that has it gives it to the next."""
    cluster.start_store(1)
    with client_in(cluster) as host:
        write(host, 0, LARGE, 1)
        with client_in(cluster, 1) as replica:
            transaction = Transaction(1, 0, LARGE)
            end = replica.wait(TP, LARGE, transaction=transaction, timeout_s=PATIENCE_S)
            assert end == LARGE
    cluster.kill_store()
    cluster.start_store(2)
    with client_in(cluster, 2) as third:
        assert third.wait(TP, LARGE, timeout_s=PATIENCE_S) == LARGE
        (info,) = third.transaction_states([TP], timeout_s=PATIENCE_S)
        assert info == TransactionState(LARGE, LARGE, "", transaction)
        with third.put(TP, LARGE, attempt=new_attempt(), version=2, timeout_s=PATIENCE_S) as stream:
            stream.write(array(LARGE, LARGE + 10))
            assert stream.finish(PATIENCE_S) == LARGE + 10
