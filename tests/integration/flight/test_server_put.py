"""Records put into a real service: durable when it says so, exactly where they belong."""

from __future__ import annotations

import json
import threading
import time
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight

from dafka_core.errors import (
    ClosedError,
    ConfigError,
    InvalidRequestError,
    OffsetConflictError,
    StoreError,
    StoreUnreachableError,
)
from dafka_core.flight import limits
from dafka_core.flight.client_put import PutStream
from dafka_core.flight.columns import VALUES_SCHEMA
from dafka_core.flight.json_messages import DurableEnd
from dafka_core.flight.requests import PutRequest
from dafka_core.flight.store_client import StoreClient
from dafka_core.records import TopicPartition, TransactionState
from dafka_core.testing import PATIENCE_S, wait_until
from tests.integration.flight.hosts import (
    LARGEST,
    PARTITION,
    TOPIC,
    TP,
    Served,
    array,
    check,
    values,
)


def put(client: StoreClient, start: int, **options: Any) -> PutStream:
    return client.put(TP, start, **{"timeout_s": PATIENCE_S} | options)


def put_all(client: StoreClient, start: int, *arrays: pa.Array, **options: Any) -> int:
    with put(client, start, **options) as whole:
        for each in arrays:
            whole.write(each)
        return whole.finish(options.get("timeout_s", PATIENCE_S))


def stored(served: Served, end: int) -> None:
    """Asserts that the partition is the first ``end`` values."""
    batches = served.client().read(TP, 0, end, times=False, timeout_s=PATIENCE_S, **LARGEST)
    check(batches, 0, end)
    assert served.log.end(TP) == end


def plain_put(
    served: Served,
    schema: pa.Schema = VALUES_SCHEMA,
    **options: Any,
) -> tuple[Any, Any]:
    descriptor = flight.FlightDescriptor.for_command(PutRequest(TOPIC, PARTITION, 0).packed())
    writer, reader = served.plain().do_put(descriptor, schema, flight.FlightCallOptions(**options))
    return writer, reader


def finish(stream: tuple[Any, Any], *arrays: pa.Array, schema: pa.Schema = VALUES_SCHEMA) -> None:
    writer, reader = stream
    for each in arrays:
        writer.write_batch(pa.record_batch([each], schema=schema))
    writer.done_writing()
    while reader.read() is not None:
        continue
    writer.close()


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


@pytest.mark.parametrize(("start", "end"), [(0, 10), (9, 10), (11, 10), (1 << 40, 10), (1, 0)])
def test_an_overlap_or_a_gap_is_answered_with_the_end(
    served: Served, client: StoreClient, start: int, end: int
) -> None:
    if end:
        served.extend(end)
    with pytest.raises(OffsetConflictError) as conflict:
        put_all(client, start, array(0, 5))
    assert (conflict.value.offset, conflict.value.end) == (start, end)
    assert (conflict.value.topic, conflict.value.partition) == (TOPIC, PARTITION)
    stored(served, end)


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


def test_ends_come_back_as_they_are_durable(served: Served) -> None:
    writer, reader = plain_put(served)
    for end in (10, 30, 35):
        start = served.log.end(TP)
        writer.write_batch(pa.record_batch([array(start, end)], schema=VALUES_SCHEMA))
        # Without more being sent: a client may wait for each batch.
        assert json.loads(reader.read().to_pybytes()) == {"v": 1, "end": end}
        assert served.log.end(TP) == end
    writer.done_writing()
    assert json.loads(reader.read().to_pybytes()) == {"v": 1, "end": 35}
    assert reader.read() is None
    writer.close()


def test_batches_are_submitted_before_those_before_them_are_durable(served: Served) -> None:
    served.backend.open.clear()
    client = served.client()
    with put(client, 0) as pipelined:
        for start in range(0, 50, 10):
            pipelined.write(array(start, start + 10))
        wait_until(lambda: len(served.backend.taken) == 5)
        assert served.log.end(TP) == 0
        served.backend.open.set()
        assert pipelined.finish(PATIENCE_S) == 50
    stored(served, 50)


def test_what_is_under_way_is_bounded(served: Served) -> None:
    served.backend.open.clear()
    client = served.client()
    megabytes = pa.array([b"x" * (1 << 20)] * 8, pa.binary())
    done = threading.Event()

    def work() -> None:
        with put(client, 0) as large:
            for _ in range(20):
                large.write(megabytes)
            assert large.finish(PATIENCE_S) == 160
        done.set()

    thread = threading.Thread(target=work)
    thread.start()
    most = limits.MAX_UNDER_WAY_BYTES // (8 << 20)
    wait_until(lambda: len(served.backend.taken) == most)
    assert not done.wait(0.3)
    assert len(served.backend.taken) == most
    served.backend.open.set()
    thread.join()
    assert done.is_set()
    assert served.log.end(TP) == 160


def test_a_store_that_makes_no_progress_is_given_up(served: Served, client: StoreClient) -> None:
    served.backend.open.clear()
    with put(client, 0) as stuck:
        stuck.write(array(0, 10))
        with pytest.raises(StoreUnreachableError, match=r"nothing came to its disk for 0\.2 s"):
            stuck.wait_durable(10, timeout_s=0.2)
        with pytest.raises(StoreUnreachableError, match=r"nothing came to its disk for 0\.2 s"):
            stuck.finish(PATIENCE_S)
    megabytes = pa.array([b"x" * (1 << 20)] * 8, pa.binary())
    with pytest.raises(StoreUnreachableError, match=r"no progress for 0\.2 s"):
        put_all(client, 0, *[megabytes] * 100, timeout_s=0.2)
    served.backend.open.set()
    wait_until(lambda: served.service.context.puts.free == limits.MAX_PUTS)
    # What had arrived is stored by now or later; nothing else is hurt.
    assert client.describe(timeout_s=PATIENCE_S) == served.location


def test_the_hosts_failure_is_the_stores(
    served: Served, client: StoreClient, caplog: pytest.LogCaptureFixture
) -> None:
    served.backend.failure = StoreError(served.directory, "the disk is full")
    with pytest.raises(StoreUnreachableError, match="the disk is full"):
        put_all(client, 0, array(0, 10))
    assert "the disk is full" in caplog.text
    stored(served, 0)


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
    for start in range(0, 200, 10):  # more than the store takes at one time
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
        assert time.monotonic() - started < PATIENCE_S / 2  # it was told, it did not give up


def test_a_failed_put_ends_though_its_client_reads_no_acknowledgements(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The acknowledgements fill what the connection holds; the error comes all the same."""
    # A connection holds some hundred thousand of those that are sent.
    monkeypatch.setattr(DurableEnd, "packed", lambda ack: b" " * 1_000_000)
    stream = plain_put(served)
    count = 100
    for start in range(count):
        stream[0].write_batch(pa.record_batch([array(start, start + 1)], schema=VALUES_SCHEMA))
    wait_until(lambda: served.log.end(TP) == count)
    served.extend(count + 1)
    with pytest.raises(flight.FlightServerError, match=f"the partition ends at {count + 1}"):
        finish(stream, *[array(0, 60_000)] * 30)


@pytest.mark.parametrize(
    ("schema", "column", "says"),
    [
        (pa.schema([("v", pa.binary())]), pa.array([b"a"]), "'schema' = .*must have one column"),
        (pa.schema([]), None, "'schema'"),
        (pa.schema([("value", pa.utf8())]), pa.array(["a"]), "'value' = .*must be of binary"),
        (pa.schema([("value", pa.large_binary())]), None, "'value' = .*must be of binary"),
        (
            pa.schema([("value", pa.dictionary(pa.int8(), pa.binary()))]),
            None,
            "'value' = .*must be of binary",
        ),
        (
            pa.schema([("value", pa.binary())]),
            pa.array([b"a", None], pa.binary()),
            "'value' = .*1 are null",
        ),
        (
            pa.schema([("value", pa.binary()), ("value", pa.binary())]),
            None,
            "'schema' = .*must have one column",
        ),
    ],
)
def test_other_batches_are_refused(
    served: Served, schema: pa.Schema, column: pa.Array | None, says: str
) -> None:
    stream = plain_put(served, schema)
    with pytest.raises(flight.FlightServerError, match=says) as refused:
        finish(stream, *[column] * (column is not None), schema=schema)
    assert json.loads(refused.value.extra_info)["error"] == "bad-request"
    stored(served, 0)


def test_batches_beyond_the_limits_are_refused(served: Served) -> None:
    for column in (
        array(0, limits.MAX_BATCH_RECORDS + 1),
        pa.array([b"x" * (1 << 20)] * 17, pa.binary()),
    ):
        with pytest.raises(flight.FlightServerError, match=r"'batch' = .*must have at most 65536"):
            finish(plain_put(served), column)
    stored(served, 0)


def test_offsets_do_not_go_beyond_the_last(served: Served, monkeypatch: Any) -> None:
    last = 2**63 - 1
    state = TransactionState(last, last, "", None)
    monkeypatch.setattr(served.log, "transaction_state", lambda tp: state)
    with pytest.raises(InvalidRequestError, match="leaves no offsets"):
        put_all(served.client(), last, array(0, 1))


def test_what_comes_in_other_buffers_is_stored_the_same(served: Served) -> None:
    """Compressed, and as slices of something larger."""
    stream = plain_put(served, write_options=pa.ipc.IpcWriteOptions(compression="lz4"))
    whole = pa.array([b"no", *values(0, 500), b"no"], pa.binary())
    finish(stream, whole.slice(1, 200), whole.slice(201, 300))
    stored(served, 500)
