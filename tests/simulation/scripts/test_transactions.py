"""Transactions: each store has all of one and its version, or shows nothing of it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from dafka_core.errors import FencedError
from dafka_core.model.log_entries import TransactionExistsError
from dafka_core.model.records import NO_VERSION, Transaction, TransactionState
from dafka_core.nodes import sockets, store_loop
from dafka_core.protocol import messages as m
from dafka_core.protocol.codec import subscription
from tests.simulation.scripts.script import Peer, Script, ScriptedStore, tp_of, values
from tests.unit.protocol.strategies import packed

TP, OTHER = tp_of("p"), tp_of("other")


@pytest.fixture
def store(world: Script) -> ScriptedStore:
    return world.store()


@pytest.fixture
def sender(world: Script, store: ScriptedStore) -> Peer:
    """Another store, that has part of a transaction."""
    peer = world.peer(subscription(m.Fetch, TP.partition), subscription(m.Ack, TP.partition))
    direct = subscription(m.DirectRecordBatch, store.address)
    peer.wait_until_subscribed(subscription(m.RecordBatchMessage), direct)
    world.checkers.liars.add(TP.partition)
    world.checkers.published[TP] = values(200)
    return peer


def batch_of(start: int, end: int, transaction: Transaction | None = None) -> m.RecordBatchMessage:
    content = values(end - start, start)
    return m.RecordBatchMessage(*TP, start, len(content), packed(content), transaction)


def state(store: ScriptedStore) -> TransactionState:
    return store.log.transaction_state(TP)


def test_staged_records_become_visible_when_they_are_committed(
    world: Script, store: ScriptedStore
) -> None:
    peer = world.peer(subscription(m.RecordMessage), subscription(m.Head))
    peer.subscribe(*(subscription(each, peer.address) for each in (m.DirectHead, m.DirectRecord)))
    peer.wait_until_subscribed(subscription(m.GetHeads), subscription(m.Fetch))
    store.append(TP, 0, 10)
    world.run(1)
    peer.received.clear()
    transaction = store.stage(TP, "A", 10, 60, 4)
    transaction = store.stage(TP, "A", 60, 100, 4)._replace(start=10)
    other = store.stage(OTHER, "B", 0, 100, 4)
    assert state(store) == TransactionState(10, 100, "A" * 32, None)
    peer.send(m.GetHeads("", peer.address))
    for tp in (TP, OTHER):
        peer.send(m.Fetch(peer.address, "t", tp.partition, 0, 100))
    world.run(5)
    assert peer.messages(m.DirectHead)[:1] == [m.DirectHead(peer.address, *TP, 9)]
    assert len(peer.messages(m.DirectRecord)) == 10
    assert {*peer.messages(m.Head)} == {m.Head(*TP, 9)}
    assert peer.messages(m.RecordMessage) == []
    store.commit(transaction, other)
    assert state(store) == TransactionState(100, 100, "A" * 32, Transaction(4, 10, 100))
    live = peer.wait_for(m.RecordMessage, 190)
    assert {(each.tp, each.sequence, each.value) for each in live} == {
        (tp, at, b"%d" % at) for tp, start in ((TP, 10), (OTHER, 0)) for at in range(start, 100)
    }
    world.until(lambda: peer.messages(m.Head).count(m.Head(*TP, 99)) > 2, "the head is repeated")


@pytest.mark.parametrize("version", [3, NO_VERSION])
def test_other_stores_show_transactions_whole(
    world: Script, store: ScriptedStore, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transaction takes many messages, and many rounds of a store's loop."""
    monkeypatch.setattr(store_loop, "SERVE_COUNT", 50)
    for name in ("LIVE_BATCH_BYTES", "DIRECT_BATCH_BYTES"):
        monkeypatch.setattr(sockets, name, 100)
    other = world.store("other")
    store.append(TP, 0, 100)
    world.until(lambda: other.log.end(TP) == 100)
    ends = {100}
    store.transact(TP, 100, 1_000, version)

    def reaches(replica: ScriptedStore, end: int) -> None:
        def is_reached() -> bool:
            ends.add(replica.log.end(TP))
            return replica.log.end(TP) == end

        world.until(is_reached)

    reaches(other, 1_000)
    last = None if version == NO_VERSION else Transaction(version, 100, 1_000)
    assert state(other) == TransactionState(1_000, 1_000, "", last)
    store.transact(TP, 1_000, 1_050, version + 1)
    reaches(other, 1_050)
    late = world.store("late")
    if version == NO_VERSION:  # older ones have no transaction, so their parts are visible
        world.until(lambda: late.log.end(TP) == 1_050)
    else:
        reaches(late, 1_050)
    assert {end for end in ends if 100 < end < 1_050} <= {1_000}, ends
    for each in (other, late):
        assert state(each).transaction == Transaction(version + 1, 1_000, 1_050)
        assert each.values(TP) == values(1_050)


def test_another_store_takes_over(world: Script, store: ScriptedStore) -> None:
    """Its last transaction fences the attempts at the first store."""
    other = world.store("other")
    store.transact(TP, 0, 10, 1)
    world.until(lambda: other.log.end(TP) == 10)
    zombie = store.stage(TP, "A", 10, 15, 2)
    with pytest.raises(TransactionExistsError):
        other.stage(TP, "B", 10, 15, 1)
    other.transact(TP, 10, 20, 2)
    world.until(lambda: store.log.end(TP) == 20)
    with pytest.raises(FencedError):
        store.commit(zombie)
    with pytest.raises(TransactionExistsError):
        store.stage(TP, "A", 20, 30, 2)
    for each in (store, other):
        assert state(each).transaction == Transaction(2, 10, 20)
        assert each.values(TP) == values(20)


Sent = Sequence[tuple[int, int, Transaction | None]]
FIRST = (0, 10, Transaction(1, 0, 20))
ANY_ORDER: list[Sent] = [
    [FIRST, (10, 15, None)],  # the rest comes from a store where the transaction is older
    [FIRST, (10, 12, Transaction(2, 10, 12))],  # the rest belongs to a forged or newer one
    [FIRST, (10, 12, Transaction(2, 10, 30)), (12, 15, Transaction(2, 10, 30))],
    [FIRST, (10, 12, Transaction(1, 10, 20)), (12, 15, None)],
    [(10, 20, Transaction(1, 0, 20)), FIRST, (0, 20, Transaction(1, 0, 20))],
    [(0, 10, None), (10, 20, Transaction(1, 5, 20)), (20, 22, Transaction(2, 20, 30))],
    [(0, 5, Transaction(5, 0, 5)), (5, 9, Transaction(4, 5, 9)), (9, 10, None)],
]


@pytest.mark.parametrize("sent", ANY_ORDER)
def test_a_store_continues_whatever_arrives_of_transactions(
    world: Script, store: ScriptedStore, sender: Peer, sent: Sent
) -> None:
    for each in sent:
        sender.send(batch_of(*each))
    end = max(each[1] for each in sent)
    world.until(lambda: state(store).staged_end == end)
    sender.send(batch_of(end, end + 100))
    world.until(lambda: store.log.end(TP) == end + 100)
    assert store.values(TP) == values(end + 100)


def test_a_writer_and_another_store_take_over_from_each_other(
    world: Script, store: ScriptedStore, sender: Peer
) -> None:
    """Part of a transaction stops no writer, unless the rest arrives."""
    sender.send(batch_of(0, 10), batch_of(10, 15, Transaction(1, 10, 20)))
    world.until(lambda: state(store).staged_end == 15)
    transaction = store.stage(TP, "A", 10, 25, 1)
    sender.send(batch_of(15, 20, Transaction(1, 10, 20)))
    store.commit(transaction)
    assert state(store).transaction == Transaction(1, 10, 25)
    sender.send(batch_of(25, 27, Transaction(2, 25, 30)))
    world.until(lambda: state(store).staged_end == 27)
    assert store.append(TP, 25, 15) == 40
    # Both have a part: the first complete one prevails.
    store.stage(TP, "B", 40, 45, 3)
    sender.send(batch_of(40, 42, Transaction(3, 40, 50)))
    world.run(0.1)
    fenced = store.stage(TP, "C", 40, 45, 3)
    sender.send(batch_of(40, 50, Transaction(3, 40, 50)))
    world.until(lambda: store.log.end(TP) == 50)
    with pytest.raises(FencedError):
        store.commit(fenced)
    assert store.values(TP) == values(50)
    assert state(store).transaction == Transaction(3, 40, 50)
