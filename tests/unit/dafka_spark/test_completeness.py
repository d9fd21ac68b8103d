"""Every record of a range once and in order, or an error: whoever made the mistake."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dafka_core.model.records import RecordBatch, TopicPartition
from dafka_spark.errors import IncompleteBatchError, StoreLostDataError
from dafka_spark.source.offset_ranges import OffsetRange
from dafka_spark.source.record_sources import CompletenessCheck, checked_reply

WANTED = OffsetRange("t", "A", 10, 30)


def some(start: int, end: int) -> RecordBatch:
    values = [b"%d" % offset for offset in range(start, end)]
    return RecordBatch.of(TopicPartition("t", "A"), start, values)


@pytest.mark.parametrize(
    ("taken", "expected", "found"),
    [
        ([(10, 20)], 20, None),
        ([(10, 15), (16, 30)], 15, 16),
        ([(10, 15), (10, 15), (15, 30)], 15, 10),
        ([(10, 31)], 10, 10),
        ([(10, 30), (30, 31)], 30, 30),
        ([(9, 30)], 10, 9),
        ([], 10, None),
    ],
)
def test_rows_that_are_not_those_of_the_range_are_an_error(
    taken: list[tuple[int, int]], expected: int, found: int | None
) -> None:
    check = CompletenessCheck(WANTED)

    def take_all() -> None:
        for start, end in taken:
            check.take(start, end - start)
        check.finish()

    with pytest.raises(IncompleteBatchError, match=r"the whole range: (the )?rows") as caught:
        take_all()
    error = caught.value
    assert (error.topic, error.partition, error.start, error.end) == ("t", "A", 10, 30)
    assert (error.expected, error.found) == (expected, found)


@given(st.sets(st.integers(11, 29)), st.sets(st.integers(0, 20)))
def test_rows_may_come_in_any_pieces_and_lack_what_is_lost(cuts: set[int], holes: set[int]) -> None:
    """``lost`` grows while the rows come."""
    bounds = [10, *sorted(cuts), 30]
    lost: list[range] = []
    check = CompletenessCheck(WANTED, lost)
    for number, (start, end) in enumerate(pairwise(bounds)):
        if number in holes:
            lost.append(range(start, end))
        else:
            check.take(start, end - start)
    check.finish()
    assert check.position == 30


def test_nothing_else_may_be_missing_than_what_is_lost() -> None:
    check = CompletenessCheck(WANTED, [range(15, 18)])
    check.take(10, 5)
    with pytest.raises(IncompleteBatchError) as caught:
        check.take(19, 11)
    assert (caught.value.expected, caught.value.found) == (18, 19)


def test_a_reply_is_passed_on_as_it_comes() -> None:
    batches = [some(10, 15), some(15, 30)]
    assert list(checked_reply("S", WANTED, batches)) == batches


def test_a_hole_in_a_reply_is_what_its_store_has_lost() -> None:
    reply = checked_reply("S", WANTED, [some(10, 15), some(17, 30)])
    assert next(reply).end == 15
    with pytest.raises(StoreLostDataError, match="records of S do not go on") as caught:
        next(reply)
    assert (caught.value.wanted, caught.value.available, caught.value.lost_end) == (15, 17, 17)


def test_no_more_is_lost_than_what_was_asked_for() -> None:
    with pytest.raises(StoreLostDataError) as caught:
        next(checked_reply("S", WANTED, [some(99, 100)]))
    assert (caught.value.wanted, caught.value.available, caught.value.lost_end) == (10, 99, 30)


@pytest.mark.parametrize(
    ("batches", "expected", "found"),
    [
        ([some(10, 20)], 20, None),
        ([some(10, 20), some(10, 20)], 20, 10),
        ([some(9, 30)], 10, 9),
        ([some(10, 31)], 10, 10),
        ([], 10, None),
    ],
)
def test_a_reply_with_other_records_is_not_believed(
    batches: list[RecordBatch], expected: int, found: int | None
) -> None:
    with pytest.raises(IncompleteBatchError, match=r"S: ") as caught:
        list(checked_reply("S", WANTED, batches))
    assert (caught.value.expected, caught.value.found) == (expected, found)
