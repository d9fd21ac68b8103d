"""Metrics of the mesh's nodes, towers and gateways, in any state."""

from pathlib import Path
from typing import Any

import pytest

from dafka_core import Consumer, Producer, Store, Tower
from dafka_core.config.node_options import keys_in
from dafka_core.errors import NotAllowedError
from dafka_core.flight.store_client import StoreClient
from dafka_core.flight.store_location import StoreLocation
from dafka_core.nodes import peers
from dafka_core.nodes.sockets import REFUSAL_REASONS
from dafka_core.nodes.store_loop import OTHER
from dafka_core.ops import health, node_metrics
from dafka_core.ops.node_metrics import REFUSALS, STREAMS, WatchedNode, WatchedNodes
from dafka_core.testing import PATIENCE_S, wait_until
from tests.integration.nodes.locked import Keys
from tests.integration.nodes.peers import ANY_PORTS
from tests.integration.ops.conftest import Nodes, told


def labels(found: dict[tuple[str, tuple[str, ...]], Any], name: str) -> set[str]:
    return {labels[0] for metric, labels in found if metric == name}


def test_each_node_tells_of_its_peers_by_kind(nodes: Nodes) -> None:
    def peers() -> list[int]:
        found = told(nodes.consumer)
        return [found["mesh_peers", (kind,)] for kind in ("store", "producer", "other")]

    wait_until(lambda: peers() == [1, 1, 0])  # once they have connected
    found = told(nodes.consumer)
    assert found["mesh_tower_silent_seconds", (nodes.tower.tower,)] >= 0
    assert labels(found, "mesh_refused_frames_total") == {*REFUSAL_REASONS}


def test_a_producer_tells_how_far_it_is(nodes: Nodes) -> None:
    found = told(nodes.producer)
    names = ("next_offset", "acknowledged_offset", "unacknowledged_bytes", "fenced")
    values = [found[f"producer_{name}", ("flights",)] for name in names]
    assert values == [1_000, 1_000, 0, False]


def test_towers_and_gateways_tell_of_their_clients(nodes: Nodes) -> None:
    wait_until(lambda: told(nodes.tower)["tower_nodes", ()] == 3)
    found = told(nodes.tower)
    assert found["tower_beacons_total", ()] >= 3
    assert found["mesh_refused_frames_total", ("beacon",)] == 0
    found = told(nodes.gateway)
    assert found["kafka_connections", ()] == 0
    assert found["kafka_in_flight_limit_bytes", ()] > 0


def test_a_store_tells_of_its_log_and_its_disk(nodes: Nodes) -> None:
    found = told(nodes.store)
    partitions = {key[1]: n for key, n in found.items() if key[0] == "topic_partitions"}
    assert partitions["flights",] == 1
    assert found["store_partitions", ()] == sum(partitions.values())
    assert found["store_topics", ()] == len(partitions)
    assert found["store_disk_size_bytes", ()] >= found["store_disk_free_bytes", ()] > 0
    assert found["store_file_bytes", ()] > 0
    assert found["topic_appended_records_total", ("flights",)] == 1_000
    assert found["topic_appended_bytes_total", ("flights",)] == 5_000
    assert labels(found, "store_refused_entries_total") == {*REFUSALS}
    for name in ("flight_streams", "flight_waiting_streams", "flight_refused_streams_total"):
        assert {found[name, (each,)] for each in STREAMS} == {0}


def test_without_topics_of_their_own_all_are_other(nodes: Nodes) -> None:
    assert labels(told(nodes.store, 0), "topic_records") == {"other"}


def test_a_store_with_an_archive_tells_of_it(
    nodes: Nodes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    archive = str(tmp_path / "archive")
    assert ("archive_records_total", ()) not in told(nodes.store)
    with Store(tmp_path / "store", tower=nodes.tower.tower, archive=archive) as store:
        assert f"nothing is archived in {archive} until there is a rule of retention" in caplog.text
        assert store.archiver is not None
        store.archiver.records = 7
        found = told(store)
    assert found["archive_records_total", ()] == 7
    assert found["archive_failing_partitions", ()] == 0


def test_a_store_with_keys_tells_how_much_it_has_refused(tmp_path: Path) -> None:
    keys = Keys(tmp_path / "keys")
    keys.allow("reader", "consume")
    with (
        Tower(**ANY_PORTS, **keys.of("tower")) as tower,
        Store(tmp_path / "store", tower=tower.tower, **keys.of("store")) as store,
    ):
        assert told(store)["flight_forbidden_requests_total", ()] == 0
        location = StoreLocation(store.address, store.locations)
        with StoreClient(location, keys_in(keys.of("reader"))) as client:
            for _ in range(2):
                with pytest.raises(NotAllowedError):
                    client.forget("A" * 32, timeout_s=PATIENCE_S)
        assert told(store)["flight_forbidden_requests_total", ()] == 2


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


def test_a_new_topic_has_its_own_counters_before_the_totals_are_summed_again(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_metrics, "SUM_SHARE", 1e-9)  # as in a store with very many partitions
    watched = WatchedNode(nodes.store, 10)

    def appended() -> dict[tuple[str, ...], Any]:
        name = "dafka_topic_appended_records_total"
        return {each.labels: each.value for each in watched.samples() if each.metric.name == name}

    assert appended()["flights",] == 1_000
    with Producer("later", tower=nodes.tower.tower) as producer:
        producer.publish_many([b"value"] * 10)
    found = appended()
    assert found["later",] == 10
    assert (OTHER,) not in found


def test_a_tower_is_silent_for_longer_than_its_connections_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(peers, "AWAY_S", 0.0)  # a new connection after three beacons
    monkeypatch.setattr(health, "SILENT_S", 0.5)
    with Tower(**ANY_PORTS) as tower:
        towers = [tower.tower, "127.0.0.1:1:2"]
        with Consumer(tower=towers, beacon_interval_ms=20) as consumer:

            def silent_s(name: str) -> float:
                seconds: float = told(consumer)["mesh_tower_silent_seconds", (name,)]
                return seconds

            wait_until(lambda: silent_s(towers[1]) > 0.5)  # it has never sent anything
            [finding] = health.of_node(consumer)
            assert finding.sentence.startswith(f"tower {towers[1]} has sent nothing for ")
            tower.close()
            wait_until(lambda: silent_s(towers[0]) > 0.5)
            assert len([*health.of_node(consumer)]) == 2
