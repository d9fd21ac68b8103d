"""One peer that is greedy or broken does not starve the others.

The times of an honest producer and consumer are compared with those without it: roughly, since the
greedy one takes processor time of the same machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from benchmarks.greedy import KINDS, beside
from dafka_core import Consumer, Producer, Store
from dafka_core.testing import wait_until
from tests.integration.nodes.connections import DESCRIPTORS
from tests.integration.nodes.content import values
from tests.integration.nodes.peers import PATIENCE_S

COUNT = 5_000
TIMES_AS_LONG = 10
AT_LEAST_S = 5.0
"""A run alone takes half a second; a faster run than this limit is not starved."""

MAX_GROWTH_BYTES = 400 << 20
KEY_BYTES = 4 << 20
GUARDED = {"max_key_bytes": KEY_BYTES}


@pytest.fixture
def store_with(tower: str, open_nodes: ExitStack, tmp_path: Path) -> Callable[..., Store]:
    return lambda **options: open_nodes.enter_context(
        Store(tmp_path / "store", tower=tower, **options)
    )


def honest(tower: str, topic: str) -> float:
    """Return the time that a producer and a consumer take for the records of a topic."""
    began = time.monotonic()
    with Consumer(tower=tower) as consumer, Producer(topic, tower=tower) as producer:
        consumer.subscribe(topic)
        sent = values(COUNT)
        for first in range(0, COUNT, 100):
            producer.publish_many(sent[first : first + 100])
        producer.flush(PATIENCE_S)
        found: list[bytes | None] = []
        while len(found) < COUNT:
            record = consumer.poll(PATIENCE_S)
            assert record is not None
            found.append(record.value)
    assert found == sent
    return time.monotonic() - began


def anonymous_bytes() -> int:
    """Memory of this process that is no file's."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))


@pytest.mark.parametrize(
    ("kind", "options"),
    [*((kind, GUARDED) for kind in KINDS), ("records", {"high_water_mark": 1_000})],
)
def test_a_greedy_peer_does_not_starve_honest_ones(
    store_with: Callable[..., Store], tower: str, kind: str, options: dict[str, Any]
) -> None:
    store = store_with(**options)
    mesh = store.mesh
    alone_s = honest(tower, "alone")
    before = anonymous_bytes()
    with beside(kind, tower, mesh.peers.inbound.endpoint):
        took_s = min(honest(tower, f"beside{number}") for number in range(3))
        grown = anonymous_bytes() - before
        if kind == "records" and options is GUARDED:
            refused = store.role.limits.refused
            wait_until(lambda: refused["max_key_bytes"] > 0, "the greedy one to be refused")
        elif kind == "connections":
            wait_until(lambda: len(list(DESCRIPTORS.iterdir())) > 200, "its connections")
    assert took_s < max(TIMES_AS_LONG * alone_s, AT_LEAST_S)
    assert grown < MAX_GROWTH_BYTES
