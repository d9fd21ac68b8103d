"""A store's limits by name, and each owner's share."""

import logging
from collections import Counter

import pytest

from dafka_core.config.node_options import StoreLimitError, StoreLimitOptions
from dafka_core.model.epochs import NO_LIFE, EpochId
from dafka_core.model.log_entries import Stage
from dafka_core.model.records import RecordBatch, TopicPartition
from dafka_core.protocol import messages as m
from dafka_core.protocol.store_limits import LIMITS, LOG_INTERVAL_S, StoreLimits, Usage
from dafka_core.protocol.store_role import StoreRole
from tests.unit.protocol.model import PARTITION, TOPIC, TP, batch_of, fetches_in
from tests.unit.protocol.test_store_role import ME, Disk, ack, fetch, head, store

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


def sized(tp: TopicPartition, size_bytes: int) -> RecordBatch:
    return RecordBatch.of(tp, 0, [bytes(size_bytes)])


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
        assert limits.check(tp(number=number), is_new=True) is None
        limits.add(tp(number=number))
    if in_the_log:
        limits.begin_scan()
        limits.apply(held(*limits.new))
        assert not limits.new
    error = limits.check(refused, is_new=True)
    assert f"{name} = {most} (owner {refused.partition[:12]})" in str(error)
    assert admitted is None or limits.check(admitted, is_new=True) is None


def test_without_keys_an_address_is_an_owner() -> None:
    limits = StoreLimits({"max_partitions_per_key": 1})
    limits.add(tp())
    assert limits.check(tp(number=1), is_new=True) is None
    assert option(limits.check(tp("u"), is_new=True)) == "max_partitions_per_key"


def test_deleted_partitions_make_room() -> None:
    limits = StoreLimits({"max_topics": 1})
    limits.add(tp())
    limits.apply(held(tp()))
    assert option(limits.check(tp("u"), is_new=True)) == "max_topics"
    limits.apply(Usage())
    assert limits.check(tp("u"), is_new=True) is None


def test_a_partition_that_arrived_during_a_scan_counts_after_it() -> None:
    limits = StoreLimits({"max_partitions": 2})
    limits.add(tp())
    limits.add(tp("u"))
    limits.apply(held(tp()))
    assert list(limits.new) == [tp("u")]
    assert option(limits.check(tp("v"), is_new=True)) == "max_partitions"


def test_internal_topics_do_not_count() -> None:
    limits = StoreLimits({"max_topics": 1, "max_partitions_per_key": 3}, by_key=True)
    for number in range(3):
        assert limits.check(tp(f"__dafka.{number}"), is_new=True) is None
        limits.add(tp(f"__dafka.{number}"))
    assert limits.check(tp("t", B), is_new=True) is None
    assert option(limits.check(tp("__dafka.3"), is_new=True)) == "max_partitions_per_key"


def test_an_owner_at_its_byte_limit_is_refused_until_a_scan_finds_less() -> None:
    limits = StoreLimits({"max_key_bytes": 100}, by_key=True)
    assert limits.check(tp(), is_new=False) is None
    assert limits.on_queued(sized(tp(), 60)) == set()
    assert limits.on_queued(sized(tp("u"), 60)) == {A}
    assert limits.on_queued(sized(tp(), 60)) == set()  # no news
    assert option(limits.check(tp(), is_new=False)) == "max_key_bytes"
    assert option(limits.check(tp("v"), is_new=True)) == "max_key_bytes"
    assert limits.check(tp("t", B), is_new=False) is None
    limits.on_written(sized(tp(), 60))
    limits.begin_scan()
    assert limits.apply(held(tp(), size_bytes=60)) == set()  # more is on its way
    for _ in range(2):
        limits.on_written(sized(tp(), 60))
    limits.begin_scan()
    assert limits.apply(held(tp(), size_bytes=180)) == set()
    limits.begin_scan()
    assert limits.apply(held(tp(), size_bytes=99)) == {A}
    assert limits.check(tp(), is_new=False) is None
    assert limits.on_queued(sized(tp(), 1))


def test_bytes_written_during_a_scan_count_after_it() -> None:
    limits = StoreLimits({"max_key_bytes": 100}, by_key=True)
    limits.on_queued(sized(tp(), 50))
    limits.on_written(sized(tp(), 50))
    limits.begin_scan()
    limits.on_queued(sized(tp(), 40))
    limits.on_written(sized(tp(), 40))
    assert not limits.apply(held(tp(), size_bytes=50))
    assert limits.on_queued(sized(tp(), 10))


def test_refusals_are_counted_and_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    limits = StoreLimits({"max_topics": 1})
    limits.add(tp())
    with caplog.at_level(logging.ERROR, "dafka.store"):
        for step in range(100):
            error = limits.check(tp("u"), is_new=True)
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
    role.on_scan(Usage(Counter({"u": 1}), Counter({"P9": 1})))
    role.on_batch(0.0, "", batch_of(10, 20))
    assert [each.offset for each in role.take_pending()] == [10]  # type: ignore[union-attr]


def test_a_new_partition_is_accepted_after_others_are_deleted() -> None:
    disk = Disk()
    role = store(disk, max_topics=1)
    role.on_scan(Usage(Counter({"u": 1}), Counter({"P9": 1})))
    role.on_batch(0.0, "", BATCH)
    assert asked(role, 1, 60) == 0
    assert not role.take_pending()
    assert not role.partitions
    role.on_scan(Usage())
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
    assert role.limits.refused["max_key_bytes"] > 50
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
    role.limits.begin_scan()
    role.on_scan(Usage(size_bytes=Counter({PARTITION: 2 * SIZE_BYTES}), seen={TP}))
    role.on_batch(0.6, ME, batch_of(10, 20))
    assert asked(role, 1, 60) == 0
    role.on_scan(Usage(size_bytes=Counter({PARTITION: SIZE_BYTES}), seen={TP}))
    assert fetches_in(role.on_tick(61)) == [fetch(10, 20)]
    role.on_batch(61, ME, batch_of(10, 20))
    assert disk.store(role) == [ack(20)]


def test_questions_take_no_room() -> None:
    """A node that may only read could otherwise use up the limits of other owners."""
    role = store(max_partitions=1)
    for partition in ("P1", "P2"):
        asked = m.HistoryQuery("C", 1, TOPIC, partition)
        unknown = m.HistoryReply("C", 1, ME, TOPIC, partition, 0, NO_LIFE, ())
        assert role.on_message(0.0, asked, "") == [unknown]
    assert role.partitions == {}
    role.on_message(0.0, m.HistoryQuery(PARTITION, 2, *TP, EpochId(2, 5, 1)), "")
    assert list(role.partitions) == [TP]


def test_a_refused_client_receives_the_limit() -> None:
    role = store(Disk(), max_topics=1, max_key_bytes=SIZE_BYTES)
    assert isinstance(role.host(0.0, BATCH), RecordBatch)
    for refused in (role.host(0.0, batch_of(10, 20)), role.stage(Stage(batch_of(10, 20), A * 2))):
        assert isinstance(refused, StoreLimitError)
        assert refused.option == "max_key_bytes"
    refused = role.host(0.0, batch_of(0, 10, topic="u", partition="P2"))
    assert isinstance(refused, StoreLimitError)
    assert refused.option == "max_topics"
    assert role.limits.refused.total() == 3
    assert role.take_pending() == [BATCH]
