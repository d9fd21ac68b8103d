"""Nodes that know RFC 46 alone, as producers and stores, and the scenarios of the C self-tests.

Source: ``dafka_consumer_test`` and ``dafka_store_test`` in the zeromq/dafka README.
"""

from __future__ import annotations

import pytest

from dafka_core.config.node_options import LAYOUTS
from dafka_core.model.records import RecordBatch, TopicPartition
from dafka_core.protocol import messages as m
from dafka_core.protocol.codec import subscription
from tests.simulation.scripts.script import Peer, Script, tp_of, values

both_layouts = pytest.mark.parametrize("layout", LAYOUTS)


@pytest.fixture
def peer(world: Script) -> Peer:
    """The C project's test peer: receives a consumer's requests, and sends what a test gives."""
    return world.peer(subscription(m.GetHeads), subscription(m.Fetch))


def test_records_after_missing_ones_do_not_answer_a_fetch(world: Script) -> None:
    tp = tp_of("trimmed")
    with world.log("a") as log:
        log.append([RecordBatch.of(tp, 0, values(10))])
        log.trim(tp, 5)
    world.checkers.liars.add(tp.partition)  # nobody has published its records
    store, peer = world.store("a"), world.peer()
    peer.subscribe(subscription(m.DirectRecord, peer.address))
    peer.wait_until_subscribed(subscription(m.Fetch))
    peer.send(m.Fetch(peer.address, *tp, 0, 10))
    world.run(5)
    assert peer.messages(m.DirectRecord) == []
    peer.send(m.Fetch(peer.address, *tp, 5, 5))
    world.until(lambda: len(peer.messages(m.DirectRecord)) == 5)
    assert store.held(tp) == (5, 10)


@both_layouts
def test_a_store_stores_what_a_c_producer_sends(world: Script, peer: Peer, layout: str) -> None:
    store = world.store()
    peer.subscribe(subscription(m.Ack, peer.address))
    peer.wait_until_subscribed(subscription(m.ConsumerHello, store.address))
    tp = TopicPartition("t", peer.address)
    peer.send(m.RecordMessage(*tp, 0, b"0"), m.RecordMessage(*tp, 3, b"3"), layout=layout)
    # Gaps are requested, and no record after them is acknowledged.
    fetch = world.until(lambda: [each for each in peer.messages(m.Fetch) if each.tp == tp])[0]
    assert (fetch.requestor, fetch.sequence, fetch.end) == (store.address, 1, 3)
    world.run(1)
    assert {ack.sequence for ack in peer.messages(m.Ack)} == {0}
    for sequence in (1, 2):
        peer.send(m.DirectRecord("another store", *tp, sequence, b"for another"), layout=layout)
        peer.send(m.DirectRecord(store.address, *tp, sequence, b"%d" % sequence), layout=layout)
    world.until(lambda: peer.messages(m.Ack)[-1].sequence == 3)
    assert store.values(tp) == values(4)
    # A duplicate and a head remind it of acknowledgements that were lost.
    for reminder in (m.RecordMessage(*tp, 1, b"1"), m.Head(*tp, 3)):
        peer.received.clear()
        peer.send(reminder, layout=layout)
        assert peer.wait_for(m.Ack)[0].sequence == 3
