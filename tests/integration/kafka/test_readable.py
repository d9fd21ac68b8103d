"""Whether a client may read a partition here."""

from __future__ import annotations

import pytest

from dafka_core import Store
from dafka_core.errors import StoreError
from dafka_core.kafka.kafka_errors import KafkaError
from dafka_core.kafka.readable import NO_EPOCH, readable, say_damaged
from dafka_core.records import TopicPartition
from tests.integration.kafka.fixed_node import fixed_node


@pytest.mark.parametrize(
    ("topic", "number", "epoch", "found"),
    [
        ("t", 0, NO_EPOCH, TopicPartition("t", "A")),
        ("t", 9, NO_EPOCH, KafkaError.NOT_LEADER_OR_FOLLOWER),
        ("t", 10, NO_EPOCH, KafkaError.UNKNOWN_TOPIC_OR_PARTITION),
        ("t", -1, NO_EPOCH, KafkaError.UNKNOWN_TOPIC_OR_PARTITION),
        ("u", 0, NO_EPOCH, KafkaError.UNKNOWN_TOPIC_OR_PARTITION),
        ("t", 0, 0, KafkaError.UNKNOWN_LEADER_EPOCH),
    ],
)
def test_what_is_read_here(
    store: Store, topic: str, number: int, epoch: int, found: TopicPartition | KafkaError
) -> None:
    with fixed_node(store) as node:
        assert readable(node, topic, number, epoch) == found


def test_damage_is_logged_and_told(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    damage = StoreError(store.log.directory, "topic t, partition A is damaged")
    assert say_damaged(damage) is KafkaError.KAFKA_STORAGE_ERROR
    assert "topic t, partition A is damaged" in caplog.text
