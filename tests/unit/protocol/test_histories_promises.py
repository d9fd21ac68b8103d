"""A store's promises to producers' lives, and the life of clients' records in it."""

from __future__ import annotations

import pytest

from dafka_core.model.epochs import Epoch, EpochId
from dafka_core.model.log_entries import Commit, Promise, SetAside
from dafka_core.model.records import RecordBatch, StagedTransaction
from dafka_core.protocol import histories
from dafka_core.protocol import messages as m
from tests.unit.protocol.model import PARTITION, TOPIC, TP, batch_of, batches_in
from tests.unit.protocol.test_histories import PRODUCER, A, B, Store, ack, told
from tests.unit.protocol.test_store_role import ME

# -- promises -------------------------------------------------------------------------------------


def test_a_promise_is_on_disk_before_it_is_answered() -> None:
    store = Store((A,), 5)
    assert store.ask(PRODUCER) == []
    assert store.role.pending == [Promise(TP, PRODUCER)]
    # Asked again, also with another number, it writes nothing more.
    assert store.ask(PRODUCER) == []
    assert len(store.role.pending) == 1
    assert store.write() == [told(5, A, promised=PRODUCER, query=1)]
    assert store.promised == PRODUCER
    assert store.ask(PRODUCER, query=2) == [told(5, A, promised=PRODUCER, query=2)]
    assert store.role.take_pending() == []


def test_a_question_without_a_life_is_answered_at_once() -> None:
    store = Store((A, B), 9, promised=PRODUCER)
    assert store.ask() == [told(9, A, B, promised=PRODUCER, query=1)]
    assert store.role.on_message(0.0, m.HistoryQuery(ME, 1, *TP), "") == []  # its own
    assert store.role.take_pending() == []


@pytest.mark.parametrize("life", [A.life, B.life, EpochId(9, 0x98, 2)])
def test_an_older_life_gets_no_promise(life: EpochId) -> None:
    store = Store((A, B), 9, promised=PRODUCER)
    assert store.ask(life) == [told(9, A, B, promised=PRODUCER, query=1)]
    assert store.role.take_pending() == []


def test_records_accepted_before_a_promise_are_in_the_answer() -> None:
    store = Store((A,), 5)
    store.receive(A, 5, 8)
    store.ask(PRODUCER)
    assert store.write()[-1] == told(8, A, promised=PRODUCER, query=1)


def test_records_of_an_older_life_after_a_promise_are_not_acknowledged() -> None:
    store = Store((A,), 5)
    store.ask(PRODUCER)
    store.receive(A, 5, 8)  # from the moment on that it is asked
    # It may or may not be in the answer: it is not acknowledged.
    assert store.write() == [told(5, A, promised=PRODUCER, query=1)]
    assert store.role.on_tick(1.0) == [told(8, A, promised=PRODUCER)]
    for what in (m.Ack, m.EpochAck):
        store.role.on_subscribed(2.0, what, PARTITION)
    store.role.on_message(2.0, m.Head(TOPIC, PARTITION, 7), "")
    assert [each for each in store.role.on_tick(2.0) if isinstance(each, m.EpochAck)] == []
    # Nor after a restart.
    again = Store(store.history, len(store.names), store.promised)
    again.receive(A, 8, 9)
    assert again.write() == []
    # The new life's are.
    mine = Epoch(*PRODUCER, 9, A.digest)
    again.receive(mine, 9, 10)
    assert again.write() == [ack(PRODUCER, 10)]


def test_a_promise_keeps_the_fewest_acks_since_the_last_record() -> None:
    store = Store((A._replace(acks=3),), 5)
    first, second, third = (EpochId(n, 0, acks) for n, acks in ((2, 3), (3, 1), (4, 3)))
    for life, kept in ((first, 3), (second, 1), (third, 1)):
        store.ask(life)
        promised = life._replace(acks=kept)
        assert store.write() == [told(5, *store.history, promised=promised, query=1)]
        assert store.ask(life)[0] == told(5, *store.history, promised=promised, query=1)
    # If a life has written, the records before it are known to exist.
    store.receive(Epoch(*third, 5, store.history[-1].digest), 5, 6)
    assert store.write() == [ack(third, 6)]
    store.ask(EpochId(5, 0, 2))
    store.write()
    assert store.promised == EpochId(5, 0, 2)


def test_promises_that_wait_for_the_disk_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(histories, "MAX_PROMISING", 3)
    store = Store()
    for number in range(2, 9):
        store.ask(EpochId(number, 0, 1), query=number)
    assert len(store.role.pending) == 3
    # A requestor without a promise gets this answer, and asks again.
    answers = [each for each in store.write() if isinstance(each, m.HistoryReply)]
    assert [answer.query for answer in answers] == [2, 3, 4]
    store.ask(EpochId(9, 0, 1))
    assert store.role.pending == [Promise(TP, EpochId(9, 0, 1))]


def test_a_promise_of_a_partition_without_records() -> None:
    store = Store()
    store.ask(PRODUCER)
    assert store.write() == [told(0, promised=PRODUCER, query=1)]
    assert store.role.on_tick(9.0) == []


# -- what clients write here ----------------------------------------------------------------------


def hosted_epoch(store: Store, start: int, end: int) -> Epoch:
    batch = store.role.host(0.0, batch_of(start, end))
    assert isinstance(batch, RecordBatch)
    assert batch.epoch is not None
    messages = store.write()
    assert messages[0] == ack(batch.epoch.life, end)
    assert [message.batch.epoch for message in batches_in(messages)] == [batch.epoch]
    return batch.epoch


def test_clients_records_belong_to_a_life_of_the_store() -> None:
    store = Store()
    first = hosted_epoch(store, 0, 3)
    assert first == Epoch(1, 0x57, 1, 0, 0)
    assert hosted_epoch(store, 3, 5) == first
    # After a restart, it is another one.
    again = Store(store.history, 5)
    assert hosted_epoch(again, 5, 6) == Epoch(2, 0x57, 1, 5, first.digest)


@pytest.mark.parametrize("how", ["a record", "a promise"])
def test_after_a_newer_life_clients_begin_a_new_life(how: str) -> None:
    store = Store()
    first = hosted_epoch(store, 0, 3)
    if how == "a record":
        newer = Epoch(4, 0, 1, 3, first.digest)
        store.receive(newer, 3, 4)
    else:
        newer = first
        store.ask(EpochId(4, 0, 1))
    store.write()
    end = len(store.names)
    assert hosted_epoch(store, end, end + 2) == Epoch(5, 0x57, 1, end, newer.digest)


def test_a_commit_carries_the_epoch_of_its_records() -> None:
    store = Store((A,), 5)
    commit = Commit((StagedTransaction(*TP, "A" * 32, 5, 8, 1),))
    taken = store.role.commit(0.0, commit)
    assert taken is not None
    mine = Epoch(2, 0x57, 1, 5, A.digest)
    assert taken == commit._replace(epochs=(mine,))
    (ack_of_commit,) = store.write()
    assert ack_of_commit == ack(mine.life, 8)
    assert store.role.partitions[TP].history == (A, mine)


def test_a_promise_protects_the_records_that_its_life_continues() -> None:
    """It may be the only store that has the last record of what was answered."""
    before_it = Epoch(8, 0x88, 1, 4, A.digest)
    store = Store((A,), 5)
    store.ask(PRODUCER)
    assert store.write() == [told(5, A, promised=PRODUCER, query=1)]
    store.hear(9, A, before_it)
    store.receive(before_it, 4, 5)
    assert store.role.take_pending() == []
    assert store.role.partitions[TP].history == (A,)
    # Later ones win.
    store.hear(9, A, Epoch(10, 0x10, 1, 4, A.digest))
    assert store.role.take_pending() == [SetAside(TP, 4)]
