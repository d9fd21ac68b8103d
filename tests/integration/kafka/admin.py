"""Helpers for librdkafka's admin client."""

from typing import Any

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from dafka_kafka.gateway import Gateway

PATIENCE_S = 30.0


def admin_of(gateway: Gateway) -> AdminClient:
    return AdminClient({"bootstrap.servers": str(gateway.listens), "log_level": 0})


def listed(client: AdminClient, *topic: str) -> Any:
    return client.list_topics(*topic, timeout=PATIENCE_S)


def counts(client: AdminClient) -> dict[str, int]:
    return {name: len(each.partitions) for name, each in listed(client).topics.items()}


def refusal(future: Any) -> tuple[str, str]:
    with pytest.raises(KafkaException) as refused:
        future.result(PATIENCE_S)
    error = refused.value.args[0]
    return error.name(), error.str()


def create(client: AdminClient, *topics: NewTopic, **options: Any) -> dict[str, Any]:
    return client.create_topics(list(topics), request_timeout=PATIENCE_S, **options)


def make(
    client: AdminClient, topic: str, config: dict[str, str] | None = None, count: int = 1
) -> None:
    made = create(client, NewTopic(topic, count, config=config or {}))
    assert made[topic].result(PATIENCE_S) is None


def deletion(client: AdminClient, topic: str) -> Any:
    return client.delete_topics([topic], request_timeout=PATIENCE_S)[topic]


def delete(client: AdminClient, topic: str) -> None:
    assert deletion(client, topic).result(PATIENCE_S) is None
