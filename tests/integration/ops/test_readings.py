"""Metrics of the mesh's nodes, towers and gateways."""

from __future__ import annotations

from pathlib import Path

import pytest

from dafka_core import Store, Tower
from dafka_core.config.node_options import keys_in
from dafka_core.errors import NotAllowedError
from dafka_core.flight.store_client import StoreClient
from dafka_core.flight.store_location import StoreLocation
from dafka_core.nodes.traffic import REASONS
from dafka_core.ops import metric_declarations as d
from dafka_core.ops.readings import REFUSALS, StoreReadings, of_consumer, of_producer, of_tower
from dafka_core.testing import PATIENCE_S, wait_until
from dafka_kafka import gateway_metrics
from tests.integration.nodes.locked import Keys
from tests.integration.nodes.peers import ANY_PORTS
from tests.integration.ops.conftest import Nodes, told


def test_each_node_tells_of_its_peers_by_kind(nodes: Nodes) -> None:
    def peers() -> list[int]:
        found = told(of_consumer(nodes.consumer))
        return [found[d.PEERS, (kind,)] for kind in ("store", "producer", "other")]

    wait_until(lambda: peers() == [1, 1, 0])  # once they have connected
    found = told(of_consumer(nodes.consumer))
    assert found[d.TOWER_SILENT, (nodes.tower.tower,)] >= 0
    assert {labels[0] for metric, labels in found if metric is d.FRAMES_REFUSED} == {*REASONS}


def test_a_producer_tells_how_far_it_is(nodes: Nodes) -> None:
    found = {metric: value for (metric, _), value in told(of_producer(nodes.producer)).items()}
    assert found[d.PUBLISHED] == found[d.ACKNOWLEDGED] == 1_000
    assert found[d.UNACKED_BYTES] == found[d.FENCED] == 0


def test_towers_and_gateways_tell_of_their_clients(nodes: Nodes) -> None:
    wait_until(lambda: told(of_tower(nodes.tower))[d.TOWER_NODES, ()] == 3)
    found = told(of_tower(nodes.tower))
    assert found[d.BEACONS, ()] >= 3
    found = told(nodes.gateway.samples())
    assert found[gateway_metrics.CONNECTIONS, ()] == 0
    assert found[gateway_metrics.ROOM, ()] > 0


def test_a_store_tells_of_its_log_and_its_disk(nodes: Nodes) -> None:
    found = told(StoreReadings(nodes.store, 10).read(nodes.store))
    partitions = {
        labels: n for (metric, labels), n in found.items() if metric is d.TOPIC_PARTITIONS
    }
    assert partitions["flights",] == 1
    assert found[d.PARTITIONS, ()] == sum(partitions.values())
    assert found[d.DISK_SIZE, ()] >= found[d.DISK_FREE, ()] > 0
    assert found[d.FILE_BYTES, ()] > 0
    assert {labels[0] for metric, labels in found if metric is d.ENTRIES_REFUSED} == {*REFUSALS}
    assert {labels[0] for metric, labels in found if metric is d.STREAMS} == {
        *("gets", "puts", "waits", "watches", "commits")
    }


def test_without_topics_of_their_own_all_are_other(nodes: Nodes) -> None:
    found = [*StoreReadings(nodes.store, 0).read(nodes.store)]
    assert {each.labels for each in found if each.metric is d.TOPIC_RECORDS} == {("other",)}


def test_a_store_with_an_archive_tells_of_it(
    nodes: Nodes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert (d.ARCHIVED, ()) not in told(StoreReadings(nodes.store, 10).read(nodes.store))
    archive = str(tmp_path / "archive")
    with Store(tmp_path / "store", tower=nodes.tower.tower, archive=archive) as store:
        assert f"nothing is archived in {archive} until there is a rule of retention" in caplog.text
        assert store.archiver is not None
        store.archiver.records = 7
        found = told(StoreReadings(store, 10).read(store))
    assert (found[d.ARCHIVED, ()], found[d.ARCHIVE_FAILING, ()]) == (7, 0)


def test_a_store_with_keys_tells_how_much_it_has_refused(tmp_path: Path) -> None:
    keys = Keys(tmp_path / "keys")
    keys.allow("reader", "consume")
    with (
        Tower(**ANY_PORTS, **keys.of("tower")) as tower,
        Store(tmp_path / "store", tower=tower.tower, **keys.of("store")) as store,
    ):
        assert told(StoreReadings(store, 10).read(store))[d.FLIGHT_FORBIDDEN, ()] == 0
        location = StoreLocation(store.address, store.locations)
        with StoreClient(location, keys_in(keys.of("reader"))) as client:
            for _ in range(2):
                with pytest.raises(NotAllowedError):
                    client.forget("A" * 32, timeout_s=PATIENCE_S)
        assert told(StoreReadings(store, 10).read(store))[d.FLIGHT_FORBIDDEN, ()] == 2
