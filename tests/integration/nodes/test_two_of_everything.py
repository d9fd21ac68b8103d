"""Two producers with one address, and two towers that do not know each other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dafka_core import Consumer, Producer, Store, Tower
from dafka_core.errors import ProducerFencedError
from dafka_core.protocol import timing
from tests.integration.nodes.content import stored, values
from tests.integration.nodes.peers import ANY_PORTS, PATIENCE_S


def test_of_two_producers_with_one_address_the_newer_continues(
    store: Store, produce: Callable[..., Producer]
) -> None:
    """As when a job is started again while it still runs."""
    older = produce("t")
    older.publish(b"a")
    older.flush(PATIENCE_S)
    newer = produce("t", address=older.address)
    newer.publish(b"c")
    newer.flush(PATIENCE_S)

    def go_on() -> None:
        older.publish(b"b")
        older.flush(PATIENCE_S)

    with pytest.raises(ProducerFencedError) as fenced:
        go_on()
    assert fenced.value.partition == older.address
    newer.publish(b"d")
    newer.flush(PATIENCE_S)
    assert stored(store, "t", newer.address) == [b"a", b"c", b"d"]


def test_nodes_whose_towers_do_not_know_each_other_meet_at_a_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A producer and a consumer that never hear of each other: the store has both towers."""
    monkeypatch.setattr(timing, "HEADS_INTERVAL_S", 0.2)  # how often it asks the store
    with (
        Tower(**ANY_PORTS) as one,
        Tower(**ANY_PORTS) as other,
        Store(tmp_path, tower=f"{one.tower},{other.tower}") as store,
        Consumer(tower=other.tower, start="earliest") as consumer,
        Producer("t", tower=one.tower, head_interval_ms=100) as producer,
    ):
        consumer.subscribe("t")
        producer.publish_many(values(500))
        producer.flush(PATIENCE_S)
        assert stored(store, "t", producer.address) == values(500)
        records = [consumer.poll(PATIENCE_S) for _ in range(500)]
        assert [record and record.value for record in records] == values(500)
        producer.publish(b"later")
        last = consumer.poll(PATIENCE_S)
        assert last is not None
        assert last.value == b"later"
