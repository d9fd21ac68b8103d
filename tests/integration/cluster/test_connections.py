"""The connections of a process: when it forks or ends, and with a proxy in its environment."""

from __future__ import annotations

import gc
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from dafka_core import EmbeddedCluster, Producer
from dafka_core.config.node_options import NO_KEYS
from dafka_core.flight.store_location import StoreLocation
from dafka_spark.cluster import connections
from dafka_spark.options import MeshAddress
from tests.forked import ForkedCluster
from tests.integration.cli.processes import run
from tests.integration.cluster.sinks import read
from tests.integration.cluster.stores import A, Batch, Patch, Served
from tests.memory_reader import MemoryReader

NOWHERE = StoreLocation("nowhere", ("grpc://127.0.0.1:1",))


def test_a_process_ends_though_a_borrower_was_abandoned() -> None:
    program = (
        "from tests.unit.dafka_spark.test_connections import Opened, abandon\n"
        "pool = Opened()\n"
        "abandon(pool, 'a')\n"
        "pool.close()\n"
    )
    subprocess.run([sys.executable, "-c", program], timeout=60, check=True)


def test_a_forked_child_does_not_destroy_a_client(one: Served) -> None:
    """Its destructor would wait for threads that do not exist in the child."""
    with connections.borrow_client(one.location, NO_KEYS) as client:
        assert len(read(client, A, 5)) == 5
    del client
    subprocess.run(["true"], preexec_fn=gc.collect, timeout=20, check=True)


def test_a_forked_child_opens_its_own_connections(patch: Patch) -> None:
    patch.setattr(connections, "Reader", lambda **_: MemoryReader())

    def borrowed() -> list[object]:
        with (
            connections.borrow_reader(MeshAddress("nowhere")) as reader,
            connections.borrow_client(NOWHERE, NO_KEYS) as client,
            connections.borrow_logs() as logs,
        ):
            return [reader, client, logs]

    def is_shared(parents: list[object]) -> list[bool]:
        return [own is parent for own, parent in zip(borrowed(), parents, strict=True)]

    parents = borrowed()
    assert all(is_shared(parents))
    child = os.fork()
    if child == 0:
        code = 9
        try:
            code = sum(is_shared(parents))
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


# -- proxies ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=[False, True], ids=["open", "keys"])
def cluster(request: pytest.FixtureRequest) -> Iterator[EmbeddedCluster]:
    """One store with three records, with and without TLS."""
    with ForkedCluster(keys=request.param) as running:
        with Producer("t", tower=running.tower, **running.key()) as producer:
            producer.publish_many([b"0", b"1", b"2"])
        yield running


@pytest.fixture
def proxies() -> Iterator[dict[str, str]]:
    """Variables that name a proxy which refuses connections, since its port is bound only."""
    names = [f"{kind}_proxy" for kind in ("grpc", "http", "https", "all")]
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{bound.getsockname()[1]}"
        upper = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY"), url)
        yield {**dict.fromkeys(names, url), **upper, "no_proxy": ""}


def uri_of(cluster: EmbeddedCluster) -> str:
    return next(each for each in cluster.locations() if not each.startswith("grpc+unix"))


def test_the_connector_reads_from_stores_without_the_proxy(
    cluster: EmbeddedCluster, proxies: dict[str, str], patch: Patch
) -> None:
    for name, value in proxies.items():
        patch.setenv(name, value)
    keys = {f"dafka.{name}": value for name, value in cluster.key().items()}
    query = Batch(stores=uri_of(cluster), fetch="flight", **keys)
    assert [row["value"] for row in query.rows()] == [b"0", b"1", b"2"]


@pytest.mark.parametrize("named", ["--stores", "--tower"])
def test_commands_ask_stores_without_the_proxy(
    cluster: EmbeddedCluster, proxies: dict[str, str], named: str
) -> None:
    at = uri_of(cluster) if named == "--stores" else cluster.tower
    keys = {f"DAFKA_{name.upper()}": value for name, value in cluster.key().items()}
    variables: Any = proxies | keys
    asked = run("topics", named, at, **variables)
    headings, line = asked.stdout.decode().splitlines()
    assert line.split()[:3] == ["t", "1", "3"], (headings, asked.stderr)
    asked = run("doctor", named, at, "--topic", "t", **variables)
    assert asked.returncode == 0, asked.stdout
    assert "responds by Arrow Flight at" in asked.stdout.decode()
