"""Blocks as columns: joined, cut, and told of beside the batches."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dafka_core.flight.columns import (
    RecordColumns,
    batch_of,
    copied,
    cut,
    groups,
    joined,
    packed_metadata,
    parse_metadata,
    run_values,
    runs_between,
    schema_of,
)
from dafka_core.flight.limits import JOINED_BYTES, JOINED_RECORDS
from dafka_core.storage.block import Block, Chunk
from dafka_core.storage.block_builder import pack

unhurried = settings(deadline=None)
records = st.lists(st.binary(max_size=12), min_size=1, max_size=30)
runs_of = st.lists(st.integers(1, 9), min_size=1, max_size=8).map(
    lambda counts: np.array([(count, 100 + n) for n, count in enumerate(counts)], np.int64)
)


def chunk(offset: int, values: list[bytes], time_us: int = 7) -> Chunk:
    return Chunk(offset, Block.parse(bytes(pack(values, time_us))))


def chunks(parts: list[list[bytes]]) -> list[Chunk]:
    made: list[Chunk] = []
    for number, part in enumerate(parts):
        offset = made[-1].end if made else 5
        made.append(chunk(offset, part, number))
    return made


@unhurried
@given(st.lists(records, min_size=1, max_size=6), st.integers(1, 40), st.integers(1, 200))
def test_groups_are_the_same_chunks(
    parts: list[list[bytes]], max_records: int, max_bytes: int
) -> None:
    made = chunks(parts)
    found = list(groups(iter(made), max_records, max_bytes))
    assert [each for group in found for each in group] == made
    for group in found:
        count = sum(each.block.count for each in group)
        size = sum(len(each.block.data) for each in group)
        assert len(group) == 1 or (count <= max_records and size <= max_bytes)
    for before, after in pairwise(found):
        both = before + after[:1]
        count = sum(each.block.count for each in both)
        assert count > max_records or sum(len(each.block.data) for each in both) > max_bytes


def test_large_blocks_stay_alone() -> None:
    small, many, large = [b"x"], [b""] * JOINED_RECORDS, [b"x" * JOINED_BYTES]
    made = chunks([small, small, many, small, large, large, small])
    found = [len(group) for group in groups(made, 1 << 30, 1 << 30)]
    assert found == [2, 1, 1, 1, 1, 1]


@unhurried
@given(st.lists(records, min_size=1, max_size=5), st.data())
def test_joining_and_copying_keep_records_and_times(
    parts: list[list[bytes]], data: st.DataObject
) -> None:
    made = chunks(parts)
    first = made[0]
    start = data.draw(st.integers(0, first.block.count - 1))
    made[0] = Chunk(first.offset + start, first.block.slice(start, first.block.count - start))
    expected = [value for each in made for value in each.values_list()]
    stamps = np.concatenate([each.timestamps() for each in made]).tolist()
    for columns in (copied(made, times=True), joined(made, times=True)):
        assert columns.offset == made[0].offset
        assert columns.end == made[-1].end
        columns.values.validate(full=True)
        assert columns.values.to_pylist() == expected
        assert columns.times is not None
        assert np.repeat(columns.times[:, 1], columns.times[:, 0]).tolist() == stamps
    assert copied(made, times=False).times is None


@unhurried
@given(records, st.integers(1, 40), st.integers(1, 100), st.data())
def test_parts_have_at_most_what_was_asked_for(
    values: list[bytes], max_records: int, max_bytes: int, data: st.DataObject
) -> None:
    array = pa.array([b"before", *values, b"after"], pa.binary())[1:-1]
    at = data.draw(st.integers(0, len(values)))
    times = np.array([(count, n) for n, count in enumerate((at, len(values) - at)) if count])
    found = list(cut(RecordColumns(9, array, times), max_records, max_bytes))
    assert [value for part in found for value in part.values.to_pylist()] == values
    assert [part.offset for part in found] == [9, *(part.end for part in found[:-1])]
    for part in found:
        size = sum(map(len, part.values.to_pylist()))
        assert len(part.values) <= max_records
        assert size <= max_bytes or len(part.values) == 1
        assert part.times is not None
        assert part.times[:, 0].sum() == len(part.values)
    told = [row for part in found for row in np.repeat(part.times[:, 1], part.times[:, 0])]  # type: ignore[index]
    assert told == np.repeat(times[:, 1], times[:, 0]).tolist()


def test_what_fits_is_not_cut() -> None:
    columns = RecordColumns(0, pa.array([b"a", b"b"], pa.binary()), None)
    (same,) = cut(columns, 2, 2)
    assert same is columns
    empty = RecordColumns(0, pa.array([], pa.binary()), None)
    assert list(cut(empty, 1, 1)) == [empty]


@unhurried
@given(runs_of, st.data())
def test_runs_between_two_records(runs: np.ndarray, data: st.DataObject) -> None:
    whole = np.repeat(runs[:, 1], runs[:, 0])
    start = data.draw(st.integers(0, len(whole) - 1))
    stop = data.draw(st.integers(start + 1, len(whole)))
    part = runs_between(runs, start, stop)
    assert np.repeat(part[:, 1], part[:, 0]).tolist() == whole[start:stop].tolist()


@unhurried
@given(records)
def test_values_of_a_run_are_those_of_the_array(values: list[bytes]) -> None:
    array = pa.array([b"no", *values, b"no"], pa.binary())[1:-1]
    assert run_values(array).to_list() == values


@unhurried
@given(st.integers(0, 2**63 - 1), runs_of)
def test_metadata_are_parsed_again(offset: int, runs: np.ndarray) -> None:
    count = int(runs[:, 0].sum())
    packed = pa.py_buffer(packed_metadata(offset, runs))
    found, times = parse_metadata(packed, count, times=True)
    assert found == offset
    assert times is not None
    assert times.tolist() == runs.tolist()
    assert parse_metadata(packed, count, times=False) == (offset, None)


@pytest.mark.parametrize(
    ("metadata", "says"),
    [
        (None, "0 bytes"),
        (b"", "0 bytes"),
        (b"x" * 17, "17 bytes"),
        (np.array([2, 0]).tobytes(), "version 2"),
        (np.array([1, 0]).tobytes(), "not those of its records"),
        (np.array([1, 0, 4, 9]).tobytes(), "not those of its records"),
        (np.array([1, 0, 6, 9, -1, 9]).tobytes(), "not those of its records"),
    ],
)
def test_metadata_that_are_wrong_are_refused(metadata: bytes | None, says: str) -> None:
    buffer = None if metadata is None else pa.py_buffer(metadata)
    with pytest.raises(ValueError, match=says):
        parse_metadata(buffer, 5, times=True)


def test_columns_are_made_in_the_order_asked_for() -> None:
    columns = RecordColumns(3, pa.array([b"a", b"b"], pa.binary()), np.array([(2, 1_000_000)]))
    names = ("partition", "timestamp", "value", "topic", "offset")
    batch = batch_of(columns, schema_of(names), "t", "P")
    batch.validate(full=True)
    assert batch.schema.names == list(names)
    rows = [{name: row[name] for name in names if name != "timestamp"} for row in batch.to_pylist()]
    assert rows == [
        {"partition": "P", "value": b"a", "topic": "t", "offset": 3},
        {"partition": "P", "value": b"b", "topic": "t", "offset": 4},
    ]
    assert batch["timestamp"].cast(pa.int64()).to_pylist() == [1_000_000] * 2
