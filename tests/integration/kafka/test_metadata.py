"""Metadata of topics and gateways, and topics created on request."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from aiokafka.admin import AIOKafkaAdminClient
from confluent_kafka import TopicCollection
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from kafka.admin import KafkaAdminClient

from dafka_core import Producer, Store, Tower
from dafka_core.testing import wait_until
from dafka_kafka import partition_registry
from dafka_kafka.errors import KafkaError
from dafka_kafka.gateway import Gateway
from dafka_kafka.metadata import MOST_INLINE
from dafka_kafka.schemas import (
    DescribeClusterRequest,
    DescribeTopicPartitionsRequest,
    MetadataRequest,
)
from dafka_kafka.topics import KAFKAS_OWN
from tests.integration.kafka import aio, one_request

PATIENCE_S = 30.0
OFTEN: dict[str, Any] = {
    "beacon_interval_ms": 200,
    "peer_expiry_ms": 1_500,
    "sync_interval_ms": 200,
}

Start = Callable[[str], tuple[Store, Gateway]]


@pytest.fixture
def live_tower() -> Iterator[Tower]:
    sub, pub = "tcp://127.0.0.1:0", "tcp://127.0.0.1:0"
    with Tower(sub_address=sub, pub_address=pub) as running:
        yield running


@pytest.fixture
def start(live_tower: Tower, tmp_path: Path) -> Iterator[Start]:
    """Start a store with a gateway."""
    with ExitStack() as running:

        def make(name: str) -> tuple[Store, Gateway]:
            store = running.enter_context(Store(tmp_path / name, tower=live_tower.tower, **OFTEN))
            gateway = Gateway(store, listen="127.0.0.1:0", num_partitions=2)
            return store, running.enter_context(gateway)

        yield make


def admin(gateway: Gateway) -> AdminClient:
    return AdminClient({"bootstrap.servers": str(gateway.listens), "log_level": 0})


def listed(client: AdminClient, *topic: str) -> Any:
    return client.list_topics(*topic, timeout=PATIENCE_S)


def tell(gateway: Gateway, version: int, **members: Any) -> Any:
    return one_request.tell(gateway, MetadataRequest(**members), version)


def tell_cluster(gateway: Gateway) -> Any:
    return one_request.tell(gateway, DescribeClusterRequest(endpoint_type=1), 1)


def names(answer: Any) -> dict[str, int]:
    return {each.name: each.error_code for each in answer.topics}


def test_a_topic_that_is_asked_for_is_made(gateway: Gateway) -> None:
    client = admin(gateway)
    found = listed(client, "flights")
    assert list(found.topics["flights"].partitions) == [0]
    assert found.topics["flights"].error is None
    assert list(listed(client).topics) == ["flights"]
    assert found.cluster_id == listed(client).cluster_id
    (own,) = found.brokers.values()
    assert (own.host, own.port) == gateway.listens
    assert found.controller_id == own.id == found.topics["flights"].partitions[0].leader


@pytest.mark.parametrize("version", range(9))
def test_every_version_of_the_question_is_answered(start: Start, version: int) -> None:
    _, gateway = start("a")
    assert names(tell(gateway, version, topics=[topic("t")])) == {"t": 0}
    everything = tell(gateway, version, topics=[] if version == 0 else None)
    assert names(everything) == {"t": 0}
    (found,) = everything.topics
    assert [each.partition_index for each in found.partitions] == [0, 1]
    assert {each.leader_id for each in found.partitions} == {everything.brokers[0].node_id}
    if version > 0:
        assert names(tell(gateway, version, topics=[])) == {}
    wrong = tell(gateway, version, topics=[topic("no name of Kafka's"), topic("__dafka.queries")])
    assert names(wrong) == {"no name of Kafka's": 17, "__dafka.queries": 17}
    if version >= 4:
        no = tell(gateway, version, topics=[topic("u")], allow_auto_topic_creation=False)
        assert names(no) == {"u": 3}


@pytest.mark.parametrize("version", range(9))
def test_topics_of_kafkas_brokers_are_not_made(gateway: Gateway, version: int) -> None:
    asked = [topic(name) for name in (*sorted(KAFKAS_OWN), "__Consumer_offsets")]
    unknown = dict.fromkeys(KAFKAS_OWN, KafkaError.UNKNOWN_TOPIC_OR_PARTITION)
    assert names(tell(gateway, version, topics=asked)) == unknown | {"__Consumer_offsets": 0}
    everything = tell(gateway, version, topics=[] if version == 0 else None)
    assert names(everything) == {"__Consumer_offsets": 0}


def topic(name: str) -> Any:
    return MetadataRequest.MetadataRequestTopic(name=name)


def test_no_topic_is_made_where_the_option_says_so(store: Store) -> None:
    with Gateway(store, listen="127.0.0.1:0", auto_create_topics=False) as gateway:
        assert names(tell(gateway, 8, topics=[topic("t")])) == {"t": 3}
        assert names(tell(gateway, 8, topics=None)) == {}


def test_dafkas_topics_are_there_under_any_name(start: Start, live_tower: Tower) -> None:
    _, gateway = start("a")
    with (
        Producer("Flüge nach Wien", tower=live_tower.tower) as one,
        Producer("Flüge nach Wien", tower=live_tower.tower) as two,
        Producer("__dafka.own", tower=live_tower.tower) as internal,
    ):
        for each in (one, two, internal):
            each.publish(b"1")
            each.flush(PATIENCE_S)
        client = admin(gateway)
        assert list(listed(client).topics) == ["Flüge nach Wien"]
        assert sorted(listed(client).topics["Flüge nach Wien"].partitions) == [0, 1]
        with Producer("Flüge nach Wien", tower=live_tower.tower) as three:
            three.publish(b"1")
            three.flush(PATIENCE_S)
            wait_until(lambda: len(listed(client).topics["Flüge nach Wien"].partitions) == 3)


def test_each_kind_of_client_is_told_the_same(gateway: Gateway) -> None:
    servers = str(gateway.listens)
    client = admin(gateway)
    listed(client, "flights")
    own = gateway.listens
    described = client.describe_topics(TopicCollection(["flights"]), request_timeout=PATIENCE_S)
    (partition,) = described["flights"].result(PATIENCE_S).partitions
    assert (partition.leader.host, partition.leader.port) == own
    assert [each.id for each in partition.isr] == [partition.leader.id]
    cluster = client.describe_cluster(request_timeout=PATIENCE_S).result(PATIENCE_S)
    assert [(each.host, each.port) for each in cluster.nodes] == [own]

    python = KafkaAdminClient(bootstrap_servers=servers)
    try:
        assert python.list_topics() == ["flights"]
        (found,) = python.describe_topics(["flights"])
        assert [each["leader_id"] for each in found["partitions"]] == [partition.leader.id]
        told = python.describe_cluster()
        assert [(each["host"], each["port"]) for each in told["brokers"]] == [own]
        assert told["cluster_id"] == cluster.cluster_id
    finally:
        python.close()

    async def ask() -> None:
        aio = AIOKafkaAdminClient(bootstrap_servers=servers)
        await aio.start()
        try:
            assert await aio.list_topics() == ["flights"]
            (found,) = await aio.describe_topics(["flights"])
            assert [each["leader"] for each in found["partitions"]] == [partition.leader.id]
            assert (await aio.describe_cluster())["cluster_id"] == cluster.cluster_id
        finally:
            await aio.close()

    aio.run(ask())


def test_of_two_gateways_one_is_dead(start: Start) -> None:
    (_, first), (two, second) = start("a"), start("bb")
    client = admin(first)
    wait_until(lambda: len(listed(client).brokers) == 2)
    listed(client, "flights")
    wait_until(lambda: len(listed(admin(second)).topics["flights"].partitions) == 2)
    before = listed(client).topics["flights"].partitions
    # All gateways report the same one: consoles show it, and ask any gateway.
    wait_until(lambda: listed(client).controller_id == listed(admin(second)).controller_id)
    told = tell_cluster(first)
    assert told.controller_id == listed(client).controller_id
    assert {each.broker_id for each in told.brokers} == set(listed(client).brokers)
    assert {each.leader for each in before.values()} == set(listed(client).brokers)
    assert all(sorted(each.isrs) == sorted(listed(client).brokers) for each in before.values())
    second.close()  # as if killed with its store, except for its announcement
    two.close()
    wait_until(lambda: len(listed(client).brokers) == 1)
    after = listed(client).topics["flights"].partitions
    assert [listed(client).controller_id] == list(listed(client).brokers)
    assert {each.leader for each in after.values()} == set(listed(client).brokers)
    # The other store must agree, and is away: the client is told to retry.
    assert names(tell(first, 8, topics=[topic("new")])) == {"new": 5}
    start("bb")
    wait_until(lambda: names(tell(first, 8, topics=[topic("new")])) == {"new": 0})


def test_a_dead_tower_takes_no_topic_away(
    start: Start, live_tower: Tower, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition_registry, "IDLE_S", 0.0)
    _, gateway = start("a")
    listed(admin(gateway), "flights")
    live_tower.close()
    assert list(listed(admin(gateway)).topics) == ["flights"]
    assert names(tell(gateway, 8, topics=[topic("new"), topic("flights")])) == {
        "new": 5,
        "flights": 0,
    }


def test_a_topic_of_more_than_a_thousand_partitions(start: Start) -> None:
    _, gateway = start("a")
    client = admin(gateway)
    count = MOST_INLINE + 1
    (made,) = client.create_topics([NewTopic("many", count)]).values()
    made.result(PATIENCE_S)
    assert sorted(listed(client).topics["many"].partitions) == list(range(count))
    assert [len(each.partitions) for each in tell(gateway, 8, topics=None).topics] == [count]


def test_endpoints_other_than_brokers_are_refused(gateway: Gateway) -> None:
    answer = one_request.tell(gateway, DescribeClusterRequest(endpoint_type=2), 1)
    assert (answer.error_code, list(answer.brokers)) == (115, [])
    answer = one_request.tell(gateway, DescribeClusterRequest(endpoint_type=1), 1)
    assert (answer.error_code, len(answer.brokers), answer.endpoint_type) == (0, 1, 1)


def described(gateway: Gateway, topics: list[str], **more: Any) -> tuple[list[Any], Any]:
    kind = DescribeTopicPartitionsRequest
    asked = kind(topics=[kind.TopicRequest(name=each) for each in topics], **more)
    answer = one_request.tell(gateway, asked, 0)
    for each in answer.topics:
        assert all(part.leader_id in part.isr_nodes for part in each.partitions)
    numbers = [
        (each.name, each.error_code, [part.partition_index for part in each.partitions])
        for each in answer.topics
    ]
    cursor = answer.next_cursor
    return numbers, cursor and (cursor.topic_name, cursor.partition_index)


def test_partitions_are_described_page_by_page(gateway: Gateway) -> None:
    client = admin(gateway)
    for future in client.create_topics([NewTopic("a", 3), NewTopic("b", 2)]).values():
        future.result(PATIENCE_S)
    kind = DescribeTopicPartitionsRequest.Cursor
    start: Any = None
    pages = []
    for _ in range(4):
        found, after = described(gateway, [], response_partition_limit=2, cursor=start)
        pages.append(found)
        start = after and kind(topic_name=after[0], partition_index=after[1])
        if start is None:
            break
    assert pages == [[("a", 0, [0, 1])], [("a", 0, [2]), ("b", 0, [0])], [("b", 0, [1])]]
    whole = [("a", 0, [0, 1, 2])], ("b", 0)
    assert described(gateway, [], response_partition_limit=3) == whole
    unknown, invalid = KafkaError.UNKNOWN_TOPIC_OR_PARTITION, KafkaError.INVALID_TOPIC_EXCEPTION
    found, after = described(gateway, ["c", "b", "a/"])
    assert found == [("a/", invalid, []), ("b", 0, [0, 1]), ("c", unknown, [])]
    assert after is None
    with pytest.raises(EOFError):
        described(gateway, [], cursor=kind(topic_name="a", partition_index=-1))
