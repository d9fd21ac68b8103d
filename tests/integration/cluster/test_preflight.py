"""The diagnosis of a query that finds no tower or no store at its start."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from dafka_core import EmbeddedCluster
from dafka_core.errors import ConfigError, NoStoreError, TowerNotFoundError
from dafka_core.ops import port_probe
from dafka_core.testing import wait_until
from dafka_spark.options import SinkOptions, SourceOptions
from dafka_spark.schema import full
from dafka_spark.sink.commit_coordinator import pick_store
from dafka_spark.source.batch_reader import DafkaBatchReader
from tests.forked import ForkedCluster

LONG_MS = "60000"
"""Enough on a busy machine for everything that a test waits for."""

Logged = Callable[[], list[str]]


def planned(**given: str) -> list[Any]:
    options = {"subscribePattern": "none.*", "fetchTimeoutMs": LONG_MS, **given}
    return list(DafkaBatchReader(full(), SourceOptions.of(options).for_batch()).partitions())


def written(**given: str) -> object:
    options = {"topic": "t", "deliveryTimeoutMs": LONG_MS, **given}
    return pick_store(SinkOptions.of(options))


@pytest.fixture
def thread() -> Iterator[ThreadPoolExecutor]:
    """A thread that has ended when the test has."""
    with ThreadPoolExecutor(1) as pool:
        yield pool


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Logged:
    """Return the logged messages."""
    caplog.set_level("WARNING", "dafka_spark")
    return lambda: [each.getMessage() for each in [*caplog.records] if each.name == "dafka_spark"]


@pytest.fixture
def dead_tower() -> str:
    """Return a tower's address where no program listens."""
    with (
        socket.create_server(("127.0.0.1", 0)) as one,
        socket.create_server(("127.0.0.1", 0)) as two,
    ):
        return f"127.0.0.1:{one.getsockname()[1]}:{two.getsockname()[1]}"


def test_a_healthy_start_probes_no_port(
    shared: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def probed(*_: object) -> None:
        raise AssertionError("a port was probed")

    monkeypatch.setattr(port_probe, "probed", probed)
    assert planned(tower=shared.tower, **{"dafka.peer_expiry_ms": "4001"}) == []


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ("{host}:{pub}:{sub}", "are swapped; name it as {host}:{sub}:{pub}"),
        (
            "{host}:{flight}:{flight}",
            "another program than a tower listens at {host}:{flight} (it sends 'HTTP/2')",
        ),
    ],
    ids=["swapped ports", "another program"],
)
def test_a_wrong_tower_fails_at_once(shared: EmbeddedCluster, wrong: str, reason: str) -> None:
    names = dict(zip(("host", "sub", "pub"), shared.tower.split(":"), strict=True))
    names["flight"] = shared.locations()[-1].rsplit(":", 1)[1]
    with pytest.raises(TowerNotFoundError, match=re.escape(reason.format(**names))) as caught:
        planned(tower=wrong.format(**names), **{"dafka.tower_timeout_s": "60"})
    assert caught.value.waited_s < 30


@pytest.mark.parametrize("how", [{"dafka.tower_timeout_s": "60"}, {"dafka.wait_for_tower": "true"}])
def test_a_query_waits_for_a_tower(
    own: EmbeddedCluster, logged: Logged, thread: ThreadPoolExecutor, how: dict[str, str]
) -> None:
    tower = own.tower
    own.kill_tower()
    query = thread.submit(planned, tower=tower, **how)
    wait_until(logged)
    own.start_tower()
    assert query.result() == []
    assert logged()[0].startswith(f"nothing listens at {tower}; start one there with 'dafka tower'")
    assert len([each for each in logged() if "The query retries until" in each]) == 1


def test_a_query_without_a_tower_fails(dead_tower: str, logged: Logged) -> None:
    with pytest.raises(TowerNotFoundError) as caught:
        planned(tower=dead_tower, **{"dafka.tower_timeout_s": "1.5"})
    assert str(caught.value).startswith(f"no tower answered at {dead_tower} within ")
    assert f" s: nothing listens at {dead_tower}; start one there" in str(caught.value)
    assert len(logged()) == 1


@pytest.mark.parametrize("use", [planned, written])
def test_a_start_waits_for_a_store(
    logged: Logged, thread: ThreadPoolExecutor, use: Callable[..., object]
) -> None:
    with ForkedCluster(stores=0) as cluster:
        query = thread.submit(use, tower=cluster.tower)
        wait_until(logged)
        cluster.start_store()
        query.result()
    (once,) = [each for each in logged() if each.startswith("the tower reports")]
    assert "reports no other node, but no store; start one with 'dafka store --dir DIR'" in once
    assert once.endswith(". The query waits for up to 60 s")


@pytest.mark.parametrize("fetch", ["auto", "mesh"])
def test_a_query_without_a_store_fails(fetch: str) -> None:
    with ForkedCluster(stores=0) as cluster, pytest.raises(NoStoreError) as caught:
        planned(tower=cluster.tower, fetch=fetch, fetchTimeoutMs="2500")
    assert "s: the tower reports no other node, but no store; start" in str(caught.value)
    assert caught.value.waited_s >= 2.5


def test_option_stores_with_another_program_fails_at_once(shared: EmbeddedCluster) -> None:
    port = shared.tower.rsplit(":", 1)[1]
    for use in (planned, written):
        with pytest.raises(NoStoreError) as caught:
            use(stores=f"grpc://127.0.0.1:{port}")
        assert "responds with 'ZeroMQ XPUB'; use the store's" in str(caught.value)
        assert caught.value.waited_s < 30


def test_a_wrong_port_of_a_tower_is_reported(
    shared: EmbeddedCluster, dead_tower: str, logged: Logged
) -> None:
    """Stores are discovered but do not connect: Arrow Flight reads them."""
    wrong = dead_tower.split(":")[1]
    host, _, pub = shared.tower.split(":")
    assert planned(tower=f"{host}:{wrong}:{pub}") == []
    assert any(each.startswith(f"nothing listens at {host}:{wrong}; name the") for each in logged())


def test_a_port_of_another_program_is_reported() -> None:
    """The tower reports no store that could connect."""
    with ForkedCluster(stores=0) as cluster:
        host, _, pub = cluster.tower.split(":")
        with pytest.raises(NoStoreError) as caught:
            planned(tower=f"{host}:{pub}:{pub}")
    other = f"another ZeroMQ program listens at {host}:{pub}, with a socket XPUB"
    assert other in str(caught.value)
    assert caught.value.waited_s < 30


def test_a_write_with_too_few_stores_fails(shared: EmbeddedCluster, logged: Logged) -> None:
    with pytest.raises(ConfigError, match="option 'acks' = 2: there are only 1 stores"):
        written(tower=shared.tower, acks="2", deliveryTimeoutMs="4000")
    (once,) = [each for each in logged() if "The query waits for up to 4 s" in each]
    assert "start more of them, or lower acks" in once
