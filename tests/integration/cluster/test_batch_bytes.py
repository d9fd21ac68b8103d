"""``maxBytesPerTrigger``, with the sizes of real stores."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from dafka_core.errors import StoreUnreachableError
from dafka_core.flight.requests import RecordSizes
from dafka_core.flight.store_client import StoreClient
from dafka_core.model.records import TopicPartition
from dafka_spark.source.micro_batch_stream import DafkaMicroBatchStream
from tests.integration.cluster.stores import HeardOf, Serve, Served
from tests.unit.dafka_spark.streams import json_round, reader

A, B = (TopicPartition("t", name) for name in "AB")


@pytest.fixture
def one(serve: Serve) -> Served:
    """5,000 records of 1,000 bytes in A, 100 of 10,000 bytes in B: 6 million bytes."""
    store = serve("one")
    for _ in range(10):
        store.add(A, 500, 1_000)
    store.add(B, 100, 10_000)
    return store


def batches(stream: DafkaMicroBatchStream, start: Any) -> list[tuple[int, int, set[str]]]:
    """Return the records, bytes and partitions of each micro-batch until all records are read."""
    found = []
    while (end := json_round(stream.latestOffset(start, stream.getDefaultReadLimit()))) != start:
        batches = [each for task in stream.partitions(start, end) for each in stream.read(task)]
        table = pa.Table.from_batches(batches)
        size = sum(map(len, table["value"].to_pylist()))
        found.append((table.num_rows, size, set(table["partition"].to_pylist())))
        start = end
    return found


def test_batches_have_about_that_many_bytes(one: Served) -> None:
    stream = reader(HeardOf([one]), maxbytespertrigger="1000000")
    stream.prepareForTriggerAvailableNow()
    found = batches(stream, json_round(stream.initialOffset()))
    assert sum(count for count, _, _ in found) == 5_100
    assert sum(size for _, size, _ in found) == 6_000_000
    assert len(found) in (6, 7)
    assert all(size <= 1_050_000 for _, size, _ in found)
    assert all(size >= 900_000 for _, size, _ in found[:-1])
    assert all(names == {"A", "B"} for _, _, names in found[:-1])


def test_records_that_become_larger_are_noticed(serve: Serve) -> None:
    """A mean over all waiting records would be wrong for the first and for the last of them."""
    store = serve("one")
    for size in (100, 100, 100, 20_000):
        store.add(A, 1_000, size)
    stream = reader(HeardOf([store]), maxbytespertrigger="2m")
    found = batches(stream, json_round(stream.initialOffset()))
    assert sum(count for count, _, _ in found) == 4_000
    assert max(size for _, size, _ in found) < 3 << 20


def test_the_default_takes_a_small_topic_at_once(
    one: Served, caplog: pytest.LogCaptureFixture
) -> None:
    stream = reader(HeardOf([one]))
    assert [count for count, _, _ in batches(stream, stream.initialOffset())] == [5_100]
    assert "maxBytesPerTrigger" not in caplog.text


def test_a_store_without_sizes_is_retried_each_time(
    one: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = []

    def fail(client: StoreClient, *ranges: Any, timeout_s: float) -> RecordSizes:
        requests.append(ranges)
        raise StoreUnreachableError("one", "no answer")

    monkeypatch.setattr(StoreClient, "record_sizes", fail)
    stream = reader(HeardOf([one]), maxbytespertrigger=str(1_024 * 1_000))
    found = batches(stream, json_round(stream.initialOffset()))
    assert [count for count, _, _ in found] == [1_000] * 5 + [100]
    assert len(requests) == 6
