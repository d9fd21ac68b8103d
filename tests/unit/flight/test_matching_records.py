"""Requests with a condition, and replies to them that are not what was asked for."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from dafka_core.flight.columns import (
    OFFSET,
    TIMESTAMP,
    VALUE,
    Part,
    batch_of,
    packed_parts,
    schema_of,
)
from dafka_core.flight.requests import GetRequest, RecordRange
from dafka_core.flight.store_client import records_of
from dafka_core.model.records import MatchedRecords, TopicPartition
from dafka_core.model.values import Values

TP = TopicPartition("t", "P")
ASKED = GetRequest((RecordRange(*TP, 10, 30),), (VALUE, OFFSET), times=True, where="value = 'a'")


def some(start: int, end: int, *offsets: int) -> MatchedRecords:
    """Records of these offsets, of the time of their offsets' tens."""
    rows = np.array(offsets, np.int64)
    values = Values.of([b"%d" % each for each in offsets])
    return MatchedRecords(TP, start, end, rows, values, np.column_stack((rows * 0 + 1, rows // 10)))


def reply(found: MatchedRecords, *names: str) -> tuple[pa.RecordBatch, pa.Buffer]:
    schema = schema_of(names or ASKED.columns)
    return batch_of([found], schema), pa.py_buffer(packed_parts([Part(0, found)], times=True))


def test_what_comes_is_taken() -> None:
    parts = [some(10, 25, 12, 19, 21), some(25, 26), some(26, 30, 29)]
    found = list(records_of(ASKED, map(reply, parts)))
    assert [(each.offset, each.end) for each in found] == [(10, 25), (25, 26), (26, 30)]
    assert [each.offsets.tolist() for each in found] == [[12, 19, 21], [], [29]]
    assert [each.values for each in found] == [[b"12", b"19", b"21"], [], [b"29"]]
    times = [each.times.tolist() for each in found if each.times is not None]
    assert times == [[[1, 1], [1, 1], [1, 2]], [], [[1, 2]]]


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ([], "the records of topic 't', partition P end at 10, not at 30"),
        ([some(10, 29, 11)], "the records of topic 't', partition P end at 29, not at 30"),
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
        list(records_of(ASKED, map(reply, parts)))


@pytest.mark.parametrize("names", [(VALUE,), (OFFSET, VALUE), (VALUE, OFFSET, TIMESTAMP)])
def test_other_columns_are_refused(names: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="which was not requested"):
        list(records_of(ASKED, [reply(some(10, 30, 12), *names)].__iter__()))


def test_nulls_are_refused() -> None:
    columns, metadata = reply(some(10, 30, 12))
    arrays = [pa.nulls(1, pa.binary()), *columns.columns[1:]]
    with pytest.raises(ValueError, match="which was not requested"):
        list(
            records_of(
                ASKED, iter([(pa.RecordBatch.from_arrays(arrays, schema=columns.schema), metadata)])
            )
        )
