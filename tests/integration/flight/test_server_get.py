"""Ranges read from a real service, by our client and by one that knows nothing of Dafka."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import flight

from dafka_core.errors import DataLossError, StoreUnreachableError
from dafka_core.flight.requests import GetRequest
from dafka_core.flight.store_client import StoreClient
from dafka_core.records import PartitionInfo, RecordBatch, TopicPartition
from dafka_core.storage import Log
from dafka_core.testing import PATIENCE_S
from dafka_core.values import Longs
from tests.integration.flight.hosts import (
    LARGEST,
    PARTITION,
    TOPIC,
    TP,
    Served,
    check,
    open_reads,
    read,
    values,
)


def get(served: Served, **members: Any) -> flight.FlightStreamReader:
    request = {"v": 1, "topic": TOPIC, "partition": PARTITION, "start": 0, "end": 1} | members
    return served.plain().do_get(flight.Ticket(json.dumps(request).encode()))


def times_of(batch: RecordBatch) -> Longs:
    assert batch.times is not None
    return batch.times


def test_a_range_is_read_over_both_ways(served: Served, client: StoreClient) -> None:
    for end in (30_000, 60_000, 60_001, 60_500):
        served.extend(end)
    batches = check(read(client, 0, 60_500), 0, 60_500)
    assert 1 < len(batches) < 5
    stamped = [moment for batch in batches for moment in times_of(batch).tolist()]
    told = np.repeat([time for _, time in stamped], [count for count, _ in stamped])
    assert len(told) == 60_500
    for offset, time_us in served.log.times(TP, 0, 60_500):
        assert told[offset] == time_us
    assert open_reads(served.directory) == 0


def test_ranges_begin_and_end_inside_blocks(served: Served, client: StoreClient) -> None:
    for end in (5_000, 10_000, 10_003):
        served.extend(end)
    edges = (0, 1, 4_999, 5_000, 5_001, 9_999, 10_000, 10_002, 10_003)
    for start in edges:
        for end in edges:
            if start <= end:
                for batch in check(read(client, start, end), start, end):
                    assert times_of(batch)[:, 0].sum() == len(batch.values)


@pytest.mark.parametrize("max_records", [1, 999, 1_000, 65_536, 1 << 40])
def test_batches_have_at_most_the_records_asked_for(
    served: Served, client: StoreClient, max_records: int
) -> None:
    served.extend(3_000)
    for batch in check(read(client, 7, 2_500, max_records=max_records), 7, 2_500):
        assert len(batch.values) <= max_records


@pytest.mark.parametrize("max_bytes", [1, 500, 20_000, 1 << 40])
def test_batches_have_at_most_the_bytes_asked_for(
    served: Served, client: StoreClient, max_bytes: int
) -> None:
    served.extend(3_000)
    for batch in check(read(client, 7, 2_500, max_bytes=max_bytes), 7, 2_500):
        size = sum(map(len, batch.values))
        assert size <= max_bytes or len(batch.values) == 1


def test_a_large_record_has_a_batch_to_itself(served: Served, client: StoreClient) -> None:
    records = [b"a", b"b" * (20 << 20), b"", b"c"]
    served.log.append([RecordBatch.of(TP, 0, records)])
    found = list(read(client, 0, 4))
    assert [value for batch in found for value in batch.values] == records
    assert [len(batch.values) for batch in found if batch.offset == 1] == [1]


def test_small_blocks_are_joined(served: Served, client: StoreClient) -> None:
    # Blocks of more than what an append extends, and of less than what is worth a batch.
    records = [bytes([65 + n]) * 70_000 for n in range(10)]
    for offset, record in enumerate(records):
        served.log.append([RecordBatch.of(TP, offset, [record])])
    whole = list(read(client, 0, 10))
    assert len(whole) == 1
    assert whole[0].values == records
    assert whole[0].times[:, 0].sum() == 10
    cut = list(read(client, 1, 9, max_bytes=150_000))
    assert [len(batch.values) for batch in cut] == [2, 2, 2, 2]
    assert [value for batch in cut for value in batch.values] == records[1:9]


def test_an_empty_range_is_an_empty_stream(served: Served, client: StoreClient) -> None:
    served.extend(5)
    assert list(read(client, 5, 5)) == []
    assert list(read(client, 0, 0)) == []


def test_times_come_only_when_asked_for(served: Served, client: StoreClient) -> None:
    served.extend(5)
    (batch,) = check(read(client, 0, 5, times=False), 0, 5)
    assert batch.times is None


def test_what_is_not_held_is_an_error_with_the_facts(served: Served, client: StoreClient) -> None:
    served.extend(10_000)
    served.extend(20_000)
    served.log.trim(TP, 10_100)
    with pytest.raises(DataLossError) as before:
        list(read(client, 10_099, 15_000))
    assert (before.value.wanted, before.value.available) == (10_099, 10_100)
    with pytest.raises(DataLossError) as beyond:
        list(read(client, 19_999, 20_001))
    assert (beyond.value.wanted, beyond.value.available) == (20_000, None)
    assert "from 10100 up to 20000 (exclusive)" in str(beyond.value)
    assert (beyond.value.topic, beyond.value.partition) == (TOPIC, PARTITION)
    other = TopicPartition("other", PARTITION)
    with pytest.raises(DataLossError, match="nothing is available"):
        list(client.read(other, 0, 1, times=False, timeout_s=PATIENCE_S, **LARGEST))
    check(read(client, 10_100, 20_000), 10_100, 20_000)


def test_records_trimmed_under_a_reader_are_an_error(served: Served) -> None:
    end = 400_000
    for stop in range(40_000, end + 1, 40_000):
        served.extend(stop)
    client = served.client()
    batches = read(client, 0, end, max_records=1_000)
    got = [next(batches)]
    served.log.trim(TP, end - 10)
    with pytest.raises(DataLossError) as loss:
        got.extend(batches)
    assert loss.value.wanted == got[-1].end
    assert loss.value.available == end - 10
    check(got, 0, loss.value.wanted)


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
    table = get(served, start=10, end=3_010, columns=columns).read_all()
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
            assert numbers[:2].tolist() == [1, at]
            assert numbers[2::2].sum() == (len(batch) if times else 0)
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
    shown = get(served, topic=topic, partition=partition, end=10, columns=columns).read_all()
    assert shown.to_pylist() == [{"topic": r"\xff\xfe", "partition": r"P\x80"}] * 10


def test_a_damaged_block_is_the_stores_failure(directory: Any) -> None:
    with Log(directory) as log:
        for start in (0, 30_000):
            log.append([RecordBatch.of(TP, start, values(start, start + 30_000))])
    data = (directory / "data.mdb").read_bytes()
    with (directory / "data.mdb").open("r+b") as file:
        file.seek(data.index(values(40_000, 40_001)[0]))
        file.write(b"!")
    with Served(directory) as served:
        batches = read(served.client(), 0, 60_000)
        got = [next(batches)]
        with pytest.raises(StoreUnreachableError, match=r"block at offset 30000 .*checksum"):
            got.extend(batches)
        check(got, 0, 30_000)


def test_a_request_for_another_store_is_refused(served: Served) -> None:
    request = GetRequest(TOPIC, PARTITION, 0, 0, store="other")
    with pytest.raises(flight.FlightUnavailableError, match="store other was meant, and this is"):
        served.plain().do_get(flight.Ticket(request.packed())).read_all()
