"""Helpers for librdkafka's admin client."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

PATIENCE_S = 30.0


def counts(client: AdminClient) -> dict[str, int]:
    found = client.list_topics(timeout=PATIENCE_S).topics
    return {name: len(each.partitions) for name, each in found.items()}


def refusal(future: Any) -> tuple[str, str]:
    with pytest.raises(KafkaException) as refused:
        future.result(PATIENCE_S)
    error = refused.value.args[0]
    return error.name(), error.str()


def create(client: AdminClient, *topics: NewTopic, **options: Any) -> dict[str, Any]:
    return client.create_topics(list(topics), request_timeout=PATIENCE_S, **options)


def make(client: AdminClient, topic: str, config: dict[str, str] | None = None) -> None:
    made = create(client, NewTopic(topic, 1, config=config or {}))
    assert made[topic].result(PATIENCE_S) is None


def delete(client: AdminClient, topic: str) -> None:
    deleted = client.delete_topics([topic], request_timeout=PATIENCE_S)[topic]
    assert deleted.result(PATIENCE_S) is None
