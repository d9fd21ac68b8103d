"""Readers are shared in a process, and closed when nobody needs them."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from dafka_core.errors import DataLossError, FetchTimeoutError
from dafka_core.records import TopicPartition
from dafka_spark.cluster.connections import Connections
from dafka_spark.options import MeshAddress
from tests.integration.cluster.stores import Served
from tests.memory_reader import MemoryReader


class Opened:
    def __init__(self, idle_s: float = 60.0) -> None:
        self.sources: list[MemoryReader] = []
        self.connections: Connections[MeshAddress, MemoryReader] = Connections(self._open, idle_s)

    def _open(self, via: MeshAddress) -> MemoryReader:
        self.sources.append(MemoryReader())
        return self.sources[-1]


def test_one_reader_for_each_tower() -> None:
    opened = Opened()
    with (
        opened.connections.lend(MeshAddress("a")) as first,
        opened.connections.lend(MeshAddress("a")) as second,
    ):
        assert first is second
    with (
        opened.connections.lend(MeshAddress("a")) as third,
        opened.connections.lend(MeshAddress("b")) as other,
    ):
        assert third is first
        assert other is not first
    assert len(opened.sources) == 2
    opened.connections.close()
    assert all(source.closed for source in opened.sources)


def test_a_reader_that_failed_is_not_lent_again() -> None:
    opened = Opened()
    failure = FetchTimeoutError("t", "A", 0, 1, 1.0)
    with pytest.raises(FetchTimeoutError), opened.connections.lend(MeshAddress("a")):
        raise failure
    assert opened.sources[0].closed
    with opened.connections.lend(MeshAddress("a")):
        assert len(opened.sources) == 2


def test_lost_data_is_not_the_readers_fault() -> None:
    opened = Opened()
    with pytest.raises(DataLossError), opened.connections.lend(MeshAddress("a")):
        raise DataLossError("t", "A", 0, None, "gone")
    with opened.connections.lend(MeshAddress("a")):
        assert len(opened.sources) == 1


def test_idle_readers_are_closed_and_busy_ones_are_not() -> None:
    opened = Opened(idle_s=0.02)
    with opened.connections.lend(MeshAddress("busy")):
        with opened.connections.lend(MeshAddress("idle")):
            pass
        busy, idle = opened.sources
        assert idle.closing.wait(20)
        assert not busy.closed
    opened.connections.close()


def abandon(opened: Opened, via: MeshAddress) -> None:
    """Borrows, and leaves it to the garbage collector to give back."""
    cycle: list[object] = [opened.connections.lend(via)]
    cycle[0].__enter__()  # type: ignore[attr-defined]
    cycle.append(cycle)


def test_a_borrower_may_be_collected_while_another_one_borrows() -> None:
    opened = Opened()

    def open_(via: MeshAddress) -> MemoryReader:
        gc.collect()
        return opened._open(via)

    def borrow() -> None:
        abandon(opened, MeshAddress("a"))
        with opened.connections.lend(MeshAddress("b")):
            pass

    opened.connections = Connections(open_)
    gc.disable()  # not before
    try:
        thread = threading.Thread(target=borrow, daemon=True)
        thread.start()
        thread.join(20)
        assert not thread.is_alive()
    finally:
        gc.enable()
    assert [entry.users for entry in opened.connections._entries.values()] == [0, 0]
    opened.connections.close()


def test_what_failed_is_closed_when_its_last_borrower_is_collected() -> None:
    opened = Opened()
    abandon(opened, MeshAddress("a"))
    failure = FetchTimeoutError("t", "A", 0, 1, 1.0)
    with pytest.raises(FetchTimeoutError), opened.connections.lend(MeshAddress("a")):
        raise failure
    gc.collect()
    assert opened.sources[0].closing.wait(20)


def test_a_process_ends_though_a_borrower_was_abandoned() -> None:
    program = (
        "from dafka_spark.options import MeshAddress\n"
        "from tests.unit.dafka_spark.test_connections import Opened, abandon\n"
        "opened = Opened()\n"
        "abandon(opened, MeshAddress('a'))\n"
        "opened.connections.close()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], timeout=60, check=False)
    assert done.returncode == 0


def test_a_forked_process_does_not_use_its_parents_readers() -> None:
    opened = Opened()
    with opened.connections.lend(MeshAddress("a")):
        pass
    opened.connections.forget()
    with opened.connections.lend(MeshAddress("a")):
        assert len(opened.sources) == 2
    assert not opened.sources[0].closed


def test_a_forked_child_does_not_even_let_go_of_a_client(tmp_path: Path) -> None:
    """Its destructor would wait for threads that the child does not have."""
    from dafka_spark.cluster import connections

    with Served(tmp_path / "one", "one") as store:
        store.add(TopicPartition("t", "A"), 10)
        with connections.lend_client(store.location) as client:
            read = client.read(
                TopicPartition("t", "A"),
                0,
                10,
                times=False,
                max_records=10,
                max_bytes=100,
                timeout_s=20,
            )
            assert sum(batch.count for batch in read) == 10
        del client, read
        done = subprocess.run(["true"], preexec_fn=gc.collect, timeout=20, check=False)
        assert done.returncode == 0


@pytest.mark.parametrize("name", ["_readers", "_clients", "_logs"])
def test_forgetting_happens_at_fork(name: str) -> None:
    from dafka_spark.cluster import connections

    kept = getattr(connections, name)
    original = kept._entries
    kept._entries = {"a": connections._Entry(MemoryReader())}
    try:
        child = os.fork()
        if child == 0:
            os._exit(len(kept._entries))
        _, status = os.waitpid(child, 0)
    finally:
        kept._entries = original
    assert os.waitstatus_to_exitcode(status) == 0
