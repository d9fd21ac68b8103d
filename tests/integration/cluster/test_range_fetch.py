"""Tasks of many ranges, from stores that lack some of them or stop."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from dafka_core.flight import server_actions, server_get
from dafka_core.flight.requests import packed_parts
from dafka_core.flight.store_client import StoreClient
from dafka_core.model.epochs import Epoch, EpochId
from dafka_core.model.log_entries import SetAside
from dafka_core.model.records import RecordBatch, TopicPartition
from dafka_core.model.values import Values
from dafka_spark.errors import (
    FetchError,
    HistoryReplacedError,
    IncompleteBatchError,
    RetentionAheadError,
    SourceLossError,
)
from dafka_spark.options import SourceOptions
from dafka_spark.schema import full
from dafka_spark.source.batch_reader import DafkaBatchReader
from dafka_spark.source.offset_ranges import DafkaInputPartition, OffsetRange, StoreRange
from dafka_spark.source.partition_reader import PartitionReader
from tests.integration.cluster.stores import HeardOf, Serve, Served, value

PARTITIONS = [TopicPartition("t", f"P{number:02}") for number in range(20)]
Rows = dict[str, list[int]]
ALL: Rows = {tp.partition: list(range(10)) for tp in PARTITIONS}


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """The number of requests of each kind."""
    found: Counter[str] = Counter()
    for name in ("read", "read_many", "lease", "lease_many"):
        original = getattr(StoreClient, name)

        def spied(*given: Any, name: str = name, call: Any = original, **more: Any) -> Any:
            found[name] += 1
            return call(*given, **more)

        monkeypatch.setattr(StoreClient, name, spied)
    return found


def filled(store: Served, partitions: list[TopicPartition] = PARTITIONS) -> Served:
    for tp in partitions:
        store.add(tp, 10)
    return store


@pytest.fixture
def one(serve: Serve) -> Served:
    return filled(serve("one"))


@pytest.fixture
def two(serve: Serve) -> Served:
    return filled(serve("two"))


def task(*stores: Served, end: int = 10) -> DafkaInputPartition:
    """All records, from stores that reported them, in this order."""
    held = tuple(StoreRange(store.location, 0, end) for store in stores)
    return DafkaInputPartition(tuple(OffsetRange(*tp, 0, end, held) for tp in PARTITIONS))


def rows(wanted: DafkaInputPartition, fetch: str = "flight", **given: str) -> Rows:
    given = {"subscribe": "t", "fetch": fetch, "fetchtimeoutms": "10000", **given}
    options = SourceOptions.of(given)
    found: Rows = {}
    for batch in PartitionReader(full(), options, HeardOf().connect).read(wanted):
        assert batch.num_rows <= options.max_records_per_batch
        assert batch["timestamp"].null_count == 0
        for row in batch.select(["partition", "offset", "value"]).to_pylist():
            found.setdefault(row["partition"], []).append(row["offset"])
            assert row["value"] == value(row["offset"])
    return found


@pytest.mark.parametrize("given", [{}, {"maxrecordsperbatch": "7"}, {"maxbytesperbatch": "3"}])
@pytest.mark.parametrize(
    ("fetch", "expected"),
    [
        ("flight", {"read_many": 1}),
        ("auto", {"read_many": 1}),
        ("local", {"lease_many": 1, "lease": 1}),  # the second one returns the lease
    ],
)
def test_a_task_sends_a_store_one_request(
    one: Served, requests: Counter[str], fetch: str, expected: dict[str, int], given: dict[str, str]
) -> None:
    assert rows(task(one), fetch, **given) == ALL
    assert requests == expected


def test_a_lease_may_cover_some_ranges(
    one: Served, requests: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_actions, "MAX_LEASED_BLOCKS", 8)
    assert rows(task(one), "local") == ALL
    assert requests == {"lease_many": 3, "lease": 1}


@pytest.mark.parametrize("fetch", ["local", "flight"])
def test_lost_records_are_an_error_of_one_range(one: Served, two: Served, fetch: str) -> None:
    one.log.trim(PARTITIONS[3], 4)
    assert rows(task(one, two), fetch) == ALL
    with pytest.raises(RetentionAheadError, match=r"partition P03.* offset 4 on is available"):
        rows(task(one), fetch)
    assert rows(task(one), fetch, failondataloss="false") == ALL | {"P03": [*range(4, 10)]}
    one.add(PARTITIONS[7], 1)
    with pytest.raises(SourceLossError, match=r"partition P00.* offset 10"):
        rows(task(one, end=11), fetch, fetchtimeoutms="1000")


def test_records_of_a_lease_that_ends_are_read_again(
    one: Served, requests: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store ends it before the first read, as it needs the space."""
    lease_many = StoreClient.lease_many

    def ended(client: Any, *given: Any, **named: Any) -> Any:
        granted = lease_many(client, *given, **named)
        one.log.end_lease(granted.lease)
        return granted

    monkeypatch.setattr(StoreClient, "lease_many", ended)
    assert rows(task(one), "local") == ALL
    assert requests["lease"] == 41  # each range's own


def test_each_store_is_asked_for_what_it_has(serve: Serve, requests: Counter[str]) -> None:
    stores = filled(serve("one"), PARTITIONS[::2]), filled(serve("two"), PARTITIONS[1::2])
    options = SourceOptions.of({"subscribe": "t", "minpartitions": "1"})
    (wanted,) = DafkaBatchReader(full(), options, HeardOf(stores).connect).partitions()
    assert isinstance(wanted, DafkaInputPartition)
    assert rows(wanted) == ALL
    assert requests == {"read_many": 2}


def test_records_that_a_store_has_lost_come_from_the_next(
    one: Served, serve: Serve, requests: Counter[str]
) -> None:
    assert rows(task(filled(serve("two"), PARTITIONS[:5]), one)) == ALL
    assert requests == {"read_many": 2}


def test_a_store_that_is_gone_is_asked_once_and_last(
    one: Served, two: Served, requests: Counter[str], caplog: pytest.LogCaptureFixture
) -> None:
    wanted = task(two, one)
    two.stop()
    assert rows(wanted) == ALL
    assert requests == {"read_many": 2}
    assert "continuing with another source" in caplog.text
    # The other store reported less than it has, and is asked for each range: first.
    held = StoreRange(two.location, 0, 10), StoreRange(one.location, 0, 5)
    ranges = tuple(replace(each, stores=held) for each in wanted.ranges[:3])
    assert rows(DafkaInputPartition(ranges)) == {each.partition: [*range(10)] for each in ranges}
    assert "continuing with another source at offset 0" not in caplog.text


def test_a_store_that_fails_in_the_middle_of_its_reply(
    one: Served, two: Served, requests: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(parts: Any, *, times: bool) -> bytes:
        if parts[0].number >= 8:
            raise OSError("the disk is gone")
        return packed_parts(parts, times=times)

    monkeypatch.setattr(server_get, "packed_parts", fail)
    # Each store sends eight of twenty ranges and stops in the middle of the next one.
    assert rows(task(two, one), maxrecordsperbatch="3") == ALL
    assert requests == {"read_many": 2, "read": 4}


def test_a_changed_history_is_an_error_of_one_range(one: Served) -> None:
    """A newer producer replaced the records from offset 6 on."""
    tp, old = TopicPartition("t", "Q"), Epoch.first(EpochId(5, 1, 1))
    new = Epoch(9, 2, 1, 6, old.digest)
    values = Values.of([value(offset) for offset in range(10)])
    one.log.append([RecordBatch(tp, 0, values, epoch=old)])
    assert one.log.write([SetAside(tp, 6)]) == [None]
    one.log.append([RecordBatch(tp, 6, values[6:], epoch=new)])
    known = task(one).ranges

    def read(life: EpochId, **given: str) -> Rows:
        ranges = replace(known[0], partition="Q", life=life), *known
        return rows(DafkaInputPartition(ranges), **given)

    with pytest.raises(HistoryReplacedError, match="partition Q"):
        read(old.life)
    assert read(new.life) == ALL | {"Q": [*range(10)]}
    with pytest.raises(FetchError, match="life 11 of the partition's producer"):
        read(EpochId(11, 3, 1), fetchtimeoutms="1000")


def test_records_that_come_twice_are_an_error(one: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    read_many = StoreClient.read_many

    def twice(*given: Any, **named: Any) -> Any:
        for parts in read_many(*given, **named):
            yield from (parts[:3], parts[:1], parts[3:])

    monkeypatch.setattr(StoreClient, "read_many", twice)
    with pytest.raises(IncompleteBatchError, match="came twice"):
        rows(task(one))
