"""A store's limits by name, and each owner's share."""

from __future__ import annotations

import logging
from collections import Counter

import pytest

from dafka_core.config.node_options import StoreLimitError, StoreLimitOptions
from dafka_core.model.records import TopicPartition
from dafka_core.protocol.messages import Head
from dafka_core.protocol.role import Outgoing
from dafka_core.protocol.store_limits import LIMITS, LOG_INTERVAL_S, StoreLimits, Usage
from dafka_core.protocol.store_role import StoreRole
from tests.unit.protocol.model import PARTITION, TOPIC, TP, batch_of, fetches_in
from tests.unit.protocol.test_store_role import ME, SYNC_S, Disk, ack, fetch

A, B = "A" * 12, "B" * 12


def tp(topic: str = "t", owner: str = A, number: int = 0) -> TopicPartition:
    return TopicPartition(topic, f"{owner}{number:020X}")


def held(*tps: TopicPartition, size_bytes: int = 0, seen: bool = True) -> Usage:
    return Usage(
        Counter(each.topic for each in tps),
        Counter(each.partition[:12] for each in tps),
        Counter({A: size_bytes}),
        set(tps) if seen else set(),
    )


def option(error: StoreLimitError | None) -> str:
    return error.option if error else ""


def test_each_limit_is_an_option() -> None:
    assert tuple(StoreLimitOptions().store_limits) == LIMITS


@pytest.mark.parametrize(
    ("name", "refused", "admitted"),
    [
        ("max_partitions", tp("u", B), None),
        ("max_topics", tp("u", B), tp("t", B)),
        ("max_partitions_per_topic", tp("t", B), tp("u", A, 5)),
        ("max_partitions_per_key", tp("u", A, 5), tp("t", B)),
    ],
)
@pytest.mark.parametrize("in_the_log", [False, True])
def test_each_limit_refuses_what_is_above_it(
    name: str, refused: TopicPartition, admitted: TopicPartition | None, in_the_log: bool
) -> None:
    most = 1 if name == "max_topics" else 2
    limits = StoreLimits({name: most}, by_key=True)
    for number in range(2):
        assert limits.why_not_new(tp(number=number)) is None
        limits.add(tp(number=number))
    if in_the_log:
        limits.begin_scan()
        limits.apply(held(*limits.new))
        assert not limits.new
    error = limits.why_not_new(refused)
    assert f"{name} = {most} (owner {refused.partition[:12]})" in str(error)
    assert admitted is None or limits.why_not_new(admitted) is None


def test_without_keys_an_address_is_an_owner() -> None:
    limits = StoreLimits({"max_partitions_per_key": 1})
    limits.add(tp())
    assert limits.why_not_new(tp(number=1)) is None
    assert option(limits.why_not_new(tp("u"))) == "max_partitions_per_key"


def test_deleted_partitions_make_room() -> None:
    limits = StoreLimits({"max_topics": 1})
    limits.add(tp())
    limits.apply(held(tp()))
    assert option(limits.why_not_new(tp("u"))) == "max_topics"
    limits.apply(Usage())
    assert limits.why_not_new(tp("u")) is None


def test_a_partition_that_arrived_during_a_scan_counts_after_it() -> None:
    limits = StoreLimits({"max_partitions": 2})
    limits.add(tp())
    limits.add(tp("u"))
    limits.apply(held(tp()))
    assert list(limits.new) == [tp("u")]
    assert option(limits.why_not_new(tp("v"))) == "max_partitions"


def test_internal_topics_do_not_count() -> None:
    limits = StoreLimits({"max_topics": 1, "max_partitions_per_key": 3}, by_key=True)
    for number in range(3):
        assert limits.why_not_new(tp(f"__dafka.{number}")) is None
        limits.add(tp(f"__dafka.{number}"))
    assert limits.why_not_new(tp("t", B)) is None
    assert option(limits.why_not_new(tp("__dafka.3"))) == "max_partitions_per_key"


def test_an_owner_at_its_byte_limit_is_refused_until_a_scan_finds_less() -> None:
    limits = StoreLimits({"max_key_bytes": 100}, by_key=True)
    assert limits.why_no_records(tp()) is None
    assert not limits.take(tp(), 60)
    assert limits.take(tp("u"), 60)
    assert not limits.take(tp(), 60)  # no news
    assert option(limits.why_no_records(tp())) == "max_key_bytes"
    assert option(limits.why_not_new(tp("v"))) == "max_key_bytes"
    assert limits.why_no_records(tp("t", B)) is None
    limits.store(tp(), 60)
    limits.begin_scan()
    assert limits.apply(held(tp(), size_bytes=60)) == set()  # more is on its way
    for _ in range(2):
        limits.store(tp(), 60)
    limits.begin_scan()
    assert limits.apply(held(tp(), size_bytes=180)) == set()
    limits.begin_scan()
    assert limits.apply(held(tp(), size_bytes=99)) == {A}
    assert limits.why_no_records(tp()) is None
    assert limits.take(tp(), 1)


def test_bytes_written_during_a_scan_count_after_it() -> None:
    limits = StoreLimits({"max_key_bytes": 100}, by_key=True)
    limits.take(tp(), 50)
    limits.store(tp(), 50)
    limits.begin_scan()
    limits.take(tp(), 40)
    limits.store(tp(), 40)
    assert not limits.apply(held(tp(), size_bytes=50))
    assert limits.take(tp(), 10)


def test_without_a_limit_nothing_is_refused() -> None:
    limits = StoreLimits()
    for number in range(1_000):
        limits.add(tp(f"t{number}", number=number))
        assert not limits.take(tp(), 1 << 40)
    assert limits.why_not_new(tp()) is limits.why_no_records(tp()) is None
    assert not limits.counts_bytes


def test_refusals_are_counted_and_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    limits = StoreLimits({"max_topics": 1})
    limits.add(tp())
    error = limits.why_not_new(tp("u"))
    with caplog.at_level(logging.ERROR, "dafka.store"):
        for step in range(100):
            assert str(limits.check(tp("u"), is_new=True)) == str(error)
            limits.report(step / 10)
        limits.report(LOG_INTERVAL_S)
        limits.report(3 * LOG_INTERVAL_S)
    assert limits.refused == {**dict.fromkeys(LIMITS, 0), "max_topics": 100}
    said = [record.getMessage() for record in caplog.records]
    assert [text.partition(";")[0] for text in said] == [
        "refused 1 times by limit max_topics",
        "refused 99 times by limit max_topics",
    ]
    assert str(error) in said[0]


BATCH = batch_of(0, 10)
SIZE_BYTES = BATCH.values.size_bytes


def store(disk: Disk, **most: int) -> StoreRole:
    role = StoreRole(ME, disk.lives, sync_interval_s=SYNC_S, limits=StoreLimits(most))
    role.on_tick(0.0)
    return role


def head(role: StoreRole, end: int, now: float, partition: str = PARTITION) -> list[Outgoing]:
    return role.on_message(now, Head(TOPIC, partition, end - 1), "")


def asked(role: StoreRole, begin_s: float, end_s: float) -> int:
    """Return the number of requests during a time with one head each second."""
    count = 0
    for tenth in range(int(begin_s * 10), int(end_s * 10)):
        now = tenth / 10
        messages = head(role, 20, now) if tenth % 10 == 0 else []
        count += len(fetches_in([*messages, *role.on_tick(now)]))
    return count


def test_a_partition_on_disk_is_always_continued() -> None:
    role = store(Disk(**{TOPIC: 10}), max_partitions=1, max_topics=1, max_partitions_per_topic=1)
    role.admitted.on_scan(Usage(Counter({"u": 1}), Counter({"P9": 1})))
    role.on_batch(0.0, "", batch_of(10, 20))
    assert [each.offset for each in role.take_pending()] == [10]  # type: ignore[union-attr]


def test_a_new_partition_is_accepted_after_others_are_deleted() -> None:
    disk = Disk()
    role = store(disk, max_topics=1)
    role.admitted.on_scan(Usage(Counter({"u": 1}), Counter({"P9": 1})))
    role.on_batch(0.0, "", BATCH)
    assert asked(role, 1, 60) == 0
    assert not role.take_pending()
    assert not role.partitions
    role.admitted.on_scan(Usage())
    assert fetches_in(head(role, 10, 61)) == [fetch(0, 10)]
    role.on_batch(61, ME, BATCH)
    assert disk.store(role) == [ack(10)]


def test_records_of_an_owner_at_its_limit_are_neither_accepted_nor_requested() -> None:
    disk = Disk()
    role = store(disk, max_key_bytes=SIZE_BYTES)
    role.on_batch(0.0, "", BATCH)
    assert disk.store(role) == [ack(10)]
    role.on_batch(0.1, "", batch_of(10, 20))
    assert asked(role, 1, 60) == 0
    assert not role.take_pending()
    assert role.admitted.limits.refused["max_key_bytes"] > 50
    # Durable records are acknowledged again, and others are not delayed.
    role.on_batch(60, "", BATCH)
    assert ack(10) in role.on_tick(60)
    role.on_batch(60, "", batch_of(0, 10, partition="P2"))
    assert len(role.take_pending()) == 1


@pytest.mark.parametrize("is_fetching", [False, True])
def test_refused_partitions_continue_when_a_scan_finds_room(is_fetching: bool) -> None:
    disk = Disk()
    role = store(disk, max_key_bytes=2 * SIZE_BYTES)
    role.on_batch(0.0, "", BATCH)
    disk.store(role)
    if is_fetching:
        assert fetches_in(head(role, 20, 0.5)) == [fetch(10, 20)]
    role.admitted.limits.begin_scan()
    role.admitted.on_scan(Usage(size_bytes=Counter({PARTITION: 2 * SIZE_BYTES}), seen={TP}))
    role.on_batch(0.6, ME, batch_of(10, 20))
    assert asked(role, 1, 60) == 0
    role.admitted.on_scan(Usage(size_bytes=Counter({PARTITION: SIZE_BYTES}), seen={TP}))
    assert fetches_in(role.on_tick(61)) == [fetch(10, 20)]
    role.on_batch(61, ME, batch_of(10, 20))
    assert disk.store(role) == [ack(20)]


def test_a_refused_client_receives_the_limit() -> None:
    role = store(Disk(), max_topics=1, max_key_bytes=SIZE_BYTES)
    assert role.admitted.refusal(TP) is None
    role.host(0.0, BATCH)
    by_bytes = role.admitted.refusal(TP)
    by_topics = role.admitted.refusal(TopicPartition("u", "P2"))
    assert by_bytes is not None
    assert by_topics is not None
    assert [by_bytes.option, by_topics.option] == ["max_key_bytes", "max_topics"]
    assert role.admitted.limits.refused.total() == 2
