"""Unmodified clients create topics and partitions; impossible requests get a reason."""

from __future__ import annotations

import asyncio
import socket
import threading
from typing import Any

import pytest
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin import NewPartitions as AioPartitions
from aiokafka.admin import NewTopic as AioTopic
from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_INVALID,
    Consumer,
    TopicPartition,
)
from confluent_kafka import Producer as KafkaProducer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions, NewTopic
from kafka import TopicPartition as PythonPartition
from kafka.admin import KafkaAdminClient
from kafka.admin import NewPartitions as PythonPartitions
from kafka.admin import NewTopic as PythonTopic
from kafka.errors import TopicAlreadyExistsError

from dafka_core import Producer, Store
from dafka_core.testing import wait_until
from dafka_kafka import configs
from dafka_kafka.api import Api
from dafka_kafka.errors import KafkaError, RefusedError
from dafka_kafka.gateway import APIS, Gateway
from dafka_kafka.gateways import node_id
from dafka_kafka.partition_registry import PartitionRegistry
from dafka_kafka.schemas import (
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteRecordsRequest,
    DeleteTopicsRequest,
)
from tests.integration.kafka import aio
from tests.integration.kafka.admin import PATIENCE_S, counts, create, refusal
from tests.integration.kafka.one_request import tell


@pytest.fixture
def client(gateway: Gateway) -> AdminClient:
    return AdminClient({"bootstrap.servers": str(gateway.listens), "log_level": 0})


def test_topics_are_made_at_once(client: AdminClient) -> None:
    made = create(client, NewTopic("three", 3, 1), NewTopic("default"))
    assert [each.result(PATIENCE_S) for each in made.values()] == [None, None]
    assert counts(client) == {"three": 3, "default": 1}
    again = create(client, NewTopic("three", 3, 1))
    assert refusal(again["three"]) == ("TOPIC_ALREADY_EXISTS", "topic 'three' is there")


@pytest.mark.parametrize(
    ("topic", "error", "why"),
    [
        (NewTopic("no name", 1), "TOPIC_EXCEPTION", "letters, digits, dots"),
        (NewTopic("__dafka.own", 1), "TOPIC_EXCEPTION", "Dafka's own"),
        (NewTopic("__consumer_offsets", 50), "TOPIC_EXCEPTION", "internal to Kafka's brokers"),
        (NewTopic("__cluster_metadata", 1), "TOPIC_EXCEPTION", "internal to Kafka's brokers"),
        (NewTopic("t", 10_001), "INVALID_PARTITIONS", "1 to 10000"),
        (NewTopic("t", 1, 2), "INVALID_REPLICATION_FACTOR", "each keeps all"),
        (NewTopic("t", 1, replica_assignment=[[7]]), "INVALID_REPLICA_ASSIGNMENT", "live are"),
        (NewTopic("t", 1, config={"cleanup.policy": "compact"}), "INVALID_CONFIG", "compacted"),
        (NewTopic("t", 1, config={"retention.ms": "0"}), "INVALID_CONFIG", "-1 to keep all"),
        (NewTopic("t", 1, config={"colour": "green"}), "INVALID_CONFIG", "not known"),
    ],
)
def test_what_cannot_be_is_refused(
    client: AdminClient, topic: NewTopic, error: str, why: str
) -> None:
    found = refusal(create(client, topic, NewTopic("beside", 1))[topic.topic])
    assert found[0] == error
    assert why in found[1]
    wait_until(lambda: counts(client) == {"beside": 1})


def test_configs_that_are_true_or_change_nothing_are_taken(client: AdminClient) -> None:
    config = {
        "retention.ms": "-1",
        "segment.bytes": "52428800",
        "message.timestamp.type": "CreateTime",
    }
    assert create(client, NewTopic("t", 1, config=config))["t"].result(PATIENCE_S) is None


def test_a_topic_is_only_validated(client: AdminClient) -> None:
    assert create(client, NewTopic("t", 1), validate_only=True)["t"].result(PATIENCE_S) is None
    assert counts(client) == {}


def test_of_two_that_make_a_topic_at_once_one_says_what_is_kept(
    client: AdminClient, gateway: Gateway, store: Store
) -> None:
    other = AdminClient({"bootstrap.servers": str(gateway.listens), "log_level": 0})
    for topic in ("t", "u", "v"):
        asked = {}
        for age_s, each in enumerate((client, other), 1):
            config = {"retention.ms": str(1000 * age_s)}
            asked[age_s] = create(each, NewTopic(topic, 1, config=config))[topic]
        made = {age_s for age_s, each in asked.items() if each.exception(PATIENCE_S) is None}
        (kept,) = [each for each in store.retention.rules if each.pattern == topic]
        assert {kept.age_s} == made


def test_a_topic_that_stores_do_not_keep_as_asked_for_is_not_made(
    client: AdminClient, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        monkeypatch.undo()
        raise RefusedError(KafkaError.REQUEST_TIMED_OUT, "a store has not done it")

    monkeypatch.setattr(configs, "tell_others", fail)
    refused = create(client, NewTopic("t", 1, config={"retention.ms": "1000"}))["t"]
    assert refusal(refused) == (
        "REQUEST_TIMED_OUT",
        "a store has not done it; so the topic is not made",
    )
    assert counts(client) == {}
    assert store.retention.rules == ()


def test_a_topic_has_its_rule_though_its_client_has_gone(
    gateway: Gateway, client: AdminClient, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, may_go_on = threading.Event(), threading.Event()
    create = PartitionRegistry.create

    async def wait(*args: Any, **named: Any) -> None:
        await create(*args, **named)
        begun.set()
        await asyncio.to_thread(may_go_on.wait, PATIENCE_S)

    monkeypatch.setattr(PartitionRegistry, "create", wait)
    kind = CreateTopicsRequest.CreatableTopic
    config = kind.CreatableTopicConfig(name="retention.ms", value="1000")
    topic = kind(name="t", num_partitions=1, replication_factor=1, assignments=[], configs=[config])
    request = CreateTopicsRequest(topics=[topic], timeout_ms=1000, validate_only=False)
    request.with_header(correlation_id=7, client_id="test")
    with socket.create_connection(gateway.listens, timeout=PATIENCE_S) as connection:
        connection.sendall(request.encode(version=2, header=True, framed=True))
        assert begun.wait(PATIENCE_S)
    wait_until(lambda: gateway.connection_count == 0)
    may_go_on.set()
    wait_until(lambda: [str(each) for each in store.retention_control.rules] == ["t=1s"])
    assert counts(client) == {"t": 1}


def test_gateways_can_be_assigned(client: AdminClient, store: Store) -> None:
    own = node_id(store.address)
    made = create(client, NewTopic("t", 2, replica_assignment=[[own], [own]]))
    assert made["t"].result(PATIENCE_S) is None
    assert counts(client) == {"t": 2}


def test_partitions_are_added(client: AdminClient, store: Store) -> None:
    create(client, NewTopic("t", 1))["t"].result(PATIENCE_S)

    def extend(topic: str, count: int, *assigned: int, **options: Any) -> Any:
        more = NewPartitions(topic, count, replica_assignment=[[each] for each in assigned])
        more = more if assigned else NewPartitions(topic, count)
        return client.create_partitions([more], request_timeout=PATIENCE_S, **options)[topic]

    assert extend("t", 3).result(PATIENCE_S) is None
    assert extend("t", 9, validate_only=True).result(PATIENCE_S) is None
    assert counts(client) == {"t": 3}
    assert refusal(extend("t", 3)) == (
        "INVALID_PARTITIONS",
        "topic 't' has 3 partitions, and 3 are not more",
    )
    assert refusal(extend("tt", 3))[0] == "UNKNOWN_TOPIC_OR_PART"
    assert refusal(extend("t", 4, 7))[0] == "INVALID_REPLICA_ASSIGNMENT"
    assert refusal(extend("t", 10_001))[0] == "INVALID_PARTITIONS"
    assert extend("t", 4, node_id(store.address)).result(PATIENCE_S) is None
    assert counts(client) == {"t": 4}


def test_deletion_may_be_disabled(store: Store) -> None:
    with Gateway(store, listen="127.0.0.1:0", delete_topics=False) as gateway:
        client = AdminClient({"bootstrap.servers": str(gateway.listens), "log_level": 0})
        create(client, NewTopic("t", 1))["t"].result(PATIENCE_S)
        deleted = client.delete_topics(["t"], request_timeout=PATIENCE_S)["t"]
        assert refusal(deleted)[0] == "TOPIC_DELETION_DISABLED"
        for version in APIS[Api.DELETE_TOPICS].versions:
            topics = [DeleteTopicsRequest.DeleteTopicState(name=each) for each in ("t", "u")]
            asked = DeleteTopicsRequest(topics=topics, topic_names=["t", "u"], timeout_ms=1)
            answer = tell(gateway, asked, version)
            assert [each.error_code for each in answer.responses] == [
                73 if version >= 3 else 42
            ] * 2
            if version >= 5:
                assert "delete_topics = false" in answer.responses[0].error_message
        assert counts(client) == {"t": 1}


def test_a_topic_is_deleted_and_made_anew(
    client: AdminClient, gateway: Gateway, store: Store
) -> None:
    at = {"bootstrap.servers": str(gateway.listens), "log_level": 0}
    create(client, NewTopic("t", 2))["t"].result(PATIENCE_S)
    writer = KafkaProducer(at)
    for number in range(10):
        writer.produce("t", b"%d" % number, partition=number % 2)
    writer.flush(PATIENCE_S)
    group = Consumer(at | {"group.id": "g"})
    place = TopicPartition("t", 0, 5)
    group.commit(offsets=[place], asynchronous=False)

    def delete(topic: str) -> Any:
        return client.delete_topics([topic], request_timeout=PATIENCE_S)[topic]

    assert delete("t").result(PATIENCE_S) is None
    assert counts(client) == {}
    assert {info.end - info.earliest for info in store.log.partitions("t")} == {0}
    assert refusal(delete("t"))[0] == "UNKNOWN_TOPIC_OR_PART"
    assert refusal(delete("__dafka.queries"))[0] == "TOPIC_EXCEPTION"
    impossible = DeleteTopicsRequest(topic_names=["a\0b"], timeout_ms=1)
    assert tell(gateway, impossible, 1).responses[0].error_code == 3
    # It begins anew, and so do groups.
    writer.produce("t", b"anew", partition=0)
    writer.flush(PATIENCE_S)
    assert counts(client) == {"t": 1}
    (found,) = group.committed([place], timeout=PATIENCE_S)
    assert found.offset == OFFSET_INVALID
    group.assign([TopicPartition("t", 0, OFFSET_BEGINNING)])
    record = group.poll(PATIENCE_S)
    assert record is not None
    assert (record.offset(), record.value()) == (0, b"anew")
    group.close()


def test_a_deleted_topic_is_there_again_when_its_producer_goes_on(
    client: AdminClient, store: Store
) -> None:
    with Producer("dafkas", tower=store.options.tower) as producer:
        producer.publish_many([b"0", b"1", b"2", b"3"])
        wait_until(lambda: "dafkas" in counts(client))
        deleted = client.delete_topics(["dafkas"], request_timeout=PATIENCE_S)["dafkas"]
        assert deleted.result(PATIENCE_S) is None
        assert counts(client) == {}
        producer.publish(b"4")
        wait_until(lambda: counts(client) == {"dafkas": 1})
    (info,) = store.log.partitions("dafkas")
    assert (info.earliest, info.end) == (4, 5)


def test_the_first_records_are_given_up_here(client: AdminClient, store: Store) -> None:
    tower = store.options.tower
    create(client, NewTopic("t", 1))["t"].result(PATIENCE_S)
    with Producer("dafkas", tower=tower) as producer:
        producer.publish_many([b"0", b"1", b"2", b"3"])
    wait_until(lambda: "dafkas" in counts(client))

    def give_up(topic: str, number: int, before: int) -> Any:
        asked = TopicPartition(topic, number, before)
        return client.delete_records([asked], request_timeout=PATIENCE_S)[asked]

    assert give_up("dafkas", 0, 1).result(PATIENCE_S).low_watermark == 1
    assert give_up("dafkas", 0, 0).result(PATIENCE_S).low_watermark == 1
    assert refusal(give_up("dafkas", 0, 5))[0] == "OFFSET_OUT_OF_RANGE"
    assert give_up("dafkas", 0, -1).result(PATIENCE_S).low_watermark == 4
    assert give_up("t", 0, -1).result(PATIENCE_S).low_watermark == 0
    (info,) = store.log.partitions("dafkas")
    assert (info.earliest, info.end) == (4, 4)


def test_records_of_what_is_not_led_here_are_left(gateway: Gateway) -> None:
    partition = DeleteRecordsRequest.DeleteRecordsTopic.DeleteRecordsPartition
    asked = DeleteRecordsRequest.DeleteRecordsTopic(
        name="nowhere", partitions=[partition(partition_index=0, offset=-1)]
    )
    for version in APIS[Api.DELETE_RECORDS].versions:
        answer = tell(gateway, DeleteRecordsRequest(topics=[asked], timeout_ms=1), version)
        (found,) = answer.topics[0].partitions
        assert (found.error_code, found.low_watermark) == (3, -1)


def test_kafka_python_makes_topics(gateway: Gateway) -> None:
    client = KafkaAdminClient(bootstrap_servers=str(gateway.listens))
    try:
        client.create_topics([PythonTopic("t", 2, 1)])
        with pytest.raises(TopicAlreadyExistsError):
            client.create_topics([PythonTopic("t", 2, 1)])
        client.create_partitions({"t": PythonPartitions(5)})
        (found,) = client.describe_topics(["t"])
        assert len(found["partitions"]) == 5
        deleted = client.delete_records({PythonPartition("t", 0): -1})
        assert deleted[PythonPartition("t", 0)]["low_watermark"] == 0
        client.delete_topics(["t"])
        assert "t" not in client.list_topics()
    finally:
        client.close()


def test_aiokafka_makes_topics(gateway: Gateway) -> None:
    async def make() -> None:
        client = AIOKafkaAdminClient(bootstrap_servers=str(gateway.listens))
        await client.start()
        try:
            await client.create_topics([AioTopic("t", 2, 1)])
            again = await client.create_topics([AioTopic("t", 2, 1)])
            assert [error for _, error, _ in again.topic_errors] == [36]
            await client.create_partitions({"t": AioPartitions(5)})
            (found,) = await client.describe_topics(["t"])
            assert len(found["partitions"]) == 5
            deleted = await client.delete_topics(["t"])
            assert [error for _, error in deleted.topic_error_codes] == [0]
        finally:
            await client.close()

    aio.run(make())


@pytest.mark.parametrize("version", APIS[Api.CREATE_TOPICS].versions)
def test_topics_are_made_in_each_version(gateway: Gateway, version: int) -> None:
    kind = CreateTopicsRequest.CreatableTopic
    topics = [
        kind(name=name, num_partitions=count, replication_factor=-1, assignments=[], configs=[])
        for name, count in (("t", 2), ("zero", 0), ("twice", 1), ("twice", 1))
    ]
    answer = tell(gateway, CreateTopicsRequest(topics=topics, timeout_ms=30_000), version)
    found = {each.name: each for each in answer.topics}
    assert {name: each.error_code for name, each in found.items()} == {
        "t": 0,
        "zero": 37,
        "twice": 42,
    }
    if version >= 5:
        assert (found["t"].num_partitions, found["t"].replication_factor) == (2, 1)
        assert ("retention.ms", "-1") in [(each.name, each.value) for each in found["t"].configs]


@pytest.mark.parametrize("version", APIS[Api.CREATE_PARTITIONS].versions)
def test_partitions_are_added_in_each_version(gateway: Gateway, version: int) -> None:
    topic = CreatePartitionsRequest.CreatePartitionsTopic(name="t", count=2, assignments=None)
    asked = CreatePartitionsRequest(topics=[topic, topic], timeout_ms=30_000, validate_only=False)
    (found,) = tell(gateway, asked, version).results
    assert (found.error_code, found.error_message) == (42, "the request has this topic twice")
    asked = CreatePartitionsRequest(topics=[topic], timeout_ms=30_000, validate_only=False)
    assert tell(gateway, asked, version).results[0].error_code == 3
