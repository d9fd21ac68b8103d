"""Connections are shared in a process, and closed when they are idle; a deadline ends waiting."""

import gc
import itertools
import math
import threading

import pytest

from dafka_core.errors import DafkaError, DataLossError, FetchTimeoutError
from dafka_spark.cluster import timing
from dafka_spark.cluster.connections import Connections
from dafka_spark.cluster.timing import Deadline
from tests.memory_reader import MemoryReader

FAILURE = FetchTimeoutError("t", "A", 0, 1, 1.0)
LOSS = DataLossError("t", "A", 0, None, "gone")


class Opened(Connections[str, MemoryReader]):
    """A pool that lists what it has opened."""

    def __init__(self, idle_s: float = 60.0) -> None:
        super().__init__(self.open, idle_s)
        self.readers: list[MemoryReader] = []

    def open(self, key: str) -> MemoryReader:
        gc.collect()  # a borrower may be collected at any time
        self.readers.append(MemoryReader())
        return self.readers[-1]


def test_one_reader_for_each_tower() -> None:
    pool = Opened()
    with pool.borrow("a") as first, pool.borrow("a") as second:
        assert first is second
    with pool.borrow("a") as third, pool.borrow("b") as other:
        assert third is first
        assert other is not first
    pool.close()
    assert [reader.closed for reader in pool.readers] == [True, True]


@pytest.mark.parametrize(("error", "opened"), [(FAILURE, 2), (LOSS, 1)])
def test_a_connection_that_failed_is_replaced(error: DafkaError, opened: int) -> None:
    """Lost records are no fault of the connection."""
    pool = Opened()
    with pytest.raises(type(error)), pool.borrow("a"):
        raise error
    assert pool.readers[0].closed is (opened == 2)
    with pool.borrow("a"):
        assert len(pool.readers) == opened


def test_an_expired_connection_is_used_while_no_other_can_be_opened(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A query whose stores restart while its towers are retried waits for them, as before."""
    readers = [MemoryReader()]
    opened = []

    def open_(key: str) -> MemoryReader:
        opened.append(key)
        if not readers:
            raise FAILURE
        return readers.pop()

    pool = Connections(open_, has_expired=lambda _: True)
    monkeypatch.setattr(timing, "STORE_BACKOFF_S", 0.0)
    for _ in range(2):
        with pool.borrow("a") as found:
            assert not found.closed
    readers.append(MemoryReader())
    with pool.borrow("a") as other:
        assert other is not found
    monkeypatch.setattr(timing, "STORE_BACKOFF_S", math.inf)
    for _ in range(2):
        with pool.borrow("a") as found:
            assert found is other
    assert len(opened) == 4  # after a failure it waits


def test_idle_readers_are_closed_and_others_are_not() -> None:
    pool = Opened(idle_s=0.02)
    with pool.borrow("kept", keep=True), pool.borrow("busy"):
        with pool.borrow("idle"):
            pass
        kept, busy, idle = pool.readers
        assert idle.closing.wait(20)
        assert not busy.closed
    assert busy.closing.wait(20)
    assert not kept.closed
    pool.close()


def abandon(pool: Opened, key: str) -> None:
    """Borrow, and leave the return to the garbage collector."""
    cycle: list[object] = [pool.borrow(key)]
    cycle[0].__enter__()  # type: ignore[attr-defined]
    cycle.append(cycle)


def test_a_borrower_may_be_collected_while_another_borrows() -> None:
    pool = Opened(idle_s=0.02)

    def borrow() -> None:
        abandon(pool, "a")
        with pool.borrow("b"):
            pass

    gc.disable()  # not before
    try:
        thread = threading.Thread(target=borrow, daemon=True)
        thread.start()
        thread.join(20)
        assert not thread.is_alive()
    finally:
        gc.enable()
    assert [reader.closing.wait(20) for reader in pool.readers] == [True, True]


def test_a_failed_reader_is_closed_when_its_last_borrower_is_collected() -> None:
    pool = Opened()
    abandon(pool, "a")
    with pytest.raises(FetchTimeoutError), pool.borrow("a"):
        raise FAILURE
    gc.collect()
    assert pool.readers[0].closing.wait(20)


@pytest.mark.parametrize(("timeout_s", "expected"), [(0.0, [0]), (0.05, [0, 1]), (-1.0, [0])])
def test_the_last_attempt_is_at_the_deadline(
    monkeypatch: pytest.MonkeyPatch, timeout_s: float, expected: list[int]
) -> None:
    monkeypatch.setattr(timing, "POLL_INTERVAL_S", 60.0)
    deadline = Deadline(timeout_s)
    assert deadline.is_over == (timeout_s <= 0)
    assert 0 < deadline.left_s <= max(timeout_s, 0.001)
    assert list(deadline.attempts()) == expected
    deadline.timeout_s = 60.0
    deadline.restart()
    assert not deadline.is_over
    monkeypatch.setattr(timing, "POLL_INTERVAL_S", 0.0)
    assert list(itertools.islice(deadline.attempts(), 100)) == list(range(100))
