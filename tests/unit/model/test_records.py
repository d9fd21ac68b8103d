"""Batches of records: their parts, small ones joined, and when they were written."""

import pickle
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import pairwise, permutations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dafka_core.model.envelope import closed
from dafka_core.model.epochs import NO_LIFE, EpochId
from dafka_core.model.opened_records import opened_records
from dafka_core.model.records import (
    SMALL_BYTES,
    SMALL_RECORDS,
    UNKNOWN_US,
    YEAR_1_US,
    PartitionInfo,
    Record,
    RecordBatch,
    TopicPartition,
    Transaction,
    as_runs,
    coalesce,
    concat,
    merge_heads,
    times_between,
)
from dafka_core.model.values import Longs, Values
from dafka_core.storage.block import Block
from tests.unit.model import envelopes
from tests.unit.model.test_values import every_maker
from tests.unit.storage.test_block import pack

TP = TopicPartition("t", "P")

unhurried = settings(deadline=None)
lists = st.lists(st.binary(max_size=12), min_size=1, max_size=30)
runs_of = st.lists(st.integers(1, 9), min_size=1, max_size=8).map(
    lambda counts: np.array([(count, 100 + n) for n, count in enumerate(counts)], np.int64)
)


def stored(offset: int, values: list[bytes], time_us: int = 7) -> RecordBatch:
    """A batch as the log has it."""
    block = Block.parse(bytes(pack(values, time_us)))
    return RecordBatch(TP, offset, block.values, times=block.times)


def in_a_row(parts: list[list[bytes]]) -> list[RecordBatch]:
    made: list[RecordBatch] = []
    for number, part in enumerate(parts):
        made.append(stored(made[-1].end if made else 5, part, number))
    return made


def each_time(times: Longs | None) -> list[int]:
    """When each of the records was written."""
    assert times is not None
    stamps: list[int] = np.repeat(times[:, 1], times[:, 0]).tolist()
    return stamps


@every_maker
def test_batches(maker: Callable[[list[bytes]], Values]) -> None:
    batch = RecordBatch(TP, 5, maker([b"a", b"b", b"c"]))
    assert (*batch.tp, batch.count, batch.end) == ("t", "P", 3, 8)
    assert batch.between(5, 8) is batch
    assert batch.between(7, 8) == RecordBatch(TP, 7, Values.of([b"c"]))
    assert batch.between(5, 7) == RecordBatch(TP, 5, Values.of([b"a", b"b"]))
    assert batch.between(6, 7) == RecordBatch(TP, 6, Values.of([b"b"]))
    assert list(batch.records()) == [
        Record("t", "P", 5, b"a"),
        Record("t", "P", 6, b"b"),
        Record("t", "P", 7, b"c"),
    ]


@every_maker
def test_pickling(maker: Callable[[list[bytes]], Values]) -> None:
    batch = RecordBatch(TP, 3, maker([b"a", b"", b"ccc"]))
    assert pickle.loads(pickle.dumps(batch)) == batch


def test_a_part_of_a_batch_belongs_to_its_transaction() -> None:
    transaction = Transaction(4, 3, 9)
    batch = RecordBatch.of(TP, 5, [b"a", b"b", b"c"], transaction)
    assert batch.between(7, 8) == RecordBatch(TP, 7, Values.of([b"c"]), transaction)
    assert batch != RecordBatch.of(TP, 5, [b"a", b"b", b"c"])


# -- joining --------------------------------------------------------------------------------------


@unhurried
@given(st.lists(lists, min_size=1, max_size=6), st.integers(1, 40), st.integers(1, 200))
def test_coalescing_keeps_records(
    parts: list[list[bytes]], max_records: int, max_bytes: int
) -> None:
    made = in_a_row(parts)
    found = list(coalesce(iter(made), max_records, max_bytes))
    assert [record for each in found for record in opened_records(each, opens=False)] == [
        record for each in made for record in opened_records(each, opens=False)
    ]
    assert [time for each in found for time in each_time(each.times)] == [
        time for each in made for time in each_time(each.times)
    ]
    starting = {each.offset: each for each in made}
    assert {each.offset for each in found} <= starting.keys()  # none of them was cut
    for each in found:
        alone = starting[each.offset] is each
        assert alone or (each.count <= max_records and each.values.size_bytes <= max_bytes)
    for before, after in pairwise(found):
        following = starting[after.offset]
        size = before.values.size_bytes + following.values.size_bytes
        assert before.count + following.count > max_records or size > max_bytes


def test_large_batches_stay_alone() -> None:
    small, many, large = [b"x"], [b""] * SMALL_RECORDS, [b"x" * SMALL_BYTES]
    made = in_a_row([small, small, many, small, large, large, small])
    joined, *found = coalesce(made, 1 << 30, 1 << 30)
    assert (joined.offset, joined.end) == (made[0].offset, made[1].end)
    assert len(found) == 5
    assert all(each is same for each, same in zip(found, made[2:], strict=True))


def test_batches_with_others_between_them_are_not_joined() -> None:
    made = [stored(0, [b"a", b"b"]), stored(2, [b"c"]), stored(4, [b"e"]), stored(5, [b"f"])]
    found = [(each.offset, each.values.to_list()) for each in coalesce(made, 1 << 30, 1 << 30)]
    assert found == [(0, [b"a", b"b", b"c"]), (4, [b"e", b"f"])]


@unhurried
@given(st.lists(lists, min_size=1, max_size=5), st.data())
def test_joining_keeps_records_and_times(parts: list[list[bytes]], data: st.DataObject) -> None:
    made = in_a_row(parts)
    first = made[0]
    made[0] = first.between(data.draw(st.integers(first.offset, first.end - 1)), first.end)
    expected = [value for each in made for value in each.values]
    stamps = [time for each in made for time in each_time(each.times)]
    whole = concat(made)
    assert whole.tp == TP
    assert whole.offset == made[0].offset
    assert whole.end == made[-1].end
    array = whole.values.to_arrow()
    array.validate(full=True)
    assert array.to_pylist() == expected
    assert each_time(whole.times) == stamps
    made[-1] = RecordBatch(TP, made[-1].offset, made[-1].values)
    assert concat(made).times is None


def test_a_single_batch_is_not_copied() -> None:
    batch = stored(3, [b"a"])
    assert concat([batch]) is batch


# -- parts ----------------------------------------------------------------------------------------


@unhurried
@given(lists, st.integers(1, 40), st.integers(1, 100), st.data())
def test_parts_respect_the_limits(
    values: list[bytes], max_records: int, max_bytes: int, data: st.DataObject
) -> None:
    array = pa.array([b"before", *values, b"after"], pa.binary())[1:-1]
    at = data.draw(st.integers(0, len(values)))
    times = np.array([(count, n) for n, count in enumerate((at, len(values) - at)) if count])
    batch = RecordBatch(TP, 9, Values.from_arrow(array), Transaction(1, 0, 99), times)
    found = list(batch.split(max_records, max_bytes))
    assert [value for part in found for value in part.values.to_arrow().to_pylist()] == values
    assert [part.offset for part in found] == [9, *(part.end for part in found[:-1])]
    for part in found:
        size = sum(map(len, part.values))
        assert part.count <= max_records
        assert size <= max_bytes or part.count == 1
        assert part.times is not None
        assert part.times[:, 0].sum() == part.count
        assert (part.tp, part.transaction) == (TP, batch.transaction)
    stamps = [time for part in found for time in each_time(part.times)]
    assert stamps == each_time(times)


def test_a_small_batch_is_not_split() -> None:
    batch = RecordBatch.of(TP, 0, [b"a", b"b"])
    (same,) = batch.split(2, 2)
    assert same is batch
    assert list(RecordBatch(TP, 0, Values()).split(1, 1)) == []


@pytest.mark.parametrize(
    ("one", "other", "together"),
    [
        ((3, 9, 0), (5, 12, 0), (3, 12, 0)),
        ((3, 9, 1), (5, 12, 1), (3, 12, 1)),
        ((3, 20, 1), (5, 12, 2), (3, 12, 2)),
        # Records without a life go with any.
        ((3, 20, 0), (5, 12, 2), (3, 20, 2)),
        ((3, 9, 0), (5, 12, 2), (3, 12, 2)),
    ],
)
def test_merged_heads_end_with_the_newest_life(
    one: tuple[int, int, int], other: tuple[int, int, int], together: tuple[int, int, int]
) -> None:
    first, second, expected = [
        PartitionInfo(*TP, earliest, end, EpochId(number, number, number))
        for earliest, end, number in (one, other, together)
    ]
    assert first.merged(second) == second.merged(first) == expected


@pytest.mark.parametrize("earliest", [*permutations(range(3))])
def test_heads_of_several_stores_do_not_depend_on_their_first_offsets(
    earliest: tuple[int, ...],
) -> None:
    """A C store, and two others, of which one does not know the newest life yet."""
    known = [(10, NO_LIFE), (8, EpochId(5, 5, 1)), (6, EpochId(7, 7, 1))]
    infos = [PartitionInfo(*TP, at, *each) for at, each in zip(earliest, known, strict=True)]
    assert merge_heads(infos) == {TP: PartitionInfo(*TP, 0, 10, EpochId(7, 7, 1))}


@unhurried
@given(runs_of, st.data())
def test_times_between_two_records(runs: Longs, data: st.DataObject) -> None:
    whole = each_time(runs)
    start = data.draw(st.integers(0, len(whole) - 1))
    stop = data.draw(st.integers(start + 1, len(whole)))
    assert each_time(times_between(runs, start, stop)) == whole[start:stop]
    assert each_time(as_runs(np.array(whole))) == whole


@settings(deadline=None)
@given(
    contents=st.lists(
        envelopes.MISTAKABLE
        | envelopes.PARTS.map(lambda parts: closed(parts[1], parts[0], parts[2])),
        min_size=1,
        max_size=5,
    )
)
def test_each_record_has_its_own_parts(contents: list[bytes]) -> None:
    batch = RecordBatch.of(TP, 5, contents)
    parts = map(envelopes.opened, contents)
    assert list(opened_records(batch)) == [
        Record(*TP, offset, value, key, headers)
        for offset, (key, value, headers) in enumerate(parts, 5)
    ]
    bare = [Record(*TP, offset, content) for offset, content in enumerate(contents, 5)]
    assert list(opened_records(batch, opens=False)) == bare


def test_a_time_that_no_store_knows_is_none() -> None:
    times = np.array([[2, UNKNOWN_US], [1, 7]], np.int64)
    batch = RecordBatch(TP, 5, Values.of([b"a", b"b", b"c"]), times=times)
    found = [(record.offset, record.timestamp_us) for record in opened_records(batch)]
    assert found == [(5, None), (6, None), (7, 7)]


def test_a_time_outside_of_the_calendar_is_none() -> None:
    """A peer may send any, and an application must not fail at it."""
    outside = (UNKNOWN_US, YEAR_1_US - 1, 253_402_300_800_000_000, 2**63 - 1)
    assert [Record(*TP, 0, b"", timestamp_us=each).timestamp for each in outside] == [None] * 4
    found = Record(*TP, 0, b"", timestamp_us=YEAR_1_US).timestamp
    assert found == datetime.min.replace(tzinfo=UTC)
