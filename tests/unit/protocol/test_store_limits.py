"""What a store takes is bounded by limits with names, and one owner's share by his own."""

from __future__ import annotations

import logging
from collections import Counter

import pytest

from dafka_core.limit_options import StoreLimitError, StoreLimitOptions
from dafka_core.protocol.store_limits import LIMITS, SAY_AGAIN_S, Held, StoreLimits
from dafka_core.records import TopicPartition

A, B = "A" * 12, "B" * 12


def tp(topic: str = "t", owner: str = A, number: int = 0) -> TopicPartition:
    return TopicPartition(topic, f"{owner}{number:020X}")


def held(*tps: TopicPartition, size_bytes: int = 0, seen: bool = True) -> Held:
    return Held(
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
        limits.begin_look()
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


def test_what_the_log_does_not_hold_any_more_makes_room() -> None:
    limits = StoreLimits({"max_topics": 1})
    limits.add(tp())
    limits.apply(held(tp()))
    assert option(limits.why_not_new(tp("u"))) == "max_topics"
    limits.apply(Held())
    assert limits.why_not_new(tp("u")) is None


def test_a_partition_that_came_during_a_look_counts_after_it() -> None:
    limits = StoreLimits({"max_partitions": 2})
    limits.add(tp())
    limits.add(tp("u"))
    limits.apply(held(tp()))
    assert list(limits.new) == [tp("u")]
    assert option(limits.why_not_new(tp("v"))) == "max_partitions"


def test_topics_of_dafkas_own_are_none_of_those_that_count() -> None:
    limits = StoreLimits({"max_topics": 1, "max_partitions_per_key": 3}, by_key=True)
    for number in range(3):
        assert limits.why_not_new(tp(f"__dafka.{number}")) is None
        limits.add(tp(f"__dafka.{number}"))
    assert limits.why_not_new(tp("t", B)) is None
    assert option(limits.why_not_new(tp("__dafka.3"))) == "max_partitions_per_key"


def test_an_owner_with_as_much_as_he_may_is_over_until_a_look_says_less() -> None:
    limits = StoreLimits({"max_key_bytes": 100}, by_key=True)
    assert limits.why_no_records(tp()) is None
    assert not limits.take(tp(), 60)
    assert limits.take(tp("u"), 60)
    assert not limits.take(tp(), 60)  # no news
    assert option(limits.why_no_records(tp())) == "max_key_bytes"
    assert option(limits.why_not_new(tp("v"))) == "max_key_bytes"
    assert limits.why_no_records(tp("t", B)) is None
    limits.store(tp(), 60)
    limits.begin_look()
    assert limits.apply(held(tp(), size_bytes=60)) == set()  # more is on its way
    for _ in range(2):
        limits.store(tp(), 60)
    limits.begin_look()
    assert limits.apply(held(tp(), size_bytes=180)) == set()
    limits.begin_look()
    assert limits.apply(held(tp(), size_bytes=99)) == {A}
    assert limits.why_no_records(tp()) is None
    assert limits.take(tp(), 1)


def test_what_came_during_a_look_counts_after_it() -> None:
    limits = StoreLimits({"max_key_bytes": 100}, by_key=True)
    limits.take(tp(), 50)
    limits.store(tp(), 50)
    limits.begin_look()
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


def test_what_is_refused_is_counted_and_said_once_a_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    limits = StoreLimits({"max_topics": 1})
    limits.add(tp())
    error = limits.why_not_new(tp("u"))
    assert error is not None
    with caplog.at_level(logging.ERROR, "dafka.store"):
        for step in range(100):
            limits.refuse(error)
            limits.report(step / 10)
        limits.report(SAY_AGAIN_S)
        limits.report(3 * SAY_AGAIN_S)
    assert limits.refused == {**dict.fromkeys(LIMITS, 0), "max_topics": 100}
    said = [record.getMessage() for record in caplog.records]
    assert [text.partition(";")[0] for text in said] == [
        "refused 1 times by limit max_topics",
        "refused 99 times by limit max_topics",
    ]
    assert str(error) in said[0]
