"""Unmodified clients create, extend and delete topics, also those of Dafka's producers."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, OFFSET_INVALID, Consumer, TopicPartition
from confluent_kafka import Producer as KafkaProducer
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.cimpl import NewPartitions, NewTopic

from dafka_core import Producer, Store
from dafka_core.config.topic_rules import parse_rules
from dafka_core.errors import DafkaError, StoreError
from dafka_core.flight.requests import TrimRequest
from dafka_core.flight.store_client import StoreClient
from dafka_core.testing import wait_until
from dafka_kafka.api import Api
from dafka_kafka.errors import KafkaError, RefusedError
from dafka_kafka.gateway import Gateway
from dafka_kafka.gateways import node_id
from dafka_kafka.partition_registry import PartitionRegistry
from dafka_kafka.produce import ALL
from tests.integration.kafka.admin import (
    PATIENCE_S,
    admin_of,
    counts,
    create,
    delete,
    deletion,
    make,
    refusal,
)
from tests.integration.kafka.one_request import Connection, tell
from tests.integration.kafka.produce_client import ProduceClient
from tests.unit.kafka.messages import rows, versions
from tests.unit.kafka.records.batches import batch


def made(topic: str, config: dict[str, str] | None = None, copies: int = -1) -> NewTopic:
    return NewTopic(topic, 1, copies, config=config or {})


def test_topics_are_made_at_once(admin: AdminClient, store: Store) -> None:
    own = node_id(store.address)
    true = {"segment.bytes": "52428800", "message.timestamp.type": "CreateTime"}
    topics = [
        NewTopic("three", 3, 1),
        NewTopic("default"),
        NewTopic("assigned", 2, replica_assignment=[[own], [own]]),
        made("configured", true | {"retention.ms": "-1"}),
    ]
    assert [each.result(PATIENCE_S) for each in create(admin, *topics).values()] == [None] * 4
    validated = create(admin, NewTopic("t", 1), validate_only=True)
    assert validated["t"].result(PATIENCE_S) is None
    assert counts(admin) == {"three": 3, "default": 1, "assigned": 2, "configured": 1}
    again = create(admin, NewTopic("three", 3, 1))
    assert refusal(again["three"]) == ("TOPIC_ALREADY_EXISTS", "topic 'three' is there")


def test_what_cannot_be_is_refused(admin: AdminClient) -> None:
    refused = [
        (NewTopic("no name", 1), "TOPIC_EXCEPTION", "letters, digits, dots"),
        (NewTopic("__dafka.own", 1), "TOPIC_EXCEPTION", "Dafka's own"),
        (NewTopic("__consumer_offsets", 50), "TOPIC_EXCEPTION", "internal to Kafka's brokers"),
        (NewTopic("__cluster_metadata", 1), "TOPIC_EXCEPTION", "internal to Kafka's brokers"),
        (NewTopic("many", 10_001), "INVALID_PARTITIONS", "1 to 10000"),
        (made("copies", copies=2), "INVALID_REPLICATION_FACTOR", "each keeps all"),
        (NewTopic("at", 1, replica_assignment=[[7]]), "INVALID_REPLICA_ASSIGNMENT", "live are"),
        (made("compact", {"cleanup.policy": "compact"}), "INVALID_CONFIG", "compacted"),
        (made("nothing", {"retention.ms": "0"}), "INVALID_CONFIG", "-1 to keep all"),
        (made("colour", {"colour": "green"}), "INVALID_CONFIG", "not known"),
    ]
    found = create(admin, *[topic for topic, _, _ in refused], NewTopic("beside", 1))
    for topic, error, why in refused:
        name, said = refusal(found[topic.topic])
        assert (name, why in said) == (error, True), said
    wait_until(lambda: counts(admin) == {"beside": 1})


def test_of_two_that_make_a_topic_at_once_one_says_what_is_kept(
    admin: AdminClient, gateway: Gateway, store: Store
) -> None:
    clients = {1: admin, 2: admin_of(gateway)}
    for topic in ("t", "u", "v"):
        asked = {
            age_s: create(each, made(topic, {"retention.ms": f"{age_s}000"}))[topic]
            for age_s, each in clients.items()
        }
        done = {age_s for age_s, each in asked.items() if each.exception(PATIENCE_S) is None}
        (kept,) = [each for each in store.retention.rules if each.pattern == topic]
        assert {kept.age_s} == done


def test_a_topic_has_its_rule_though_its_client_has_gone(
    gateway: Gateway, admin: AdminClient, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, may_go_on = threading.Event(), threading.Event()
    create = PartitionRegistry.create

    async def wait(*args: Any, **named: Any) -> None:
        await create(*args, **named)
        begun.set()
        await asyncio.to_thread(may_go_on.wait, PATIENCE_S)

    monkeypatch.setattr(PartitionRegistry, "create", wait)
    config = [{"name": "retention.ms", "value": "1000"}]
    topic = {"name": "t", "num_partitions": 1, "replication_factor": 1, "configs": config}
    asked = {"topics": [topic | {"assignments": []}], "timeout_ms": 1000}
    with Connection(gateway.listens) as connection:
        connection.send_request(Api.CREATE_TOPICS, 2, **asked)
        assert begun.wait(PATIENCE_S)
    wait_until(lambda: gateway.connection_count == 0)
    may_go_on.set()
    wait_until(lambda: [str(each) for each in store.retention_control.rules] == ["t=1s"])
    assert counts(admin) == {"t": 1}


def test_partitions_are_added(admin: AdminClient, store: Store) -> None:
    make(admin, "t")

    def extend(topic: str, count: int, *assigned: int, **options: Any) -> Any:
        more = NewPartitions(topic, count, replica_assignment=[[each] for each in assigned])
        more = more if assigned else NewPartitions(topic, count)
        return admin.create_partitions([more], request_timeout=PATIENCE_S, **options)[topic]

    assert extend("t", 3).result(PATIENCE_S) is None
    assert extend("t", 9, validate_only=True).result(PATIENCE_S) is None
    assert counts(admin) == {"t": 3}
    why = "topic 't' has 3 partitions, and 3 are not more"
    assert refusal(extend("t", 3)) == ("INVALID_PARTITIONS", why)
    assert refusal(extend("tt", 3))[0] == "UNKNOWN_TOPIC_OR_PART"
    assert refusal(extend("t", 4, 7))[0] == "INVALID_REPLICA_ASSIGNMENT"
    assert refusal(extend("t", 10_001))[0] == "INVALID_PARTITIONS"
    assert extend("t", 4, node_id(store.address)).result(PATIENCE_S) is None
    assert counts(admin) == {"t": 4}


def test_added_partitions_are_assigned_in_order(
    start: Callable[..., tuple[Store, Gateway]],
) -> None:
    (store, gateway), (other, _) = start("one"), start("two")
    admin, a, b = admin_of(gateway), node_id(store.address), node_id(other.address)
    wait_until(lambda: set(admin.list_topics(timeout=PATIENCE_S).brokers) == {a, b})
    topic = NewTopic("t", 1, replica_assignment=[[a]])
    assert create(admin, topic)["t"].result(PATIENCE_S) is None
    more = NewPartitions("t", 4, replica_assignment=[[b], [a], [a]])
    added = admin.create_partitions([more], request_timeout=PATIENCE_S)["t"]
    assert added.result(PATIENCE_S) is None
    partitions = admin.list_topics("t", timeout=PATIENCE_S).topics["t"].partitions
    assert [partitions[number].leader for number in range(4)] == [a, b, a, a]


def test_deletion_may_be_disabled(store: Store) -> None:
    with Gateway(store, listen="127.0.0.1:0", delete_topics=False) as gateway:
        client = admin_of(gateway)
        make(client, "t")
        asked = {"topics": [{"name": "t"}, {"name": "u"}], "topic_names": ["t", "u"]}
        for version in versions(Api.DELETE_TOPICS):
            answer = tell(gateway, Api.DELETE_TOPICS, version, **asked, timeout_ms=1)
            errors = [73 if version >= 3 else 42] * 2
            assert rows(answer, "responses", "error_code") == errors
            if version >= 5:
                assert "delete_topics = false" in answer.responses[0].error_message
        assert counts(client) == {"t": 1}


def test_a_topic_is_deleted_and_made_anew(
    admin: AdminClient, gateway: Gateway, store: Store
) -> None:
    at = {"bootstrap.servers": str(gateway.listens), "log_level": 0}
    make(admin, "t", count=2)
    writer = KafkaProducer(at)
    for number in range(10):
        writer.produce("t", b"%d" % number, partition=number % 2)
    writer.flush(PATIENCE_S)
    group = Consumer(at | {"group.id": "g"})
    place = TopicPartition("t", 0, 5)
    group.commit(offsets=[place], asynchronous=False)
    delete(admin, "t")
    assert counts(admin) == {}
    assert {info.end - info.earliest for info in store.log.partitions("t")} == {0}
    assert refusal(deletion(admin, "t"))[0] == "UNKNOWN_TOPIC_OR_PART"
    assert refusal(deletion(admin, "__dafka.queries"))[0] == "TOPIC_EXCEPTION"
    impossible = tell(gateway, Api.DELETE_TOPICS, 1, topic_names=["a\0b"], timeout_ms=1)
    assert rows(impossible, "responses", "error_code") == [3]
    # It begins anew, and so do groups.
    writer.produce("t", b"anew", partition=0)
    writer.flush(PATIENCE_S)
    assert counts(admin) == {"t": 1}
    (found,) = group.committed([place], timeout=PATIENCE_S)
    assert found.offset == OFFSET_INVALID
    group.assign([TopicPartition("t", 0, OFFSET_BEGINNING)])
    record = group.poll(PATIENCE_S)
    assert record is not None
    assert (record.offset(), record.value()) == (0, b"anew")
    group.close()


def test_a_deleted_topic_is_there_again_when_its_producer_goes_on(
    admin: AdminClient, store: Store, tower: str
) -> None:
    with Producer("dafkas", tower=tower) as producer:
        producer.publish_many([b"0", b"1", b"2", b"3"])
        wait_until(lambda: "dafkas" in counts(admin))
        delete(admin, "dafkas")
        assert counts(admin) == {}
        producer.publish(b"4")
        wait_until(lambda: counts(admin) == {"dafkas": 1})
    (info,) = store.log.partitions("dafkas")
    assert (info.earliest, info.end) == (4, 5)


def test_the_first_records_are_given_up_here(
    admin: AdminClient, gateway: Gateway, store: Store, tower: str
) -> None:
    make(admin, "t")
    with Producer("dafkas", tower=tower) as producer:
        producer.publish_many([b"0", b"1", b"2", b"3"])
    wait_until(lambda: "dafkas" in counts(admin))
    nowhere = {
        "topics": [{"name": "nowhere", "partitions": [{"partition_index": 0, "offset": -1}]}]
    }
    for version in versions(Api.DELETE_RECORDS):
        answer = tell(gateway, Api.DELETE_RECORDS, version, **nowhere, timeout_ms=1)
        assert rows(answer, "topics.partitions", "error_code", "low_watermark") == [(3, -1)]

    def give_up(topic: str, before: int) -> Any:
        asked = TopicPartition(topic, 0, before)
        return admin.delete_records([asked], request_timeout=PATIENCE_S)[asked]

    assert give_up("dafkas", 1).result(PATIENCE_S).low_watermark == 1
    assert give_up("dafkas", 0).result(PATIENCE_S).low_watermark == 1
    assert refusal(give_up("dafkas", 5))[0] == "OFFSET_OUT_OF_RANGE"
    assert give_up("dafkas", -1).result(PATIENCE_S).low_watermark == 4
    assert give_up("t", -1).result(PATIENCE_S).low_watermark == 0
    (info,) = store.log.partitions("dafkas")
    assert (info.earliest, info.end) == (4, 4)


def test_records_that_a_disk_does_not_give_up_have_an_error_of_their_own(
    gateway: Gateway, admin: AdminClient, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(admin, "t", count=2)
    with ProduceClient(gateway.listens) as client:
        client.ask({("t", 0): batch([b"a"])})

    def fail(*_: object) -> list[int]:
        raise StoreError(store.log.directory, "no disk")

    monkeypatch.setattr(store.log, "trim_all", fail)
    asked = TopicPartition("t", 0, -1), TopicPartition("t", 1, -1)
    found = admin.delete_records(list(asked), request_timeout=PATIENCE_S)
    assert refusal(found[asked[0]])[0] == "KAFKA_STORAGE_ERROR"
    assert found[asked[1]].result(PATIENCE_S).low_watermark == 0


def test_records_of_many_partitions_are_given_up_at_once(
    gateway: Gateway,
    admin: AdminClient,
    store: Store,
    other: Store,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    count, asked = 250, list[Any]()
    make(admin, "t", count=count)
    with ProduceClient(gateway.listens) as client:
        client.ask({("t", number): batch([b"a", b"b"]) for number in range(count)}, acks=ALL)
    ask = StoreClient.ask

    def noted(client: StoreClient, timeout_s: float, *sent: Any) -> Any:
        asked.extend(map(type, sent))
        return ask(client, timeout_s, *sent)

    monkeypatch.setattr(StoreClient, "ask", noted)
    parts = [{"partition_index": number, "offset": 1} for number in range(count + 1)]
    topics = [{"name": "t", "partitions": parts}]
    answer = tell(gateway, Api.DELETE_RECORDS, topics=topics, timeout_ms=30_000)
    found = rows(answer, "topics.partitions", "partition_index", "error_code", "low_watermark")
    assert found == [*((number, 0, 1) for number in range(count)), (count, 3, -1)]
    assert asked.count(TrimRequest) == 1
    for each in (store, other):
        infos = each.log.partitions("t")
        assert {(info.earliest, info.end) for info in infos} == {(1, 2)}


def test_topics_are_made_and_extended_in_each_version(gateway: Gateway) -> None:
    for version in versions(Api.CREATE_TOPICS):
        topic = f"t{version}"
        fields = {"replication_factor": -1, "assignments": [], "configs": []}
        counted = (topic, 2), ("zero", 0), ("twice", 1), ("twice", 1)
        topics = [fields | {"name": name, "num_partitions": count} for name, count in counted]
        answer = tell(gateway, Api.CREATE_TOPICS, version, topics=topics, timeout_ms=30_000)
        errors = dict(rows(answer, "topics", "name", "error_code"))
        assert errors == {topic: 0, "zero": 37, "twice": 42}
        (found,) = [each for each in answer.topics if each.name == topic]
        assert version < 1 or found.error_message is None
        if version >= 5:
            assert (found.num_partitions, found.replication_factor) == (2, 1)
            assert ("retention.ms", "-1") in rows(found, "configs", "name", "value")
    for version in versions(Api.CREATE_PARTITIONS):
        grown = {"name": f"t{version}", "count": 3, "assignments": None}
        asked = {"timeout_ms": 30_000, "validate_only": False}
        for topics, error in (
            ([grown, grown], (42, "the request has this topic twice")),
            ([grown], (0, None)),
            ([grown | {"name": "u"}], (3, "topic 'u' does not exist")),
        ):
            answer = tell(gateway, Api.CREATE_PARTITIONS, version, topics=topics, **asked)
            assert rows(answer, "results", "error_code", "error_message") == [error]


@pytest.fixture
def dafkas(store: Store) -> Iterator[Producer]:
    """One that has written topic t."""
    with Producer("t", tower=store.options.tower) as dafkas:
        dafkas.publish(b"dafka's")
        yield dafkas


def begun(gateway: Gateway) -> AdminClient:
    client = admin_of(gateway)
    wait_until(lambda: counts(client) == {"t": 1})
    return client


@pytest.mark.usefixtures("dafkas")
def test_clients_get_a_partition_beside_those_of_dafkas_producers(
    gateway: Gateway, store: Store
) -> None:
    client = begun(gateway)
    writer = KafkaProducer({"bootstrap.servers": str(gateway.listens), "enable.idempotence": True})
    for at in range(50):
        writer.produce("t", b"%d" % at, key=b"%d" % at)
    assert writer.flush(PATIENCE_S) == 0
    assert counts(client) == {"t": 2}
    assert sorted(info.end for info in store.log.partitions("t")) == [1, 50]


@pytest.mark.usefixtures("dafkas")
def test_why_clients_cannot_get_a_partition_is_told_and_not_tried_each_time(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, turns = begun(gateway), list[str]()

    async def extend(self: PartitionRegistry, topic: str, *_: object, **__: object) -> None:
        turns.append(topic)
        raise RefusedError(KafkaError.POLICY_VIOLATION, "all numbers are given")

    monkeypatch.setattr(PartitionRegistry, "extend", extend)
    parts = {("t", 0): batch([b"kafka's"])}
    with ProduceClient(gateway.listens) as writer:
        wait_until(lambda: writer.ask(parts) == [(KafkaError.POLICY_VIOLATION, -1)])
        assert writer.ask(parts) == [(KafkaError.POLICY_VIOLATION, -1)]
    assert turns == ["t"]
    assert counts(client) == {"t": 1}


@pytest.mark.usefixtures("dafkas")
def test_clients_get_no_partition_where_no_topics_are_made_by_themselves(store: Store) -> None:
    with Gateway(store, listen="127.0.0.1:0", auto_create_topics=False) as gateway:
        client = begun(gateway)
        with ProduceClient(gateway.listens) as writer:
            found = writer.ask({("t", 0): batch([b"kafka's"])})
        assert found == [(KafkaError.POLICY_VIOLATION, -1)]
        assert counts(client) == {"t": 1}


# -- topics that were deleted, or are kept for a time, at all stores -------------------------------


def test_a_topic_is_deleted_while_clients_write_to_it(
    admin: AdminClient, gateway: Gateway, store: Store
) -> None:
    codes, octets = set[int](), batch([bytes(100)] * 200)
    is_over, is_written = threading.Event(), threading.Event()

    def write() -> None:
        with ProduceClient(gateway.listens) as producer:
            for _ in range(4):  # batches in flight
                producer.send({("t", 0): octets})
            while not is_over.is_set():
                producer.send({("t", 0): octets})
                codes.add(producer.receive()[0].error)
                is_written.set()

    for _ in range(2):
        make(admin, "t")
        threads = [threading.Thread(target=write) for _ in range(4)]
        for each in threads:
            each.start()
        assert is_written.wait(PATIENCE_S)
        delete(admin, "t")
        wait_until(lambda: KafkaError.UNKNOWN_TOPIC_OR_PARTITION in codes)
        is_over.set()
        for each in threads:
            each.join()
        assert all(info.earliest == info.end for info in store.log.partitions("t"))
        assert codes == {KafkaError.NONE, KafkaError.UNKNOWN_TOPIC_OR_PARTITION}
        codes.clear()
        is_over.clear()
        is_written.clear()
    assert counts(admin) == {}


def stored(store: Store, topic: str) -> list[list[bytes]]:
    """Return the bounds of each partition with records."""
    return [
        [
            value
            for each in store.log.read(info.tp, info.earliest, info.end)
            for value in each.values
        ]
        for info in store.log.partitions(topic)
        if info.earliest < info.end
    ]


def test_idempotent_producers_begin_anew_with_the_topic(
    admin: AdminClient, gateway: Gateway, store: Store
) -> None:
    first, second = [batch([b"%d" % at], producer=(77, 0, at)) for at in range(2)]
    with (
        Producer("t", tower=store.options.tower) as dafkas,
        ProduceClient(gateway.listens) as producer,
    ):
        for _ in range(2):
            make(admin, "t")
            dafkas.publish(b"dafka's")
            wait_until(lambda: counts(admin) == {"t": 2})
            sent = [producer.ask({("t", 0): each}) for each in (first, second, first)]
            assert sent == [[(0, 0)], [(0, 1)], [(0, 0)]]
            # To a Dafka producer's number: it is written to a hosted partition.
            sent = [producer.ask({("t", 1): each}) for each in (first, second, first)]
            assert sent == [[(0, -1)]] * 3
            assert sorted(stored(store, "t")) == [[b"0", b"1", b"0", b"1"], [b"dafka's"]]
            delete(admin, "t")
            assert stored(store, "t") == []


def test_of_topics_that_are_deleted_at_once_no_rule_is_left(
    admin: AdminClient, store: Store
) -> None:
    topics = [f"t{number}" for number in range(8)]
    for each in topics:
        make(admin, each, {"retention.ms": "1000"})
    assert len(store.retention_control.rules) == len(topics)
    for done in admin.delete_topics(topics, request_timeout=PATIENCE_S).values():
        done.result(PATIENCE_S)
    assert store.retention_control.rules == ()


@pytest.fixture
def third(store: Store, tower: str, tmp_path: Path) -> Iterator[Store]:
    """A third one: with it a majority stays when one ends."""
    with Store(tmp_path / "third", tower=tower) as third:
        wait_until(lambda: third.address in store.known.endpoints)
        yield third


def held(store: Store) -> list[tuple[int, int]]:
    return [(info.earliest, info.end) for info in store.log.partitions("t")]


def test_other_stores_do_it_too(
    admin: AdminClient, store: Store, other: Store, third: Store
) -> None:
    make(admin, "without")
    with Producer("t", tower=store.options.tower, acks=3) as producer:
        producer.publish_many([b"%d" % number for number in range(10)])
    wait_until(lambda: "t" in counts(admin))
    before = TopicPartition("t", 0, 4)
    low = admin.delete_records([before], request_timeout=PATIENCE_S)[before]
    assert low.result(PATIENCE_S).low_watermark == 4
    assert held(store) == held(other) == [(4, 10)]

    def keep(value: str) -> Any:
        entry = ConfigEntry("retention.ms", value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ConfigResource.Type.TOPIC, "t", incremental_configs=[entry])
        return admin.incremental_alter_configs([resource])[resource]

    keep("3600000").result(PATIENCE_S)
    rules = [list(map(str, each.retention_control.rules)) for each in (store, other, third)]
    assert rules == [["t=1h"]] * 3
    delete(admin, "t")
    wait_until(lambda: held(store) == held(other) == [(10, 10)])
    with Producer("t", tower=store.options.tower) as producer:
        producer.publish(b"again")
    wait_until(lambda: "t" in counts(admin))
    # The rule was deleted with the topic.
    assert [each.retention_control.rules for each in (store, other, third)] == [()] * 3
    keep("3600000").result(PATIENCE_S)
    other.close()
    wait_until(lambda: store.known.here == {third.address})
    error, why = refusal(keep("1000"))
    assert (error, other.address in why) == ("NOT_ENOUGH_REPLICAS", True)
    assert list(map(str, store.retention_control.rules)) == ["t=1h"]
    assert refusal(deletion(admin, "t"))[0] == "NOT_ENOUGH_REPLICAS"
    delete(admin, "without")
    assert counts(admin) == {"t": 1}
    # A request without limits changes no rule, whatever the topic's position.
    store.retention_control.replace(parse_rules(["x*=1d", "u=1h"]))
    make(admin, "u")
    assert counts(admin) == {"t": 1, "u": 1}


def test_a_store_that_keeps_a_deleted_topics_rule_is_told_again(
    admin: AdminClient, store: Store, other: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(admin, "t", {"retention.ms": "3600000"})

    def fail(*_: object) -> None:
        raise DafkaError("no disk")

    with monkeypatch.context() as patched:
        patched.setattr(other.retention_control, "replace", fail)
        assert refusal(deletion(admin, "t"))[0] == "REQUEST_TIMED_OUT"
        assert counts(admin) == {}
    delete(admin, "t")
    assert [each.retention_control.rules for each in (store, other)] == [()] * 2


def test_a_topic_that_another_store_does_not_keep_as_asked_for_is_not_made(
    admin: AdminClient, store: Store, other: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise DafkaError("no disk")

    monkeypatch.setattr(other.retention_control, "replace", fail)
    made = create(admin, NewTopic("t", 1, config={"retention.ms": "1000"}))["t"]
    error, why = refusal(made)
    assert (error, "so the topic is not made" in why) == ("REQUEST_TIMED_OUT", True)
    assert [each.retention_control.rules for each in (store, other)] == [()] * 2
    assert counts(admin) == {}
