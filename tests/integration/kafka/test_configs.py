"""What is said in the words of Kafka's configs."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.cimpl import NewTopic
from kafka.admin import ConfigResource as PythonResource
from kafka.admin import ConfigResourceType, KafkaAdminClient

from dafka_core import Store
from dafka_core.kafka.api_versions import VERSIONS, Api
from dafka_core.kafka.gateway import Gateway
from dafka_core.kafka.gateways import node_id
from dafka_core.kafka.schemas import (
    AlterConfigsRequest,
    DescribeConfigsRequest,
    IncrementalAlterConfigsRequest,
)
from dafka_core.retention_rules import parse_rules
from tests.integration.kafka.one_request import tell

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


def test_a_topics_configs_are_what_is_true_of_it(client: AdminClient, store: Store) -> None:
    found = described(client, ConfigResource.Type.TOPIC, "t")
    assert {name: each.value for name, each in found.items()} == {
        "cleanup.policy": "delete",
        "max.message.bytes": str(store.options.max_record_bytes),
        "message.timestamp.type": "CreateTime",
        "min.insync.replicas": "1",
        "retention.bytes": "-1",
        "retention.ms": "-1",
    }
    assert all(each.is_read_only and each.is_default for each in found.values())
    with pytest.raises(KafkaException, match="there is no topic 'u'"):
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
    assert (found["auto.create.topics.enable"], found["delete.topic.enable"]) == ("true", "false")


def test_kafka_python_reads_them(client: AdminClient, gateway: Gateway) -> None:
    python = KafkaAdminClient(bootstrap_servers=str(gateway.listens))
    try:
        asked = [PythonResource(ConfigResourceType.TOPIC, "t")]
        found = python.describe_configs(asked, config_filter="all")
        assert found["topic"]["t"]["retention.ms"]["value"] == "-1"
    finally:
        python.close()


@pytest.mark.parametrize("version", VERSIONS[Api.DESCRIBE_CONFIGS])
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
    assert answer.results[0].configs[0].read_only


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("retention.ms", "-1", 0),
        ("segment.bytes", "1000", 0),
        ("retention.ms", "1000", 40),
        ("colour", "red", 40),
    ],
)
@pytest.mark.parametrize("kind", [AlterConfigsRequest, IncrementalAlterConfigsRequest])
def test_only_what_is_so_already_can_be_set(
    client: AdminClient, gateway: Gateway, kind: Any, name: str, value: str, error: int
) -> None:
    config = kind.AlterConfigsResource.AlterableConfig(name=name, value=value)
    asked = [
        kind.AlterConfigsResource(resource_type=2, resource_name="t", configs=[config]),
        kind.AlterConfigsResource(resource_type=2, resource_name="u", configs=[config]),
        kind.AlterConfigsResource(resource_type=4, resource_name="7", configs=[config]),
    ]
    for version in VERSIONS[kind.API_KEY]:
        answer = tell(gateway, kind(resources=asked, validate_only=False), version)
        assert [each.error_code for each in answer.responses] == [error, 3, 42]
        assert error == 0 or name in answer.responses[0].error_message
    assert {key: each.value for key, each in described(client, 2, "t").items()}[
        "retention.ms"
    ] == "-1"


def test_a_config_is_set_back_and_none_is_added_to(client: AdminClient, gateway: Gateway) -> None:
    kind: Any = IncrementalAlterConfigsRequest
    change = kind.AlterConfigsResource.AlterableConfig
    for operation, error in ((1, 0), (2, 40), (3, 40), (99, 40)):
        configs = [change(name="cleanup.policy", config_operation=operation, value="compact")]
        asked = [kind.AlterConfigsResource(resource_type=2, resource_name="t", configs=configs)]
        (answer,) = tell(gateway, kind(resources=asked, validate_only=True), 0).responses
        assert answer.error_code == error
