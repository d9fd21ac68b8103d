"""The numbers are right, are read when they are asked for, and nodes may go meanwhile."""

from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from dafka_core import MetricsEndpoint, Store, Tower, serve_metrics
from dafka_core.ops.node_metrics import WatchedNodes
from dafka_core.ops.node_routes import registry_of
from dafka_core.testing import wait_until
from tests.integration.ops.conftest import ANY_PORTS, Nodes, ask


def value(text: str, sample: str, **labels: str) -> float | None:
    for family in text_string_to_metric_families(text):
        for each in family.samples:
            if each.name == sample and labels.items() <= each.labels.items():
                return each.value
    return None


def test_records_are_counted_wherever_they_pass(endpoint: MetricsEndpoint, nodes: Nodes) -> None:
    count = 0
    for batch in nodes.consumer.batches(60.0):
        count += batch.count
        if count == 1_000:
            break
    assert count == 1_000
    text = ask(f"{endpoint.url}/metrics").text
    for name, labels, expected in (
        ("dafka_topic_records", {"topic": "flights"}, 1_000),
        ("dafka_consumer_received_records_total", {}, 1_000),
    ):
        assert value(text, name, **labels) == expected, name
    # The gateway keeps some records in a topic of its own.
    assert (value(text, "dafka_store_appended_records_total") or 0) >= 1_000
    # In the mesh some may go twice, to a node that was not connected in time.
    for kind in ("store", "consumer"):
        assert (value(text, "dafka_mesh_received_records_total", kind=kind) or 0) >= 1_000
    name = "dafka_mesh_sent_records_total"
    sent = [value(text, name, kind="producer", how=how) for how in ("live", "direct")]
    assert sum(each or 0 for each in sent) >= 1_000
    text = ask(f"{endpoint.url}/metrics").text
    appends = value(text, "dafka_store_append_seconds_count", kind="store")
    assert appends
    assert value(text, "dafka_store_append_seconds_bucket", kind="store", le="+Inf") == appends
    assert value(text, "dafka_tower_nodes")
    assert value(text, "dafka_node_ready", kind="store") == 1
    assert value(text, "process_open_fds")


def test_some_names_alone_can_be_asked_for(endpoint: MetricsEndpoint) -> None:
    text = ask(f"{endpoint.url}/metrics?name[]=dafka_tower_nodes").text
    assert "dafka_tower_nodes{" in text
    assert "dafka_store" not in text


def test_a_node_that_ends_stays_and_is_not_healthy(tmp_path: Path) -> None:
    with (
        Tower(**ANY_PORTS) as tower,
        Store(tmp_path, tower=tower.tower) as store,
        serve_metrics(tower, store) as endpoint,
    ):
        assert value(ask(f"{endpoint.url}/metrics").text, "dafka_node_healthy", kind="store")
        store.close()
        answer = ask(f"{endpoint.url}/metrics")
        assert answer.status == 200
        assert value(answer.text, "dafka_node_healthy", kind="store") == 0
        assert value(answer.text, "dafka_node_healthy", kind="tower") == 1
        for name in ("dafka_store_partitions", "dafka_mesh_loop_overdue_seconds"):
            assert value(answer.text, name, kind="store") is None


@pytest.mark.filterwarnings("ignore:unclosed Tower:ResourceWarning")
def test_watching_keeps_no_node_alive() -> None:
    watched = WatchedNodes(10)
    tower = Tower(**ANY_PORTS)
    watched.add(tower)
    registry = registry_of(watched)
    labels = {"kind": "tower", "node": tower.tower}
    assert registry.get_sample_value("dafka_node_healthy", labels) == 1
    del tower
    wait_until(lambda: registry.get_sample_value("dafka_node_healthy", labels) == 0)
