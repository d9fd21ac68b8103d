"""Peers that send what nobody wants; each seed of the simulation has invalid messages."""

from __future__ import annotations

from dafka_core.model.records import TopicPartition
from dafka_core.protocol import messages as m
from dafka_core.protocol.codec import subscription
from tests.simulation.scripts.script import Script

TP = TopicPartition("t", "P")
HUGE = 2**63 - 2


def test_forged_heads_and_unrequested_records_stop_nothing(world: Script) -> None:
    store, consumer, producer = world.store(), world.consumer("t"), world.producer("t")
    reader, peer = world.reader(), world.peer()
    world.checkers.liars.update(("P", "P2"))  # the checkers do not know its records

    def assert_works() -> None:
        """A record passes from the producer through all others."""
        tp, end = producer.tp, producer.role.next_offset + 1
        producer.publish()
        world.until(lambda: store.held(tp) == (0, end), "it is stored")
        world.until(lambda: len(consumer.values(tp)) == end, "it is delivered")
        assert reader.read(tp, end - 1, end) == [b"%d" % (end - 1)]

    peer.wait_until_subscribed(
        subscription(m.ConsumerHello, store.address),
        subscription(m.Ack, producer.address),
        subscription(m.RecordBatchMessage, "t"),
        subscription(m.TimesReply, reader.address),
    )
    assert_works()
    peer.subscribe(subscription(m.Fetch))
    nodes = (store.address, consumer.address, reader.address)
    for partition in ("P2", producer.address):
        peer.send(m.Head("t", partition, HUGE))
        peer.send(*(m.DirectHead(each, "t", partition, HUGE) for each in nodes))
    peer.send(m.RecordMessage("t", "P2", HUGE, b"the last there can be"))
    for requestor in nodes:
        for sequence in (0, 5, 1_000_000, HUGE):
            peer.send(m.DirectRecord(requestor, *TP, sequence, b"unrequested"))
            peer.send(m.DirectRecord(requestor, "unknown topic", "P", sequence, b"x"))
    world.until(lambda: ("t", "P2") in consumer.role.positions())
    assert_works()
    assert_works()
    assert store.held(TopicPartition("t", "P2")) == (0, 0)
    assert store.held(TP) == (0, 1)
