"""Nodes whose extensions differ: those of before subscribe to identifiers that ours never send."""

from __future__ import annotations

from collections.abc import Callable

from dafka_core import Consumer, Producer, Store
from dafka_core.envelope import closed
from dafka_core.protocol.messages import (
    DirectHead,
    DirectRecord,
    Fetch,
    GetHeads,
    RecordMessage,
)
from tests.integration.nodes.peers import PATIENCE_S, RawPeer

OLD_EXTENSIONS = (b"R", b"P", b"S", b"U", b"N")
"""What the first version of ours subscribed to beside the commands of C nodes."""


def test_a_node_of_the_first_version_gets_every_record_as_a_c_node_does(
    tower: str, store: Store, produce: Callable[..., Producer]
) -> None:
    with RawPeer(tower, b"Mt", b"Rt") as consumer:
        for prefix in (b"D", b"E", *OLD_EXTENSIONS[1:]):
            consumer.subscribe(prefix + consumer.address.encode())
        producer = produce("t")
        consumer.wait_until_met(producer.address)
        consumer.wait_until_met(store.address)
        consumer.wait_until_subscribed(b"G")
        producer.publish_many([b"a", b"b"])
        producer.flush(PATIENCE_S)
        consumer.send(GetHeads("t", consumer.address))
        head = consumer.wait_for(DirectHead)[0]
        assert (head.partition, head.sequence) == (producer.address, 1)
        consumer.send(Fetch(producer.address, consumer.address, "t", 0, 2))
        fetched = consumer.wait_for(DirectRecord, 2)
        assert {record.value for record in fetched} == {b"a", b"b"}  # two may have answered
        live = consumer.messages(RecordMessage)
        assert [record.value for record in live] in ([], [b"b"], [b"a", b"b"])
        sent = {frames[0][:1] for frames in consumer.heard}
        assert sent.isdisjoint(OLD_EXTENSIONS[:4]), "its layout is another one"


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
