"""Tasks of many ranges, from stores that lack some of them or stop."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pyarrow as pa
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
def asked(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """The number of requests of each kind."""
    found: Counter[str] = Counter()
    originals = {
        name: getattr(StoreClient, name) for name in ("read", "read_many", "lease", "lease_many")
    }
    for name, original in originals.items():

        def spied(
            client: Any, *given: Any, name: str = name, of: Any = original, **more: Any
        ) -> Any:
            found[name] += 1
            return of(client, *given, **more)

        monkeypatch.setattr(StoreClient, name, spied)
    return found


@pytest.fixture
def one(serve: Serve) -> Served:
    return filled(serve("one"))


def filled(store: Served, partitions: list[TopicPartition] = PARTITIONS) -> Served:
    for tp in partitions:
        store.add(tp, 10)
    return store


def task(*stores: Served, end: int = 10) -> DafkaInputPartition:
    """Everything, from stores that reported it, in this order."""
    held = tuple(StoreRange(store.location, 0, end) for store in stores)
    return DafkaInputPartition(tuple(OffsetRange(*tp, 0, end, held) for tp in PARTITIONS))


def rows(wanted: DafkaInputPartition, fetch: str = "flight", **given: str) -> Rows:
    options = SourceOptions.of(
        {"subscribe": "t", "fetch": fetch, "fetchtimeoutms": "1000", **given}
    )
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
    ("fetch", "requests"),
    [
        ("flight", {"read_many": 1}),
        ("auto", {"read_many": 1}),
        ("local", {"lease_many": 1, "lease": 1}),  # the second one returns the lease
    ],
)
def test_a_task_asks_a_store_once(
    one: Served, asked: Counter[str], fetch: str, requests: dict[str, int], given: dict[str, str]
) -> None:
    assert rows(task(one), fetch, **given) == ALL
    assert asked == requests


def test_what_a_lease_does_not_cover_comes_later(
    one: Served, asked: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_actions, "MAX_LEASED_BLOCKS", 8)
    assert rows(task(one), "local") == ALL
    assert asked == {"lease_many": 3, "lease": 1}


@pytest.mark.parametrize("fetch", ["local", "flight"])
def test_lost_records_are_an_error_of_one_range(one: Served, serve: Serve, fetch: str) -> None:
    two = filled(serve("two"))
    one.log.trim(PARTITIONS[3], 4)
    assert rows(task(one, two), fetch) == ALL
    with pytest.raises(RetentionAheadError, match=r"partition P03.* offset 4 on is available"):
        rows(task(one), fetch)
    assert rows(task(one), fetch, failondataloss="false") == ALL | {"P03": [*range(4, 10)]}
    one.add(PARTITIONS[7], 1)
    with pytest.raises(SourceLossError, match=r"partition P00.* offset 10"):
        rows(task(one, end=11), fetch)


def test_a_lease_that_ends_is_not_relied_on(
    one: Served, asked: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store ends it before the first read, as it needs the space."""
    lease_many = StoreClient.lease_many

    def ended(client: Any, *given: Any, **named: Any) -> Any:
        granted = lease_many(client, *given, **named)
        one.log.end_lease(granted.lease)
        return granted

    monkeypatch.setattr(StoreClient, "lease_many", ended)
    assert rows(task(one), "local") == ALL
    assert asked["lease"] == 41  # each range's own


def test_each_store_is_asked_for_what_it_has(serve: Serve, asked: Counter[str]) -> None:
    one, two = filled(serve("one"), PARTITIONS[::2]), filled(serve("two"), PARTITIONS[1::2])
    source = HeardOf([one, two])
    options = SourceOptions.of({"subscribe": "t", "minpartitions": "1"})
    reader = DafkaBatchReader(full(), options, source.connect)
    (wanted,) = reader.partitions()
    table = pa.Table.from_batches(list(reader.read(wanted)))
    assert sorted(table["partition"].to_pylist()) == sorted(
        tp.partition for tp in PARTITIONS for _ in range(10)
    )
    assert asked == {"read_many": 2}


def test_what_a_store_has_lost_comes_from_the_next(
    one: Served, serve: Serve, asked: Counter[str]
) -> None:
    two = filled(serve("two"), PARTITIONS[:5])
    assert rows(task(two, one)) == ALL
    assert asked == {"read_many": 2}


def test_a_store_that_is_gone_is_asked_once(
    one: Served, serve: Serve, asked: Counter[str], caplog: pytest.LogCaptureFixture
) -> None:
    two = filled(serve("two"))
    wanted = task(two, one)
    two.stop()
    assert rows(wanted) == ALL
    assert asked == {"read_many": 2}
    assert "continuing with another source" in caplog.text


def test_a_store_that_failed_is_asked_last(
    one: Served, serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    two = filled(serve("two"))
    held = StoreRange(two.location, 0, 10), StoreRange(one.location, 0, 5)
    ranges = tuple(replace(each, stores=held) for each in task().ranges[:3])
    two.stop()
    found = rows(DafkaInputPartition(ranges))
    assert found == {each.partition: [*range(10)] for each in ranges}
    assert "continuing with another source at offset 0" not in caplog.text


def test_a_store_that_goes_away_amid_its_answer(
    one: Served, serve: Serve, asked: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    two = filled(serve("two"))

    def dies(parts: Any, *, times: bool) -> bytes:
        if parts[0].number >= 8:
            raise OSError("the disk is gone")
        return packed_parts(parts, times=times)

    monkeypatch.setattr(server_get, "packed_parts", dies)
    # Each store sends eight of twenty ranges and stops in the middle of the next one.
    assert rows(task(two, one), maxrecordsperbatch="3") == ALL
    assert asked == {"read_many": 2, "read": 4}


def test_another_history_is_an_error_of_one_range(one: Served) -> None:
    """A newer producer replaced the records from offset 6 on."""
    tp, old = TopicPartition("t", "Q"), Epoch.first(EpochId(5, 1, 1))
    new = Epoch(9, 2, 1, 6, old.digest)
    values = Values.of([value(offset) for offset in range(10)])
    one.log.append([RecordBatch(tp, 0, values, epoch=old)])
    assert one.log.write([SetAside(tp, 6)]) == [None]
    one.log.append([RecordBatch(tp, 6, values[6:], epoch=new)])
    known = task(one).ranges

    def read(life: EpochId) -> Rows:
        return rows(DafkaInputPartition((replace(known[0], partition="Q", life=life), *known)))

    with pytest.raises(HistoryReplacedError, match="partition Q"):
        read(old.life)
    assert read(new.life) == ALL | {"Q": [*range(10)]}
    with pytest.raises(FetchError, match="life 11 of the partition's producer"):
        read(EpochId(11, 3, 1))


def test_records_that_come_twice_are_an_error(one: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever part made the mistake."""
    read_many = StoreClient.read_many

    def twice(*given: Any, **named: Any) -> Any:
        for parts in read_many(*given, **named):
            yield from (parts[:3], parts[:1], parts[3:])

    monkeypatch.setattr(StoreClient, "read_many", twice)
    with pytest.raises(IncompleteBatchError, match="came twice"):
        rows(task(one))
