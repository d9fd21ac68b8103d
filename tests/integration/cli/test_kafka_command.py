"""``dafka kafka``, and ``--kafka`` of ``store`` and ``up``: where Kafka's clients connect."""

import signal
import socket
import struct
from pathlib import Path

import pytest

from dafka_core.errors import ConfigError
from dafka_core.model.records import TopicPartition
from dafka_core.storage import Log
from dafka_kafka.gateways import GATEWAYS_TOPIC, Announcement
from tests.forked import ForkedCluster
from tests.integration.cli.processes import ANY_PORTS, Dafka, refusal


def is_served(where: str) -> bool:
    """Return whether ApiVersions is answered."""
    host, port = where.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=30) as client:
        client.sendall(struct.pack(">ihhih", 10, 18, 0, 7, -1))
        return client.recv(8)[4:] == struct.pack(">i", 7)


@pytest.mark.parametrize("command", ["kafka --listen", "store --kafka", "up --kafka"])
def test_a_gateway_says_where_it_is(command: str, lone_tower: str, tmp_path: Path) -> None:
    name, flag = command.split()
    where = ANY_PORTS if name == "up" else ("--tower", lone_tower)
    with Dafka(name, flag, "127.0.0.1:0", "--dir", str(tmp_path), *where) as node:
        facts = node.ready()
        assert is_served(facts["kafka"])
        assert node.stop() == 0


def test_a_store_that_starts_again_without_a_gateway_says_that_it_has_none(
    lone_tower: str, tmp_path: Path
) -> None:
    where = ("--dir", str(tmp_path), "--tower", lone_tower)
    with Dafka("store", "--kafka", "127.0.0.1:0", *where) as node:
        address = node.ready()["address"]
        node.stop(signal.SIGKILL)
    with Dafka("store", *where) as node:
        assert "kafka" not in node.ready()
        assert node.stop() == 0
    tp = TopicPartition(GATEWAYS_TOPIC, address)
    with Log(tmp_path) as log:
        batches = log.read(tp, 0, log.end(tp))
    first, last = (Announcement.parse(bytes(value)) for batch in batches for value in batch.values)
    assert (first.host, last.host) == ("127.0.0.1", "")


@pytest.mark.parametrize("name", ["store", "up"])
def test_an_option_of_gateways_needs_one(name: str, tmp_path: Path) -> None:
    assert refusal(2, name, "--dir", str(tmp_path), "--no-auto-create-topics") == (
        "option 'auto_create_topics' = False: is the gateway's: say where it listens, with --kafka"
    )


def test_a_cluster_has_a_gateway_at_each_store_and_at_the_same_place_again() -> None:
    with ForkedCluster(stores=2, kafka={"num_partitions": 3}) as cluster:
        before = cluster.bootstrap_servers.split(",")
        cluster.kill_store(0)
        assert cluster.bootstrap_servers == before[1]
        cluster.start_store(0)
        assert cluster.bootstrap_servers.split(",") == before
        assert all(map(is_served, before))


def test_a_cluster_without_gateways_has_nowhere_to_connect() -> None:
    with ForkedCluster() as cluster, pytest.raises(ConfigError, match="kafka=True"):
        _ = cluster.bootstrap_servers
