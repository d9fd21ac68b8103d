"""What consumers say of themselves, in octets that the gateway only looks into."""

from __future__ import annotations

import random

import pytest

from dafka_core.kafka.groups.member import assigned_partitions, subscribed_topics

SUBSCRIPTION = b"\0\1" + b"\0\0\0\2" + b"\0\1a" + b"\0\2bc" + b"\xff\xff\xff\xff"
ASSIGNMENT = (
    b"\0\0" + b"\0\0\0\1" + b"\0\1a" + b"\0\0\0\2" + b"\0\0\0\0" + b"\0\0\0\5" + b"\0\0\0\0"
)


def test_topics_and_partitions_are_read() -> None:
    assert subscribed_topics(SUBSCRIPTION) == {"a", "bc"}
    assert assigned_partitions(ASSIGNMENT) == [("a", 0), ("a", 5)]


@pytest.mark.parametrize("length", range(len(SUBSCRIPTION) - 4))
def test_what_is_cut_short_says_nothing(length: int) -> None:
    assert subscribed_topics(SUBSCRIPTION[:length]) is None


def test_anything_may_be_there() -> None:
    chance = random.Random(1)
    for _ in range(20_000):
        octets = bytearray(chance.choice([SUBSCRIPTION, ASSIGNMENT]))
        for _ in range(chance.randrange(1, 4)):
            octets[chance.randrange(len(octets))] = chance.randrange(256)
        subscribed_topics(bytes(octets))
        assert len(assigned_partitions(bytes(octets))) < 100
