"""A group survives the kill and the return of its coordinator, with two gateways."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from dafka_core import EmbeddedCluster, Producer
from dafka_core.flight.store_client import StoreClient
from dafka_core.flight.store_location import StoreLocation
from dafka_core.testing import wait_until
from dafka_kafka.groups.group_lag import GroupLag, group_lags
from tests.forked import ForkedCluster
from tests.integration.kafka.groups.members import MemberGroup

TOPIC, NUMBERS, ROUND = "t", range(2), 50
OPTIONS = {"group_rebalance_delay_ms": 200, "group_min_session_timeout_ms": 1_000}


@pytest.fixture
def cluster() -> Iterator[EmbeddedCluster]:
    with ForkedCluster(stores=2, kafka=OPTIONS) as cluster:
        yield cluster


def group_of(cluster: EmbeddedCluster, index: int) -> GroupLag | None:
    with StoreClient(StoreLocation("", cluster.locations(index))) as client:
        return next(iter(group_lags([client], timeout_s=30)), None)


def has_read_all(cluster: EmbeddedCluster, index: int, members: int) -> bool:
    found = group_of(cluster, index)
    committed = [each for each in found.partitions if each.lag] if found else []
    return (
        found is not None
        and (found.members, found.records_behind) == (members, 0)
        and len(committed) == len(NUMBERS)
    )


def coordinator(cluster: EmbeddedCluster) -> int | None:
    """Return the index of the store of the group's coordinator.

    None while the group is loading or moving.
    """
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    try:
        found = admin.describe_consumer_groups(["g"], request_timeout=30)["g"].result(60)
    except KafkaException:
        return None
    ports = [int(each) for each in re.findall(r":(\d+)", cluster.bootstrap_servers)]
    return ports.index(found.coordinator.port)


def publish(producers: list[Producer]) -> None:
    for producer in producers:
        producer.publish_many([b"record"] * ROUND)
    for producer in producers:
        producer.flush(60)


def test_a_group_outlives_its_coordinator(cluster: EmbeddedCluster) -> None:
    with ExitStack() as stack:
        producers = [stack.enter_context(Producer(TOPIC, tower=cluster.tower)) for _ in NUMBERS]
        publish(producers)
        group = MemberGroup("confluent", cluster.bootstrap_servers, TOPIC)
        stack.enter_context(group)
        group.start("", "")
        wait_until(lambda: group.have_read(NUMBERS, ROUND), "all is read", 60)
        wait_until(lambda: has_read_all(cluster, 0, 2), "all is committed")
        wait_until(lambda: has_read_all(cluster, 1, 2), "the other store has it, too")
        victim = coordinator(cluster)
        assert victim is not None
        cluster.kill_store(victim)
        publish(producers)
        wait_until(lambda: group.have_read(NUMBERS, 2 * ROUND), "the group continues", 60)
        # Committed records are not consumed again.
        assert {group.read[number, at] for number in NUMBERS for at in range(ROUND)} == {1}
        wait_until(lambda: has_read_all(cluster, 1 - victim, 2), "it commits to the other gateway")
        # The killed gateway returns, and coordinates the group again with its full state.
        cluster.start_store(victim)
        wait_until(lambda: coordinator(cluster) == victim, "it is chosen again", 60)
        publish(producers)
        wait_until(lambda: group.have_read(NUMBERS, 3 * ROUND), "the group continues again", 60)
        assert {group.read[number, at] for number in NUMBERS for at in range(ROUND)} == {1}
        wait_until(lambda: has_read_all(cluster, victim, 2), "it commits there again")
