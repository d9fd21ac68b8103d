"""Stores that do not answer for a moment, or have returned, still count."""

import gc
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest

from dafka_core import EmbeddedCluster, Producer
from dafka_core.config.missing_stores import EVERY_STORE
from dafka_core.config.node_options import NO_KEYS
from dafka_core.errors import NotAcknowledgedError, StoreUnreachableError
from dafka_core.flight.store_client import StoreClient
from dafka_core.flight.store_location import StoreLocation
from dafka_core.model.records import TopicPartition, Transaction, TransactionState
from dafka_core.testing import PATIENCE_S, wait_until
from dafka_spark.cluster import cluster_reader, connections, timing
from dafka_spark.cluster.store_registry import StoreRegistry
from dafka_spark.cluster.timing import Deadline
from dafka_spark.options import MeshAddress
from dafka_spark.sink.store_session import StoreSession
from tests.forked import ForkedCluster
from tests.integration.cli.processes import run
from tests.integration.cluster.sinks import (
    Sink,
    count_restarts,
    numbers,
    read,
    soon,
    stage,
    store_of,
)
from tests.integration.cluster.stores import A, Batch, Patch, Serve, Served, fail
from tests.memory_reader import MemoryReader

MUCH = pa.array([b"x" * 1000] * 30_000)
"""Enough to stop a store before another store has sent it everything."""


def update(registry: StoreRegistry, *stores: Served, others: tuple[str, ...] = ()) -> StoreRegistry:
    endpoints = {store.address: store.location.locations for store in stores}
    registry.update(endpoints, [*endpoints, *others])
    return registry


def test_an_update_during_a_request_counts_for_the_next_one(serve: Serve, patch: Patch) -> None:
    patch.setattr(cluster_reader, "MAX_CONCURRENT", 1)
    first, second, third = serve("A"), serve("B"), serve("C")
    registry = update(StoreRegistry(keys=NO_KEYS), first, second)

    def changed(client: StoreClient) -> str:
        update(registry, third, others=("without Flight",))
        return store_of(client)

    assert [answer for _, answer in registry.ask(changed)] == ["A", "B"]
    assert registry.locations == []  # the third has not described itself yet
    assert [(at.store, answer) for at, answer in registry.ask(store_of)] == [("C", "C")]
    assert [location.store for location in registry.locations] == ["C"]
    assert registry.others == ["without Flight"]


def test_a_store_that_does_not_answer_is_skipped_for_a_moment(serve: Serve) -> None:
    registry = update(StoreRegistry(keys=NO_KEYS), serve("A"), serve("B"))
    asked: list[str] = []

    def ask(client: StoreClient) -> None:
        asked.append(store_of(client))
        if store_of(client) == "A":
            raise StoreUnreachableError("A", "it is busy")

    for _ in range(2):
        assert [location.store for location, _ in registry.ask(ask)] == ["B"]
    assert sorted(asked) == ["A", "B", "B"]
    assert registry.silent() == [error.store for error in registry.failures()] == ["A"]
    assert (registry.silent(at_most_s=0.0), registry.failures(longer_than_s=60.0)) == ([], [])
    assert [location.store for location in registry.locations] == ["B"]
    registry.ask(ask, again=True)
    assert sorted(asked) == ["A", "A", "B", "B", "B"]
    registry.ask(store_of, again=True)
    assert (registry.silent(), registry.failures()) == ([], [])


# -- sessions --------------------------------------------------------------------------------------


@pytest.fixture
def session(pair: Sink) -> Iterator[StoreSession]:
    with pair.session() as session:
        yield session


def test_a_store_that_may_come_back_is_waited_for(pair: Sink) -> None:
    """It alone has the last records; the next writer begins behind them at the other store."""
    # A busy machine starts a store more slowly than the mesh expects.
    pair.patch.setattr(timing, "STORE_TIMEOUT_S", PATIENCE_S)
    own = pair.cluster
    host = pair.publish(numbers(0, 10), acks="all")
    store, other = own.stores[host], own.stores[1 - host]
    with pair.open(store, acks="1") as writer, own.paused_store(1 - host):
        pair.commit(stage(writer, MUCH), store=store, acks="1")
        own.kill_store(host)

    def come_back() -> None:
        with pair.session() as session:
            wait_until(lambda: store in session.silent)
        own.start_store(host)

    coming = threading.Thread(target=come_back)
    coming.start()
    try:
        with pair.open(other) as writer:
            pair.commit(stage(writer, numbers(10, 20)), store=other)
    finally:
        coming.join()
    wanted = pa.concat_arrays([numbers(0, 10), MUCH, numbers(10, 20)]).to_pylist()
    assert [pair.held(index).values == wanted for index in range(2)] == [True, True]


def test_a_store_that_is_never_reached_is_waited_for_once(
    own: EmbeddedCluster, session: StoreSession, patch: Patch
) -> None:
    """The mesh reports a store with an unreachable Flight server, as behind a firewall."""
    there, lost = own.stores
    patch.setattr(timing, "STORE_TIMEOUT_S", 1.0)
    deadline = soon()

    def silent() -> list[str]:
        session.refresh()
        return session.silent

    with patch.context() as patched:
        fail(patched, "describe", lost)
        ((client, answer),) = session.ask(lambda _: "an answer", deadline)
        assert (store_of(client), answer) == (there, "an answer")
        assert deadline.waited_s >= timing.STORE_TIMEOUT_S
        wait_until(lambda: silent() == [])
        assert [store_of(client) for client in session.clients()] == [there]
        assert session.silent == []
    # Once it has answered, it counts anew.
    assert len(session.refresh()) == 2
    fail(patch, "describe", lost)
    assert silent() == [lost]


def test_no_answer_counts_where_no_store_answers(pair: Sink, session: StoreSession) -> None:
    session.refresh()
    for index in range(2):
        pair.cluster.kill_store(index)
    deadline = Deadline(timing.STORE_TIMEOUT_S + 1.0)
    with pytest.raises(StoreUnreachableError):
        session.ask(lambda client: client.describe(timeout_s=1.0), deadline)
    assert session.silent == []  # the mesh has given them up


def test_a_store_that_fails_one_request_is_waited_for_until_the_deadline(
    own: EmbeddedCluster, session: StoreSession, patch: Patch
) -> None:
    """It may have more than the one that answers; the mesh keeps it, as it describes itself."""
    patch.setattr(timing, "STORE_TIMEOUT_S", 0.5)
    busy = own.stores[1]
    fail(patch, "clock_us", busy)
    deadline = Deadline(3 * timing.STORE_TIMEOUT_S)
    with pytest.raises(StoreUnreachableError, match=busy):
        session.ask(lambda client: client.clock_us(timeout_s=PATIENCE_S), deadline)
    assert deadline.is_over


@pytest.mark.parametrize("steps", [6, 0])
def test_a_store_that_catches_up_is_waited_for(
    pair: Sink, session: StoreSession, steps: int
) -> None:
    """One without progress is not, and the error names it."""
    holder, other = pair.cluster.stores
    waits: list[int] = []

    def catching_up(
        client: StoreClient, tp: TopicPartition, end: int, *, timeout_s: float, **_: Any
    ) -> int:
        assert store_of(client) == other
        waits.append(len(waits))
        if 0 < steps < len(waits):
            return end
        time.sleep(timeout_s)
        return min(len(waits), steps)

    pair.patch.setattr(StoreClient, "wait", catching_up)
    again = count_restarts(pair.patch)
    written = [(pair.tp, Transaction(7, 0, 10))]
    if steps:
        session.wait_for_acks(written, 2, holder, soon())
        assert len(again) >= steps - 1
        return
    with pytest.raises(NotAcknowledgedError) as caught:
        session.wait_for_acks(written, EVERY_STORE, holder, Deadline(0.5))
    (note,) = caught.value.__notes__
    assert f"store {other} has " in note
    assert "up to offset 0, and others up to 10" in note


def test_only_missing_transactions_are_waited_for(
    own: EmbeddedCluster, session: StoreSession, patch: Patch
) -> None:
    last = Transaction(7, 10, 20)
    waited: list[str] = []
    state = TransactionState(0, 0, "", None)

    def states(_: StoreClient, tps: Sequence[TopicPartition], **__: Any) -> list[TransactionState]:
        return [state for _ in tps]

    def wait(client: StoreClient, tp: TopicPartition, end: int, **given: Any) -> int:
        waited.append(tp.partition)
        return end

    patch.setattr(StoreClient, "transaction_states", states)
    patch.setattr(StoreClient, "wait", wait)
    written = [(TopicPartition("t", name), last) for name in "ABC"]
    for end, found, is_there in (
        (20, last, True),
        (30, Transaction(8, 20, 30), True),
        (19, last, False),
        (20, None, False),  # from a C node, which knows no transactions
        (20, Transaction(6, 0, 10), False),
        (20, Transaction(7, 10, 15), False),
    ):
        state = TransactionState(end, end, "", found)
        waited.clear()
        session.wait_for_acks(written, 2, own.stores[0], soon())
        assert waited == (["C"] if is_there else ["C", "B", "A"]), (end, found)


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
    patch.setattr(cluster_reader, "Reader", lambda **_: MemoryReader())

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
