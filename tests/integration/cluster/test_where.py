"""Queries with a condition, from stores, their files and the mesh."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from dafka_core.errors import ConfigError, HistoryChangedError
from dafka_core.flight import server_get, where_get
from dafka_core.model.envelope import closed
from dafka_core.model.records import TopicPartition
from dafka_core.model.values import Values
from dafka_core.model.where import KeptRecords
from dafka_spark.errors import (
    BadValueError,
    IncompleteBatchError,
    RetentionAheadError,
)
from dafka_spark.options import SourceOptions
from dafka_spark.schema import full
from dafka_spark.source import record_sources
from dafka_spark.source.batch_reader import DafkaBatchReader
from dafka_spark.source.offset_ranges import DafkaInputPartition
from tests.integration.cluster.stores import HeardOf, Serve, Served, value
from tests.unit.dafka_spark.streams import ALL, json_round, reader

TP = TopicPartition("t", "A")
Rows = list[tuple[str, int]]


def options(where: str, **given: str) -> SourceOptions:
    given = {"subscribe": "t", "fetchTimeoutMs": "10000", **given}
    return SourceOptions.of({"where": where, **given})


def batch(source: HeardOf, where: str, **given: str) -> Rows:
    """Return the partitions and offsets of a batch query, in order."""
    found = options(where, **given).for_batch()
    query = DafkaBatchReader(full(), found, source.connect)
    rows: Rows = []
    for part in query.partitions():
        for each in query.read(part):
            assert 0 < each.num_rows <= found.max_records_per_batch
            rows += zip(each["partition"].to_pylist(), each["offset"].to_pylist(), strict=True)
            assert each["timestamp"].null_count in (0, each.num_rows)
            for offset, content in zip(each["offset"], each["value"], strict=True):
                assert content.as_py() == value(offset.as_py(), 5)
    return sorted(rows)


@pytest.fixture
def one(serve: Serve) -> Served:
    """A store with 1,000 records in A."""
    store = serve("one")
    store.add(TP, 1_000, 5)
    return store


@pytest.mark.parametrize("fetch", ["local", "flight", "mesh", "auto"])
def test_every_source_returns_matching_records(one: Served, fetch: str) -> None:
    source = HeardOf([one])
    source.logs[TP] = [value(offset, 5) for offset in range(1_000)]
    wanted = [("A", 7), ("A", 70), ("A", 700)]
    assert batch(source, "value IN ('00007', '00070', '00700')", fetch=fetch) == wanted
    assert batch(source, "value LIKE '%07' AND offset < 100", fetch=fetch) == [("A", 7)]
    assert batch(source, "value = 'nothing'", fetch=fetch) == []
    few = batch(source, "value < '00500'", fetch=fetch, maxRecordsPerBatch="7")
    assert few == [("A", offset) for offset in range(500)]


def test_conditions_on_indexed_columns_narrow_a_batch(one: Served, serve: Serve) -> None:
    for name in "BC":
        one.add(TopicPartition("t", name), 10, 5)

    def planned(where: str) -> list[tuple[str, int, int]]:
        query = DafkaBatchReader(full(), options(where), HeardOf([one]).connect)
        parts: list[Any] = query.partitions()
        ranges = [each for part in parts for each in part.ranges]
        return [(each.partition, each.start, each.end) for each in ranges]

    assert planned("offset >= 990 AND value LIKE '%7'") == [("A", 990, 1_000)]
    assert planned("partition IN ('B', 'C') AND offset BETWEEN 2 AND 4") == [
        ("B", 2, 5),
        ("C", 2, 5),
    ]
    assert planned("timestamp < '2020-01-01T00:00:00Z'") == []
    assert len(planned("timestamp > '2020-01-01T00:00:00Z'")) == 3
    # These conditions do not limit the partitions.
    assert len(planned("partition = 'B' OR offset = 1")) == 3
    assert len(planned("NOT partition = 'B'")) == 3


def test_tasks_of_many_ranges_return_matching_records(serve: Serve) -> None:
    store = serve("one")
    for number in range(40):
        store.add(TopicPartition("t", f"P{number:02}"), 10, 5)
    source = HeardOf([store])
    shared = DafkaBatchReader(full(), options("value = '00003'"), source.connect).partitions()
    assert all(isinstance(p, DafkaInputPartition) and len(p.ranges) > 1 for p in shared)
    for fetch in ("local", "flight"):
        found = batch(source, "value = '00003'", fetch=fetch)
        assert found == [(f"P{number:02}", 3) for number in range(40)]


def test_keys_and_typed_values_are_conditions_too(serve: Serve) -> None:
    store = serve("one")
    store.append(TP, [closed(b'{"id": 1}', b"k"), b"broken", closed(None, b"k")])
    given = {"valueFormat": "json", "valueSchema": "id INT", "fetch": "flight"}
    found = options("key = 'k' AND value IS NOT NULL", **given).for_batch()
    query = DafkaBatchReader(full(value=found.value_type), found, HeardOf([store]).connect)
    (task,) = query.partitions()
    (rows,) = query.read(task)
    assert rows["value"].to_pylist() == [{"id": 1}]
    assert rows["key"].to_pylist() == [b"k"]
    bad = options("value = 'broken'", **given).for_batch()
    query = DafkaBatchReader(full(value=bad.value_type), bad, HeardOf([store]).connect)
    with pytest.raises(BadValueError, match="offset 1"):
        list(query.read(query.partitions()[0]))


def test_a_limit_counts_examined_records(one: Served) -> None:
    stream = reader(
        HeardOf([one]),
        where="value LIKE '%7'",
        startingoffsets="earliest",
        maxoffsetspertrigger="100",
    )
    start, rows = json_round(stream.initialOffset()), 0
    for _ in range(10):
        end = json_round(stream.latestOffset(start, stream.getDefaultReadLimit()))
        ranges: list[Any] = stream.partitions(start, end)
        assert sum(each.size for part in ranges for each in part.ranges) == 100
        rows += sum(each.num_rows for part in ranges for each in stream.read(part))
        start = end
    assert rows == 100
    assert json_round(stream.latestOffset(start, ALL)) == start


def test_the_next_store_examines_the_rest(
    one: Served, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first store stops after part of the range, which is not asked for again."""
    other = serve("other")
    other.add(TP, 1_000, 5)
    asked: Counter[tuple[str, int]] = Counter()
    original = where_get.read_where

    def breaking(client: Any, request: Any, **more: Any) -> Any:
        asked[client.location.store, request.start] += 1
        came = original(client, request, **more)
        yield next(came)
        if len(asked) == 1:
            raise HistoryChangedError("t", "A", 0, None, "it broke", 1)
        yield from came

    monkeypatch.setattr(record_sources, "read_where", breaking)
    monkeypatch.setattr(server_get, "MAX_SCANNED_BYTES", 1)
    monkeypatch.setattr(server_get, "MAX_SCANNED_BLOCKS", 1)
    source = HeardOf([one, other])
    found = batch(source, "value LIKE '%7'", fetch="flight", failOnDataLoss="false")
    assert found == [("A", offset) for offset in range(7, 1_000, 10)]


@pytest.mark.parametrize("examined", [[(0, 999)], [(1, 1_000)], [(0, 500), (501, 1_000)]])
def test_a_reply_that_does_not_cover_the_range_is_an_error(
    one: Served, monkeypatch: pytest.MonkeyPatch, examined: list[tuple[int, int]]
) -> None:
    """Completeness counts examined offsets, not matching records."""

    def lying(*_: Any, **__: Any) -> Iterator[KeptRecords]:
        for start, end in examined:
            yield KeptRecords(TP, start, end, np.array([], np.int64), Values())

    monkeypatch.setattr(record_sources, "read_where", lying)
    with pytest.raises(IncompleteBatchError):
        batch(HeardOf([one]), "value = '00007'", fetch="flight")


def test_lost_records_are_an_error_even_if_none_would_match(one: Served) -> None:
    source = HeardOf([one])
    found = options("value = '00900'", fetch="flight").for_batch()
    query = DafkaBatchReader(full(), found, source.connect)
    tasks = query.partitions()
    one.log.trim(TP, 500)
    with pytest.raises(RetentionAheadError) as caught:
        list(query.read(tasks[0]))
    assert (caught.value.wanted, caught.value.lost_end) == (0, 500)
    lenient = options("value = '00900'", fetch="flight", failOnDataLoss="false").for_batch()
    query = DafkaBatchReader(full(), lenient, source.connect)
    assert [row for each in query.read(tasks[0]) for row in each["offset"].to_pylist()] == [900]


def test_an_invalid_condition_is_refused_before_the_query_starts() -> None:
    with pytest.raises(ConfigError, match=r"option 'where' = .*did you mean 'value'"):
        options("vaule = 'x'")
