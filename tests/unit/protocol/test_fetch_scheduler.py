"""A role asks for some partitions at a time; each has its turn, whatever is answered."""

from itertools import chain

import pytest

from dafka_core.config.node_options import WAIT
from dafka_core.model.records import PartitionInfo
from dafka_core.protocol import fetch_scheduler, timing
from dafka_core.protocol.consumer_role import ConsumerRole
from dafka_core.protocol.fetch_scheduler import MAX_UNDER_WAY
from dafka_core.protocol.limits import FairQueue
from dafka_core.protocol.messages import DirectHead, FetchBatch, Head, HeadsReply
from dafka_core.protocol.role import Outgoing
from tests.unit.protocol.model import TOPIC, batch_of, fetches_in

ME, STORE = "21962C91115348329557DE71C90C3718", "A" * 32


def told_of(count: int) -> ConsumerRole:
    """Return a consumer that knows ``count`` partitions of one record, by one message."""
    role = ConsumerRole(ME, "earliest")
    role.subscribe(TOPIC)
    infos = tuple(PartitionInfo(TOPIC, f"P{i}", 0, 1) for i in range(count))
    for start in range(0, count, 1_000):
        part = infos[start : start + 1_000]
        role.on_message(0.0, HeadsReply(ME, 2**64 - 1, STORE, 0, 1, part), STORE)
    return role


def asked_of_store(messages: list[Outgoing]) -> list[str]:
    """Return the requested partitions; the store that has them is asked for each."""
    assert fetches_in(messages) == []
    batches = [message for message in messages if isinstance(message, FetchBatch)]
    assert {batch.store for batch in batches} <= {STORE}
    entries = [*chain.from_iterable(batch.entries for batch in batches)]
    assert all(entry[2:4] == (0, 1) for entry in entries)
    return [entry.partition for entry in entries]


def test_other_partitions_are_requested_when_some_are_complete() -> None:
    total = 3 * MAX_UNDER_WAY
    role = told_of(total)
    first = role.on_tick(0.0)
    assert len([message for message in first if isinstance(message, FetchBatch)]) == 1
    assert asked_of_store(first) == [f"P{i}" for i in range(MAX_UNDER_WAY)]
    for i in range(10):
        assert role.on_batch(0.1, ME, batch_of(0, 1, TOPIC, f"P{i}")) == []
    assert asked_of_store(role.on_tick(0.1)) == [f"P{MAX_UNDER_WAY + i}" for i in range(10)]
    under_way = [f"P{i}" for i in range(10, MAX_UNDER_WAY + 10)]
    while under_way:
        for partition in under_way:
            role.on_batch(0.2, ME, batch_of(0, 1, TOPIC, partition))
        under_way = asked_of_store(role.on_tick(0.2))
        assert len(under_way) <= MAX_UNDER_WAY
    assert role.positions() == {(TOPIC, f"P{i}"): (1, 1) for i in range(total)}
    assert len(role.scheduler) == 0


def test_the_next_partitions_are_found_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    role, counts = told_of(5 * MAX_UNDER_WAY), list[int]()
    take = FairQueue.take

    def counted(queue: FairQueue[object, object]) -> object:
        counts.append(len(queue))
        return take(queue)

    monkeypatch.setattr(FairQueue, "take", counted)
    assert len(asked_of_store(role.on_tick(0.0))) == MAX_UNDER_WAY
    # Each is taken once, and the others are not visited.
    assert counts == [*range(5 * MAX_UNDER_WAY, 4 * MAX_UNDER_WAY, -1)]


def test_a_store_that_does_not_answer_is_asked_twice_and_then_all_nodes() -> None:
    role = told_of(2)
    assert asked_of_store(role.on_tick(0.0)) == ["P0", "P1"]
    assert asked_of_store(role.on_tick(timing.FETCH_RETRY_S)) == ["P0", "P1"]
    role.on_batch(timing.FETCH_RETRY_S, ME, batch_of(0, 1, TOPIC, "P1"))
    assert [fetch.partition for fetch in fetches_in(role.on_tick(3 * timing.FETCH_RETRY_S))] == [
        "P0"
    ]


def test_partitions_without_answers_delay_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_scheduler, "MAX_UNDER_WAY", 3)
    role = told_of(0)
    dead = {f"P{i}" for i in range(10)}
    for i in range(20):
        role.on_message(0.0, DirectHead(ME, TOPIC, f"P{i}", 0), STORE)
    now, asked = 0.0, dict.fromkeys((f"P{i}" for i in range(20)), 0)
    while now < 20 * timing.MAX_FETCH_RETRY_S:
        now += 0.5
        requests = fetches_in(role.on_tick(now))
        assert len(requests) <= 3
        for fetch in requests:
            asked[fetch.partition] += 1
            if fetch.partition not in dead:
                role.on_batch(now, ME, batch_of(0, 1, TOPIC, fetch.partition))
    assert {tp.partition for tp, (offset, _) in role.positions().items() if not offset} == dead
    assert all(asked[partition] > 2 for partition in dead)


def test_lost_records_that_a_consumer_waits_for_delay_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fetch_scheduler, "MAX_UNDER_WAY", 3)
    role, now = ConsumerRole(ME, "earliest", WAIT), 0.0
    role.subscribe(TOPIC)
    for i in range(3):
        role.on_message(now, DirectHead(ME, TOPIC, f"P{i}", 0), STORE)
    while len(role.losses) < 3:
        now += 1.0
        role.on_tick(now)
    requests = fetches_in(role.on_message(now, DirectHead(ME, TOPIC, "P", 0), STORE))
    for _ in range(3):
        now += timing.FETCH_RETRY_S
        requests += fetches_in(role.on_tick(now))
    assert "P" in {fetch.partition for fetch in requests}


def test_a_partition_without_answers_keeps_its_turn_for_1_s_while_others_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fetch_scheduler, "MAX_UNDER_WAY", 1)
    role, now = told_of(0), 0.0
    role.on_message(now, DirectHead(ME, TOPIC, "dead", 0), STORE)
    while now < 4 * timing.MAX_FETCH_RETRY_S:  # it is requested at the longest interval now
        now = role.scheduler.deadline()
        role.on_tick(now)
    for end in range(1, 6):
        began_s, requests = now, fetches_in(role.on_message(now, Head(TOPIC, "P", end - 1), ""))
        while not any(fetch.partition == "P" for fetch in requests):
            now = role.scheduler.deadline()
            requests = fetches_in(role.on_tick(now))
        assert now <= began_s + timing.FETCH_RETRY_S
        role.on_batch(now, ME, batch_of(end - 1, end, TOPIC, "P"))


def test_a_partition_announced_again_and_again_delays_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fetch_scheduler, "MAX_UNDER_WAY", 1)
    role = told_of(0)
    asked = set()
    for now in range(5):
        # It is asked for anew each time, before it is overdue.
        messages = role.on_message(now, DirectHead(ME, TOPIC, "dead", 0), STORE)
        messages += role.on_message(now, DirectHead(ME, TOPIC, "P", 0), STORE)
        asked |= {fetch.partition for fetch in fetches_in([*messages, *role.on_tick(now)])}
    assert asked == {"dead", "P"}


def test_a_request_just_sent_is_not_in_vain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two peers announce a partition at once, and others wait: it is under way, and stays so."""
    monkeypatch.setattr(fetch_scheduler, "MAX_UNDER_WAY", 1)
    role = told_of(0)
    first = role.on_message(0.0, DirectHead(ME, TOPIC, "A", 0), STORE)
    assert [fetch.partition for fetch in fetches_in(first)] == ["A"]
    assert role.on_message(0.0, DirectHead(ME, TOPIC, "B", 0), STORE) == []
    again = role.on_message(0.0, DirectHead(ME, TOPIC, "A", 0), STORE)
    assert {fetch.partition for fetch in fetches_in([*again, *role.on_tick(0.0)])} <= {"A"}
    assert role.deadline(0.0) == timing.FETCH_RETRY_S
    # Later, it is: the others first.
    role.on_message(0.1, DirectHead(ME, TOPIC, "A", 0), STORE)
    assert [fetch.partition for fetch in fetches_in(role.on_tick(0.1))] == ["B"]


def test_a_request_in_flight_keeps_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_scheduler, "MAX_UNDER_WAY", 1)
    role = told_of(0)
    role.on_message(0.0, DirectHead(ME, TOPIC, "A", 0), STORE)
    role.on_message(0.0, DirectHead(ME, TOPIC, "B", 0), STORE)
    assert role.on_message(0.1, Head(TOPIC, "A", 0), "") == []
    assert fetches_in(role.on_tick(0.1)) == []
    assert role.deadline(0.1) == timing.FETCH_RETRY_S


def test_a_partition_requested_before_its_turn_waits_no_longer() -> None:
    role = told_of(1)
    asked = fetches_in(role.on_message(0.0, DirectHead(ME, TOPIC, "P0", 0), STORE))
    assert [fetch.partition for fetch in asked] == ["P0"]
    assert len(role.scheduler) == 1


def test_waiting_partitions_count_as_unanswered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_scheduler, "MAX_UNDER_WAY", 3)
    role = told_of(20)
    for now in range(10):
        role.on_tick(float(now))
    assert len(role.scheduler.unanswered(20.0, 10.0)) == 20


def test_partitions_beyond_the_limit_wait_for_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_scheduler, "MAX_UNDER_WAY", 3)
    role, asked = told_of(0), list[Outgoing]()
    for i in range(5):
        asked += role.on_message(0.0, DirectHead(ME, TOPIC, f"P{i}", 0), STORE)
    assert [fetch.partition for fetch in fetches_in(asked)] == ["P0", "P1", "P2"]
    role.on_tick(0.0)
    assert role.deadline(0.0) == timing.FETCH_RETRY_S
    # A place becomes free, and the loop must not wait before it requests the next partition.
    role.on_batch(0.1, ME, batch_of(0, 1, TOPIC, "P1"))
    due = role.deadline(0.1)
    assert due <= 0.1
    assert [fetch.partition for fetch in fetches_in(role.on_tick(0.1))] == ["P3"]


def test_unsubscribing_makes_room() -> None:
    role = told_of(2 * MAX_UNDER_WAY)
    role.on_tick(0.0)
    role.unsubscribe(TOPIC)
    assert len(role.scheduler) == 0
    role.subscribe("other")
    assert len(fetches_in(role.on_message(0.0, DirectHead(ME, "other", "P", 0), STORE))) == 1


def test_owners_take_turns_and_each_has_its_own_order() -> None:
    waiting = FairQueue[int, str]()
    for number in (*range(1_000), *range(1_000)):
        waiting.put("mallory", number, f"M{number}")
    for number in (0, 1):
        waiting.put("honest", number, f"H{number}")
    assert len(waiting) == 1_002
    # Every second one is for owners with few entries.
    assert [waiting.take() for _ in range(5)] == ["M0", "H0", "M1", "H1", "M2"]
    assert len([*waiting]) == len(waiting) == 997


def test_a_removed_entry_may_wait_again() -> None:
    waiting = FairQueue[int, str]()
    waiting.remove("owner", 1)
    waiting.put("owner", 1, "one")
    waiting.remove("owner", 2)
    assert [*waiting] == ["one"]
    waiting.remove("owner", 1)
    assert (len(waiting), waiting.take()) == (0, None)
    waiting.put("owner", 2, "other")
    waiting.put("owner", 1, "one")
    assert [waiting.take(), waiting.take()] == ["other", "one"]
