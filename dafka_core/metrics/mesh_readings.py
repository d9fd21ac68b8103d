"""What nodes in the mesh tell of themselves; and producers, consumers and towers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from dafka_core.metrics import declarations as d
from dafka_core.metrics.samples import Sample
from dafka_core.names import escape

if TYPE_CHECKING:
    from dafka_core.nodes.consumer import Consumer
    from dafka_core.nodes.mesh import Mesh
    from dafka_core.nodes.producer import Producer
    from dafka_core.nodes.tower import Tower

PEER_KINDS: Final = {"S": "store", "P": "producer", "C": "consumer", "R": "reader"}
"""By the letter that nodes announce."""

OTHER: Final = "other"

ALWAYS_TOLD: Final = ("Ack", "EpochAck", "Fetch", "FetchBatch")
"""Messages that are told of with 0, too, so that the first one is seen as an increase."""


def of_mesh(mesh: Mesh) -> Iterator[Sample]:
    """What any node in the mesh tells."""
    peers, traffic = mesh.peers, mesh.traffic
    letters = mesh.limits.letters()
    told = {kind: letters[letter] for letter, kind in PEER_KINDS.items()}
    told[OTHER] = max(len(peers.table) - sum(told.values()), 0)
    for kind, count in told.items():
        yield Sample(d.PEERS, count, (kind,))
    yield Sample(d.PEERS_REFUSED, len(peers.room.refused))
    yield Sample(d.PEERS_LEFT_ALONE, peers.rates.pause_count)
    yield Sample(d.CONNECTIONS_RENEWED, peers.renewal_count)
    yield Sample(d.RECORDS_RECEIVED, traffic.records_received)
    yield Sample(d.BYTES_RECEIVED, traffic.bytes_received)
    yield Sample(d.RECORDS_SENT, traffic.live_records, ("live",))
    yield Sample(d.RECORDS_SENT, traffic.direct_records, ("direct",))
    yield Sample(d.BYTES_SENT, traffic.live_bytes, ("live",))
    yield Sample(d.BYTES_SENT, traffic.direct_bytes, ("direct",))
    for metric, counts in (
        (d.MESSAGES_RECEIVED, traffic.received),
        (d.MESSAGES_SENT, traffic.sent),
    ):
        for message, count in (dict.fromkeys(ALWAYS_TOLD, 0) | dict(counts)).items():
            yield Sample(metric, count, (message,))
    for reason, count in traffic.refused(peers).items():
        yield Sample(d.FRAMES_REFUSED, count, (reason,))
    now = time.monotonic()
    for tower, heard_at in peers.towers.heard_at.items():
        yield Sample(d.TOWER_SILENT, max(now - heard_at, 0.0) if heard_at else 0.0, (tower,))
    yield Sample(d.LOOP_OVERDUE, overdue_s(mesh))


def overdue_s(mesh: Mesh) -> float:
    """For how long a round of its loop has been due: one begins with each beacon at least."""
    return max(time.monotonic() - mesh.peers.beacon_due, 0.0)


def of_producer(producer: Producer) -> Iterator[Sample]:
    """What a producer tells."""
    mesh, role, unacked = producer.parts
    topic = (escape(producer.topic),)
    yield from of_mesh(mesh)
    yield Sample(d.PUBLISHED, producer.next_offset, topic)
    yield Sample(d.ACKNOWLEDGED, producer.acknowledged, topic)
    yield Sample(d.UNACKED_BYTES, unacked.size_bytes, topic)
    yield Sample(d.FENCED, role.fenced_by is not None, topic)


def of_consumer(consumer: Consumer) -> Iterator[Sample]:
    """What a consumer tells."""
    mesh, queue = consumer.parts
    yield from of_mesh(mesh)
    records, size_bytes = queue.size
    yield Sample(d.QUEUED_RECORDS, records)
    yield Sample(d.QUEUED_BYTES, size_bytes)
    records, size_bytes = queue.added
    yield Sample(d.CONSUMED, records)
    yield Sample(d.CONSUMED_BYTES, size_bytes)
    yield Sample(d.SKIPPED, sum(consumer.skipped.values()))
    yield Sample(d.SUBSCRIPTIONS, len(consumer.subscription))


def of_tower(tower: Tower) -> Iterator[Sample]:
    """What a tower tells."""
    yield Sample(d.TOWER_NODES, tower.heard.count())
    yield Sample(d.BEACONS, tower.beacon_count)
    yield Sample(d.FRAMES_REFUSED, tower.invalid_count, ("beacon",))
