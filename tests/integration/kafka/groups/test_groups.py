"""Groups of unmodified clients consume all records while members and coordinators die."""

import re
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from dafka_core import EmbeddedCluster, Producer, Store
from dafka_core.flight.store_client import StoreClient
from dafka_core.flight.store_location import StoreLocation
from dafka_core.model.records import RecordBatch
from dafka_core.model.values import Values
from dafka_core.testing import wait_until
from dafka_kafka.gateway import Gateway
from dafka_kafka.groups.group_lag import GroupLag, group_lags
from dafka_kafka.registry_table import RegistryLog
from tests.forked import ForkedCluster
from tests.integration.kafka.admin import admin_of, make
from tests.integration.kafka.groups.members import MemberGroup

TOPIC, NUMBERS, ROUND = "t", range(6), 40
PARTITIONS = range(2)
"""Those of two Dafka producers."""

OPTIONS = {"group_rebalance_delay_ms": 200, "group_min_session_timeout_ms": 1_000}


def group_of(location: StoreLocation) -> GroupLag | None:
    """Return the group's state in a store."""
    with StoreClient(location) as client:
        return next(iter(group_lags([client], timeout_s=30)), None)


class Served:
    """A store with a gateway, a topic of six partitions, and its groups."""

    def __init__(self, store: Store, gateway: Gateway) -> None:
        self.store = store
        self.servers = str(gateway.advertised)
        self._end = 0

    def append(self, count: int = ROUND) -> int:
        """Append records to each partition; return the ends."""
        table = RegistryLog(self.store.log).read()
        for number in NUMBERS:
            partition = table.get(TOPIC, number)
            assert partition is not None
            batch = RecordBatch(partition.tp, self._end, Values.of([b"record"] * count))
            self.store.append_queue.put(batch).result(30)
        self._end += count
        return self._end

    def group(self) -> GroupLag | None:
        return group_of(StoreLocation(self.store.address, self.store.locations))

    @property
    def records_behind(self) -> int | None:
        found = self.group()
        return found.records_behind if found else None

    def has_members(self, count: int) -> bool:
        found = self.group()
        return found is not None and found.members == count


@pytest.fixture
def served(store: Store) -> Iterator[Served]:
    with Gateway(store, listen="127.0.0.1:0", **OPTIONS) as gateway:
        make(admin_of(gateway), TOPIC, count=len(NUMBERS))
        yield Served(store, gateway)


@pytest.mark.parametrize("library", ["confluent", "kafka-python", "aiokafka"])
def test_a_group_of_three_of_which_one_is_killed_reads_all(served: Served, library: str) -> None:
    end = served.append()
    with MemberGroup(library, served.servers, TOPIC) as group:
        group.start("", "", "")
        wait_until(lambda: group.have_read(NUMBERS, end), "all is read")
        wait_until(lambda: served.has_members(3), "three share the partitions")
        end = served.append()
        wait_until(lambda: group.have_read(NUMBERS, end), "the three read all")
        victim = max(group.members, key=lambda each: each.read.total())
        victim.kill()
        end = served.append()
        wait_until(lambda: group.have_read(NUMBERS, end), "two members continue")
        wait_until(lambda: served.has_members(2), "the third one is given up")
        wait_until(lambda: served.records_behind == 0, "all is committed")
        for each in group.members:
            if each is not victim:
                each.stop()
        wait_until(lambda: served.has_members(0), "they leave")
        before = group.read
        found = served.group()
        assert found is not None
        assert (found.state, found.records_behind) == ("empty", 0)
        # Later members continue from their commits.
        group.start("")
        end = served.append(5)
        wait_until(lambda: group.have_read(NUMBERS, end), "a later member continues")
        again = group.read - before
        assert set(again) == {(number, at) for number in NUMBERS for at in range(end - 5, end)}


def test_a_static_member_that_is_killed_comes_back_to_its_partitions(served: Served) -> None:
    end = served.append()
    with MemberGroup("confluent", served.servers, TOPIC) as group:
        group.start("one", "two")
        wait_until(lambda: served.has_members(2) and group.have_read(NUMBERS, end), "both read")
        wait_until(lambda: len({*_readers(served).values()}) == 2, "both have partitions")
        before = _readers(served)
        group.members[0].kill()
        group.start("one")
        end = served.append()
        wait_until(lambda: group.have_read(NUMBERS, end), "it reads again")
        assert _readers(served) == before


def _readers(served: Served) -> dict[int, str | None]:
    """Return the partitions' consumers by instance."""
    found = served.group()
    assert found is not None
    return {each.number: each.member.joined.instance_id for each in found.partitions if each.member}


@pytest.fixture
def cluster() -> Iterator[EmbeddedCluster]:
    with ForkedCluster(stores=2, kafka=OPTIONS) as cluster:
        yield cluster


def has_read_all(cluster: EmbeddedCluster, index: int, members: int) -> bool:
    found = group_of(StoreLocation("", cluster.locations(index)))
    committed = [each for each in found.partitions if each.lag] if found else []
    return (
        found is not None
        and (found.members, found.records_behind) == (members, 0)
        and len(committed) == len(PARTITIONS)
    )


def coordinator(cluster: EmbeddedCluster) -> int | None:
    """Return the index of the store of the group's coordinator.

    None while the group is loading or moving.
    """
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    try:
        found = admin.describe_consumer_groups(["g"], request_timeout=30)["g"].result(60)
    except KafkaException:
        return None
    ports = [int(each) for each in re.findall(r":(\d+)", cluster.bootstrap_servers)]
    return ports.index(found.coordinator.port)


def publish(producers: list[Producer], count: int) -> None:
    for producer in producers:
        producer.publish_many([b"record"] * count)
    for producer in producers:
        producer.flush(60)


def test_a_group_outlives_its_coordinator(cluster: EmbeddedCluster) -> None:
    """With two gateways, it survives the kill and the return of its coordinator."""
    count = 50
    with ExitStack() as stack:
        producers = [stack.enter_context(Producer(TOPIC, tower=cluster.tower)) for _ in PARTITIONS]
        publish(producers, count)
        group = MemberGroup("confluent", cluster.bootstrap_servers, TOPIC)
        stack.enter_context(group)
        group.start("", "")
        wait_until(lambda: group.have_read(PARTITIONS, count), "all is read", 60)
        wait_until(lambda: has_read_all(cluster, 0, 2), "all is committed")
        wait_until(lambda: has_read_all(cluster, 1, 2), "the other store has it, too")
        victim = coordinator(cluster)
        assert victim is not None
        cluster.kill_store(victim)
        publish(producers, count)
        wait_until(lambda: group.have_read(PARTITIONS, 2 * count), "the group continues", 60)
        # Committed records are not consumed again.
        assert {group.read[number, at] for number in PARTITIONS for at in range(count)} == {1}
        wait_until(lambda: has_read_all(cluster, 1 - victim, 2), "it commits to the other gateway")
        # The killed gateway returns, and coordinates the group again with its full state.
        cluster.start_store(victim)
        wait_until(lambda: coordinator(cluster) == victim, "it is chosen again", 60)
        publish(producers, count)
        wait_until(lambda: group.have_read(PARTITIONS, 3 * count), "the group continues again", 60)
        assert {group.read[number, at] for number in PARTITIONS for at in range(count)} == {1}
        wait_until(lambda: has_read_all(cluster, victim, 2), "it commits there again")
