"""What a limit refuses is neither taken nor asked for, until there is room: then it goes on."""

from __future__ import annotations

from collections import Counter

import pytest

from dafka_core.protocol.messages import Head
from dafka_core.protocol.role import Outgoing
from dafka_core.protocol.store_limits import Held, StoreLimits
from dafka_core.protocol.store_role import StoreRole
from dafka_core.records import TopicPartition
from tests.unit.protocol.model import PARTITION, TOPIC, TP, batch_of, fetches_in
from tests.unit.protocol.test_store_role import ME, SYNC_S, Disk, ack, fetch

BATCH = batch_of(0, 10)
SIZE_BYTES = BATCH.values.size_bytes


def store(disk: Disk, **most: int) -> StoreRole:
    role = StoreRole(ME, disk.lives, sync_interval_s=SYNC_S, limits=StoreLimits(most))
    role.on_tick(0.0)
    return role


def head(role: StoreRole, end: int, now: float, partition: str = PARTITION) -> list[Outgoing]:
    return role.on_message(now, Head(TOPIC, partition, end - 1), "")


def asked(role: StoreRole, begin_s: float, end_s: float) -> int:
    """How often it asks for records in a time in which heads come each second."""
    count = 0
    for tenth in range(int(begin_s * 10), int(end_s * 10)):
        now = tenth / 10
        messages = head(role, 20, now) if tenth % 10 == 0 else []
        count += len(fetches_in([*messages, *role.on_tick(now)]))
    return count


def test_a_partition_that_is_on_disk_is_gone_on_with_whatever_there_is() -> None:
    role = store(Disk(**{TOPIC: 10}), max_partitions=1, max_topics=1, max_partitions_per_topic=1)
    role.admitted.on_held(Held(Counter({"u": 1}), Counter({"P9": 1})))
    role.on_batch(0.0, "", batch_of(10, 20))
    assert [each.offset for each in role.take_pending()] == [10]  # type: ignore[union-attr]


def test_a_new_one_is_taken_when_others_are_gone() -> None:
    disk = Disk()
    role = store(disk, max_topics=1)
    role.admitted.on_held(Held(Counter({"u": 1}), Counter({"P9": 1})))
    role.on_batch(0.0, "", BATCH)
    assert asked(role, 1, 60) == 0
    assert not role.take_pending()
    assert not role.partitions
    role.admitted.on_held(Held())
    assert fetches_in(head(role, 10, 61)) == [fetch(0, 10)]
    role.on_batch(61, ME, BATCH)
    assert disk.store(role) == [ack(10)]


def test_records_of_an_owner_who_has_enough_are_neither_taken_nor_asked_for() -> None:
    disk = Disk()
    role = store(disk, max_key_bytes=SIZE_BYTES)
    role.on_batch(0.0, "", BATCH)
    assert disk.store(role) == [ack(10)]
    role.on_batch(0.1, "", batch_of(10, 20))
    assert asked(role, 1, 60) == 0
    assert not role.take_pending()
    assert role.admitted.limits.refused["max_key_bytes"] > 50
    # What is on disk is acknowledged again, and others are not held up.
    role.on_batch(60, "", BATCH)
    assert ack(10) in role.on_tick(60)
    role.on_batch(60, "", batch_of(0, 10, partition="P2"))
    assert len(role.take_pending()) == 1


@pytest.mark.parametrize("is_fetching", [False, True])
def test_it_goes_on_by_itself_when_there_is_room(is_fetching: bool) -> None:
    disk = Disk()
    role = store(disk, max_key_bytes=2 * SIZE_BYTES)
    role.on_batch(0.0, "", BATCH)
    disk.store(role)
    if is_fetching:
        assert fetches_in(head(role, 20, 0.5)) == [fetch(10, 20)]
    role.admitted.limits.begin_look()
    role.admitted.on_held(Held(size_bytes=Counter({PARTITION: 2 * SIZE_BYTES}), seen={TP}))
    role.on_batch(0.6, ME, batch_of(10, 20))
    assert asked(role, 1, 60) == 0
    role.admitted.on_held(Held(size_bytes=Counter({PARTITION: SIZE_BYTES}), seen={TP}))
    assert fetches_in(role.on_tick(61)) == [fetch(10, 20)]
    role.on_batch(61, ME, batch_of(10, 20))
    assert disk.store(role) == [ack(20)]


def test_a_client_is_told_which_limit_it_is() -> None:
    role = store(Disk(), max_topics=1, max_key_bytes=SIZE_BYTES)
    assert role.admitted.refusal(TP) is None
    role.host(0.0, BATCH)
    by_bytes = role.admitted.refusal(TP)
    by_topics = role.admitted.refusal(TopicPartition("u", "P2"))
    assert by_bytes is not None
    assert by_topics is not None
    assert [by_bytes.option, by_topics.option] == ["max_key_bytes", "max_topics"]
    assert role.admitted.limits.refused.total() == 2
