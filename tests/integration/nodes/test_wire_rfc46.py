"""Nodes that send RFC 46's own layout and nodes that send C nodes' layout, in every mix."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from dafka_core import Consumer, Producer, Reader, Store
from dafka_core.config.node_options import C_LAYOUT, LAYOUTS, RFC46
from dafka_core.model.records import TopicPartition
from dafka_core.protocol.codec import SIGNATURE, subscription
from dafka_core.protocol.messages import Head, RecordMessage
from dafka_core.testing import wait_until
from tests.integration.nodes.content import acknowledged_by, polled, values
from tests.integration.nodes.peers import PATIENCE_S, RawPeer

COUNT = 2_000

MIXES = list(itertools.product(LAYOUTS, repeat=3))


@pytest.mark.parametrize(("producing", "storing", "consuming"), MIXES)
def test_every_mix_delivers_everything_once_and_in_order(
    tower: str, tmp_path: Path, producing: str, storing: str, consuming: str
) -> None:
    def layout(wire: str) -> dict[str, str]:
        return {"tower": tower, "wire": wire}

    with (
        Producer("t", **layout(producing)) as producer,
        Consumer(start="earliest", **layout(consuming)) as live,
    ):
        live.subscribe("t")
        producer.publish_many(values(COUNT // 2))  # before there is a store: it has to fetch them
        with Store(tmp_path, **layout(storing)) as store:
            producer.flush(PATIENCE_S)
            producer.publish_many(values(COUNT // 2, COUNT // 2))
            producer.flush(PATIENCE_S)
            assert store.log.end(TopicPartition("t", producer.address)) == COUNT
            producer.close()
            with (
                Consumer(start="earliest", **layout(consuming)) as late,
                Reader(**layout(consuming)) as reader,
            ):
                late.subscribe("t")
                for consumer in (live, late):
                    records = [polled(consumer) for _ in range(COUNT)]
                    expected = [("t", producer.address, o, v) for o, v in enumerate(values(COUNT))]
                    assert records == expected
                    assert consumer.poll(0) is None
                [info] = reader.partitions(timeout_s=PATIENCE_S)
                batches = reader.read(info.tp, 0, info.end, timeout_s=PATIENCE_S)
                assert [value for batch in batches for value in batch.values] == values(COUNT)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_is_sent_is_in_the_layout_asked_for(
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
def test_acknowledgements_of_two_stores_are_told_apart(
    tower: str, tmp_path: Path, layout: str
) -> None:
    # RFC 46 has the store's address in its ACK, C nodes' layout tells by the connection.
    with (
        Store(tmp_path / "one", tower=tower, wire=layout) as one,
        Store(tmp_path / "two", tower=tower, wire=C_LAYOUT) as two,
        Producer("t", tower=tower, acks=2) as producer,
    ):
        producer.publish(b"0")
        producer.flush(PATIENCE_S)
        assert acknowledged_by(producer) == {one.address: 1, two.address: 1}
