"""The last check before Spark: every planned offset once and in order, or an error."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dafka_core.model.records import RecordBatch, TopicPartition
from dafka_spark.errors import IncompleteBatchError
from dafka_spark.source.offset_ranges import OffsetRange
from dafka_spark.source.partition_reader import Fetched, LostOffsets, complete

A, B, C = (TopicPartition("t", name) for name in "ABC")
WANTED = OffsetRange(*A, 10, 30), OffsetRange(*B, 0, 5)
WHOLE_B = (B, 0, 5)


def batch(tp: TopicPartition, start: int, end: int) -> RecordBatch:
    return RecordBatch.of(tp, start, [b""] * (end - start))


@pytest.mark.parametrize(
    ("came", "expected", "found"),
    [
        ([(A, 10, 20), WHOLE_B], 20, None),
        ([(A, 10, 15), (A, 16, 30)], 15, 16),
        ([(A, 10, 15), (A, 10, 15), (A, 15, 30)], 15, 10),
        ([(A, 10, 31)], 10, 10),
        ([(A, 10, 30), (A, 30, 31)], 30, 30),
        ([(A, 9, 30)], 10, 9),
        ([WHOLE_B], 10, None),
        ([(C, 10, 30)], 0, 10),
    ],
)
def test_rows_that_are_not_those_of_the_range_are_an_error(
    came: list[tuple[TopicPartition, int, int]], expected: int, found: int | None
) -> None:
    with pytest.raises(IncompleteBatchError, match=r"^\[DAFKA_INCOMPLETE_BATCH\].* rows") as caught:
        list(complete((batch(*each) for each in came), WANTED))
    error = caught.value
    assert (error.expected, error.found) == (expected, found)
    planned = (0, 0) if error.partition == "C" else (10, 30)
    assert (error.start, error.end) == planned


@given(st.sets(st.integers(11, 29)), st.sets(st.integers(0, 20)), st.data())
def test_records_and_lost_offsets_cover_the_ranges(
    cuts: set[int], holes: set[int], data: st.DataObject
) -> None:
    """In any pieces, and with those of another partition between them."""
    pieces: list[Fetched] = []
    for number, (start, end) in enumerate(pairwise([10, *sorted(cuts), 30])):
        lost = number in holes
        pieces.append(LostOffsets(A, start, end) if lost else batch(A, start, end))
    pieces.insert(data.draw(st.integers(0, len(pieces))), batch(*WHOLE_B))
    records = [each for each in pieces if not isinstance(each, LostOffsets)]
    assert list(complete(pieces, WANTED)) == records
    without = data.draw(st.sampled_from(pieces))
    with pytest.raises(IncompleteBatchError):
        list(complete((each for each in pieces if each is not without), WANTED))
