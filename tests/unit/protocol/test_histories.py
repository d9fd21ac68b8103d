"""A store extends one history only, promises before it answers, and gives up what has lost."""

from collections.abc import Iterable
from dataclasses import replace

import pytest

from dafka_core.errors import DafkaError, FencedError, OffsetConflictError
from dafka_core.model.epochs import NO_LIFE, Epoch, EpochId, History, epoch_at, prefix, with_epoch
from dafka_core.model.log_entries import Commit, LogEntry, NameClient, Promise, SetAside, StoreSeen
from dafka_core.model.records import (
    PartitionInfo,
    PartitionLives,
    RecordBatch,
    StagedTransaction,
    TopicPartition,
    Transaction,
)
from dafka_core.protocol import messages as m
from dafka_core.protocol import store_partition, store_role, timing
from dafka_core.protocol.limits import MAX_STORES
from dafka_core.protocol.role import Outgoing, PeerNews
from dafka_core.protocol.store_role import StoreRole
from tests.unit.protocol.model import PARTITION, TOPIC, TP, batch_of, batches_in, fetches_in
from tests.unit.protocol.test_store_role import ME, OTHER

A = Epoch(1, 0xA, 1, 0, 0)
B = Epoch(2, 0xB, 2, 5, A.digest)
C = Epoch(3, 0xC, 1, 9, B.digest)
ZOMBIE = Epoch(2, 0x1, 2, 5, A.digest)
"""Another life that began where B did, and lost: its id is smaller."""
LOSER = Epoch(2, 0xF, 1, 5, A.digest)
"""Another one, with a greater id: it loses only to what comes after B."""
PRODUCER = EpochId(9, 0x99, 2)  # one that is about to begin


class Store:
    """A role, and a disk with the epoch of each offset."""

    def __init__(self, history: History = (), end: int = 0, promised: EpochId = NO_LIFE) -> None:
        self.names = [epoch_at(history, offset) for offset in range(end)]
        self.history, self.promised = history, promised
        self.aside: list[list[Epoch | None]] = []
        self.role = StoreRole(ME, self.lives, sync_interval_s=1e9, hosting_id=0x57)
        self.role.on_tick(0.0)

    def lives(self, tp: TopicPartition) -> PartitionLives:
        if tp != TP:
            return PartitionLives(0, (), NO_LIFE)
        return PartitionLives(len(self.names), self.history, self.promised)

    def write(self) -> list[Outgoing]:
        """Execute the role's entries; return its messages."""
        entries = self.role.take_pending()
        for entry in entries:
            self._apply(entry)
        return self.role.on_stored(entries)

    def _apply(self, entry: LogEntry) -> None:
        match entry:
            case RecordBatch():
                assert entry.offset == len(self.names)
                if entry.epoch is not None and entry.epoch not in self.history[-1:]:
                    self.history = with_epoch(self.history, entry.epoch)
                self.names += [entry.epoch] * len(entry.values)
            case SetAside(start=start):
                self.aside.append(self.names[start:])
                del self.names[start:]
                self.history = prefix(self.history, start)
            case Promise(life=life):
                self.promised = max(self.promised, life)

    def receive(
        self, epoch: Epoch | None, start: int, end: int, now: float = 0.0, *, to: str = ""
    ) -> list[Outgoing]:
        return self.role.on_batch(now, to, replace(batch_of(start, end), epoch=epoch))

    def ask(self, life: EpochId = NO_LIFE, query: int = 1) -> list[Outgoing]:
        return self.role.on_message(0.0, m.HistoryQuery(PARTITION, query, *TP, life), "")

    def hear(self, end: int, *history: Epoch, store: str = OTHER) -> None:
        """Deliver another store's answer."""
        reply = m.HistoryReply(ME, m.UNSOLICITED, store, *TP, end, NO_LIFE, history)
        assert self.role.on_message(0.0, reply, "") == []


def ack(life: EpochId, end: int) -> m.EpochAck:
    return m.EpochAck(TOPIC, PARTITION, end - 1, ME, life)


def told(
    end: int,
    *history: Epoch,
    promised: EpochId = NO_LIFE,
    query: int = m.UNSOLICITED,
    to: str = PARTITION,
) -> m.HistoryReply:
    return m.HistoryReply(to, query, ME, *TP, end, promised, history)


ASKED = m.HistoryQuery(ME, m.UNSOLICITED, *TP)


def others(messages: Iterable[Outgoing]) -> list[Outgoing]:
    """All but FETCHes."""
    found = list(messages)
    fetches = fetches_in(found)
    return [message for message in found if message not in fetches]


# -- its own history ------------------------------------------------------------------------------


def test_each_life_is_acknowledged_in_turn() -> None:
    store = Store()
    for epoch, start, end in ((A, 0, 3), (A, 3, 5), (B, 5, 9), (C, 9, 10)):
        assert store.receive(epoch, start, end) == []
        assert store.write() == [ack(epoch.life, end)]
    assert store.history == (A, B, C)
    assert store.names == [A] * 5 + [B] * 4 + [C]


def test_the_name_of_a_client_is_kept_once_whichever_comes_first() -> None:
    named = NameClient(TP, "host:1")
    early, late = Store(), Store()
    early.role.on_peer(0.0, PeerNews(PARTITION, client="host:1"))
    early.receive(A, 0, 3)
    assert early.role.take_pending()[1:] == [named]
    early.receive(A, 3, 5)
    assert len(early.role.take_pending()) == 1
    late.receive(A, 0, 3)
    assert len(late.role.take_pending()) == 1
    late.role.on_peer(0.0, PeerNews(PARTITION, client="host:1"))
    for _ in range(2):
        late.role.on_subscribed(0.0, m.Ack, PARTITION)
    assert late.role.take_pending() == [named]


def test_the_names_of_clients_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_role, "MAX_PEERS", 2)
    store = Store()
    for node in (PARTITION, OTHER, ME):
        store.role.on_peer(0.0, PeerNews(node, client="host:1"))
    store.receive(A, 0, 3)
    assert len(store.role.take_pending()) == 1


def test_several_lives_may_be_in_one_group() -> None:
    store = Store()
    for epoch, start, end in ((A, 0, 5), (B, 5, 9), (C, 9, 10)):
        store.receive(epoch, start, end)
    assert store.write() == [ack(C.life, 10)]
    assert store.history == (A, B, C)


def test_after_a_restart_it_continues_the_stored_history() -> None:
    store = Store((A, B), 7)
    store.receive(B, 7, 9)
    assert store.write() == [ack(B.life, 9)]
    store.role.on_subscribed(1.0, m.Ack, PARTITION)
    assert store.role.on_tick(1.0) == [ack(B.life, 9)]


def test_records_without_an_epoch_are_of_the_last_one() -> None:
    store = Store((A,), 5)
    store.receive(None, 5, 7)
    assert store.write() == [ack(A.life, 7)]
    # And any can begin after records of an unknown history.
    plain = Store((), 4)
    plain.receive(B._replace(start=4, parent=0), 4, 6)
    assert plain.write() == [ack(B.life, 6)]


def test_records_behind_a_gap_may_belong_to_another_history() -> None:
    store = Store((A,), 5)
    ahead = C._replace(parent=ZOMBIE.digest)
    store.receive(ahead, 9, 12)
    store.receive(B, 5, 9)
    assert store.write() == [ack(B.life, 9)]
    assert store.names == [A] * 5 + [B] * 4
    # A node has another history, of a newer life: the store asks for it.
    assert ASKED in store.role.on_tick(1.0)


# -- a zombie -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("epoch", "start", "end"),
    [(A, 9, 11), (A, 5, 7), (ZOMBIE, 5, 7), (ZOMBIE, 9, 11), (A, 12, 13)],
    ids=["at the end", "where it has lost", "another id", "another id at the end", "ahead"],
)
def test_records_of_an_older_life_are_refused_with_a_notification(
    epoch: Epoch, start: int, end: int
) -> None:
    store = Store((A, B), 9)
    assert store.receive(epoch, start, end) == []
    assert store.role.take_pending() == []
    assert store.role.on_tick(0.0) == [told(9, A, B)]
    assert store.names == [A] * 5 + [B] * 4


def test_an_older_life_is_notified_at_an_interval() -> None:
    store = Store((A, B), 9)
    count = 0
    for tenth in range(100):
        store.receive(A, 9 + tenth, 10 + tenth, tenth / 10)
        due = store.role.deadline(tenth / 10)
        assert due <= tenth / 10 + timing.HISTORY_INTERVAL_S
        count += len(store.role.on_tick(tenth / 10))
    assert 10 / timing.HISTORY_INTERVAL_S - 1 <= count <= 10 / timing.HISTORY_INTERVAL_S + 1
    # After its end there is no notification.
    store.role.on_tick(20.0)
    assert store.role.on_tick(30.0) == []


# -- a history that wins --------------------------------------------------------------------------


def test_a_newer_lifes_records_replace_those_from_where_it_began() -> None:
    store = Store((A,), 8)
    assert store.receive(B, 5, 7) == []
    assert store.role.pending == [SetAside(TP, 5)]
    # Nothing of the partition is taken until that is done.
    store.receive(B, 5, 7)
    store.receive(A, 8, 9)
    assert isinstance(store.role.host(0.0, batch_of(5, 6)), OffsetConflictError)
    assert store.write() == []
    assert (store.history, store.aside) == ((A,), [[A] * 3])
    (fetch,) = fetches_in(store.role.on_tick(1.0))
    assert (fetch.sequence, fetch.end) == (5, 9)
    store.role.on_batch(1.0, ME, replace(batch_of(5, 7), epoch=B))
    assert store.write() == [ack(B.life, 7)]
    assert store.names == [A] * 5 + [B] * 2


def test_pending_records_are_set_aside_too() -> None:
    store = Store((A,), 5)
    store.receive(A, 5, 8)
    entries = store.role.take_pending()
    store.receive(A, 8, 9)
    store.receive(B, 5, 7)
    for entry in entries:
        store._apply(entry)
    assert store.role.on_stored(entries) == []  # it will not last
    assert store.write() == []
    assert (store.names, store.aside) == ([A] * 5, [[A] * 4])
    assert store.role.next_offset(TP) == 5


def test_an_unknown_history_is_requested() -> None:
    store = Store((A,), 8)
    # It does not reveal from which offset on the store has another history.
    assert store.receive(C._replace(start=6, parent=77), 6, 7) == []
    assert store.role.take_pending() == []
    assert ASKED in store.role.on_tick(0.0)
    assert ASKED not in store.role.on_tick(9.0)
    store.hear(10, A, B, C)
    assert store.role.pending == [SetAside(TP, 5)]
    store.write()
    (fetch,) = fetches_in(store.role.on_tick(10.0))
    assert (fetch.sequence, fetch.end) == (5, 10)


@pytest.mark.parametrize(
    ("end", "history"),
    [
        (9, (A, B)),  # the same
        (20, (A,)),  # older
        (20, (A, ZOMBIE)),  # an older one that has parted
        (20, ()),  # nothing is known
        (12, (A, B, C)),  # a continuation
    ],
)
def test_histories_that_do_not_win_change_nothing(end: int, history: History) -> None:
    store = Store((A, B), 9)
    store.role.on_message(0.0, m.Head(TOPIC, PARTITION, 8), "")
    store.hear(end, *history)
    assert store.role.take_pending() == []
    assert store.role.partitions[TP].history == (A, B)


def test_a_winning_history_with_fewer_records_sets_the_rest_aside() -> None:
    store = Store((A, ZOMBIE), 9)
    store.role.on_message(0.0, m.Head(TOPIC, PARTITION, 8), "")
    store.hear(6, A, B)
    assert store.write() == [ack(A.life, 5)]  # what the head asked for, as far as it is left
    assert store.names == [A] * 5
    assert store.aside == [[ZOMBIE] * 4]


def test_a_store_accepts_no_replaced_records_from_another_store() -> None:
    """Two losers would fetch each other's records for ever."""
    store = Store((A, LOSER), 7)
    store.role.on_message(0.0, m.Head(TOPIC, PARTITION, 6), "")
    store.hear(10, A, B, C)
    store.write()
    assert store.aside == [[LOSER] * 2]
    for now in (1.0, 2.0):
        assert store.receive(LOSER, 5, 7) == []
        store.hear(7, A, LOSER, store="ANOTHER")
        assert store.role.take_pending() == []
        assert ASKED in store.role.on_tick(now)
        store.receive(B, 5, 7)
        assert store.write() == [ack(B.life, 7)]
    store.receive(B, 7, 9)
    store.receive(C, 9, 10)
    assert store.write() == [ack(C.life, 10)]


@pytest.mark.parametrize("why", ["it is lost", "its disk is an older one"])
def test_a_winner_without_its_records_does_not_count(why: str) -> None:
    store = Store((A, LOSER), 7)
    store.role.on_message(0.0, m.Head(TOPIC, PARTITION, 6), "")
    store.hear(10, A, B, C)
    store.write()
    assert store.aside == [[LOSER] * 2]
    if why == "it is lost":
        store.role.on_peer(0.0, PeerNews(OTHER, is_lost=True))
    else:
        store.hear(5, A)
    store.receive(LOSER, 5, 7)
    assert store.write() == [ack(LOSER.life, 7)]


def test_histories_of_unknown_partitions_are_ignored() -> None:
    store = Store()
    store.hear(6, A, B)
    assert store.role.partitions == {}
    assert store.role.take_pending() == []


def test_heads_of_other_stores_carry_their_life() -> None:
    store = Store((A,), 8)
    for life, asks in ((A.life, False), (NO_LIFE, False), (B.life, True)):
        info = PartitionInfo(TOPIC, PARTITION, 0, 8, life)
        store.role.on_message(0.0, m.HeadsReply(ME, 1, OTHER, 0, 1, (info,)), "")
        assert (ASKED in store.role.on_tick(0.0)) == asks
    # They are heads, too.
    info = info._replace(end=12)
    messages = store.role.on_message(9.0, m.HeadsReply(ME, 1, OTHER, 0, 1, (info,)), "")
    (fetch,) = fetches_in(messages)
    assert (fetch.sequence, fetch.end) == (8, 12)
    # Messages to other nodes are ignored.
    reply = m.HeadsReply("C", 1, OTHER, 0, 1, (info._replace(end=99),))
    assert store.role.on_message(9.0, reply, "") == []


# -- stores that were met -------------------------------------------------------------------------


def test_a_history_names_all_known_stores() -> None:
    role = StoreRole(
        ME, lambda tp: PartitionLives(0, (), NO_LIFE), sync_interval_s=1e9, known=[StoreSeen("S1")]
    )
    role.on_message(0.0, m.StoreHello(ME, OTHER), "")
    (reply,) = role.on_message(0.0, m.HistoryQuery(PARTITION, 1, *TP), "")
    assert isinstance(reply, m.HistoryReply)
    assert reply.stores == ("S1", OTHER)


def test_known_stores_are_bounded() -> None:
    role = StoreRole(ME, lambda tp: PartitionLives(0, (), NO_LIFE), sync_interval_s=1e9)
    for number in range(MAX_STORES + 5):
        role.on_message(0.0, m.StoreHello(ME, f"S{number}"), "")
    assert len(role.take_pending()) == MAX_STORES
    (reply,) = role.on_message(0.0, m.HistoryQuery(PARTITION, 1, *TP), "")
    assert isinstance(reply, m.HistoryReply)
    assert len(reply.stores) == MAX_STORES


def test_a_head_beyond_the_end_is_no_other_history() -> None:
    store = Store((A,), 5)
    store.role.on_message(0.0, m.DirectHead(ME, *TP, 8), "")
    assert others(store.role.on_tick(9.0)) == []


def test_a_refused_commits_epoch_does_not_begin_with_a_later_one() -> None:
    """It was valid where the first one began, before another store's records arrived there."""
    store = Store()
    store.receive(A, 0, 5)
    store.write()
    refused, taken = (
        store_transaction(store, StagedTransaction(*TP, "attempt", start, end, 1), error)
        for start, end, error in ((0, 8, FencedError(*TP, "attempt")), (5, 9, None))
    )
    assert refused.start == 0
    assert taken == Epoch(2, 0x57, 1, 5, A.digest)
    (reply,) = store.ask()
    assert isinstance(reply, m.HistoryReply)
    assert reply.history == (A, taken)


def store_transaction(
    store: Store, transaction: StagedTransaction, error: DafkaError | None
) -> Epoch:
    """Has a client's commit done, or refused; returns the epoch that it was given."""
    commit = store.role.commit(0.0, Commit((transaction,)))
    assert isinstance(commit, Commit)
    store.role.on_stored(store.role.take_pending(), [error])
    (epoch,) = commit.epochs
    assert epoch is not None
    return epoch


def test_a_promised_producer_reports_where_it_continues() -> None:
    store = Store((A,), 6)
    store.ask(PRODUCER, query=7)
    store.write()
    # Its promise allows only this store's present records: nothing else wins.
    store.hear(7, A, B)
    assert store.role.pending == []
    mine = Epoch(*PRODUCER, 7, B.digest)
    reply = m.HistoryReply(ME, m.UNSOLICITED, PARTITION, *TP, 7, PRODUCER, (A, B, mine))
    assert store.role.on_message(0.0, reply, "") == []
    assert store.role.pending == [SetAside(TP, 5)]


ORPHAN = Epoch(2, 0x22, 2, 5, 0)
"""A life that began where only C stores had answered, with records of an unknown history."""


@pytest.mark.parametrize("end", [5, 7])
def test_a_life_that_began_at_c_stores_continues_any_history(end: int) -> None:
    store = Store((A,), end)
    store.receive(ORPHAN, 5, 8)
    if end > 5:  # records from the C store, without a life, which counted as the older one's
        store.write()
        assert store.aside == [[A] * (end - 5)]
        store.receive(ORPHAN, 5, 8)
    assert store.write() == [ack(ORPHAN.life, 8)]
    assert store.role.partitions[TP].history == (A, ORPHAN)


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
    monkeypatch.setattr(store_partition, "MAX_PROMISING", 3)
    store = Store()
    for number in range(2, 9):
        store.ask(EpochId(number, 0, 1), query=number)
    assert len(store.role.pending) == 3
    # A requestor without a promise gets this answer, and asks again.
    answers = [each for each in store.write() if isinstance(each, m.HistoryReply)]
    assert [answer.query for answer in answers] == [2, 3, 4]
    store.ask(EpochId(9, 0, 1))
    assert store.role.pending == [Promise(TP, EpochId(9, 0, 1))]


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


@pytest.mark.parametrize("how", ["a record", "a promise", "a history that wins"])
def test_after_a_newer_life_clients_begin_a_new_life(how: str) -> None:
    store = Store()
    first = newer = hosted_epoch(store, 0, 3)
    if how == "a record":
        newer = Epoch(4, 0, 1, 3, first.digest)
        store.receive(newer, 3, 4)
    elif how == "a promise":
        store.ask(EpochId(4, 0, 1))
    else:
        store.hear(9, first, Epoch(4, 0, 1, 2, first.digest))
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


def test_late_records_of_a_replaced_part_do_not_block_the_newer_ones() -> None:
    store = Store()
    store.receive(A, 0, 9)
    store.write()
    store.hear(20, A, B)
    store.write()
    assert store.role.next_offset(TP) == B.start
    # From another store that has not given them up yet.
    store.receive(A, 5, 9, 1.1, to=ME)
    store.write()
    store.receive(B, 5, 20, 1.2, to=ME)
    store.write()
    assert store.role.partitions[TP].durable == 20
    assert (store.history, store.names) == ((A, B), [A] * 5 + [B] * 15)


def test_an_incomplete_transaction_is_given_up_as_a_whole() -> None:
    store = Store()
    part = replace(batch_of(0, 8), epoch=A, transaction=Transaction(1, 0, 10))
    store.role.on_batch(0.0, "", part)
    store.write()
    store.hear(20, A, B)
    store.write()
    # The log has dropped all of it, also the records that the winner has, too.
    assert store.role.next_offset(TP) == 0


def test_a_store_replaces_a_winner_that_has_lost_itself() -> None:
    """A producer has won, and ended before a store had its records."""
    store = Store()
    store.receive(A, 0, 5)
    store.write()
    store.hear(5, Epoch(3, 9, 1, 0, 0), store=PARTITION)
    store.ask(EpochId(9, 5, 1))
    store.write()
    store.hear(100, A, Epoch(4, 1, 1, 39, A.digest))
    store.receive(A, 0, 39, 1.3, to=ME)
    store.write()
    assert store.role.partitions[TP].durable == 39


# -- records that clients write in a life that is not the store's own ------------------------------

LEADER = Epoch(9, 0x99, 2, 0, 0)  # the carrier of a client's life: the store finds the parent


def given(start: int, end: int, *, begin: Epoch = LEADER) -> RecordBatch:
    return replace(batch_of(start, end), epoch=begin._replace(start=start))


def test_a_client_begins_a_life_and_continues_it() -> None:
    store = Store((A, B), 9)
    first = store.role.host(0.0, given(9, 12))
    begun = LEADER._replace(start=9, parent=B.digest)
    assert isinstance(first, RecordBatch)
    assert first.epoch == begun
    second = store.role.host(0.0, given(12, 15))  # before the first one is on disk
    assert isinstance(second, RecordBatch)
    assert second.epoch == begun
    store.write()
    assert (store.history, len(store.names), store.aside) == ((A, B, begun), 15, [])


def test_records_behind_the_beginning_of_a_client_s_life_are_set_aside() -> None:
    store = Store((A, B), 9)
    assert isinstance(store.role.host(0.0, given(7, 10)), OffsetConflictError)  # not yet
    late = replace(batch_of(7, 9), epoch=B)
    store.role.on_batch(0.0, "", late)
    store.write()
    assert store.aside == [[B, B]]
    store.role.on_batch(0.0, "", late)  # other stores still send them
    assert store.role.next_offset(TP) == 7
    assert isinstance(store.role.host(0.0, given(7, 10)), RecordBatch)
    store.write()
    begun = LEADER._replace(start=7, parent=B.digest)
    assert (store.history, len(store.names)) == ((A, B, begun), 10)
    # What has begun is never set aside by its own client.
    assert isinstance(store.role.host(0.0, given(7, 8)), OffsetConflictError)
    assert isinstance(store.role.host(0.0, given(8, 9)), OffsetConflictError)
    store.write()
    assert len(store.names) == 10


@pytest.mark.parametrize("later", [None, LEADER._replace(number=10, id=0x10)])
def test_a_life_that_has_begun_without_a_record_gives_way_to_a_newer_one(
    later: Epoch | None,
) -> None:
    """Its client ends before it tries again, and another one writes at the same offset."""
    store = Store((A, B), 9)
    assert isinstance(store.role.host(0.0, given(7, 10)), OffsetConflictError)
    store.write()
    batch = batch_of(7, 10) if later is None else given(7, 10, begin=later)
    assert isinstance(store.role.host(0.0, batch), RecordBatch)
    store.write()
    begun = store.history[-1]
    assert (begun.start, begun.parent, len(store.names)) == (7, B.digest, 10)
    assert later is None or begun.life == later.life
    assert store.role.partitions[TP].history == store.history == (A, B, begun)
    [reply] = store.ask()
    assert isinstance(reply, m.HistoryReply)
    assert reply.history == store.history


def test_a_client_writes_nothing_in_a_life_that_is_over() -> None:
    for store in (
        Store((A, B, LEADER._replace(number=10, start=9, parent=B.digest)), 12),
        Store((A, B), 9, promised=EpochId(10, 0, 1)),
    ):
        end = len(store.names)
        assert isinstance(store.role.host(0.0, given(end, end + 1)), OffsetConflictError)
        assert isinstance(store.role.host(0.0, given(8, 9)), OffsetConflictError)
        assert store.role.take_pending() == []
