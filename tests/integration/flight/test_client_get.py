"""Many ranges in one request, from a real service, and invalid streams."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import chain, product
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import flight

from dafka_core.errors import DataLossError, StoreUnreachableError
from dafka_core.flight import server_get
from dafka_core.flight.columns import schema_of
from dafka_core.flight.requests import GetRequest, RecordRange
from dafka_core.flight.store_client import Chunks, StoreClient, records_of
from dafka_core.model.epochs import Epoch, EpochId
from dafka_core.model.records import RecordBatch, TopicPartition
from dafka_core.model.values import Values
from dafka_core.testing import PATIENCE_S
from tests.integration.flight.hosts import TOPIC, Served, array, value, values


def partition(number: int) -> str:
    return f"P{number:03}"


def asked(number: int, start: int, end: int, **lives: EpochId) -> RecordRange:
    return RecordRange(TOPIC, partition(number), start, end, **lives)


def fill(served: Served, counts: list[int]) -> None:
    for number, count in enumerate(counts):
        served.extend(count, partition=partition(number))


def get(*ranges: RecordRange, **members: Any) -> GetRequest:
    return GetRequest(ranges, ("value",), partial=members.pop("partial", True), **members)


def read(
    client: StoreClient, ranges: list[RecordRange], *, times: bool = True, **members: Any
) -> dict[int, list[int]]:
    """Check the records; return the offsets of each partition."""
    found: dict[int, list[int]] = {}
    request = get(*ranges, times=times, **members)

    def checked(received: Chunks) -> Iterator[Any]:
        for columns, metadata in received:
            assert columns.num_rows <= request.max_records
            size_bytes = Values.from_arrow(columns.column(0)).size_bytes
            assert size_bytes <= request.max_bytes or columns.num_rows == 1
            yield columns, metadata

    def parsed(received: Chunks) -> Iterator[Any]:
        yield from records_of(request, checked(received))

    for batch in client.get(request.packed(), parsed, PATIENCE_S):
        assert list(batch.values) == values(batch.offset, batch.end)
        assert (batch.times is not None) == times
        if batch.times is not None:
            assert batch.times[:, 0].sum() == batch.count
        offsets = found.setdefault(int(batch.tp.partition[1:]), [])
        offsets.extend(range(batch.offset, batch.end))
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
    expected = {number: list(range(2, count)) for number, count in enumerate(counts) if count > 2}
    expected[3] += [0, 1]
    for times, partial in product((True, False), repeat=2):
        assert read(client, ranges, times=times, partial=partial, **sizes) == expected


def test_times_are_those_of_each_record(served: Served, client: StoreClient) -> None:
    for count in (3, 5, 9):
        fill(served, [count, count + 1])
    ranges = [asked(0, 1, 9), asked(1, 2, 8)]
    for batch in client.records(get(*ranges, times=True), timeout_s=PATIENCE_S):
        told = np.repeat(batch.times[:, 1], batch.times[:, 0])
        wanted = dict(served.log.times(batch.tp, batch.offset, batch.end))
        for offset, time_us in wanted.items():
            assert told[offset - batch.offset] == time_us


def test_what_is_not_held_is_left_out(served: Served, client: StoreClient) -> None:
    fill(served, [10, 10, 10, 10])
    served.log.trim(asked(1, 0, 1).tp, 5)
    ranges = [asked(0, 0, 10), asked(1, 0, 10), asked(2, 0, 11), asked(7, 0, 1), asked(3, 0, 10)]
    assert read(client, ranges) == {0: list(range(10)), 3: list(range(10))}
    assert read(client, [asked(7, 0, 1)]) == {}
    with pytest.raises(DataLossError) as lost:
        list(client.records(get(*ranges, partial=False), timeout_s=PATIENCE_S))
    assert (lost.value.partition, lost.value.wanted, lost.value.available) == (partition(1), 0, 5)


def test_another_history_is_left_out(served: Served, client: StoreClient) -> None:
    old, new = EpochId(1, 5, 1), EpochId(2, 6, 1)
    for number, life in enumerate((old, new)):
        tp, epoch = TopicPartition(TOPIC, partition(number)), Epoch(*life, 0, 0)
        served.log.append([RecordBatch(tp, 0, Values.of(values(0, 10)), epoch=epoch)])
    lives = {"life": new, "after": old}
    ranges = [asked(0, 0, 10, **lives), asked(0, 0, 10, life=old), asked(1, 5, 10, **lives)]
    assert read(client, ranges) == {0: list(range(10))}


def test_a_large_record_among_small_ones(served: Served, client: StoreClient) -> None:
    records = [b"a", b"b" * (20 << 20), b"c"]
    for number in range(2):
        served.log.append([RecordBatch.of(asked(number, 0, 1).tp, 0, records)])
    found: list[tuple[int, bytes]] = []
    ranges = [asked(0, 0, 3), asked(1, 0, 3)]
    for batch in client.records(get(*ranges), timeout_s=PATIENCE_S):
        assert batch.count == 1 or batch.values.size_bytes < 100
        found += [(int(batch.tp.partition[1:]), each) for each in batch.values]
    assert found == [(number, record) for number in range(2) for record in records]


def test_records_trimmed_under_a_reader_end_their_range(served: Served) -> None:
    end = 400_000
    for stop in range(40_000, end + 1, 40_000):
        served.extend(stop, partition=partition(0))
    served.extend(10, partition=partition(1))
    ranges = [asked(0, 0, end), asked(1, 0, 10)]
    came = served.client().records(get(*ranges), timeout_s=PATIENCE_S)
    found = [next(came)]
    served.log.trim(ranges[0].tp, end - 1)
    found += came
    assert [batch.count for batch in found if batch.tp == ranges[1].tp] == [10]
    first = [batch for batch in found if batch.tp == ranges[0].tp]
    assert [batch.offset for batch in first] == [0, *(batch.end for batch in first[:-1])]
    assert first[-1].end < end


def test_any_client_can_ask(served: Served) -> None:
    fill(served, [3, 2])
    ranges = [[TOPIC, partition(0), 1, 3], [TOPIC, partition(1), 0, 2]]
    columns = ["partition", "offset", "value", "topic", "timestamp"]
    ticket = json.dumps({"v": 1, "ranges": ranges, "columns": columns}).encode()
    table = served.plain().do_get(flight.Ticket(ticket)).read_all()
    table.validate(full=True)
    assert table.column_names == columns
    assert table["partition"].to_pylist() == [partition(0)] * 2 + [partition(1)] * 2
    assert table["offset"].to_pylist() == [1, 2, 0, 1]
    assert table["value"].to_pylist() == [value(1), value(2), value(0), value(1)]
    assert table["topic"].to_pylist() == [TOPIC] * 4


def chunk(first: int, *parts: int) -> tuple[pa.RecordBatch, pa.Buffer]:
    """Return records from offset ``first`` on, declared as these parts: number, start and count."""
    rows = [(number, start, start + count, count, 0) for number, start, count in batched(parts)]
    count = sum(row[3] for row in rows)
    columns = pa.record_batch([array(first, first + count)], schema_of(["value"]))
    return columns, pa.py_buffer(np.array([1, len(rows), *chain(*rows)], "<i8").tobytes())


def batched(parts: tuple[int, ...]) -> Iterator[tuple[int, int, int]]:
    return zip(parts[::3], parts[1::3], parts[2::3], strict=True)


WRONG: list[tuple[Any, str]] = [
    ([chunk(0, 0, 1, 5)], "arrived"),  # without the beginning
    ([chunk(0, 0, 0, 2), chunk(3, 0, 3, 2)], "arrived"),  # a hole
    ([chunk(0, 0, 0, 2), chunk(0, 0, 0, 2)], "arrived"),  # twice
    ([chunk(0, 0, 0, 6)], "arrived"),  # more than requested
    ([chunk(0, 0, 0, 5, 0, 5, 1)], "arrived"),
    ([chunk(0, 1, 0, 5), chunk(0, 0, 0, 5)], "range 0 arrived after range 1"),
    ([chunk(0, 2, 0, 1)], "range 2 arrived"),  # of a range that does not exist
    ([chunk(0, -1, 0, 1)], "range -1 arrived"),
    ([(chunk(0, 0, 0, 5)[0], None)], "metadata"),
    ([(chunk(0, 0, 0, 4)[0], chunk(0, 0, 0, 5)[1])], "parts are not its records"),
    ([(chunk(0, 0, 0, 4)[0], pa.py_buffer(np.array([1, 1, 0, 0, 5, 4, 0])))], "4 records arrived"),
    ([(chunk(0, 0, 0, 1)[0].rename_columns(["key"]), chunk(0, 0, 0, 1)[1])], "not requested"),
]


@pytest.mark.parametrize(("came", "says"), WRONG)
def test_what_was_not_asked_for_is_an_error(came: list[Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        list(records_of(get(asked(0, 0, 5), asked(1, 0, 5)), iter(came)))


def test_records_that_are_missing_are_an_error_unless_the_get_is_partial() -> None:
    ranges, came = (asked(0, 0, 5), asked(1, 0, 5)), [chunk(0, 0, 0, 4), chunk(0, 1, 0, 5)]
    assert [each.end for each in records_of(get(*ranges), iter(came))] == [4, 5]
    with pytest.raises(ValueError, match="partition P000 end at 4, not at 5"):
        list(records_of(get(*ranges, partial=False), iter(came)))
    with pytest.raises(ValueError, match="partition P001 end at 0, not at 5"):
        list(records_of(get(*ranges, partial=False), iter([chunk(0, 0, 0, 5)])))


def test_a_stream_that_lies_is_the_stores_failure(
    served: Served, client: StoreClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(served, [3, 3])

    def wrong(parts: Any, *, times: bool) -> bytes:
        return np.array([1, 1, 0, 1, 7, 6, 0], "<i8").tobytes()

    monkeypatch.setattr(server_get, "packed_parts", wrong)
    with pytest.raises(StoreUnreachableError, match="offsets 1 to 7 arrived instead of 0"):
        list(client.records(get(asked(0, 0, 3), asked(1, 0, 3)), timeout_s=PATIENCE_S))


def test_a_reader_that_ends_early_gives_its_place_back(served: Served) -> None:
    fill(served, [10_000, 10_000])
    ranges = [asked(0, 0, 10_000), asked(1, 0, 10_000)]
    for _ in range(3):
        came = served.client().records(get(*ranges, max_records=100), timeout_s=PATIENCE_S)
        assert next(came).count == 100
        came.close()
    assert read(served.client(), ranges)[1] == list(range(10_000))
