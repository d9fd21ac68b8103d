"""Unmodified admin clients list, describe and delete groups, and simple consumers commit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from dafka_core import Store
from dafka_core.testing import wait_until
from dafka_kafka.gateway import Gateway
from tests.integration.kafka.groups.members import MemberGroup, create_topic

TOPIC = "t"
OPTIONS: dict[str, Any] = {
    "listen": "127.0.0.1:0",
    "group_rebalance_delay_ms": 0,
    "group_min_session_timeout_ms": 1_000,
}


@pytest.fixture
def servers(store: Store) -> Iterator[str]:
    with Gateway(store, **OPTIONS) as gateway:
        found = str(gateway.advertised)
        create_topic(found, TOPIC, 2)
        yield found


def commit(servers: str, group: str, *offsets: int) -> list[int]:
    """A consumer without a group's members commits; what it, or the next one, finds committed."""
    from confluent_kafka import Consumer, TopicPartition

    settings = {"bootstrap.servers": servers, "group.id": group, "enable.auto.commit": False}
    consumer = Consumer(settings)
    try:
        places = [TopicPartition(TOPIC, number, at) for number, at in enumerate(offsets)]
        if offsets:
            consumer.commit(offsets=places, asynchronous=False)
        asked = [TopicPartition(TOPIC, number) for number in range(2)]
        return [each.offset for each in consumer.committed(asked, 30)]
    finally:
        consumer.close()


def test_a_simple_consumer_commits_and_finds_what_it_has_committed(servers: str) -> None:
    assert commit(servers, "simple", 5, 7) == [5, 7]
    assert commit(servers, "simple", 4) == [4, 7]
    assert commit(servers, "simple") == [4, 7]
    assert commit(servers, "other") == [-1001, -1001]  # librdkafka's word for none


def test_librdkafkas_admin_sees_groups_and_deletes_them(servers: str) -> None:
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": servers})
    commit(servers, "simple", 5, 7)
    with MemberGroup("confluent", servers, TOPIC).start("one"):

        def states() -> dict[str, str]:
            listed = admin.list_consumer_groups(request_timeout=30).result(30)
            names = [each.group_id for each in listed.valid]
            found = admin.describe_consumer_groups(names, request_timeout=30)
            return {name: each.result(30).state.name for name, each in found.items()}

        wait_until(lambda: states() == {"g": "STABLE", "simple": "EMPTY"}, "both are listed")
        described = admin.describe_consumer_groups(["g"], request_timeout=30)["g"].result(30)
        (member,) = described.members
        assert (member.client_id, member.group_instance_id) == ("rdkafka", "one")
        numbers = [each.partition for each in member.assignment.topic_partitions]
        assert (described.partition_assignor, sorted(numbers)) == ("range", [0, 1])
        gone = admin.delete_consumer_groups(["g", "simple"], request_timeout=30)
        assert gone["simple"].result(30) is None
        error = gone["g"].exception(30)
        assert error is not None
        assert "NON_EMPTY_GROUP" in str(error)
        assert states() == {"g": "STABLE"}
    assert commit(servers, "simple") == [-1001, -1001]
