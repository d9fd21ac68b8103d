"""The embedded cluster: as large as a test wants it, and gone with the test."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dafka_core import (
    ConfigError,
    Consumer,
    EmbeddedCluster,
    NodeFailedError,
    Producer,
    Reader,
    StoreError,
    Tower,
    TowerNotFoundError,
)
from dafka_core.config.node_options import keys_in
from dafka_core.errors import StoreUnreachableError
from dafka_core.flight.store_client import StoreClient
from dafka_core.flight.store_location import StoreLocation
from dafka_core.storage import Log
from dafka_core.testing import wait_until
from tests.integration.nodes.content import polled
from tests.integration.nodes.peers import PATIENCE_S


def test_stores_may_be_several_and_come_later(tmp_path: Path) -> None:
    with EmbeddedCluster(stores=2, directory=tmp_path) as cluster:
        cluster.start_store(2)
        assert len(set(cluster.stores)) == 3
        with Reader(tower=cluster.tower) as reader:
            wait_until(lambda: reader.stores() == sorted(cluster.stores))
        with Producer("t", tower=cluster.tower, acks=3) as producer:
            producer.publish(b"0")
        cluster.kill_store(1)
        assert len(cluster.stores) == 2
        directories = [cluster.store_directory(index) for index in range(3)]
    # A directory that was given is kept, and holds what was acknowledged.
    assert all((directory / "data.mdb").stat().st_size for directory in directories)
    with EmbeddedCluster(directory=tmp_path) as again, Consumer(tower=again.tower) as consumer:
        consumer.subscribe("t")
        assert polled(consumer) == ("t", producer.address, 0, b"0")


def test_its_temporary_directory_goes_with_it() -> None:
    with EmbeddedCluster() as cluster:
        directory = cluster.directory
        assert cluster.store_directory().is_dir()
    assert not directory.exists()
    assert cluster.stores == []
    cluster.close()


def test_no_other_program_gets_the_ports_of_a_killed_tower() -> None:
    with EmbeddedCluster(stores=0) as cluster:
        tower = cluster.tower
        cluster.kill_tower()
        for port in tower.split(":")[1:]:
            with socket.socket() as other, pytest.raises(OSError, match="in use"):
                other.bind(("127.0.0.1", int(port)))
        cluster.start_tower()
        assert cluster.tower == tower


def test_a_store_that_cannot_start_is_an_error_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "store-0").touch()
    with pytest.raises(NodeFailedError, match=r"the store has failed: .*store-0") as failed:
        EmbeddedCluster(directory=tmp_path)
    assert failed.value.what == "store"


def test_an_error_in_its_block_shows_the_logs_of_its_nodes() -> None:
    with pytest.raises(StoreError) as failed, EmbeddedCluster() as cluster:
        Log(cluster.store_directory())
    tower, store = failed.value.__notes__
    assert tower.startswith(f"The log of the tower:\ntower at {cluster.tower.partition(':')[0]}:")
    assert store.startswith("The log of the store:\nstore ")


PARENT = """
import json, sys
from dafka_core import EmbeddedCluster
cluster = EmbeddedCluster()
print(json.dumps([cluster.tower, str(cluster.store_directory())]), flush=True)
sys.stdin.read()
"""


def test_it_is_gone_when_its_parent_is_killed(tmp_path: Path) -> None:
    environment = os.environ | {"TMPDIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
    )
    assert parent.stdin is not None
    assert parent.stdout is not None
    with parent.stdin, parent.stdout:
        tower, directory = json.loads(parent.stdout.readline())
        assert not ports_are_free(tower)
        assert not is_unlocked(directory)
        parent.kill()
        parent.wait(PATIENCE_S)
        wait_until(lambda: ports_are_free(tower), "the tower to end")
        wait_until(lambda: is_unlocked(directory), "the store to end")


def ports_are_free(tower: str) -> bool:
    _, sub_port, pub_port = tower.split(":")
    try:
        Tower(
            sub_address=f"tcp://127.0.0.1:{sub_port}", pub_address=f"tcp://127.0.0.1:{pub_port}"
        ).close()
    except ConfigError:
        return False
    return True


def is_unlocked(directory: str) -> bool:
    try:
        Log(directory).close()
    except StoreError:
        return False
    return True


def test_a_cluster_with_keys_admits_owners_of_keys() -> None:
    with EmbeddedCluster(keys=True) as cluster:
        with Producer("t", tower=cluster.tower, **cluster.key()) as producer:
            producer.publish(b"locked")
            producer.flush(PATIENCE_S)
        location = StoreLocation(cluster.stores[0], cluster.locations())
        for name, roles in (("client", ("tower",)), ("other", ("consume",))):
            files = keys_in(cluster.key(name, roles))  # an existing one is unchanged
            with StoreClient(location, files) as client:
                wait_until(lambda client=client: ends(client) == [1])  # type: ignore[misc]
        with StoreClient(location) as stranger, pytest.raises(ConfigError, match="owners of keys"):
            ends(stranger)
        with pytest.raises(TowerNotFoundError):
            Consumer(tower=cluster.tower, tower_timeout_s=0.5)
    with EmbeddedCluster() as cluster:
        assert cluster.key() == {}
        assert not cluster.keys.exists()


def ends(client: StoreClient) -> list[int] | None:
    try:
        return [head.end for head in client.heads(None, timeout_s=PATIENCE_S)]
    except StoreUnreachableError:
        return None


INTERRUPTED = """
import os, signal, time
from dafka_core import EmbeddedCluster, Producer
with EmbeddedCluster() as cluster:
    try:
        os.killpg(0, signal.SIGINT)
        time.sleep(60)
    except KeyboardInterrupt:
        pass
    with Producer("t", tower=cluster.tower) as producer:
        producer.publish(b"after it")
    print(producer.acknowledged)
"""


def test_it_outlives_a_ctrl_c_that_its_process_handles() -> None:
    command = [sys.executable, "-c", INTERRUPTED]
    settings: dict[str, Any] = {"capture_output": True, "text": True, "start_new_session": True}
    done = subprocess.run(command, check=False, **settings)
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr


def test_a_paused_store_may_be_killed() -> None:
    with EmbeddedCluster() as cluster:
        with cluster.paused_store():
            cluster.kill_store()
        assert cluster.stores == []
