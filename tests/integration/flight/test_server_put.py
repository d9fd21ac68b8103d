"""Puts into a real service: durable when acknowledged, and exactly in place."""

from __future__ import annotations

import json
import threading
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight

from dafka_core.errors import (
    InvalidRequestError,
    OffsetConflictError,
    StoreError,
    StoreUnreachableError,
)
from dafka_core.flight import limits
from dafka_core.flight.columns import VALUES_SCHEMA
from dafka_core.flight.requests import DurableEnd, PutRequest
from dafka_core.flight.store_client import StoreClient
from dafka_core.model.records import TransactionState
from dafka_core.testing import PATIENCE_S, wait_until
from tests.integration.flight.hosts import (
    PARTITION,
    TOPIC,
    TP,
    Served,
    array,
    put,
    put_all,
    stored,
    values,
)


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


def test_ends_come_back_as_they_are_durable(served: Served) -> None:
    writer, reader = plain_put(served)
    for end in (10, 30, 35):
        start = served.log.end(TP)
        writer.write_batch(pa.record_batch([array(start, end)], schema=VALUES_SCHEMA))
        # Without sending more: a client may wait for each batch.
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


def test_the_hosts_failure_is_the_stores(
    served: Served, client: StoreClient, caplog: pytest.LogCaptureFixture
) -> None:
    served.backend.failure = StoreError(served.directory, "the disk is full")
    with pytest.raises(StoreUnreachableError, match="the disk is full"):
        put_all(client, 0, array(0, 10))
    assert "the disk is full" in caplog.text
    stored(served, 0)


def test_a_failed_put_ends_though_its_client_reads_no_acknowledgements(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The acknowledgements fill the connection; the error still arrives."""
    # A connection holds about a hundred thousand of them.
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
    with pytest.raises(InvalidRequestError, match="leaves too few offsets"):
        put_all(served.client(), last, array(0, 1))


def test_what_comes_in_other_buffers_is_stored_the_same(served: Served) -> None:
    """Compressed, and as slices of something larger."""
    stream = plain_put(served, write_options=pa.ipc.IpcWriteOptions(compression="lz4"))
    whole = pa.array([b"no", *values(0, 500), b"no"], pa.binary())
    finish(stream, whole.slice(1, 200), whole.slice(201, 300))
    stored(served, 500)
