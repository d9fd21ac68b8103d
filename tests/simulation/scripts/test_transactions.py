"""Transactions: each store has all of one and its version, or shows nothing of it."""

from collections.abc import Callable, Sequence

import pytest

from dafka_core.model.records import (
    NO_VERSION,
    RecordBatch,
    TopicPartition,
    Transaction,
    TransactionState,
)
from dafka_core.nodes import sockets, store_loop
from dafka_core.protocol import messages as m
from dafka_core.protocol.role import OutgoingBatch
from tests.simulation.scripts.script import Script, ScriptedStore, tp_of, values

TP, OTHER = tp_of("p"), tp_of("other")
PEER = "C" * 32

Sent = Callable[..., None]  # a function that has records arrive


@pytest.fixture
def store(world: Script) -> ScriptedStore:
    return world.store()


@pytest.fixture
def sent(world: Script, store: ScriptedStore) -> Sent:
    """Another store, that has part of a transaction, as its messages arrive."""
    world.checkers.liars.add(TP.partition)
    world.checkers.published[TP] = values(200)

    def send(start: int, end: int, transaction: Transaction | None = None) -> None:
        batch = RecordBatch.of(TP, start, values(end - start, start), transaction)
        store.call(lambda now: store.role.on_batch(now, "", batch))

    return send


def state(store: ScriptedStore) -> TransactionState:
    return store.log.transaction_state(TP)


def test_staged_records_become_visible_when_they_are_committed(
    world: Script, store: ScriptedStore
) -> None:
    asked = [m.GetHeads("", PEER), *(m.Fetch(PEER, *tp, 0, 100) for tp in (TP, OTHER))]

    def visible() -> dict[TopicPartition, list[int]]:
        """The ends in the heads that the store sends or publishes, and of the records."""
        found: dict[TopicPartition, list[int]] = {}
        for each in store.ask(*asked):
            if isinstance(each, m.Head | m.DirectHead | OutgoingBatch):
                part = each.batch if isinstance(each, OutgoingBatch) else each
                found.setdefault(part.tp, []).append(part.end)
        return found

    store.append(TP, 0, 10)
    transaction = store.stage(TP, "A", 10, 60, 4)
    transaction = store.stage(TP, "A", 60, 100, 4)._replace(start=10)
    other = store.stage(OTHER, "B", 0, 100, 4)
    assert state(store) == TransactionState(10, 100, "A" * 32, None)
    assert visible() == {TP: [10, 10, 10]}
    store.commit(transaction, other)
    assert state(store) == TransactionState(100, 100, "A" * 32, Transaction(4, 10, 100))
    assert visible() == {TP: [100, 10, 100, 100], OTHER: [100, 100, 100]}


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


Parts = Sequence[tuple[int, int, Transaction | None]]
FIRST = (0, 10, Transaction(1, 0, 20))
ANY_ORDER: list[Parts] = [
    [FIRST, (10, 15, None)],  # the rest comes from a store where the transaction is older
    [FIRST, (10, 12, Transaction(2, 10, 12))],  # the rest belongs to a forged or newer one
    [FIRST, (10, 12, Transaction(2, 10, 30)), (12, 15, Transaction(2, 10, 30))],
    [FIRST, (10, 12, Transaction(1, 10, 20)), (12, 15, None)],
    [(10, 20, Transaction(1, 0, 20)), FIRST, (0, 20, Transaction(1, 0, 20))],
    [(0, 10, None), (10, 20, Transaction(1, 5, 20)), (20, 22, Transaction(2, 20, 30))],
    [(0, 5, Transaction(5, 0, 5)), (5, 9, Transaction(4, 5, 9)), (9, 10, None)],
]


@pytest.mark.parametrize("parts", ANY_ORDER)
def test_a_store_continues_whatever_arrives_of_transactions(
    world: Script, store: ScriptedStore, sent: Sent, parts: Parts
) -> None:
    for each in parts:
        sent(*each)
    end = max(each[1] for each in parts)
    world.until(lambda: state(store).staged_end == end)
    sent(end, end + 100)
    world.until(lambda: store.log.end(TP) == end + 100)
    assert store.values(TP) == values(end + 100)
