"""Nodes are contacted without the HTTP proxy of the environment."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest

from dafka_core import EmbeddedCluster, Producer
from dafka_spark.options import SourceOptions
from dafka_spark.schema import full
from dafka_spark.source.batch_reader import DafkaBatchReader
from tests.forked import ForkedCluster
from tests.integration.cli.processes import run

NAMES = ("grpc_proxy", "http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY")


@pytest.fixture(scope="module", params=[False, True], ids=["open", "keys"])
def cluster(request: pytest.FixtureRequest) -> Iterator[EmbeddedCluster]:
    """One store with three records, with and without TLS."""
    with ForkedCluster(keys=request.param) as running:
        with Producer("flights", tower=running.tower, **running.key()) as producer:
            producer.publish_many([b"1", b"2", b"3"])
        yield running


@pytest.fixture
def proxies() -> Iterator[dict[str, str]]:
    """Variables that name a proxy which refuses connections, since its port is bound only."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield dict.fromkeys(NAMES, f"http://127.0.0.1:{bound.getsockname()[1]}") | {"no_proxy": ""}


def uri_of(cluster: EmbeddedCluster) -> str:
    return next(each for each in cluster.locations() if not each.startswith("grpc+unix"))


def test_the_connector_reads_from_stores_without_the_proxy(
    cluster: EmbeddedCluster, proxies: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in proxies.items():
        monkeypatch.setenv(name, value)
    keys = {f"dafka.{name}": value for name, value in cluster.key().items()}
    given = {"stores": uri_of(cluster), "subscribe": "flights", "fetch": "flight"}
    reader = DafkaBatchReader(full(), SourceOptions.of(given | keys).for_batch())
    found = [batch["value"] for task in reader.partitions() for batch in reader.read(task)]
    assert [value.as_py() for values in found for value in values] == [b"1", b"2", b"3"]


@pytest.mark.parametrize("named", ["--stores", "--tower"])
def test_commands_ask_stores_without_the_proxy(
    cluster: EmbeddedCluster, proxies: dict[str, str], named: str
) -> None:
    at = uri_of(cluster) if named == "--stores" else cluster.tower
    keys = {f"DAFKA_{name.upper()}": value for name, value in cluster.key().items()}
    variables: Any = proxies | keys
    asked = run("topics", named, at, **variables)
    assert asked.stdout.decode().split("\t")[:3] == ["flights", "1", "3"], asked.stderr
    asked = run("doctor", named, at, "--topic", "flights", **variables)
    assert asked.returncode == 0, asked.stdout
    assert "responds by Arrow Flight at" in asked.stdout.decode()
