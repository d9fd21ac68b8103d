"""Puts, from the client's side: acknowledgements, limits and retries."""

from __future__ import annotations

import time

import pyarrow as pa
import pytest

from dafka_core.errors import (
    ClosedError,
    ConfigError,
    InvalidRequestError,
    OffsetConflictError,
    StoreUnreachableError,
)
from dafka_core.flight import limits
from dafka_core.flight.store_client import StoreClient
from dafka_core.model.records import TopicPartition
from dafka_core.testing import PATIENCE_S, wait_until
from tests.integration.flight.hosts import TP, Served, array, put, put_all, stored


def test_what_is_put_is_stored(served: Served, client: StoreClient) -> None:
    with put(client, 0) as first:
        first.write(array(0, 10_000))
        first.write(array(10_000, 10_000))
        first.write(array(10_000, 10_001))
        assert first.end == 10_001
        assert first.finish(PATIENCE_S) == 10_001
    assert served.log.end(TP) == 10_001
    with put(client, 10_001) as second:
        second.write(array(0, 20_000).slice(10_001))
        assert second.finish(PATIENCE_S) == 20_000
    stored(served, 20_000)


def test_a_put_of_nothing_tells_where_the_partition_ends(
    served: Served, client: StoreClient
) -> None:
    served.extend(7)
    with put(client, 7) as nothing:
        assert nothing.finish(PATIENCE_S) == 7
    stored(served, 7)


def test_values_are_cut_to_what_a_batch_may_have(served: Served, client: StoreClient) -> None:
    many = array(0, 150_000)
    large = pa.array([b"x" * (5 << 20)] * 8 + [b"y" * (20 << 20)], pa.binary())
    with put(client, 0) as cut:
        cut.write(many)
        cut.write(large)
        assert cut.finish(PATIENCE_S) == 150_009
    assert max(len(batch.values) for batch in served.backend.taken) == limits.MAX_BATCH_RECORDS
    sizes = [batch.values.size_bytes for batch in served.backend.taken]
    assert sizes[-4:] == [15 << 20, 15 << 20, 10 << 20, 20 << 20]


def test_a_conflict_in_the_middle_of_a_put(served: Served, client: StoreClient) -> None:
    with put(client, 0) as overtaken:
        overtaken.write(array(0, 10))
        assert overtaken.wait_durable(10, timeout_s=PATIENCE_S) == 10
        served.extend(15)
        overtaken.write(array(10, 20))
        for call in (lambda: overtaken.finish(PATIENCE_S), lambda: overtaken.write(array(0, 1))):
            with pytest.raises(OffsetConflictError) as conflict:
                call()
            assert (conflict.value.offset, conflict.value.end) == (10, 15)
    stored(served, 15)


def test_a_store_that_makes_no_progress_is_given_up(served: Served, client: StoreClient) -> None:
    served.backend.open.clear()
    with put(client, 0) as stuck:
        stuck.write(array(0, 10))
        with pytest.raises(
            StoreUnreachableError, match=r"it has written nothing to disk for 0\.2 s"
        ):
            stuck.wait_durable(10, timeout_s=0.2)
        with pytest.raises(
            StoreUnreachableError, match=r"it has written nothing to disk for 0\.2 s"
        ):
            stuck.finish(PATIENCE_S)
    megabytes = pa.array([b"x" * (1 << 20)] * 8, pa.binary())
    with pytest.raises(StoreUnreachableError, match=r"no progress for 0\.2 s"):
        put_all(client, 0, *[megabytes] * 100, timeout_s=0.2)
    served.backend.open.set()
    wait_until(lambda: served.service.context.puts.free == limits.MAX_PUTS)
    # Arrived records may be stored; nothing else changes.
    assert client.describe(timeout_s=PATIENCE_S) == served.location


def test_values_are_checked_before_they_leave(served: Served) -> None:
    client = served.client()
    with put(client, 0) as wrong:
        for bad in (
            pa.array(["a"]),
            pa.array([b"a"], pa.large_binary()),
            pa.array([b"a", None], pa.binary()),
            [b"a"],
            pa.chunked_array([[b"a"]]),
        ):
            with pytest.raises(ConfigError, match="must be an array of binary without nulls"):
                wrong.write(bad)
        wrong.write(array(0, 5))
        assert wrong.finish(PATIENCE_S) == 5
        with pytest.raises(ClosedError):
            wrong.write(array(5, 6))
        with pytest.raises(ClosedError):
            wrong.finish(1)
    for topic, partition, start in (("", "P", 0), ("t", "", 0), ("t", "P", -1), ("t", "P", None)):
        with pytest.raises(InvalidRequestError):
            client.put(TopicPartition(topic, partition), start, timeout_s=1)  # type: ignore[arg-type]


def test_a_put_that_is_left_ends(served: Served, client: StoreClient) -> None:
    for start in range(0, 200, 10):  # more than the store takes at a time
        with put(client, start) as left:
            left.write(array(start, start + 10))
        assert served.log.end(TP) == start + 10
        with pytest.raises(ClosedError):
            left.finish(PATIENCE_S)
        left.close()
    stored(served, 200)


def test_a_put_tells_how_far_it_is(served: Served, client: StoreClient) -> None:
    served.extend(5)
    with put(client, 5) as told:
        assert told.durable == 5
        assert told.wait_durable(5, timeout_s=PATIENCE_S) == 5
        for end in (10, 20):
            told.write(array(told.end, end))
            assert told.wait_durable(end, timeout_s=PATIENCE_S) == end
            assert served.log.end(TP) == end
        assert told.durable == 20
        assert told.finish(PATIENCE_S) == 20


def test_a_put_that_was_overtaken_hears_of_it_though_it_sends_nothing_more(
    served: Served, client: StoreClient
) -> None:
    with put(client, 0) as overtaken:
        overtaken.write(array(0, 10))
        assert overtaken.wait_durable(10, timeout_s=PATIENCE_S) == 10
        served.extend(12)
        overtaken.write(array(10, 11))
        started = time.monotonic()
        with pytest.raises(OffsetConflictError) as caught:
            overtaken.wait_durable(11, timeout_s=PATIENCE_S)
        assert caught.value.end == 12
        assert time.monotonic() - started < PATIENCE_S / 2  # acknowledged, without a retry


def write_and_interrupt(client: StoreClient, attempt: str = "") -> None:
    with put(client, 0, attempt=attempt) as interrupted:
        interrupted.write(array(0, 100))
        wait_until(lambda: interrupted.durable == 100)
        raise KeyboardInterrupt


def test_ctrl_c_says_what_is_stored(served: Served, client: StoreClient) -> None:
    with pytest.raises(KeyboardInterrupt) as ended:
        write_and_interrupt(client)
    (note,) = ended.value.__notes__
    assert "the store has the records up to offset 100 (exclusive)" in note
    assert put_all(client, 100, array(0, 200).slice(100)) == 200
    stored(served, 200)


def test_ctrl_c_has_what_was_staged_discarded(served: Served, client: StoreClient) -> None:
    with pytest.raises(KeyboardInterrupt) as ended:
        write_and_interrupt(client, "A" * 32)
    (note,) = ended.value.__notes__
    assert note.endswith(": the staged records are discarded")
    assert client.staged(timeout_s=PATIENCE_S) == []
    assert put_all(client, 0, array(0, 10)) == 10


def test_ctrl_c_before_anything_was_written_needs_no_word(
    served: Served, client: StoreClient
) -> None:
    with pytest.raises(KeyboardInterrupt) as ended, put(client, 0):
        raise KeyboardInterrupt
    assert not hasattr(ended.value, "__notes__")
