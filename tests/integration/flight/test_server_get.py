"""Ranges read from a real service, by our client and by a plain one."""

import json
import threading
import time
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import flight

from dafka_core.errors import (
    DataLossError,
    HistoryChangedError,
    InvalidRequestError,
    OffsetConflictError,
    StoreError,
    StoreUnreachableError,
)
from dafka_core.flight import limits, server_requests
from dafka_core.flight.columns import VALUES_SCHEMA
from dafka_core.flight.requests import DurableEnd, GetRequest, PutRequest, RecordRange
from dafka_core.flight.store_client import StoreClient
from dafka_core.model.envelope import closed
from dafka_core.model.epochs import Epoch, EpochId
from dafka_core.model.records import (
    MatchedRecords,
    PartitionInfo,
    RecordBatch,
    TopicPartition,
    TransactionState,
)
from dafka_core.model.values import Longs
from dafka_core.model.where import Where, matched
from dafka_core.testing import PATIENCE_S, wait_until
from tests.integration.flight.hosts import (
    LARGEST,
    PARTITION,
    TOPIC,
    TP,
    Served,
    array,
    check,
    open_reads,
    put,
    put_all,
    stored,
    value,
    values,
)
from tests.integration.flight.hosts import read as hosts_read


def get(served: Served, start: int = 0, end: int = 1, **members: Any) -> flight.FlightStreamReader:
    request = {"v": 1, "ranges": [[TOPIC, PARTITION, start, end]], **members}
    return served.plain().do_get(flight.Ticket(json.dumps(request).encode()))


def times_of(batch: RecordBatch) -> Longs:
    assert batch.times is not None
    return batch.times


def test_a_range_is_read_over_both_ways(served: Served, client: StoreClient) -> None:
    for end in (30_000, 60_000, 60_001, 60_500):
        served.extend(end)
    batches = check(hosts_read(client, 0, 60_500), 0, 60_500)
    assert 1 < len(batches) < 5
    stamped = [moment for batch in batches for moment in times_of(batch).tolist()]
    told = np.repeat([time for _, time in stamped], [count for count, _ in stamped])
    assert len(told) == 60_500
    for offset, time_us in served.log.times(TP, 0, 60_500):
        assert told[offset] == time_us
    assert open_reads(served.directory) == 0


def test_small_blocks_are_joined(served: Served, client: StoreClient) -> None:
    # Blocks larger than an append extends, and smaller than a batch.
    records = [bytes([65 + n]) * 70_000 for n in range(10)]
    for offset, record in enumerate(records):
        served.log.append([RecordBatch.of(TP, offset, [record])])
    whole = list(hosts_read(client, 0, 10))
    assert len(whole) == 1
    assert whole[0].values == records
    assert whole[0].times[:, 0].sum() == 10
    cut = list(hosts_read(client, 1, 9, max_bytes=150_000))
    assert [len(batch.values) for batch in cut] == [2, 2, 2, 2]
    assert [value for batch in cut for value in batch.values] == records[1:9]


@pytest.mark.parametrize(
    "columns",
    [
        ["value"],
        ["offset"],
        ["timestamp", "value"],
        ["partition", "topic", "timestamp", "offset", "value"],
    ],
)
def test_any_client_gets_the_columns_it_names(served: Served, columns: list[str]) -> None:
    served.extend(3_000)
    served.extend(3_010)
    table = get(served, 10, 3_010, columns=columns).read_all()
    stamps = served.log.times(TP, 10, 3_010)
    told = np.repeat([time for _, time in stamps], np.diff([at for at, _ in stamps] + [3_010]))
    expected = {
        "value": pa.array(values(10, 3_010), pa.binary()),
        "offset": pa.array(range(10, 3_010), pa.int64()),
        "timestamp": pa.array(told, pa.int64()).cast(pa.timestamp("us", "UTC")),
        "topic": pa.array([TOPIC] * 3_000, pa.utf8()),
        "partition": pa.array([PARTITION] * 3_000, pa.utf8()),
    }
    assert table.column_names == columns
    for name in columns:
        assert table[name].combine_chunks() == expected[name]
        assert not table.schema.field(name).nullable


def test_any_client_is_told_offsets_and_times_beside_the_batches(served: Served) -> None:
    served.extend(3_000)
    for times in (False, True):
        at = 5
        for batch, metadata in get(served, start=5, end=3_000, max_records=1_000, times=times):
            numbers = np.frombuffer(metadata, "<i8")
            assert numbers[:6].tolist() == [1, 1, 0, at, at + batch.num_rows, batch.num_rows]
            assert numbers[7::2].sum() == (len(batch) if times else 0)
            at += len(batch)
        assert at == 3_000


def test_names_that_are_not_utf8(served: Served) -> None:
    topic, partition = b"\xff\xfe".decode("utf-8", "surrogateescape"), "P\udc80"
    served.extend(10, topic=topic, partition=partition)
    client = served.client()
    tp = TopicPartition(topic, partition)
    check(client.read(tp, 0, 10, times=True, timeout_s=PATIENCE_S, **LARGEST), 0, 10)
    assert client.heads([topic], timeout_s=PATIENCE_S) == [PartitionInfo(topic, partition, 0, 10)]
    columns = ["topic", "partition"]
    shown = get(served, ranges=[[topic, partition, 0, 10]], columns=columns).read_all()
    assert shown.to_pylist() == [{"topic": r"\xff\xfe", "partition": r"P\x80"}] * 10


def test_a_request_for_another_store_is_refused(served: Served) -> None:
    request = GetRequest((RecordRange(TOPIC, PARTITION, 0, 0),), store="other")
    with pytest.raises(flight.FlightUnavailableError, match="store other was meant, and this is"):
        served.plain().do_get(flight.Ticket(request.packed())).read_all()


def matching(
    start: int, end: int, where: str, tp: TopicPartition = TP, life: Any = None, **members: Any
) -> GetRequest:
    return GetRequest((RecordRange(*tp, start, end, life),), where=where, **members)


def read(
    client: StoreClient, start: int, end: int, where: str, *tp: TopicPartition, **members: Any
) -> list[MatchedRecords]:
    """Return the records, which cover the range."""
    request = matching(start, end, where, *tp, times=True, **members)
    found = list(client.records(request, timeout_s=PATIENCE_S))
    at = start
    for part in found:
        assert part.offset == at < part.end
        at = part.end
    assert at == end
    return found


def offsets(found: list[MatchedRecords]) -> list[int]:
    return [offset for part in found for offset in part.offsets.tolist()]


@pytest.mark.parametrize(
    ("where", "wanted"),
    [
        ("value LIKE '77,%'", range(77, 78)),
        ("offset >= 9990 AND offset < 10010", range(9_990, 10_010)),
        ("value IS NOT NULL", range(5, 20_003)),
        ("value = 'nothing'", range(0)),
    ],
)
def test_what_fits_comes_over_both_ways(
    filled: Served, client: StoreClient, where: str, wanted: range
) -> None:
    found = read(client, 5, 20_003, where)
    assert offsets(found) == list(wanted)
    assert [each for part in found for each in part.values] == [value(each) for each in wanted]
    stamps = dict(filled.log.times(TP, 0, 20_003))
    for part in found:
        assert part.times is not None
        assert part.times[:, 0].sum() == part.count
        assert set(part.times[:, 1].tolist()) <= set(stamps.values())
    assert open_reads(filled.directory) == 0


@pytest.mark.parametrize("sizes", [{"max_records": 7}, {"max_bytes": 100}, {"max_records": 1}])
def test_batches_are_as_large_as_asked_for(
    served: Served, client: StoreClient, sizes: dict[str, Any]
) -> None:
    served.extend(500)
    for part in (found := read(client, 3, 400, "offset <> 17", **sizes)):
        assert part.count <= sizes.get("max_records", 500)
        assert part.count <= 1 or part.values.size_bytes <= sizes.get("max_bytes", 1 << 20)
    assert offsets(found) == [each for each in range(3, 400) if each != 17]


def test_a_client_hears_of_the_store_where_nothing_fits(
    served: Served, client: StoreClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each scan of this size has an answer, without records."""
    monkeypatch.setattr(server_requests, "MAX_SCANNED_BYTES", 1)
    for end in (10_000, 20_000, 20_005):
        served.extend(end)
    found = read(client, 0, 20_005, "key = 'a'")
    assert len(found) == 3
    assert offsets(found) == []
    monkeypatch.undo()
    assert len(read(client, 0, 20_005, "key = 'a'")) == 1


def test_a_store_stops_when_the_client_of_a_condition_has_gone(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No batch has come by then that would show it to the store."""
    looked_at: list[int] = []

    def slowly_matched(piece: RecordBatch, where: Where, *, opens: bool) -> MatchedRecords:
        looked_at.append(piece.offset)
        time.sleep(0.01)
        return matched(piece, where, opens=opens)

    monkeypatch.setattr(server_requests, "matched", slowly_matched)
    monkeypatch.setattr(server_requests, "PIECE_BYTES", 1)
    served.extend(2_000)
    request = matching(0, 2_000, "value = 'x'")
    reader = served.plain().do_get(flight.Ticket(request.packed()))
    wait_until(lambda: bool(looked_at))
    reader.cancel()
    gets = served.service.context.gets
    wait_until(lambda: gets.free == limits.MAX_GETS)
    assert len(looked_at) < 2_000


def test_keys_are_those_in_envelopes(served: Served, client: StoreClient) -> None:
    contents = [closed(b"v", b"k"), b"v", closed(None, b"k")]
    served.log.append([RecordBatch.of(TP, 0, contents)])
    assert offsets(read(client, 0, 3, "key = 'k'")) == [0, 2]
    assert offsets(read(client, 0, 3, "value = 'v'")) == [0, 1]
    assert offsets(read(client, 0, 3, "value = 'v'", envelope="none")) == [1]
    assert [*read(client, 0, 3, "value IS NULL")[0].values] == [contents[2]]


def test_another_history_is_an_error(served: Served, client: StoreClient) -> None:
    old, new, other = EpochId(1, 5, 0), EpochId(2, 6, 0), TopicPartition(TOPIC, "EPOCHS")
    served.log.append([RecordBatch.of(other, 0, [b"a"] * 10)])
    epoch = Epoch(*new, 10, 0)
    more = RecordBatch.of(other, 10, [b"b"] * 10)
    served.log.append([RecordBatch(other, 10, more.values, epoch=epoch)])
    assert offsets(read(client, 5, 20, "value = 'b'", other, life=new)) == list(range(10, 20))
    with pytest.raises(HistoryChangedError):
        read(client, 5, 20, "value = 'b'", other, life=old)


@pytest.mark.parametrize("members", [{"max_records": 1_000}, {"where": "offset >= 0"}])
def test_records_trimmed_under_a_reader_are_an_error(
    served: Served, monkeypatch: pytest.MonkeyPatch, members: dict[str, Any]
) -> None:
    monkeypatch.setattr(server_requests, "MAX_SCANNED_BYTES", 1)
    for end in range(40_000, 400_001, 40_000):
        served.extend(end)
    request = GetRequest((RecordRange(*TP, 0, 400_000),), **members)
    came = served.client().records(request, timeout_s=PATIENCE_S)
    got = [next(came)]
    served.log.trim(TP, 399_990)
    with pytest.raises(DataLossError) as loss:
        got.extend(came)
    assert [each.offset for each in got] == [0, *(each.end for each in got[:-1])]
    assert (loss.value.wanted, loss.value.available) == (got[-1].end, 399_990)


def test_conditions_of_many_ranges(served: Served, client: StoreClient) -> None:
    ranges = [RecordRange(TOPIC, f"P{number}", 2, 40) for number in range(20)]
    for each in ranges[:-1]:
        served.extend(50, partition=each.partition)
    request = GetRequest(tuple(ranges), where="offset IN (1, 7, 39, 40)", partial=True)
    found = list(client.records(request, timeout_s=PATIENCE_S))
    assert [(each.tp, each.offset, each.end) for each in found] == [
        (each.tp, 2, 40) for each in ranges[:-1]
    ]
    assert all(each.offsets.tolist() == [7, 39] for each in found)
    assert all([*each.values] == [value(7), value(39)] for each in found)


def test_any_client_can_ask(served: Served) -> None:
    served.extend(1_000)
    reader = get(served, 0, 1_000, where="offset IN (7, 999)")
    columns, metadata = reader.read_chunk()
    assert columns["offset"].to_pylist() == [7, 999]
    assert columns["value"].to_pylist() == [value(7), value(999)]
    assert columns["timestamp"].type == pa.timestamp("us", "UTC")
    assert memoryview(metadata).cast("q").tolist() == [1, 1, 0, 0, 1_000, 2, 0]
    with pytest.raises(StopIteration):
        reader.read_chunk()
    with pytest.raises(flight.FlightServerError, match="must have a whole number") as caught:
        get(served, 0, 1_000, where="offset = 'x'").read_all()
    assert json.loads(caught.value.extra_info)["member"] == "where"


def plain_put(served: Served, schema: pa.Schema = VALUES_SCHEMA, **options: Any) -> tuple[Any, Any]:
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
