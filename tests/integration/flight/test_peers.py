"""Peers that are slow, vanish or stand still affect no other peer."""

import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lmdb
import pytest

from dafka_core.errors import StoreUnreachableError
from dafka_core.flight import limits
from dafka_core.flight.store_client import StoreClient
from dafka_core.flight.store_location import StoreLocation
from dafka_core.testing import PATIENCE_S, wait_until
from tests.integration.flight import serving
from tests.integration.flight.hosts import (
    BLOCK_BYTES,
    BLOCKS,
    LARGEST,
    STORE,
    TP,
    Served,
    array,
    check,
    everything,
    reading,
    total,
    wait_for_end,
)

ROOT = Path(__file__).parents[3]
Child = subprocess.Popen[str]


@contextlib.contextmanager
def child(what: str, argument: str) -> Iterator[Child]:
    command = [sys.executable, "-m", serving.__name__, what, argument]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, text=True, cwd=ROOT, stdin=pipe, stdout=pipe) as process:
        try:
            yield process
        finally:
            process.kill()


def line(process: Child) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


@pytest.fixture
def server(large: Path) -> Iterator[Child]:
    with child("serve", str(large)) as process:
        yield process


def location_of(server: Child) -> StoreLocation:
    return StoreLocation.parse(line(server))


def use_of(server: Child) -> dict[str, Any]:
    assert server.stdin is not None
    server.stdin.write("\n")
    server.stdin.flush()
    found: dict[str, Any] = json.loads(line(server))
    return found


@pytest.fixture
def beside(large: Path) -> Iterator[lmdb.Environment]:
    """The server's log in another process, which can list its readers."""
    with lmdb.open(str(large), readonly=True, create=False) as log:
        yield log


def wait_until_settled(server: Child, beside: lmdb.Environment) -> None:
    """Wait until everything that can be prepared for its clients is ready."""
    same = 0
    last: dict[str, Any] = {}

    def looked() -> bool:
        nonlocal same, last
        use = use_of(server) | {"readers": beside.readers()}
        same, last = (same + 1 if use == last and not reading(use["readers"]) else 0), use
        time.sleep(0.02)
        return same == 10

    wait_until(looked)


@pytest.mark.parametrize("way", [0, 1], ids=["unix", "tcp"])
def test_slow_clients_cost_a_block_each_and_nothing_else(
    server: Child, beside: lmdb.Environment, way: int
) -> None:
    known = location_of(server)
    location = StoreLocation(STORE, known.locations[way : way + 1], machine=known.machine)
    before = beside.readers()
    clients = [StoreClient(location) for _ in range(8)]
    streams = [everything(client) for client in clients]
    for each in streams:
        next(each)
    wait_until(lambda: use_of(server)["free_gets"] == limits.MAX_GETS - 8)
    wait_until_settled(server, beside)
    slow = use_of(server)
    # The block being sent, and the one before it in gRPC's buffers.
    assert 8 * BLOCK_BYTES <= slow["buffer_bytes"] <= 8 * 2.2 * BLOCK_BYTES
    assert reading(beside.readers()) == []
    assert len(beside.readers().splitlines()) == len(before.splitlines())
    with StoreClient(location) as other:
        assert total(everything(other)) == BLOCKS * 200
        assert other.heads(None, timeout_s=PATIENCE_S)[0].end == BLOCKS * 200
    assert [total(each) for each in streams] == [(BLOCKS - 1) * 200] * 8
    for client in clients:
        client.close()
    wait_until(lambda: use_of(server)["free_gets"] == limits.MAX_GETS)
    assert use_of(server)["buffer_bytes"] <= BLOCK_BYTES


def test_vanished_readers_are_let_go_of(server: Child, beside: lmdb.Environment) -> None:
    location = location_of(server)
    with contextlib.ExitStack() as readers:
        processes = [
            readers.enter_context(child("read", part.packed().decode()))
            for part in (location, StoreLocation(STORE, location.locations[1:]))
        ]
        for process in processes:
            assert int(line(process)) == 200
        wait_until(lambda: use_of(server)["free_gets"] == limits.MAX_GETS - 2)
    wait_until(lambda: use_of(server)["free_gets"] == limits.MAX_GETS)
    assert reading(beside.readers()) == []
    assert use_of(server)["buffer_bytes"] <= BLOCK_BYTES


def test_vanished_writers_are_let_go_of(directory: Path) -> None:
    with child("serve", str(directory)) as server:
        location = location_of(server)
        with child("put", location.packed().decode()) as process:
            assert int(line(process)) == 10
            assert use_of(server)["free_puts"] == limits.MAX_PUTS - 1
        wait_until(lambda: use_of(server)["free_puts"] == limits.MAX_PUTS)
        assert use_of(server)["acks"] == 0
        with StoreClient(location) as client, client.put(TP, 10, timeout_s=9) as rest:
            rest.write(array(10, 20))
            assert rest.finish(PATIENCE_S) == 20
            check(client.read(TP, 0, 20, times=True, timeout_s=PATIENCE_S, **LARGEST), 0, 20)


@pytest.mark.parametrize("way", [0, 1], ids=["unix", "tcp"])
def test_a_killed_store_is_unreachable_after_what_has_come(server: Child, way: int) -> None:
    known = location_of(server)
    location = StoreLocation(STORE, known.locations[way : way + 1], machine=known.machine)
    with StoreClient(location) as client:
        batches = everything(client, max_records=50)
        got = [next(batches)]
        server.kill()
        with pytest.raises(StoreUnreachableError) as lost:
            got.extend(batches)
        assert lost.value.store == STORE
        ends = [batch.end for batch in got]
        assert [batch.offset for batch in got] == [0, *ends[:-1]]
        assert ends[-1] < BLOCKS * 200
        for ask in (
            lambda: client.heads(None, timeout_s=5),
            lambda: total(everything(client)),
            lambda: client.describe(timeout_s=5),
        ):
            with pytest.raises(StoreUnreachableError):
                ask()


@pytest.mark.parametrize("way", [0, 1], ids=["unix", "tcp"])
def test_a_store_that_stands_still_is_given_up(server: Child, way: int) -> None:
    known = location_of(server)
    location = StoreLocation(STORE, known.locations[way : way + 1], machine=known.machine)
    with StoreClient(location) as client, StoreClient(location) as other:
        batches = everything(client, timeout_s=0.5)
        next(batches)
        use_of(server)
        server.send_signal(signal.SIGSTOP)
        try:
            before = time.monotonic()
            with pytest.raises(StoreUnreachableError, match=r"no progress for 0\.5 s"):
                list(batches)
            # A call that has not begun can't be cancelled.
            with pytest.raises(StoreUnreachableError, match=r"no progress for 0\.5 s"):
                list(everything(other, timeout_s=0.5))
            with pytest.raises(StoreUnreachableError):
                other.heads(None, timeout_s=0.5)
            assert time.monotonic() - before < 10
        finally:
            server.send_signal(signal.SIGCONT)
        for again in (client, other):
            wait_for_end(again, BLOCKS * 200)
            assert total(everything(again)) == BLOCKS * 200


def test_ctrl_c_does_not_wait_for_a_store_that_stands_still(server: Child) -> None:
    def interrupt(client: StoreClient, end: int) -> None:
        with client.put(TP, end, attempt="A" * 32, timeout_s=600) as interrupted:
            interrupted.write(array(0, 100))
            wait_until(lambda: interrupted.durable == end + 100)
            server.send_signal(signal.SIGSTOP)
            interrupted.write(array(0, 100))
            raise KeyboardInterrupt

    with StoreClient(location_of(server)) as client:
        end = client.heads(None, timeout_s=PATIENCE_S)[0].end
        before = time.monotonic()
        with pytest.raises(KeyboardInterrupt) as ended:
            interrupt(client, end)
        server.send_signal(signal.SIGCONT)
        assert time.monotonic() - before < 2 * PATIENCE_S
        (note,) = ended.value.__notes__
        assert "the staged records are not discarded yet (store " in note


def test_a_reader_that_takes_its_time_is_not_given_up(served: Served) -> None:
    served.extend(100_000)
    client = served.client()
    batches = client.read(
        TP, 0, 100_000, times=False, timeout_s=0.3, max_records=50_000, max_bytes=1 << 20
    )
    got = []
    for batch in batches:
        time.sleep(0.2)
        got.append(batch)
    check(got, 0, 100_000)
