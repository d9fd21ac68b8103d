"""The queue of delivered records: order, size, positions and errors."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from itertools import islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dafka_core.errors import DataLossError, RecordTooLargeError
from dafka_core.model.envelope import closed
from dafka_core.model.records import Record, RecordBatch, TopicPartition
from dafka_core.model.values import Values
from dafka_core.nodes.consumer import RecordQueue

A, B = TopicPartition("a", "P"), TopicPartition("b", "P")


def batch(tp: TopicPartition, offset: int, count: int) -> RecordBatch:
    return RecordBatch.of(tp, offset, [b"%d" % number for number in range(offset, offset + count)])


def queue(*batches: RecordBatch) -> RecordQueue:
    made = RecordQueue(lambda: None)
    made.add(batches)
    return made


def test_positions_are_those_of_the_next_records() -> None:
    waiting = queue(batch(A, 5, 3), batch(B, 0, 2), batch(A, 8, 2))
    assert waiting.positions() == {A: 5, B: 0}
    assert waiting.next_record() == Record(*A, 5, b"5")
    assert waiting.positions() == {A: 6, B: 0}
    assert waiting.next_batch() == batch(A, 6, 2)
    assert waiting.next_batch() == batch(B, 0, 2)
    assert waiting.positions() == {A: 8}
    assert (waiting.next_batch(), waiting.next_batch()) == (batch(A, 8, 2), None)
    assert waiting.positions() == {}


def test_the_open_batch_does_not_count_as_queued() -> None:
    taken: list[int] = []
    waiting = RecordQueue(lambda: taken.append(1))
    waiting.add([batch(A, 8, 4), batch(A, 12, 2)])
    assert (waiting.size, taken) == ((6, 10), [])
    waiting.next_record()
    assert (waiting.size, taken) == ((2, 4), [1])
    waiting.next_batch()
    assert (waiting.size, taken) == ((2, 4), [1])
    waiting.next_batch()
    assert (waiting.size, taken) == ((0, 0), [1, 1])


@pytest.mark.parametrize("dropped", [A, B])
def test_dropped_partitions_are_not_delivered(dropped: TopicPartition) -> None:
    waiting = queue(batch(A, 0, 3), batch(B, 0, 3), batch(A, 3, 3))
    records = waiting.next_records()
    assert records is not None
    assert next(records).offset == 0
    waiting.drop(lambda tp: tp == dropped)
    rest = list(records)
    while (more := waiting.next_records()) is not None:
        rest += more
    expected = [(*B, offset) for offset in range(3)]
    if dropped == B:
        expected = [(*A, offset) for offset in range(1, 6)]
    assert [record[:3] for record in rest] == expected
    assert waiting.size == (0, 0)
    assert waiting.positions() == {}


@pytest.mark.parametrize("take", ["next_record", "next_records", "next_batch"])
def test_a_cleared_queue_is_empty(take: str) -> None:
    waiting = queue(batch(A, 0, 3), batch(A, 3, 3))
    waiting.next_record()
    waiting.clear()
    method: Callable[[], object] = getattr(waiting, take)
    assert method() is None
    assert waiting.positions() == {}


@given(
    st.lists(st.integers(1, 5)),
    st.lists(st.sampled_from(["record", "records", "batch", "view"]), max_size=40),
)
def test_all_methods_share_one_cursor(sizes: list[int], ways: list[str]) -> None:
    waiting = queue(*[batch(A, sum(sizes[:index]), size) for index, size in enumerate(sizes)])
    found: list[int] = []
    for way in ways:
        if way == "record":
            record = waiting.next_record()
            found += [] if record is None else [record.offset]
        elif way == "batch":
            taken = waiting.next_batch()
            found += [] if taken is None else range(taken.offset, taken.end)
        else:
            records = waiting.next_records()
            found += [record.offset for record in islice(records or (), 1)]
            if way == "records":
                found += [record.offset for record in records or ()]
        expected = {A: len(found)} if len(found) < sum(sizes) else {}
        assert waiting.positions() == expected
    assert found == list(range(len(found)))


@pytest.mark.parametrize("way", ["next_record", "next_records", "next_batch"])
def test_an_error_is_raised_once_in_its_place(way: str) -> None:
    waiting = queue(batch(A, 0, 1))
    waiting.add([error(A, 1), batch(A, 2, 1), error(B, 0)])
    assert waiting.size == (4, 2)
    take = getattr(waiting, way)

    def taken() -> int | None:
        """Take the next record or batch; return its offset."""
        found = take()
        if way == "next_records":
            found = found and next(found)
        return found and int(found.offset)

    assert taken() == 0
    assert waiting.positions() == {A: 1, B: 0}
    with pytest.raises(RecordTooLargeError) as raised:
        take()
    assert raised.value.offset == 1
    assert waiting.positions() == {A: 2, B: 0}
    assert taken() == 2
    waiting.drop(lambda tp: tp == B)
    assert (take(), waiting.size) == (None, (0, 0))


def error(tp: TopicPartition, offset: int) -> RecordTooLargeError:
    return RecordTooLargeError(*tp, offset, 100, 10, "this consumer")


def test_a_loss_is_raised_after_the_records_before_it() -> None:
    waiting = queue(batch(A, 0, 2))
    lost = [DataLossError(*tp, 2, 9, "trimmed") for tp in (A, B)]
    for loss in (lost[0], *lost):
        waiting.add_loss(loss)
    waiting.add([batch(B, 5, 1)])
    assert waiting.size == (3, 3)
    assert waiting.positions() == {A: 0, B: 5}
    assert waiting.next_record() == Record(*A, 0, b"0")
    assert waiting.next_batch() == batch(A, 1, 1)
    with pytest.raises(DataLossError) as raised:
        waiting.next_record()
    assert raised.value is lost[0]
    # Dropping a partition drops its loss; a partition may have a second loss later.
    waiting.drop(lambda tp: tp == B)
    assert (waiting.next_batch(), waiting.size) == (None, (0, 0))
    waiting.add_loss(lost[0])
    waiting.add_loss(lost[1])
    for loss in lost:
        with pytest.raises(DataLossError) as raised:
            waiting.next_batch()
        assert raised.value is loss


def test_records_are_opened() -> None:
    contents = [b"bare", closed(b"v", b"k", [("h", None)]), closed(None), b"\xc1DFK"]
    times = np.array([[3, 7], [1, 9_000_000]], np.int64)
    opened = [
        Record(*A, 0, b"bare", None, (), 7),
        Record(*A, 1, b"v", b"k", (("h", None),), 7),
        Record(*A, 2, None, None, (), 7),
        Record(*A, 3, b"\xc1DFK", None, (), 9_000_000),
    ]
    whole = replace(batch(A, 0, 1), values=Values.of(contents), times=times)
    waiting = queue(whole, whole)
    assert waiting.next_record() == opened[0]
    assert list(waiting.next_records() or ()) == opened[1:]
    found = [waiting.next_record(), waiting.next_record()]
    assert found == opened[:2]
    assert waiting.next_batch() == whole.between(2, 4)
    assert opened[3].timestamp == datetime(1970, 1, 1, 0, 0, 9, tzinfo=UTC)
    assert Record(*A, 0, b"").timestamp is None


def test_envelopes_stay_closed_without_the_option() -> None:
    closed_one = closed(b"v", b"k")
    waiting = RecordQueue(lambda: None, opens=False)
    waiting.add([replace(batch(A, 0, 1), values=Values.of([closed_one]))])
    assert waiting.next_record() == Record(*A, 0, closed_one)
