"""Whether a client may read a partition here, and where its records are."""

from __future__ import annotations

import logging
from typing import Final

from dafka_core.errors import StoreError
from dafka_core.kafka.gateway_node import GatewayNode
from dafka_core.kafka.kafka_errors import KafkaError
from dafka_core.records import TopicPartition

NO_EPOCH: Final = -1
"""A leader epoch that is not known.  It is all that a gateway ever says of one."""

_log: Final = logging.getLogger("dafka.kafka")


def readable(
    node: GatewayNode, topic: str, number: int, leader_epoch: int
) -> TopicPartition | KafkaError:
    """The partition of the log with a topic's number, or why it is not to be read here.

    ``leader_epoch`` is the one that the client has heard of, or ``NO_EPOCH``.
    """
    partition = node.numbers.get(topic, number)
    if partition is None:
        return KafkaError.UNKNOWN_TOPIC_OR_PARTITION
    own = node.gateways.own.address
    # Most are this gateway's own; a client may ask for hundreds of them at once.
    if partition.gateway != own and node.gateways.leader(partition).address != own:
        return KafkaError.NOT_LEADER_OR_FOLLOWER
    if leader_epoch > NO_EPOCH:
        # No gateway of this cluster has told of one: the client knows another cluster.
        return KafkaError.UNKNOWN_LEADER_EPOCH
    return partition.tp


def say_damaged(damage: StoreError) -> KafkaError:
    """What a client is told where the log cannot be read; the log of this process has the rest."""
    _log.error("a Kafka client was told of a storage error: %s", damage)
    return KafkaError.KAFKA_STORAGE_ERROR
