"""Many ranges in one request, from a real service, and invalid streams."""

from __future__ import annotations

import json
from collections.abc import Generator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import flight

from dafka_core.errors import InvalidRequestError, StoreUnreachableError
from dafka_core.flight import server_get, store_client
from dafka_core.flight.requests import AskedRange, GetManyRequest, Part
from dafka_core.flight.store_client import StoreClient
from dafka_core.model.epochs import Epoch, EpochId
from dafka_core.model.records import RecordBatch, TopicPartition
from dafka_core.model.values import Values
from dafka_core.testing import PATIENCE_S
from tests.integration.flight.hosts import LARGEST, TOPIC, Served, array, value, values


def partition(number: int) -> str:
    return f"P{number:03}"


def asked(number: int, start: int, end: int, **lives: EpochId) -> AskedRange:
    return AskedRange(TOPIC, partition(number), start, end, **lives)


def fill(served: Served, counts: list[int]) -> None:
    for number, count in enumerate(counts):
        served.extend(count, partition=partition(number))


def read(
    client: StoreClient, ranges: list[AskedRange], *, times: bool = True, **sizes: int
) -> dict[int, list[int]]:
    """Check the records; return the offsets of each range."""
    found: dict[int, list[int]] = {}
    limits: dict[str, Any] = LARGEST | sizes
    for parts in client.read_many(ranges, times=times, timeout_s=PATIENCE_S, **limits):
        assert sum(batch.count for _, batch in parts) <= limits["max_records"]
        size = sum(batch.values.size_bytes for _, batch in parts)
        assert size <= limits["max_bytes"] or sum(batch.count for _, batch in parts) == 1
        for number, batch in parts:
            assert batch.tp == ranges[number].tp
            assert list(batch.values) == values(batch.offset, batch.end)
            assert (batch.times is not None) == times
            if batch.times is not None:
                assert batch.times[:, 0].sum() == batch.count
            found.setdefault(number, []).extend(range(batch.offset, batch.end))
    return found


@pytest.mark.parametrize(
    "sizes", [{}, {"max_records": 7}, {"max_records": 1}, {"max_bytes": 40}, {"max_bytes": 5_000}]
)
def test_many_ranges_come_with_one_request(
    served: Served, client: StoreClient, sizes: dict[str, int]
) -> None:
    counts = [10, 1, 2, 300, 5, 10, 64]
    fill(served, counts)
    ranges = [asked(number, min(2, count), count) for number, count in enumerate(counts)]
    ranges.append(asked(3, 0, 2))  # another part of the same partition
    expected = {
        number: list(range(each.start, each.end))
        for number, each in enumerate(ranges)
        if each.start < each.end
    }
    for times in (True, False):
        assert read(client, ranges, times=times, **sizes) == expected


def test_times_are_those_of_each_record(served: Served, client: StoreClient) -> None:
    for count in (3, 5, 9):
        fill(served, [count, count + 1])
    ranges = [asked(0, 1, 9), asked(1, 2, 8)]
    for parts in client.read_many(ranges, times=True, timeout_s=PATIENCE_S, **LARGEST):
        for number, batch in parts:
            assert batch.times is not None
            told = np.repeat(batch.times[:, 1], batch.times[:, 0])
            wanted = dict(served.log.times(ranges[number].tp, batch.offset, batch.end))
            for offset, time_us in wanted.items():
                assert told[offset - batch.offset] == time_us


def test_what_is_not_held_is_left_out(served: Served, client: StoreClient) -> None:
    fill(served, [10, 10, 10, 10])
    served.log.trim(asked(1, 0, 1).tp, 5)
    ranges = [asked(0, 0, 10), asked(1, 0, 10), asked(2, 0, 11), asked(7, 0, 1), asked(3, 0, 10)]
    assert read(client, ranges) == {0: list(range(10)), 4: list(range(10))}
    assert read(client, [asked(7, 0, 1)]) == {}


def test_another_history_is_left_out(served: Served, client: StoreClient) -> None:
    old, new = EpochId(1, 5, 1), EpochId(2, 6, 1)
    for number, life in enumerate((old, new)):
        tp, epoch = TopicPartition(TOPIC, partition(number)), Epoch(*life, 0, 0)
        served.log.append([RecordBatch(tp, 0, Values.of(values(0, 10)), epoch=epoch)])
    lives = {"life": new, "after": old}
    ranges = [asked(0, 0, 10, **lives), asked(0, 0, 10, life=old), asked(1, 5, 10, **lives)]
    assert read(client, ranges) == {1: list(range(10))}


def test_a_large_record_among_small_ones(served: Served, client: StoreClient) -> None:
    records = [b"a", b"b" * (20 << 20), b"c"]
    for number in range(2):
        served.log.append([RecordBatch.of(asked(number, 0, 1).tp, 0, records)])
    found: list[tuple[int, bytes]] = []
    ranges = [asked(0, 0, 3), asked(1, 0, 3)]
    for parts in client.read_many(ranges, times=False, timeout_s=PATIENCE_S, **LARGEST):
        assert len(parts) == 1 or sum(batch.values.size_bytes for _, batch in parts) < 100
        found += [(number, each) for number, batch in parts for each in batch.values]
    assert found == [(number, record) for number in range(2) for record in records]


def test_records_trimmed_under_a_reader_end_their_range(served: Served) -> None:
    end = 400_000
    for stop in range(40_000, end + 1, 40_000):
        served.extend(stop, partition=partition(0))
    served.extend(10, partition=partition(1))
    ranges = [asked(0, 0, end), asked(1, 0, 10)]
    came = served.client().read_many(ranges, times=False, timeout_s=PATIENCE_S, **LARGEST)
    found = list(next(came))
    served.log.trim(ranges[0].tp, end - 1)
    found += [part for parts in came for part in parts]
    assert [batch.count for number, batch in found if number == 1] == [10]
    first = [batch for number, batch in found if number == 0]
    assert [batch.offset for batch in first] == [0, *(batch.end for batch in first[:-1])]
    assert first[-1].end < end


def test_any_client_can_ask(served: Served) -> None:
    fill(served, [3, 2])
    ranges = [[TOPIC, partition(0), 1, 3], [TOPIC, partition(1), 0, 2]]
    columns = ["partition", "offset", "value", "topic", "timestamp"]
    ticket = json.dumps({"v": 2, "ranges": ranges, "columns": columns}).encode()
    table = served.plain().do_get(flight.Ticket(ticket)).read_all()
    table.validate(full=True)
    assert table.column_names == columns
    assert table["partition"].to_pylist() == [partition(0)] * 2 + [partition(1)] * 2
    assert table["offset"].to_pylist() == [1, 2, 0, 1]
    assert table["value"].to_pylist() == [value(1), value(2), value(0), value(1)]
    assert table["topic"].to_pylist() == [TOPIC] * 4


def test_a_store_of_before_says_so(
    served: Served, client: StoreClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(served, [3] * 500)
    monkeypatch.setattr(server_get, "ticket_version", lambda _: 1)  # it knows tickets of version 1
    for count in (2, 500):
        with pytest.raises(InvalidRequestError):
            read(client, [asked(number, 0, 3) for number in range(count)])


def chunk(first: int, *parts: int) -> tuple[pa.RecordBatch, pa.Buffer]:
    """Return records from offset ``first`` on, declared as these parts."""
    rows = np.array(parts).reshape(-1, 3)
    numbers = [2, len(rows), *np.column_stack((rows, np.zeros(len(rows)))).ravel()]
    count = int(rows[:, 2].sum())
    columns = pa.record_batch([array(first, first + count)], ["value"])
    return columns, pa.py_buffer(np.array(numbers, "<i8").tobytes())


@pytest.mark.parametrize(
    "came",
    [
        [chunk(0, 0, 1, 5)],  # without the beginning
        [chunk(0, 0, 0, 2), chunk(3, 0, 3, 2)],  # a hole
        [chunk(0, 0, 0, 2), chunk(0, 0, 0, 2)],  # twice
        [chunk(0, 0, 0, 6)],  # more than requested
        [chunk(0, 0, 0, 5, 0, 5, 1)],
        [chunk(0, 1, 0, 5), chunk(0, 0, 0, 5)],  # in another order
        [chunk(0, 2, 0, 1)],  # of a range that does not exist
        [chunk(0, -1, 0, 1)],
        [(chunk(0, 0, 0, 5)[0], None)],
    ],
)
def test_what_was_not_asked_for_is_an_error(came: list[Any]) -> None:
    request = GetManyRequest((asked(0, 0, 5), asked(1, 0, 5)))
    with pytest.raises(ValueError, match=r"arrived|metadata"):
        list(store_client.many_records(request, iter(came)))


def test_a_stream_that_lies_is_the_stores_failure(
    served: Served, client: StoreClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(served, [3, 3])

    def wrong(parts: Any, *, times: bool) -> bytes:
        return np.array([2, 1, 0, 1, 6, 0], "<i8").tobytes()

    monkeypatch.setattr(server_get, "packed_parts", wrong)
    with pytest.raises(StoreUnreachableError, match="6 records from offset 1 arrived instead of 0"):
        read(client, [asked(0, 0, 3), asked(1, 0, 3)], times=False)


def test_a_reader_that_ends_early_gives_its_place_back(served: Served) -> None:
    fill(served, [10_000, 10_000])
    ranges = [asked(0, 0, 10_000), asked(1, 0, 10_000)]

    def begun() -> Generator[list[Part]]:
        return served.client().read_many(
            ranges, times=False, timeout_s=PATIENCE_S, max_records=100, max_bytes=1 << 20
        )

    for _ in range(3):
        came = begun()
        assert sum(batch.count for _, batch in next(came)) == 100
        came.close()
    assert read(served.client(), ranges)[1] == list(range(10_000))
