"""Metadata of topics, gateways and disks, topics created on request, and APIs without a use."""

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from confluent_kafka import Producer as KafkaProducer
from confluent_kafka import TopicCollection
from confluent_kafka.admin import AdminClient

from dafka_core import Producer, Store
from dafka_core.testing import wait_until
from dafka_kafka import schemas
from dafka_kafka.api import Api
from dafka_kafka.errors import KafkaError
from dafka_kafka.gateway import Gateway
from dafka_kafka.metadata import MOST_INLINE
from dafka_kafka.topics import KAFKAS_OWN
from tests.integration.kafka.admin import PATIENCE_S, admin_of, listed, make
from tests.integration.kafka.one_request import tell
from tests.unit.kafka.messages import NEWEST, rows, versions


def told(
    gateway: Gateway, *names: str, version: int = NEWEST, creates: bool = True
) -> dict[str, int]:
    """Return the errors of topics; of all topics without names."""
    topics: Any = [{"name": each} for each in names]
    if not names and version:
        topics = None
    asked = {"topics": topics, "allow_auto_topic_creation": creates}
    return dict(rows(tell(gateway, Api.METADATA, version, **asked), "topics", "name", "error_code"))


def test_each_version_creates_topics_that_may_be(gateway: Gateway) -> None:
    own = dict.fromkeys(KAFKAS_OWN, KafkaError.UNKNOWN_TOPIC_OR_PARTITION)
    wrong = dict.fromkeys(("no name of Kafka's", "__dafka.queries"), 17)
    topics = ["__Consumer_offsets"]
    for version in versions(Api.METADATA):
        topics.append(f"t{version}")
        found = told(gateway, *topics, *own, *wrong, version=version)
        assert found == dict.fromkeys(topics, 0) | own | wrong
        assert told(gateway, version=version) == dict.fromkeys(topics, 0)
        if version > 0:
            assert tell(gateway, Api.METADATA, version, topics=[]).topics == []
        if version >= 4:
            assert told(gateway, "u", version=version, creates=False) == {"u": 3}


def test_no_topic_is_made_where_the_option_says_so(store: Store) -> None:
    with Gateway(store, listen="127.0.0.1:0", auto_create_topics=False) as gateway:
        assert told(gateway, "t") == {"t": 3}
        assert told(gateway) == {}


def test_dafkas_topics_are_there_under_any_name(admin: AdminClient, tower: str) -> None:
    topic = "Flüge nach Wien"

    def published(name: str) -> Producer:
        producer = Producer(name, tower=tower)
        producer.publish(b"1")
        producer.flush(PATIENCE_S)
        return producer

    with published(topic), published(topic), published("__dafka.own"):
        found = listed(admin).topics
        assert {name: sorted(each.partitions) for name, each in found.items()} == {topic: [0, 1]}
        with published(topic):
            wait_until(lambda: len(listed(admin).topics[topic].partitions) == 3)


def test_a_client_is_told_of_the_gateway_and_of_topics(
    gateway: Gateway, admin: AdminClient
) -> None:
    found = listed(admin, "flights")  # it is made
    assert found.cluster_id == listed(admin).cluster_id
    (own,) = found.brokers.values()
    assert (own.host, own.port) == gateway.listens
    topic = found.topics["flights"]
    assert found.controller_id == own.id == topic.partitions[0].leader
    assert (topic.error, list(topic.partitions), list(listed(admin).topics)) == (
        *(None, [0]),
        ["flights"],
    )
    described = admin.describe_topics(TopicCollection(["flights"]), request_timeout=PATIENCE_S)
    (partition,) = described["flights"].result(PATIENCE_S).partitions
    assert (partition.leader.host, partition.leader.port) == gateway.listens
    assert [each.id for each in partition.isr] == [partition.leader.id]
    cluster = admin.describe_cluster(request_timeout=PATIENCE_S).result(PATIENCE_S)
    assert [(each.host, each.port) for each in cluster.nodes] == [gateway.listens]
    for kind, error in (1, 0), (2, KafkaError.UNSUPPORTED_ENDPOINT_TYPE):
        answer = tell(gateway, Api.DESCRIBE_CLUSTER, 1, endpoint_type=kind)
        assert answer.error_code == error
        found = rows(answer, "brokers", "broker_id", "host", "port")
        assert found == ([(own.id, *gateway.listens)] if kind == 1 else [])


def test_of_two_gateways_one_is_dead(start: Callable[..., tuple[Store, Gateway]]) -> None:
    start = partial(start, num_partitions=2)
    (_, first), (two, second) = start("a"), start("bb")
    client, other = admin_of(first), admin_of(second)
    wait_until(lambda: len(listed(client).brokers) == 2)
    listed(client, "flights")
    wait_until(lambda: len(listed(other).topics["flights"].partitions) == 2)
    before = listed(client).topics["flights"].partitions
    # All gateways report one controller: consoles show it, and ask any gateway.
    wait_until(lambda: listed(client).controller_id == listed(other).controller_id)
    cluster = tell(first, Api.DESCRIBE_CLUSTER, endpoint_type=1)
    assert cluster.controller_id == listed(client).controller_id
    assert {each.broker_id for each in cluster.brokers} == set(listed(client).brokers)
    assert {each.leader for each in before.values()} == set(listed(client).brokers)
    assert all(sorted(each.isrs) == sorted(listed(client).brokers) for each in before.values())
    second.close()  # as if killed with its store, except for its announcement
    two.close()
    wait_until(lambda: len(listed(client).brokers) == 1)
    after = listed(client).topics["flights"].partitions
    assert [listed(client).controller_id] == list(listed(client).brokers)
    assert {each.leader for each in after.values()} == set(listed(client).brokers)
    # The other store must agree, and is away: the client is told to retry.
    assert told(first, "new") == {"new": 5}
    start("bb")
    wait_until(lambda: told(first, "new") == {"new": 0})


def test_a_topic_of_more_than_a_thousand_partitions(gateway: Gateway, admin: AdminClient) -> None:
    count = MOST_INLINE + 1
    make(admin, "many", count=count)
    assert sorted(listed(admin).topics["many"].partitions) == list(range(count))
    (topic,) = tell(gateway, Api.METADATA, 8, topics=None).topics
    assert len(topic.partitions) == count


def described(gateway: Gateway, topics: list[str], **more: Any) -> tuple[list[Any], Any]:
    """Return topics with their errors and numbers, and the cursor."""
    names = [{"name": each} for each in topics]
    answer = tell(gateway, Api.DESCRIBE_TOPIC_PARTITIONS, topics=names, **more)
    of_parts = rows(answer, "topics.partitions", "leader_id", "isr_nodes")
    assert all(leader in copies for leader, copies in of_parts)
    lists = rows(answer, "topics.partitions", "eligible_leader_replicas", "last_known_elr")
    assert all(each == ([], []) for each in lists)  # Java's clients fail if they are null
    numbers = [
        (each.name, each.error_code, [part.partition_index for part in each.partitions])
        for each in answer.topics
    ]
    cursor = answer.next_cursor
    return numbers, cursor and (cursor.topic_name, cursor.partition_index)


def test_partitions_are_described_page_by_page(gateway: Gateway, admin: AdminClient) -> None:
    make(admin, "a", count=3)
    make(admin, "b", count=2)
    pages: list[Any] = []
    cursor = None
    while cursor is not None or not pages:
        page, after = described(gateway, [], response_partition_limit=2, cursor=cursor)
        pages.append(page)
        cursor = after and {"topic_name": after[0], "partition_index": after[1]}
    assert pages == [[("a", 0, [0, 1])], [("a", 0, [2]), ("b", 0, [0])], [("b", 0, [1])]]
    whole = [("a", 0, [0, 1, 2])], ("b", 0)
    assert described(gateway, [], response_partition_limit=3) == whole
    unknown, invalid = KafkaError.UNKNOWN_TOPIC_OR_PARTITION, KafkaError.INVALID_TOPIC_EXCEPTION
    found = [("a/", invalid, []), ("b", 0, [0, 1]), ("c", unknown, [])]
    assert described(gateway, ["c", "b", "a/"]) == (found, None)
    with pytest.raises(EOFError):
        described(gateway, [], cursor={"topic_name": "a", "partition_index": -1})


def produce(gateway: Gateway, topic: str, count: int, size: int) -> None:
    producer = KafkaProducer({"bootstrap.servers": str(gateway.listens), "log_level": 0})
    for _ in range(count):
        producer.produce(topic, bytes(size))
    assert producer.flush(PATIENCE_S) == 0


def described_disk(gateway: Gateway, version: int = NEWEST, topics: Any = None) -> tuple[Any, Any]:
    """Return the directory, and the sizes of partitions."""
    (directory,) = tell(gateway, Api.DESCRIBE_LOG_DIRS, version, topics=topics).results
    return directory, {
        (topic.name, each.partition_index): each.partition_size
        for topic in directory.topics
        for each in topic.partitions
    }


def test_partitions_have_a_size(store: Store, gateway: Gateway) -> None:
    produce(gateway, "large", 1_000, 1_000)
    produce(gateway, "small", 3, 10)
    for version in versions(Api.DESCRIBE_LOG_DIRS):
        directory, sizes = described_disk(gateway, version)
        assert (directory.error_code, directory.log_dir) == (0, str(store.log.directory.absolute()))
        assert sizes.keys() == {("large", 0), ("small", 0)}
        assert 1_000_000 <= sizes["large", 0] < 1_100_000
        assert 30 <= sizes["small", 0] < 1_000
        if version >= 4:
            assert 0 < directory.usable_bytes < directory.total_bytes
    asked = [{"topic": "small", "partitions": [0, 7, 0, -1]}, {"topic": "u", "partitions": [0]}]
    assert described_disk(gateway, topics=asked)[1].keys() == {("small", 0)}
    assert described_disk(gateway, topics=[])[1] == {}
    store.log.close()  # a store that cannot be read
    directory, sizes = described_disk(gateway)
    assert (directory.error_code, sizes) == (56, {})


def test_sizes_of_partitions_are_encoded_while_others_are_served(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, threads = schemas.made_response, dict[int, str]()

    def noted(api: int, values: Any) -> Any:
        threads[api] = threading.current_thread().name
        return made(api, values)

    monkeypatch.setattr(schemas, "made_response", noted)
    produce(gateway, "t", 1, 1)
    assert described_disk(gateway)[1].keys() == {("t", 0)}
    assert threads[Api.DESCRIBE_LOG_DIRS] != "dafka-kafka"  # the event loop's


def test_features_that_are_not_in_use_are_empty(gateway: Gateway) -> None:
    moves = tell(gateway, Api.LIST_PARTITION_REASSIGNMENTS, timeout_ms=1_000, topics=None)
    assert (moves.error_code, moves.topics) == (0, [])
    quotas = tell(gateway, Api.DESCRIBE_CLIENT_QUOTAS, components=[], strict=False)
    assert (quotas.error_code, quotas.entries) == (0, [])
    for version in versions(Api.LIST_TRANSACTIONS):
        asked: dict[str, Any] = {"state_filters": [], "producer_id_filters": []}
        found = tell(gateway, Api.LIST_TRANSACTIONS, version, **asked, duration_filter=-1)
        assert (found.error_code, found.transaction_states) == (0, [])
