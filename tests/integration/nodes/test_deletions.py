"""Producers of a deleted topic; the simulator has the stores."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from dafka_core import Producer, Store, TopicDeletedError
from dafka_core.model.records import TopicPartition
from tests.integration.nodes.content import values

Produce = Callable[..., Producer]
Start = Callable[..., Store]
ADDRESS, OTHER = "A" * 32, "B" * 32
TP, OTHER_TP = TopicPartition("t", ADDRESS), TopicPartition("t", OTHER)


@pytest.fixture
def start(tower: str, open_nodes: ExitStack, tmp_path: Path) -> Start:
    """Starts stores on directories of these names."""
    options: dict[str, Any] = {"tower": tower, "sync_interval_ms": 100, "flight_port": "off"}
    return lambda name: open_nodes.enter_context(Store(tmp_path / name, **options))


def publish(produce: Produce, count: int, address: str = ADDRESS, **options: Any) -> None:
    with produce("t", address=address, resume_missing="ignore", **options) as producer:
        producer.publish_many(values(count))


def held(store: Store, tp: TopicPartition = TP) -> tuple[int, int] | None:
    info = store.log.info(tp)
    return None if info is None else (info.earliest, info.end)


def free_pair() -> int:
    """Return the first of two consecutive free ports."""
    while True:
        with ExitStack() as stack, suppress(OSError):
            found = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            first: int = found.getsockname()[1]
            stack.enter_context(socket.create_server(("127.0.0.1", first + 1)))
            return first


def test_a_resumed_producer_of_a_deleted_topic_fails_once(start: Start, produce: Produce) -> None:
    store = start("one")
    publish(produce, 10, OTHER)
    store.deletions.delete("t")
    publish(produce, 100)
    publish(produce, 100)  # another topic's deletion, or another partition's, is none of its own
    store.deletions.delete("t")
    with pytest.raises(TopicDeletedError, match="all records before offset 200: publish them"):
        publish(produce, 1)
    publish(produce, 5, resume_deleted="ignore")
    assert held(store) == (200, 205)
    publish(produce, 5)
    assert held(store) == (200, 210)


def test_a_producer_at_the_last_port_of_its_range_fails_equally(
    start: Start, produce: Produce, open_nodes: ExitStack
) -> None:
    store = start("one")
    publish(produce, 100)
    store.deletions.delete("t")
    first = free_pair()
    open_nodes.enter_context(socket.create_server(("127.0.0.1", first + 1)))
    with pytest.raises(TopicDeletedError, match="all records before offset 100: publish them"):
        publish(produce, 1, port=f"{first}-{first + 1}")
