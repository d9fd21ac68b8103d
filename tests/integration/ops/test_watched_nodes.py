"""Metrics of nodes in any state."""

from __future__ import annotations

from dafka_core import Tower
from dafka_core.ops.watched_nodes import WatchedNode, WatchedNodes
from tests.integration.ops.conftest import ANY_PORTS, Nodes


def test_each_kind_has_its_name_and_says_what_runs(nodes: Nodes) -> None:
    made = [WatchedNode(each, 10) for each in nodes]
    assert [each.kind for each in made] == ["tower", "store", "gateway", "producer", "consumer"]
    assert made[0].name == nodes.tower.tower
    assert made[1].name == nodes.store.address
    assert made[2].name == str(nodes.gateway.advertised)
    for each in made:
        (info,) = [sample for sample in each.samples() if sample.metric.name == "dafka_node_info"]
        version, endpoint = info.labels
        assert version[0].isdigit()
        assert ":" in endpoint


def test_a_class_derived_of_a_node_is_of_its_kind() -> None:
    class OurTower(Tower):
        pass

    with OurTower(**ANY_PORTS) as tower:
        assert tower.kind == "tower"
        assert WatchedNode(tower, 0).kind == "tower"
        assert tower.is_open
    assert not tower.is_open


def test_of_nothing_it_is_said_that_nothing_serves() -> None:
    ((kind, name, finding),) = WatchedNodes(0).findings()
    assert (kind, name) == ("node", "")
    assert "no node serves yet" in finding.sentence
