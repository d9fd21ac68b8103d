"""Connections are shared in a process, and closed when they are idle."""

from __future__ import annotations

import gc
import threading

import pytest

from dafka_core.errors import DataLossError, FetchTimeoutError
from dafka_spark.cluster.connections import Connections
from dafka_spark.options import MeshAddress
from tests.memory_reader import MemoryReader


class Opened:
    def __init__(self, idle_s: float = 60.0) -> None:
        self.sources: list[MemoryReader] = []
        self.connections: Connections[MeshAddress, MemoryReader] = Connections(self.open, idle_s)

    def open(self, via: MeshAddress) -> MemoryReader:
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


def test_data_loss_keeps_the_reader() -> None:
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
    """Borrow, and leave the return to the garbage collector."""
    cycle: list[object] = [opened.connections.lend(via)]
    cycle[0].__enter__()  # type: ignore[attr-defined]
    cycle.append(cycle)


def test_a_borrower_may_be_collected_while_another_borrows() -> None:
    opened = Opened()

    def open_(via: MeshAddress) -> MemoryReader:
        gc.collect()
        return opened.open(via)

    def borrow() -> None:
        abandon(opened, MeshAddress("a"))
        with opened.connections.lend(MeshAddress("b")):
            pass

    opened.connections = Connections(open_, idle_s=0.02)
    gc.disable()  # not before
    try:
        thread = threading.Thread(target=borrow, daemon=True)
        thread.start()
        thread.join(20)
        assert not thread.is_alive()
    finally:
        gc.enable()
    # Both are idle now.
    assert len(opened.sources) == 2
    assert all(source.closing.wait(20) for source in opened.sources)


def test_a_failed_reader_is_closed_when_its_last_borrower_is_collected() -> None:
    opened = Opened()
    abandon(opened, MeshAddress("a"))
    failure = FetchTimeoutError("t", "A", 0, 1, 1.0)
    with pytest.raises(FetchTimeoutError), opened.connections.lend(MeshAddress("a")):
        raise failure
    gc.collect()
    assert opened.sources[0].closing.wait(20)
