"""DescribeConfigs, AlterConfigs and IncrementalAlterConfigs."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
)
from confluent_kafka.cimpl import NewTopic
from kafka.admin import ConfigResource as PythonResource
from kafka.admin import ConfigResourceType, KafkaAdminClient

from dafka_core import Store
from dafka_core.config.topic_rules import parse_rules
from dafka_core.testing.waiting import wait_until
from dafka_kafka.api import Api
from dafka_kafka.errors import KafkaError
from dafka_kafka.gateway import APIS, Gateway
from dafka_kafka.gateways import node_id
from dafka_kafka.produce import ALL
from dafka_kafka.schemas import (
    AlterConfigsRequest,
    DescribeConfigsRequest,
    IncrementalAlterConfigsRequest,
)
from tests.integration.kafka.one_request import tell
from tests.integration.kafka.produce_client import ProduceClient, batch

PATIENCE_S = 30.0


@pytest.fixture
def client(gateway: Gateway) -> AdminClient:
    client = AdminClient({"bootstrap.servers": str(gateway.listens), "log_level": 0})
    client.create_topics([NewTopic("t", 1)])["t"].result(PATIENCE_S)
    return client


def described(client: AdminClient, kind: Any, name: str) -> dict[str, Any]:
    resource = ConfigResource(kind, name)
    found = client.describe_configs([resource], request_timeout=PATIENCE_S)[resource]
    return dict(found.result(PATIENCE_S))


def produced(gateway: Gateway, topic: str, acks: int, *values: bytes) -> int:
    with ProduceClient(gateway.listens) as client:
        (answer,) = client.ask({(topic, 0): batch(values or [b"a"])}, acks=acks)
    return answer.error


def test_a_topics_configs_are_what_is_true_of_it(client: AdminClient, store: Store) -> None:
    found = described(client, ConfigResource.Type.TOPIC, "t")
    assert {name: each.value for name, each in found.items()} == {
        "cleanup.policy": "delete",
        "compression.type": "uncompressed",
        "flush.messages": "1",
        "follower.replication.throttled.replicas": "",
        "leader.replication.throttled.replicas": "",
        "local.retention.bytes": "-2",
        "local.retention.ms": "-2",
        "max.message.bytes": str(store.options.max_record_bytes),
        "message.timestamp.after.max.ms": "3600000",
        "message.timestamp.before.max.ms": str(2**63 - 1),
        "message.timestamp.type": "CreateTime",
        "min.insync.replicas": "1",
        "remote.storage.enable": "false",
        "retention.bytes": "-1",
        "retention.ms": "-1",
    }
    assert all(each.is_default for each in found.values())
    assert {name for name, each in found.items() if not each.is_read_only} == {
        *("max.message.bytes", "min.insync.replicas", "retention.bytes", "retention.ms")
    }
    with pytest.raises(KafkaException, match="topic 'u' does not exist"):
        described(client, ConfigResource.Type.TOPIC, "u")


def test_what_a_topic_keeps_is_what_the_store_does(client: AdminClient, store: Store) -> None:
    store.retention.rules = parse_rules("u=1h t=7d,1GiB")
    found = described(client, ConfigResource.Type.TOPIC, "t")
    assert found["retention.ms"].value == str(7 * 86_400_000)
    assert found["retention.bytes"].value == str(1 << 30)


def test_a_gateways_configs_are_its_options(client: AdminClient, store: Store) -> None:
    own = str(node_id(store.address))
    found = {
        name: each.value
        for name, each in described(client, ConfigResource.Type.BROKER, own).items()
    }
    assert (found["num.partitions"], found["broker.id"]) == ("1", own)
    assert (found["auto.create.topics.enable"], found["delete.topic.enable"]) == ("true", "true")


def test_kafka_python_reads_them(client: AdminClient, gateway: Gateway) -> None:
    python = KafkaAdminClient(bootstrap_servers=str(gateway.listens))
    try:
        asked = [PythonResource(ConfigResourceType.TOPIC, "t")]
        found = python.describe_configs(asked, config_filter="all")
        assert found["topic"]["t"]["retention.ms"]["value"] == "-1"
    finally:
        python.close()


@pytest.mark.parametrize("version", APIS[Api.DESCRIBE_CONFIGS].versions)
def test_each_version_is_answered(client: AdminClient, gateway: Gateway, version: int) -> None:
    kind = DescribeConfigsRequest.DescribeConfigsResource
    keys = ["retention.ms", "colour"]
    asked = [
        kind(resource_type=2, resource_name="t", configuration_keys=keys),
        kind(resource_type=4, resource_name="7", configuration_keys=None),
        kind(resource_type=4, resource_name="", configuration_keys=None),
        kind(resource_type=8, resource_name="0", configuration_keys=None),
    ]
    answer = tell(gateway, DescribeConfigsRequest(resources=asked), version)
    assert [each.error_code for each in answer.results] == [0, 42, 0, 42]
    assert [(each.name, each.value) for each in answer.results[0].configs] == [
        ("retention.ms", "-1")
    ]
    assert answer.results[2].configs == []
    assert not answer.results[0].configs[0].read_only


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("retention.ms", "-1", 0),
        ("segment.bytes", "1000", 0),
        ("segment.bytes", "large", 40),
        ("preallocate", "maybe", 40),
        ("retention.ms", str(2**63 - 1), 0),
        ("max.message.bytes", "1000", 0),
        ("max.message.bytes", str(2**31 - 1), 40),
        ("min.insync.replicas", "1", 0),
        ("min.insync.replicas", "2", 40),
        ("message.timestamp.after.max.ms", "3600001", 40),
        ("message.timestamp.before.max.ms", "1000", 0),
        ("local.retention.ms", "1000", 0),
        ("remote.storage.enable", "false", 0),
        ("remote.storage.enable", "true", 40),
        ("follower.replication.throttled.replicas", "0:1", 0),
        ("retention.ms", "0", 40),
        ("retention.ms", "soon", 40),
        ("retention.bytes", str(2**63), 40),
        ("cleanup.policy", "compact", 40),
        ("colour", "red", 40),
    ],
)
@pytest.mark.parametrize("kind", [AlterConfigsRequest, IncrementalAlterConfigsRequest])
def test_a_config_is_set_if_that_changes_nothing(
    client: AdminClient, gateway: Gateway, kind: Any, name: str, value: str, error: int
) -> None:
    config = kind.AlterConfigsResource.AlterableConfig(name=name, value=value)
    asked = [
        kind.AlterConfigsResource(resource_type=2, resource_name="t", configs=[config]),
        kind.AlterConfigsResource(resource_type=2, resource_name="u", configs=[config]),
        kind.AlterConfigsResource(resource_type=4, resource_name="7", configs=[config]),
    ]
    for version in APIS[kind.API_KEY].versions:
        answer = tell(gateway, kind(resources=asked, validate_only=False), version)
        assert [each.error_code for each in answer.responses] == [error, 3, 42]
        assert error == 0 or name in answer.responses[0].error_message
    assert {key: each.value for key, each in described(client, 2, "t").items()}[
        "retention.ms"
    ] == "-1"


def test_what_a_topic_keeps_is_changed_and_set_back(client: AdminClient, store: Store) -> None:
    control = store.retention_control
    control.replace(parse_rules("audit=forever t*=7d,10GiB"))
    resource = ConfigResource(ConfigResource.Type.TOPIC, "t")

    def change(alter: Any, *entries: ConfigEntry) -> dict[str, str]:
        asked = ConfigResource(ConfigResource.Type.TOPIC, "t", incremental_configs=[*entries])
        if alter == client.alter_configs:  # AlterConfigs resets all others
            asked = ConfigResource(ConfigResource.Type.TOPIC, "t")
            for each in entries:
                asked.set_config(each.name, str(each.value))
        is_old = alter == client.alter_configs
        with pytest.warns(DeprecationWarning, match="alter_configs") if is_old else nullcontext():
            altering = alter([asked])
        altering[resource].result(PATIENCE_S)
        found = described(client, ConfigResource.Type.TOPIC, "t")
        assert {each.source for name, each in found.items() if name.startswith("retention.")} == {
            ConfigSource.STATIC_BROKER_CONFIG.value
            if len(control.rules) == 2
            else ConfigSource.DYNAMIC_TOPIC_CONFIG.value
        }
        return {name: found[f"retention.{name}"].value for name in ("ms", "bytes")}

    def entry(name: str, value: str | None) -> ConfigEntry:
        kind = AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET
        return ConfigEntry(f"retention.{name}", value, incremental_operation=kind)

    some, all_ = client.incremental_alter_configs, client.alter_configs
    week, size = str(7 * 86_400_000), str(10 << 30)
    assert change(some, entry("ms", "1500")) == {"ms": "1500", "bytes": size}
    assert list(map(str, control.rules)) == ["t=1.5s,10GiB", "audit=forever", "t*=1w,10GiB"]
    assert change(some, entry("bytes", "-1")) == {"ms": "1500", "bytes": "-1"}
    assert change(all_, entry("bytes", "1000")) == {"ms": week, "bytes": "1000"}
    assert change(some, entry("bytes", None)) == {"ms": week, "bytes": size}
    assert list(map(str, control.rules)) == ["audit=forever", "t*=1w,10GiB"]
    assert change(some, entry("ms", "-1"), entry("bytes", "-1")) == {"ms": "-1", "bytes": "-1"}
    assert control.rules[0] == parse_rules("t=forever")[0]
    assert change(all_) == {"ms": week, "bytes": size}
    made = client.create_topics(
        [NewTopic("t[2]", 1), NewTopic("t2", 1, config={"retention.ms": "9"})]
    )
    with pytest.raises(KafkaException, match="letters"):
        made["t[2]"].result(PATIENCE_S)
    made["t2"].result(PATIENCE_S)
    assert list(map(str, control.rules)) == ["t2=0.009s,10GiB", "audit=forever", "t*=1w,10GiB"]


def test_the_limit_of_a_batch_is_kept_and_applied(client: AdminClient, gateway: Gateway) -> None:
    def limit() -> str:
        return str(described(client, ConfigResource.Type.TOPIC, "t")["max.message.bytes"].value)

    def alter(value: str | None) -> None:
        kind = AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET
        entry = ConfigEntry("max.message.bytes", value, incremental_operation=kind)
        asked = ConfigResource(ConfigResource.Type.TOPIC, "t", incremental_configs=[entry])
        client.incremental_alter_configs([asked])[asked].result(PATIENCE_S)

    def write(topic: str) -> int:
        return produced(gateway, topic, 1, bytes(1000))

    usual = limit()
    alter("1000")
    assert (limit(), produced(gateway, "t", 1)) == ("1000", KafkaError.NONE)
    assert write("t") == KafkaError.MESSAGE_TOO_LARGE
    alter(None)
    assert (limit(), write("t")) == (usual, KafkaError.NONE)
    made = NewTopic("u", 1, config={"max.message.bytes": "500"})
    client.create_topics([made])["u"].result(PATIENCE_S)
    assert write("u") == KafkaError.MESSAGE_TOO_LARGE
    kind = AlterConfigsRequest.AlterConfigsResource
    asked = [kind(resource_type=2, resource_name="u", configs=[])]
    tell(gateway, AlterConfigsRequest(resources=asked, validate_only=False), 1)
    assert write("u") == KafkaError.NONE
    alter("500")
    client.delete_topics(["t"])["t"].result(PATIENCE_S)
    client.create_topics([NewTopic("t", 1)])["t"].result(PATIENCE_S)
    assert (limit(), write("t")) == (usual, KafkaError.NONE)


def test_a_config_is_set_back_and_none_is_added_to(client: AdminClient, gateway: Gateway) -> None:
    kind: Any = IncrementalAlterConfigsRequest
    change = kind.AlterConfigsResource.AlterableConfig
    for operation, error in ((1, 0), (2, 40), (3, 0), (99, 40)):
        configs = [change(name="cleanup.policy", config_operation=operation, value="compact")]
        asked = [kind.AlterConfigsResource(resource_type=2, resource_name="t", configs=configs)]
        (answer,) = tell(gateway, kind(resources=asked, validate_only=True), 0).responses
        assert answer.error_code == error


def test_all_configs_that_cannot_be_set_are_named_at_once(
    client: AdminClient, gateway: Gateway
) -> None:
    asked = {"cleanup.policy": "compact", "colour": "red", "retention.ms": "soon"}
    fine = {"segment.ms": "1", "retention.bytes": "1000"}
    made = client.create_topics([NewTopic("u", 1, config=asked | fine)])["u"]
    with pytest.raises(KafkaException) as refused:
        made.result(PATIENCE_S)
    why = refused.value.args[0].str()
    assert all(name in why for name in asked)
    assert not any(name in why for name in fine)
    assert all(way in why for way in ("withLoggingDisabled()", "connect-standalone"))


def test_options_that_are_set_are_the_brokers_static_configs(store: Store) -> None:
    with Gateway(store, listen="127.0.0.1:0", num_partitions=3) as gateway:
        client = AdminClient({"bootstrap.servers": str(gateway.listens)})
        own = str(node_id(store.address))
        found = described(client, ConfigResource.Type.BROKER, own)
    static = {
        name
        for name, each in found.items()
        if each.source == ConfigSource.STATIC_BROKER_CONFIG.value
    }
    told = {"advertised.listeners", "broker.id", "listeners", "node.id"}
    assert static == told | {"num.partitions"}


def test_as_many_copies_can_be_asked_for_as_there_are_stores(
    client: AdminClient, gateway: Gateway, store: Store, tower: str, tmp_path: Path
) -> None:
    with Store(tmp_path / "other", tower=tower):
        wait_until(lambda: store.known.names)
        asked = [
            NewTopic(f"u{count}", 1, config={"min.insync.replicas": f"{count}"}) for count in (2, 3)
        ]
        made = client.create_topics(asked)
        made["u2"].result(PATIENCE_S)
        with pytest.raises(KafkaException, match="at most the number of stores"):
            made["u3"].result(PATIENCE_S)
        wait_until(lambda: store.known.endpoints)
        assert produced(gateway, "u2", ALL) == KafkaError.NONE
    found = described(client, ConfigResource.Type.TOPIC, "u2")["min.insync.replicas"]
    assert (found.value, found.source) == ("2", ConfigSource.DYNAMIC_TOPIC_CONFIG.value)
    wait_until(lambda: not store.known.endpoints)
    assert produced(gateway, "u2", ALL) == KafkaError.NOT_ENOUGH_REPLICAS
    assert produced(gateway, "u2", 1) == produced(gateway, "t", ALL) == KafkaError.NONE
