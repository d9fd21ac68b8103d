"""Requests with a condition, and replies to them that are not what was asked for."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dafka_core.errors import InvalidRequestError
from dafka_core.flight.columns import OFFSET, TIMESTAMP, VALUE, batch_of, schema_of
from dafka_core.flight.limits import MAX_WHERE_BYTES
from dafka_core.flight.requests import GetRequest
from dafka_core.flight.where_get import GetWhereRequest, matched_records, packed_scan
from dafka_core.model.records import MatchedRecords, TopicPartition
from dafka_core.model.values import Values

TP = TopicPartition("t", "P")
ASKED = GetWhereRequest(
    topic="t",
    partition="P",
    start=10,
    end=30,
    where="value = 'a'",
    columns=(VALUE, OFFSET, TIMESTAMP),
)


def some(start: int, end: int, *offsets: int) -> MatchedRecords:
    """Records of these offsets, of the time of their offsets' tens."""
    rows = np.array(offsets, np.int64)
    values = Values.of([b"%d" % each for each in offsets])
    return MatchedRecords(TP, start, end, rows, values, np.column_stack((rows * 0 + 1, rows // 10)))


def reply(found: MatchedRecords, *names: str) -> tuple[pa.RecordBatch, pa.Buffer]:
    schema = schema_of(names or ASKED.columns)
    return batch_of([found], schema), pa.py_buffer(packed_scan(found))


def test_a_request_travels() -> None:
    longest = GetWhereRequest(
        topic="é" * 127,
        partition="\udcff" * 255,
        start=0,
        end=1,
        where="value = '" + "é" * 4_086 + "'",
        envelope="none",
    )
    assert len(longest.packed()) < MAX_WHERE_BYTES
    assert GetWhereRequest.parse(longest.packed()) == longest
    with pytest.raises(InvalidRequestError, match="must be the version, 1"):
        GetRequest.parse(ASKED.packed())


@pytest.mark.parametrize(
    ("members", "member"),
    [
        ({"where": "vaule = 'a'"}, "where"),
        ({"where": ""}, "where"),
        ({"where": "x" * 4_097}, "where"),
        ({"where": 5}, "where"),
        ({"envelope": "some"}, "envelope"),
        ({"start": 31}, "end"),
        ({"columns": ["vaule"]}, "columns"),
        ({"times": True}, "times"),
        ({"v": 1}, "v"),
    ],
)
def test_tickets_that_are_none_are_refused(members: dict[str, Any], member: str) -> None:
    packed = json.dumps(json.loads(ASKED.packed()) | members)
    with pytest.raises(InvalidRequestError) as caught:
        GetWhereRequest.parse(packed)
    assert caught.value.member == member


def test_what_comes_is_taken() -> None:
    parts = [some(10, 25, 12, 19, 21), some(25, 26), some(26, 30, 29)]
    found = list(matched_records(ASKED, map(reply, parts)))
    assert [(each.offset, each.end) for each in found] == [(10, 25), (25, 26), (26, 30)]
    assert [each.offsets.tolist() for each in found] == [[12, 19, 21], [], [29]]
    assert [each.values for each in found] == [[b"12", b"19", b"21"], [], [b"29"]]
    times = [each.times.tolist() for each in found if each.times is not None]
    assert times == [[[2, 1], [1, 2]], [], [[1, 2]]]


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ([], "the records end at 10, not at 30"),
        ([some(10, 29, 11)], "the records end at 29, not at 30"),
        ([some(11, 30, 12)], "offsets 11 to 30 arrived instead of 10"),
        ([some(10, 20, 12), some(21, 30)], "offsets 21 to 30 arrived instead of 20"),
        ([some(10, 20, 12), some(10, 20, 12)], "offsets 10 to 20 arrived instead of 20"),
        ([some(10, 31, 12)], "offsets 10 to 31 arrived instead of 10"),
        ([some(10, 10)], "offsets 10 to 10 arrived instead of 10"),
        ([some(10, 30, 9)], "records arrived outside of offsets 10 to 30"),
        ([some(10, 30, 30)], "records arrived outside of offsets 10 to 30"),
        ([some(10, 30, 12, 12)], "records arrived outside of offsets 10 to 30"),
        ([some(10, 30, 13, 12)], "records arrived outside of offsets 10 to 30"),
    ],
)
def test_what_leaves_a_hole_or_is_not_of_the_range_is_refused(
    parts: list[MatchedRecords], says: str
) -> None:
    with pytest.raises(ValueError, match=says):
        list(matched_records(ASKED, map(reply, parts)))


@pytest.mark.parametrize("names", [(VALUE,), (OFFSET, VALUE, TIMESTAMP), (VALUE, OFFSET)])
def test_other_columns_are_refused(names: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="which was not requested"):
        list(matched_records(ASKED, [reply(some(10, 30, 12), *names)].__iter__()))


def test_nulls_are_refused() -> None:
    columns, metadata = reply(some(10, 30, 12))
    arrays = [pa.nulls(1, pa.binary()), *columns.columns[1:]]
    with pytest.raises(ValueError, match="which was not requested"):
        list(
            matched_records(
                ASKED, iter([(pa.RecordBatch.from_arrays(arrays, schema=columns.schema), metadata)])
            )
        )


@pytest.mark.parametrize(
    ("numbers", "says"),
    [
        (None, "a batch's metadata have 0 bytes, not pairs of numbers"),
        ([3, 10, 30], "a batch's metadata have 24 bytes, not pairs of numbers"),
        ([3, 10], "a batch's metadata have 2 numbers, not four"),
        ([1, 10, 30, 1], "a batch's metadata are of version 1, not 3"),
        ([3, 10, 30, 2], "a batch has 1 records instead of 2"),
        ([3, -(2**63), 2**63 - 1, 1], "arrived instead of 10"),
    ],
)
def test_metadata_that_are_none_are_refused(numbers: list[int] | None, says: str) -> None:
    packed = None if numbers is None else pa.py_buffer(np.array(numbers, "<i8").tobytes())
    with pytest.raises(ValueError, match=says):
        list(matched_records(ASKED, iter([(reply(some(10, 30, 12))[0], packed)])))
