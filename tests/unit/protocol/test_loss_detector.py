"""Lost records: their detection, their difference from late ones, the consumer's reaction."""

import dataclasses
from collections.abc import Mapping

import pytest

from dafka_core.config.node_options import FAIL, SKIP, WAIT
from dafka_core.errors import HistoryChangedError
from dafka_core.model.epochs import NO_LIFE, Epoch, EpochId
from dafka_core.model.records import PartitionInfo
from dafka_core.protocol import messages as m
from dafka_core.protocol import timing
from dafka_core.protocol.consumer_role import ConsumerRole, Loss, Start
from dafka_core.protocol.role import PeerNews
from tests.unit.protocol.model import PARTITION, TOPIC, TP, batch_of, offsets_of

ME, A, B = "21962C91115348329557DE71C90C3718", "A" * 32, "B" * 32
STEP_S = 0.5

Held = Mapping[str, tuple[int, int] | tuple[int, int, EpochId] | None]
"""By store: the earliest record and the end of what it holds, and perhaps the newest life; None
where it does not answer."""


class Cluster:
    """A consumer and stores that answer queries, and no FETCH.

    It has positions, and reads partitions that are not among them from their first record.
    """

    def __init__(
        self, on_data_loss: str, held: Held, head: int = 100, start: Start | None = None
    ) -> None:
        self.now = 0.0
        self.held = dict(held)
        self.c_store_end = 0
        self.queries = 0
        self.asked: list[m.Fetch] = []
        self.role = ConsumerRole(ME, {} if start is None else start, on_data_loss)
        self.role.subscribe(TOPIC)
        self.role.on_tick(0.0)
        for store in held:
            self.role.on_message(0.0, m.HeadsReply(ME, 0, store, 0, 1, ()), store)
        self.role.on_message(0.0, m.Head(TOPIC, PARTITION, head - 1), "")

    def pass_time(self, seconds: float) -> list[Loss]:
        """Return the losses detected meanwhile."""
        until = self.now + seconds
        while self.now < until:
            self.now += STEP_S
            for message in self.role.on_tick(self.now):
                if isinstance(message, m.HeadsQuery):
                    self.queries += 1
                    self._answer(message)
                elif isinstance(message, m.Fetch):
                    self.asked.append(message)
                elif isinstance(message, m.GetHeads) and self.c_store_end:
                    head = m.DirectHead(ME, TOPIC, PARTITION, self.c_store_end - 1)
                    self.role.on_message(self.now, head, A)
            self.role.on_tick(self.now)
        losses, self.role.losses = self.role.losses, []
        return losses

    def _answer(self, query: m.HeadsQuery) -> None:
        for store, held in self.held.items():
            if held is not None:
                infos = (PartitionInfo(TOPIC, PARTITION, *held),) if held[1] else ()
                reply = m.HeadsReply(ME, query.query, store, 0, 1, infos)
                self.role.on_message(self.now, reply, store)


SOON_S = 4 * timing.LOSS_CHECK_S
LATER_S = timing.ABSENT_STORE_S + 2 * timing.LOSS_QUESTION_S

every_policy = pytest.mark.parametrize("policy", [FAIL, SKIP, WAIT])


@every_policy
def test_records_before_the_stores_earliest_are_lost(policy: str) -> None:
    cluster = Cluster(policy, {A: (50, 100), B: (70, 100)})
    assert cluster.pass_time(timing.LOSS_CHECK_S - 1) == []
    assert cluster.pass_time(SOON_S)[0] == Loss(TP, 0, 50, 50, "the stores have trimmed them")


NEWER, OLDER = (50, 100, EpochId(2, 8, 1)), (0, 10, EpochId(1, 7, 1))


@pytest.mark.parametrize(
    "held", [{A: (0, 10), B: (50, 100)}, {A: NEWER, B: OLDER}, {A: OLDER, B: NEWER}]
)
def test_a_gap_between_the_records_of_two_stores_is_lost_if_it_stays(held: Held) -> None:
    cluster = Cluster(FAIL, held)
    cluster.role.seek(TP, 10)
    assert cluster.pass_time(timing.ABSENT_STORE_S - 1) == []
    assert cluster.pass_time(2 * timing.LOSS_QUESTION_S)[0][:4] == (TP, 10, 50, 50)


def test_a_late_store_may_still_receive_them() -> None:
    cluster = Cluster(FAIL, {A: (0, 10), B: (50, 100)})
    cluster.role.seek(TP, 10)
    assert cluster.pass_time(SOON_S) == []
    cluster.held[A] = (0, 11)
    assert cluster.pass_time(LATER_S) == []
    # Without them it restarts the partition where the other store begins.
    cluster.role.seek(TP, 11)
    cluster.held[A] = (50, 100)
    assert cluster.pass_time(SOON_S)[0][:4] == (TP, 11, 50, 50)


@pytest.mark.parametrize("answers", [True, False])
def test_the_stores_history_counts_if_all_of_them_have_lost_a_newer_life(*, answers: bool) -> None:
    # Two lives with one number: the second began when every store's disk had been replaced.
    gone, current = EpochId(1, 9, 1), EpochId(1, 7, 1)
    held: Held = {A: (0, 100, current), B: (0, 100, current) if answers else None}
    cluster = Cluster(FAIL, held, head=100)
    read = dataclasses.replace(batch_of(0, 10), epoch=Epoch.first(gone))
    cluster.role.on_batch(0.0, "", read)
    history = (Epoch.first(current),)
    reply = m.HistoryReply(ME, m.UNSOLICITED, A, *TP, 100, NO_LIFE, history)
    # It may be a store that has not heard of the newer life yet.
    cluster.role.on_message(0.0, reply, A)
    wait_s = timing.LOSS_CHECK_S if answers else timing.ABSENT_STORE_S
    assert cluster.pass_time(wait_s - 1) == []
    cluster.role.on_message(cluster.now, reply, A)
    assert cluster.role.delivered == [read]
    assert cluster.pass_time(2 * timing.LOSS_QUESTION_S) == []
    cluster.role.on_message(cluster.now, reply, A)
    [_, error] = cluster.role.delivered
    assert isinstance(error, HistoryChangedError)
    assert (error.available, cluster.role.positions()[TP]) == (0, (0, 100))


def test_a_record_of_any_store_is_never_lost() -> None:
    cluster = Cluster(FAIL, {A: (50, 100), B: (0, 1)})
    assert cluster.pass_time(LATER_S) == []


def test_an_answer_about_a_later_offset_proves_no_loss() -> None:
    cluster = Cluster(FAIL, {A: (0, 100), B: None}, start={TOPIC: {PARTITION: 50}})
    assert cluster.pass_time(timing.LOSS_CHECK_S + 1) == []
    # The question is open when the application goes back: its answer is about offset 50.
    assert cluster.queries > 0
    cluster.role.seek(TP, 0)
    assert cluster.pass_time(2 * timing.LOSS_CHECK_S) == []
    cluster.held[B] = (0, 100)
    assert cluster.pass_time(LATER_S) == []


def test_a_store_that_was_present_may_have_them_for_a_while() -> None:
    cluster = Cluster(FAIL, {A: (50, 100), B: None})
    # It does not answer, and then its beacons end.
    assert cluster.pass_time(SOON_S) == []
    cluster.role.on_peer(0.0, PeerNews(B, is_lost=True))
    assert cluster.pass_time(timing.ABSENT_STORE_S - SOON_S - 1) == []
    assert cluster.pass_time(2 * timing.LOSS_QUESTION_S)[0][:4] == (TP, 0, 50, 50)


def test_waiting_for_a_silent_store_ends() -> None:
    # Without a tower its loss is not announced.
    cluster = Cluster(FAIL, {A: (50, 100), B: None})
    assert cluster.pass_time(timing.ABSENT_STORE_S) == []
    assert cluster.pass_time(2 * timing.LOSS_QUESTION_S)[0][:4] == (TP, 0, 50, 50)


def test_the_only_store_has_time_to_return_after_its_loss() -> None:
    # It was busy, not gone: what it has not answered for a minute is not lost when it is missed.
    cluster = Cluster(FAIL, {A: None})
    assert cluster.pass_time(timing.ABSENT_STORE_S - 10) == []
    cluster.role.on_peer(0.0, PeerNews(A, is_lost=True))
    assert cluster.pass_time(20) == []
    cluster.held[A] = (0, 100)
    cluster.role.on_message(cluster.now, m.HeadsReply(ME, 0, A, 0, 1, ()), A)
    assert cluster.pass_time(LATER_S) == []


def test_nothing_is_lost_if_a_store_returns_in_time() -> None:
    cluster = Cluster(FAIL, {A: (50, 100), B: None})
    cluster.role.on_peer(0.0, PeerNews(B, is_lost=True))
    assert cluster.pass_time(timing.ABSENT_STORE_S - 10) == []
    cluster.held[B] = (0, 100)
    cluster.role.on_message(cluster.now, m.HeadsReply(ME, 0, B, 0, 1, ()), B)
    assert cluster.pass_time(LATER_S) == []
    # It is as if it had never been away.
    cluster.held[B] = (60, 100)
    assert cluster.pass_time(SOON_S)[0][:4] == (TP, 0, 50, 50)


@pytest.mark.parametrize(
    ("held", "why"),
    [
        ({A: (0, 0)}, "no store has them, and the node that had them is gone"),
        ({}, "no store is reachable, and the node that had them is gone"),
    ],
)
def test_announced_records_that_no_node_has_are_lost(held: Held, why: str) -> None:
    cluster = Cluster(FAIL, held)
    assert cluster.pass_time(timing.ABSENT_STORE_S - 1) == []
    assert cluster.pass_time(2 * timing.LOSS_QUESTION_S) == [Loss(TP, 0, 100, None, why)]


@pytest.mark.parametrize(("end", "is_lost"), [(100, False), (0, True)])
def test_c_stores_have_all_records_up_to_their_heads(end: int, *, is_lost: bool) -> None:
    # They know no queries, and never trim: what they have begins at 0.
    cluster = Cluster(FAIL, {})
    cluster.c_store_end = end
    cluster.role.on_subscribed(0.0, m.ConsumerHello, A)
    cluster.role.on_message(0.0, m.StoreHello(ME, A), A)
    losses = cluster.pass_time(LATER_S)
    assert [loss[:4] for loss in losses] == ([(TP, 0, 100, None)] if is_lost else [])


def test_skip_continues_at_the_earliest_record_and_counts() -> None:
    cluster = Cluster(SKIP, {A: (50, 100)})
    cluster.role.on_batch(0.0, "", batch_of(60, 70))
    assert [loss[:4] for loss in cluster.pass_time(SOON_S)] == [(TP, 0, 50, 50)]
    assert cluster.role.skipped == {TP: 50}
    assert cluster.asked[-1].sequence == 50
    cluster.role.on_batch(cluster.now, ME, batch_of(50, 60))
    cluster.role.on_batch(cluster.now, ME, batch_of(70, 100))
    assert offsets_of(cluster.role.delivered) == list(range(50, 100))
    assert cluster.pass_time(LATER_S) == []
    cluster.role.unsubscribe(TOPIC)
    assert cluster.role.skipped == {}


def test_all_gaps_before_the_stores_records_are_found_at_once() -> None:
    gaps = [(TP, 0, 10, 10), (TP, 20, 30, 30), (TP, 40, 50, 50)]
    for policy, expected in ((SKIP, gaps), (FAIL, gaps[:1]), (WAIT, gaps[:1])):
        cluster = Cluster(policy, {A: (50, 100)})
        for start in (10, 30, 60):
            cluster.role.on_batch(0.0, "", batch_of(start, start + 10))
        assert [loss[:4] for loss in cluster.pass_time(timing.LOSS_CHECK_S + 1)] == expected
    assert cluster.role.positions() == {TP: (0, 100)}


def test_skip_delivers_kept_records() -> None:
    cluster = Cluster(SKIP, {A: (0, 0)})
    cluster.role.on_batch(0.0, "", batch_of(95, 100))
    assert cluster.pass_time(LATER_S)[0][:4] == (TP, 0, 95, 95)
    assert offsets_of(cluster.role.delivered) == list(range(95, 100))
    assert cluster.role.positions() == {TP: (100, 100)}
    assert cluster.role.scheduler.budget.records == 0


@every_policy
def test_earliest_is_the_first_record_that_any_store_has(policy: str) -> None:
    cluster = Cluster(policy, {A: (70, 100), B: (50, 90)}, start="earliest")
    assert cluster.pass_time(timing.LOSS_CHECK_S - 1) == []
    assert [(*loss[:4], loss[-1]) for loss in cluster.pass_time(SOON_S)] == [(TP, 0, 50, 50, True)]
    assert cluster.asked[-1].sequence == 50
    assert cluster.role.skipped == {}
    # It has a position from now on.
    cluster.held = {A: (70, 100), B: (70, 100)}
    assert not cluster.pass_time(SOON_S)[0].is_beginning


def test_earliest_waits_for_a_store_that_may_have_earlier_ones() -> None:
    cluster = Cluster(FAIL, {A: (50, 100), B: None}, start="earliest")
    cluster.role.on_peer(0.0, PeerNews(B, is_lost=True))
    assert cluster.pass_time(timing.ABSENT_STORE_S - 1) == []
    assert cluster.pass_time(2 * timing.LOSS_QUESTION_S)[0].is_beginning


def test_earliest_of_a_deleted_topic_is_its_end() -> None:
    cluster = Cluster(FAIL, {A: (100, 100)}, start="earliest")
    assert cluster.pass_time(SOON_S)[0].is_beginning
    assert cluster.role.positions() == {TP: (100, 100)}


@pytest.mark.parametrize("held", [{A: (0, 0)}, {}])
def test_a_beginning_needs_records_in_a_store(held: Held) -> None:
    cluster = Cluster(FAIL, held, start="earliest")
    cluster.role.on_batch(0.0, "", batch_of(95, 100))
    assert not cluster.pass_time(LATER_S)[0].is_beginning
    assert cluster.role.positions() == {TP: (0, 100)}


def test_seeking_offset_0_is_a_position() -> None:
    cluster = Cluster(FAIL, {A: (50, 100)}, start="earliest")
    cluster.role.seek(TP, 0)
    assert not cluster.pass_time(SOON_S)[0].is_beginning


def test_skip_never_continues_at_a_head_alone() -> None:
    # A head may be forged, or of records that were never stored.
    cluster = Cluster(SKIP, {A: (0, 0)})
    assert cluster.pass_time(LATER_S)[0][:4] == (TP, 0, 100, None)
    assert cluster.role.skipped == {}
    cluster.role.on_batch(cluster.now, "", batch_of(0, 5))
    assert offsets_of(cluster.role.delivered) == [0, 1, 2, 3, 4]


def test_with_wait_a_loss_is_reported_once() -> None:
    cluster = Cluster(WAIT, {A: (50, 100)})
    assert len(cluster.pass_time(5 * LATER_S)) == 1
    asked = cluster.queries
    assert cluster.pass_time(LATER_S) == []
    assert cluster.queries == asked
    cluster.role.on_batch(cluster.now, ME, batch_of(0, 20))
    assert offsets_of(cluster.role.delivered) == list(range(20))
    # The next gap is a second loss.
    assert cluster.pass_time(LATER_S)[0][:4] == (TP, 20, 50, 50)


def test_with_fail_a_loss_is_reported_until_the_consumer_seeks() -> None:
    cluster = Cluster(FAIL, {A: (50, 100)})
    found = cluster.pass_time(LATER_S)
    assert len(found) > 1
    assert len(set(found)) == 1
    cluster.role.seek(TP, 50)
    assert cluster.pass_time(LATER_S) == []


def test_without_room_nothing_is_lost() -> None:
    cluster = Cluster(FAIL, {A: (50, 100)})
    cluster.role.room = False
    assert cluster.pass_time(LATER_S) == []
    # It was left to the stores: its sender has it.
    cluster.role.on_batch(cluster.now, ME, batch_of(0, 10))
    cluster.role.room = True
    assert cluster.pass_time(timing.LOSS_CHECK_S - 1) == []


def test_a_time_without_room_is_no_wait_for_an_answer() -> None:
    cluster = Cluster(FAIL, {A: (50, 100), B: None})
    assert cluster.pass_time(1) == []
    cluster.role.room = False
    assert cluster.pass_time(2 * LATER_S) == []
    cluster.role.room = True
    cluster.role.on_peer(cluster.now, PeerNews(B, is_lost=True))  # it is started again
    assert cluster.pass_time(timing.ABSENT_STORE_S - 2) == []
    assert cluster.pass_time(2 * timing.LOSS_QUESTION_S)[0][:4] == (TP, 0, 50, 50)


def test_stores_are_asked_rarely() -> None:
    cluster = Cluster(FAIL, {A: (0, 100)})
    assert cluster.pass_time(20 * timing.LOSS_QUESTION_S) == []
    assert 10 < cluster.queries < 25
