"""Producers of a deleted topic; the simulator has the stores."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from dafka_core import Producer, Store
from dafka_core.model.records import TopicPartition
from tests.integration.nodes.content import values

Produce = Callable[..., Producer]
Start = Callable[..., Store]
TP = TopicPartition("t", "A" * 32)


@pytest.fixture
def start(tower: str, open_nodes: ExitStack, tmp_path: Path) -> Start:
    """Starts stores on directories of these names."""
    options: dict[str, Any] = {"tower": tower, "sync_interval_ms": 100, "flight_port": "off"}
    return lambda name: open_nodes.enter_context(Store(tmp_path / name, **options))


def publish(produce: Produce, count: int) -> None:
    with produce("t", address=TP.partition, resume_missing="ignore") as producer:
        producer.publish_many(values(count))


def held(store: Store) -> tuple[int, int] | None:
    info = store.log.info(TP)
    return None if info is None else (info.earliest, info.end)


def test_a_resumed_producer_continues_after_deleted_records(start: Start, produce: Produce) -> None:
    store = start("one")
    publish(produce, 100)
    store.deletions.delete("t")
    publish(produce, 5)
    assert held(store) == (100, 105)
