"""The diagnosis of a query that finds no tower or no store at its start."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from dafka_core import EmbeddedCluster
from dafka_core.errors import ConfigError, NoStoreError, TowerNotFoundError
from dafka_core.ops import port_probe
from dafka_core.testing import wait_until
from dafka_spark.options import SinkOptions
from dafka_spark.sink.commit_coordinator import pick_store
from tests.forked import ForkedCluster
from tests.integration.cluster.stores import Batch, Logged, Patch

LONG_MS = "60000"
"""Enough on a busy machine for everything that a test waits for."""


def planned(**given: str) -> object:
    options = {"subscribePattern": "none.*", "fetchTimeoutMs": LONG_MS, **given}
    return Batch(**options).partitions()


def written(**given: str) -> object:
    options = {"topic": "t", "deliveryTimeoutMs": LONG_MS, **given}
    return pick_store(SinkOptions.of(options))


@pytest.fixture
def thread() -> Iterator[ThreadPoolExecutor]:
    """A thread that has ended when the test has."""
    with ThreadPoolExecutor(1) as pool:
        yield pool


@pytest.fixture
def empty() -> Iterator[EmbeddedCluster]:
    """A tower without stores."""
    with ForkedCluster(stores=0) as cluster:
        yield cluster


@pytest.fixture
def dead_tower() -> str:
    """Return a tower's address where no program listens."""
    with (
        socket.create_server(("127.0.0.1", 0)) as one,
        socket.create_server(("127.0.0.1", 0)) as two,
    ):
        return f"127.0.0.1:{one.getsockname()[1]}:{two.getsockname()[1]}"


# -- towers ----------------------------------------------------------------------------------------


def test_a_healthy_start_probes_no_port(shared: EmbeddedCluster, patch: Patch) -> None:
    def probed(*_: object) -> None:
        raise AssertionError("a port was probed")

    patch.setattr(port_probe, "probed", probed)
    assert planned(tower=shared.tower, **{"dafka.peer_expiry_ms": "4001"}) == []


def test_a_wrong_tower_fails_at_once(shared: EmbeddedCluster) -> None:
    host, sub, pub = shared.tower.split(":")
    flight = shared.locations()[-1].rsplit(":", 1)[1]
    stranger = f"another program than a tower listens at {host}:{flight} (it sends 'HTTP/2')"
    for wrong, reason in (
        (f"{pub}:{sub}", f"are swapped; name it as {shared.tower}"),
        (f"{flight}:{flight}", stranger),
    ):
        with pytest.raises(TowerNotFoundError, match=re.escape(reason)) as caught:
            planned(tower=f"{host}:{wrong}", **{"dafka.tower_timeout_s": "60"})
        assert caught.value.waited_s < 30


@pytest.mark.parametrize("how", [{"dafka.tower_timeout_s": "60"}, {"dafka.wait_for_tower": "true"}])
def test_a_query_waits_for_a_tower(
    empty: EmbeddedCluster, logged: Logged, thread: ThreadPoolExecutor, how: dict[str, str]
) -> None:
    tower = empty.tower
    empty.kill_tower()
    query = thread.submit(planned, tower=tower, **how)
    wait_until(lambda: logged.messages)
    empty.start_tower()
    empty.start_store()
    assert query.result() == []
    why = f"nothing listens at {tower}; start one there with 'dafka tower'"
    assert logged.text.startswith(why)
    assert logged.text.count("The query retries until") == 1


def test_a_query_without_a_tower_fails(dead_tower: str, logged: Logged) -> None:
    with pytest.raises(TowerNotFoundError) as caught:
        planned(tower=dead_tower, **{"dafka.tower_timeout_s": "1.5"})
    assert str(caught.value).startswith(f"no tower answered at {dead_tower} within ")
    assert f" s: nothing listens at {dead_tower}; start one there" in str(caught.value)
    assert len(logged.messages) == 1


def test_a_wrong_port_of_a_tower_is_reported(
    shared: EmbeddedCluster, empty: EmbeddedCluster, dead_tower: str, logged: Logged
) -> None:
    """Stores that are discovered but do not connect are read by Arrow Flight."""
    wrong = dead_tower.split(":")[1]
    host, _, pub = shared.tower.split(":")
    assert planned(tower=f"{host}:{wrong}:{pub}") == []
    assert f"nothing listens at {host}:{wrong}; name the" in logged.text
    # The port of another program, and no store that could connect.
    pub = empty.tower.split(":")[2]
    with pytest.raises(NoStoreError) as caught:
        planned(tower=f"{host}:{pub}:{pub}")
    other = f"another ZeroMQ program listens at {host}:{pub}, with a socket XPUB"
    assert other in str(caught.value)
    assert caught.value.waited_s < 30


# -- stores ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("use", [planned, written])
def test_a_start_waits_for_a_store(
    empty: EmbeddedCluster, logged: Logged, thread: ThreadPoolExecutor, use: Callable[..., object]
) -> None:
    query = thread.submit(use, tower=empty.tower)
    wait_until(lambda: logged.messages)
    empty.start_store()
    query.result()
    (once,) = [each for each in logged.messages if each.startswith("the tower reports")]
    assert "reports no other node and no store; start one with 'dafka store --dir DIR'" in once
    assert once.endswith(". The query waits for up to 60 s")


@pytest.mark.parametrize("fetch", ["auto", "mesh"])
def test_a_query_without_a_store_fails(empty: EmbeddedCluster, fetch: str) -> None:
    with pytest.raises(NoStoreError) as caught:
        planned(tower=empty.tower, fetch=fetch, fetchTimeoutMs="2500")
    assert "s: the tower reports no other node and no store; start" in str(caught.value)
    assert caught.value.waited_s >= 2.5


def test_option_stores_with_another_program_fails_at_once(shared: EmbeddedCluster) -> None:
    port = shared.tower.rsplit(":", 1)[1]
    for use in (planned, written):
        with pytest.raises(NoStoreError) as caught:
            use(stores=f"grpc://127.0.0.1:{port}")
        assert "responds with 'ZeroMQ XPUB'; use the store's" in str(caught.value)
        assert caught.value.waited_s < 30


def test_a_write_with_too_few_stores_fails(shared: EmbeddedCluster, logged: Logged) -> None:
    with pytest.raises(ConfigError, match="option 'acks' = 2: there are only 1 stores"):
        written(tower=shared.tower, acks="2", deliveryTimeoutMs="4000")
    (once,) = [each for each in logged.messages if "The query waits for up to 4 s" in each]
    assert "start more of them, or lower acks" in once
