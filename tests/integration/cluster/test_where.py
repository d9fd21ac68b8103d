"""Queries with option ``where``, from stores, their logs and the mesh."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from dafka_core.errors import ConfigError, StoreUnreachableError
from dafka_core.flight import server_get, where_get
from dafka_core.model.envelope import closed
from dafka_core.model.records import TopicPartition
from dafka_core.model.values import Values
from dafka_core.model.where import KeptRecords
from dafka_core.storage.block import MAX_BLOCK_RECORDS
from dafka_spark.errors import (
    BadValueError,
    IncompleteBatchError,
    RetentionAheadError,
)
from dafka_spark.options import SourceOptions
from dafka_spark.schema import full
from dafka_spark.source import record_sources
from dafka_spark.source.batch_reader import DafkaBatchReader
from tests.integration.cluster.stores import HeardOf, Serve, Served, value
from tests.unit.dafka_spark.streams import ALL, json_round, reader

A = TopicPartition("t", "A")
Rows = list[tuple[str, int]]


def query(source: HeardOf, where: str, **given: str) -> DafkaBatchReader:
    given = {"subscribe": "t", "fetchTimeoutMs": "10000", "where": where, **given}
    options = SourceOptions.of(given).for_batch()
    return DafkaBatchReader(full(value=options.value_type), options, source.connect)


def read(source: HeardOf, where: str, **given: str) -> Rows:
    """Return the partitions and offsets of a batch query, in order."""
    batch = query(source, where, **given)
    rows: Rows = []
    for each in (each for task in batch.partitions() for each in batch.read(task)):
        assert 0 < each.num_rows <= int(given.get("maxRecordsPerBatch", MAX_BLOCK_RECORDS))
        assert each["timestamp"].null_count in (0, each.num_rows)
        names, offsets, values = (
            each[name].to_pylist() for name in ("partition", "offset", "value")
        )
        assert values == [value(offset, 5) for offset in offsets]
        rows += zip(names, offsets, strict=True)
    return sorted(rows)


@pytest.fixture
def one(serve: Serve) -> Served:
    """A store with 1,000 records in A."""
    store = serve("one")
    store.add(A, 1_000, 5)
    return store


@pytest.mark.parametrize("fetch", ["local", "flight", "mesh", "auto"])
def test_every_source_returns_matching_records(one: Served, fetch: str) -> None:
    source = HeardOf([one])
    source.logs[A] = [value(offset, 5) for offset in range(1_000)]
    few = "value IN ('00007', '00070', '00700')"
    assert read(source, few, fetch=fetch) == [("A", 7), ("A", 70), ("A", 700)]
    assert read(source, "value LIKE '%07' AND offset < 100", fetch=fetch) == [("A", 7)]
    assert read(source, "value = 'nothing'", fetch=fetch) == []
    half = read(source, "value < '00500'", fetch=fetch, maxRecordsPerBatch="7")
    assert half == [("A", offset) for offset in range(500)]


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("offset >= 990 AND value LIKE '%7'", ["A 990 1000"]),
        ("partition IN ('B', 'C') AND offset BETWEEN 2 AND 4", ["B 2 5", "C 2 5"]),
        ("timestamp < '2020-01-01T00:00:00Z'", []),
        ("timestamp > '2020-01-01T00:00:00Z'", ["A 0 1000", "B 0 10", "C 0 10"]),
        # These conditions do not limit the partitions.
        ("partition = 'B' OR offset = 1", ["A 0 1000", "B 0 10", "C 0 10"]),
        ("NOT partition = 'B'", ["A 0 1000", "B 0 10", "C 0 10"]),
    ],
)
def test_conditions_on_indexed_columns_narrow_a_batch(
    one: Served, where: str, expected: list[str]
) -> None:
    for name in "BC":
        one.add(TopicPartition("t", name), 10, 5)
    tasks: list[Any] = query(HeardOf([one]), where).partitions()
    ranges = [each for task in tasks for each in task.ranges]
    assert [f"{each.partition} {each.start} {each.end}" for each in ranges] == expected


def test_tasks_of_many_ranges_return_matching_records(serve: Serve) -> None:
    store = serve("one")
    for number in range(40):
        store.add(TopicPartition("t", f"P{number:02}"), 10, 5)
    source, where = HeardOf([store]), "value = '00003'"
    tasks: list[Any] = query(source, where).partitions()
    assert all(len(task.ranges) > 1 for task in tasks)
    for fetch in ("local", "flight"):
        found = read(source, where, fetch=fetch)
        assert found == [(f"P{number:02}", 3) for number in range(40)]


def test_conditions_apply_to_keys_and_before_values_are_decoded(serve: Serve) -> None:
    store = serve("one")
    store.append(A, [closed(b'{"id": 1}', b"k"), b"broken", closed(None, b"k")])
    source, typed = HeardOf([store]), {"valueFormat": "json", "valueSchema": "id INT"}
    batch = query(source, "key = 'k' AND value IS NOT NULL", **typed, fetch="flight")
    (rows,) = batch.read(batch.partitions()[0])
    assert rows.select(["key", "value"]).to_pylist() == [{"key": b"k", "value": {"id": 1}}]
    batch = query(source, "value = 'broken'", **typed, fetch="flight")
    with pytest.raises(BadValueError, match="offset 1"):
        list(batch.read(batch.partitions()[0]))


def test_a_rate_limit_counts_examined_records(one: Served) -> None:
    given = {"startingoffsets": "earliest", "maxoffsetspertrigger": "100"}
    stream = reader(HeardOf([one]), where="value LIKE '%7'", **given)
    start, rows = json_round(stream.initialOffset()), 0
    for _ in range(10):
        end = json_round(stream.latestOffset(start, stream.getDefaultReadLimit()))
        tasks: list[Any] = stream.partitions(start, end)
        assert sum(each.size for task in tasks for each in task.ranges) == 100
        rows += sum(each.num_rows for task in tasks for each in stream.read(task))
        start = end
    assert rows == 100
    assert json_round(stream.latestOffset(start, ALL)) == start


def test_the_next_store_examines_the_rest(
    one: Served, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first store stops after a block; it is not asked for that again."""
    other, count = serve("other"), 2 * MAX_BLOCK_RECORDS
    one.add(A, count - 1_000, 5)
    other.add(A, count, 5)
    requests: dict[str, int] = {}
    original = where_get.read_where

    def breaking(client: Any, request: Any, **more: Any) -> Any:
        requests[client.location.store] = request.start
        batches = original(client, request, **more)
        yield next(batches)
        if len(requests) == 1:
            raise StoreUnreachableError(client.location.store, "it broke")
        yield from batches

    monkeypatch.setattr(record_sources, "read_where", breaking)
    monkeypatch.setattr(server_get, "MAX_SCANNED_BLOCKS", 1)
    found = read(HeardOf([one, other]), "value LIKE '%77'", fetch="flight")
    assert found == [("A", offset) for offset in range(77, count, 100)]
    first, second = requests.values()
    assert first == 0 < second < count


@pytest.mark.parametrize("examined", [[(0, 999)], [(1, 1_000)], [(0, 500), (501, 1_000)]])
def test_a_reply_that_does_not_cover_the_range_is_an_error(
    one: Served, monkeypatch: pytest.MonkeyPatch, examined: list[tuple[int, int]]
) -> None:
    """Completeness counts examined offsets, not matching records."""

    def incomplete(*_: Any, **__: Any) -> Iterator[KeptRecords]:
        for start, end in examined:
            yield KeptRecords(A, start, end, np.array([], np.int64), Values())

    monkeypatch.setattr(record_sources, "read_where", incomplete)
    with pytest.raises(IncompleteBatchError):
        read(HeardOf([one]), "value = '00007'", fetch="flight")


def test_lost_records_are_an_error_even_if_none_would_match(one: Served) -> None:
    source = HeardOf([one])
    strict = query(source, "value = '00900'", fetch="flight")
    (task,) = strict.partitions()
    one.log.trim(A, 500)
    with pytest.raises(RetentionAheadError) as caught:
        list(strict.read(task))
    assert (caught.value.wanted, caught.value.lost_end) == (0, 500)
    lenient = query(source, "value = '00900'", fetch="flight", failOnDataLoss="false")
    (batch,) = lenient.read(task)
    assert batch["offset"].to_pylist() == [900]


@pytest.mark.parametrize("fetch", ["local", "flight"])
def test_conditions_apply_to_envelopes_that_stay_closed(serve: Serve, fetch: str) -> None:
    store = serve("one")
    store.append(A, [closed(b"v", b"k"), b"bare"])
    for envelope, offsets in ("auto", [1]), ("none", [0, 1]):
        batch = query(HeardOf([store]), "key IS NULL", envelope=envelope, fetch=fetch)
        (rows,) = batch.read(batch.partitions()[0])
        assert rows["offset"].to_pylist() == offsets


def test_an_invalid_condition_is_refused_before_the_query_starts() -> None:
    with pytest.raises(ConfigError, match=r"option 'where' = .*did you mean 'value'"):
        query(HeardOf(), "vaule = 'x'")
