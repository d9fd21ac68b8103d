"""Nodes that know no envelopes, as C nodes, among those that do."""

from __future__ import annotations

from collections.abc import Callable

from dafka_core import Consumer, Producer, Store
from dafka_core.model.envelope import closed
from dafka_core.protocol.messages import (
    RecordMessage,
)
from tests.integration.nodes.peers import PATIENCE_S, RawPeer


def test_nodes_that_know_no_envelopes_get_them_as_values(
    tower: str, store: Store, produce: Callable[..., Producer]
) -> None:
    with RawPeer(tower, b"Mt") as consumer:
        producer = produce("t", wire="rfc46")
        consumer.wait_until_met(producer.address)
        contents = [b"bare", closed(b"v", b"k", [("h", None)]), closed(None, b"k")]
        producer.publish(b"bare")
        producer.publish(b"v", b"k", [("h", None)])
        producer.publish(None, b"k")
        producer.flush(PATIENCE_S)
        live = consumer.wait_for(RecordMessage, 3)
        assert [record.value for record in live] == contents
    with Consumer(tower=tower, envelope="none") as other:
        other.subscribe("t")
        records = [other.poll(PATIENCE_S) for _ in contents]
        assert [record and record.value for record in records] == contents
