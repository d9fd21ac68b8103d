"""Groups of unmodified clients consume all records while members die; admin clients see them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

from dafka_core import Store
from dafka_core.flight.store_client import StoreClient
from dafka_core.flight.store_location import StoreLocation
from dafka_core.model.records import RecordBatch
from dafka_core.model.values import Values
from dafka_core.testing import wait_until
from dafka_kafka.gateway import Gateway
from dafka_kafka.groups.group_lag import GroupLag, group_lags
from dafka_kafka.registry_table import RegistryLog
from tests.integration.kafka.groups.members import MemberGroup, create_topic

TOPIC, NUMBERS, ROUND = "t", range(6), 40


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
        location = StoreLocation(self.store.address, self.store.locations)
        with StoreClient(location) as client:
            return next(iter(group_lags([client], timeout_s=30)), None)

    @property
    def records_behind(self) -> int | None:
        found = self.group()
        return found.records_behind if found else None

    def has_members(self, count: int) -> bool:
        found = self.group()
        return found is not None and found.members == count


@pytest.fixture
def served(store: Store) -> Iterator[Served]:
    options = {"group_rebalance_delay_ms": 200, "group_min_session_timeout_ms": 1_000}
    with Gateway(store, listen="127.0.0.1:0", **options) as gateway:
        found = Served(store, gateway)
        create_topic(found.servers, TOPIC, len(NUMBERS))
        yield found


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


def commit(served: Served, group: str, *offsets: int) -> list[int]:
    """A consumer without a group's members commits; what it, or the next one, finds committed."""
    settings = {"bootstrap.servers": served.servers, "group.id": group, "enable.auto.commit": False}
    consumer = Consumer(settings)
    try:
        places = [TopicPartition(TOPIC, number, at) for number, at in enumerate(offsets)]
        if offsets:
            consumer.commit(offsets=places, asynchronous=False)
        asked = [TopicPartition(TOPIC, number) for number in range(2)]
        return [each.offset for each in consumer.committed(asked, 30)]
    finally:
        consumer.close()


def test_librdkafkas_admin_sees_groups_and_deletes_them(served: Served) -> None:
    admin = AdminClient({"bootstrap.servers": served.servers})
    commit(served, "simple", 5, 7)
    with MemberGroup("confluent", served.servers, TOPIC).start("one"):

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
        assert (described.partition_assignor, sorted(numbers)) == ("range", [*NUMBERS])
        gone = admin.delete_consumer_groups(["g", "simple"], request_timeout=30)
        assert gone["simple"].result(30) is None
        error = gone["g"].exception(30)
        assert error is not None
        assert "NON_EMPTY_GROUP" in str(error)
        assert states() == {"g": "STABLE"}
    assert commit(served, "simple") == [-1001, -1001]
