"""The number of nodes that send beacons to a tower."""

from __future__ import annotations

import logging
import time

import pytest

from dafka_core.nodes import tower
from dafka_core.nodes.tower import SILENT_S, DiscoveredNodes


def test_a_node_counts_while_its_beacons_arrive(caplog: pytest.LogCaptureFixture) -> None:
    nodes, now = DiscoveredNodes(), time.monotonic()
    with caplog.at_level(logging.INFO, "dafka.tower"):
        nodes.note(now - 2 * SILENT_S, "A", "tcp://h:1")
        nodes.note(now, "B", "tcp://h:2")
        nodes.note(now, "B", "tcp://h:2")
    assert nodes.count() == 1
    assert [each.getMessage() for each in caplog.records] == [
        "node A has come, at tcp://h:1",
        "node B has come, at tcp://h:2",
        "node A is silent",
    ]


def test_forged_nodes_take_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tower, "MAX_PEERS", 10)
    nodes, now = DiscoveredNodes(), time.monotonic()
    for number in range(1_000):
        nodes.note(now, f"N{number}", "tcp://h:1")
    assert nodes.count() == 10
