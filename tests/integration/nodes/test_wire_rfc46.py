"""Nodes with RFC 46's own layout, with that of C nodes, and without envelopes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dafka_core import Consumer, Producer, Store
from dafka_core.config.node_options import C_LAYOUT, LAYOUTS, RFC46
from dafka_core.model.envelope import closed
from dafka_core.protocol.codec import SIGNATURE, subscription
from dafka_core.protocol.messages import Head, RecordMessage
from dafka_core.testing import wait_until
from tests.integration.nodes.content import acknowledged_by
from tests.integration.nodes.peers import PATIENCE_S, RawPeer


@pytest.mark.parametrize("layout", LAYOUTS)
def test_messages_have_the_layout_of_the_option(
    produce: Callable[..., Producer], raw: Callable[..., RawPeer], layout: str
) -> None:
    peer = raw(subscription(RecordMessage, "t"), subscription(Head, "t"))
    producer = produce("t", wire=layout, head_interval_ms=20)

    def heard() -> bool:
        producer.publish(b"value")
        return bool(peer.messages(RecordMessage)) and bool(peer.messages(Head))

    wait_until(heard)
    for frames in list(peer.heard):
        rfc46 = len(frames) > 1 and frames[1].startswith(SIGNATURE)
        assert rfc46 == (layout == RFC46)
        assert (frames[0] in (b"Mt", b"Ht")) == (layout == RFC46)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_acknowledgements_of_two_stores_are_distinguished(
    tower: str, tmp_path: Path, layout: str
) -> None:
    # RFC 46 has the store's address in its ACK, in C nodes' layout the connection identifies it.
    with (
        Store(tmp_path / "one", tower=tower, wire=layout) as one,
        Store(tmp_path / "two", tower=tower, wire=C_LAYOUT) as two,
        Producer("t", tower=tower, acks=2) as producer,
    ):
        producer.publish(b"0")
        producer.flush(PATIENCE_S)
        assert acknowledged_by(producer) == {one.address: 1, two.address: 1}


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
