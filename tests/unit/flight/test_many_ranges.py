"""Tickets of many ranges, and what the batches of such a get say of themselves."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dafka_core.errors import InvalidRequestError
from dafka_core.flight import limits
from dafka_core.flight.many_ranges import (
    AskedRange,
    GetManyRequest,
    Part,
    packed_parts,
    parse_parts,
    ticket_version,
)
from dafka_core.flight.requests import MAX_OFFSET, GetRequest
from dafka_core.records import RecordBatch, TopicPartition
from dafka_core.values import Values

TP = TopicPartition("t", "P")
runs = st.lists(st.tuples(st.integers(1, 3), st.integers(-(2**62), 2**62)), min_size=1, max_size=4)


def buffer(*numbers: int) -> pa.Buffer:
    return pa.py_buffer(np.array(numbers, "<i8").tobytes())


@given(st.lists(st.tuples(st.integers(0, 999), st.integers(0, 2**62), runs), min_size=1))
def test_parts_travel(given_parts: list[Any]) -> None:
    parts = []
    for number, offset, times in given_parts:
        values = Values.of([b""] * sum(count for count, _ in times))
        parts.append(Part(number, RecordBatch(TP, offset, values, times=np.array(times, np.int64))))
    total = sum(part.batch.count for part in parts)
    rows, found = parse_parts(pa.py_buffer(packed_parts(parts, times=True)), total, times=True)
    assert [row[:3] for row in rows.tolist()] == [
        [part.number, part.batch.offset, part.batch.count] for part in parts
    ]
    assert found is not None
    assert [[tuple(run) for run in each.tolist()] for each in found] == [
        times for _, _, times in given_parts
    ]
    rows, none = parse_parts(pa.py_buffer(packed_parts(parts, times=False)), total, times=False)
    assert none is None
    assert rows[:, 2].sum() == total


@pytest.mark.parametrize(
    ("metadata", "count", "times"),
    [
        (None, 1, False),
        (buffer(), 1, False),
        (buffer(2), 1, False),
        (buffer(2, 0), 0, False),
        (buffer(2, -1), 1, False),
        (buffer(2, 2**62), 1, False),
        (buffer(1, 1, 0, 0, 1, 0), 1, False),
        (buffer(2, 1, 0, 0), 1, False),
        (buffer(2, 1, 0, 0, 1, 0), 2, False),
        (buffer(2, 1, 0, 0, 0, 0), 0, False),
        (buffer(2, 2, 0, 0, 3, 0, 1, 0, -1, 0), 2, False),
        (buffer(2, 2, 0, 0, 2**62, 0, 1, 0, 2**62, 0), 2, False),
        (buffer(2, 1, 0, 0, 1, 1, 1, 9), 1, False),
        (buffer(2, 1, 0, 0, 1, 0), 1, True),
        (buffer(2, 1, 0, 0, 1, -1), 1, True),
        (buffer(2, 1, 0, 0, 2, 1, 1, 9), 2, True),
        (buffer(2, 1, 0, 0, 2, 2, 3, 9, -1, 9), 2, True),
        (buffer(2, 2, 0, 0, 1, 0, 1, 0, 1, 2, 1, 9, 1, 9), 2, True),
    ],
)
def test_metadata_that_are_none_are_refused(
    metadata: pa.Buffer | None, count: int, times: bool
) -> None:
    with pytest.raises(ValueError, match="a batch's"):
        parse_parts(metadata, count, times=times)


@given(st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(-1, 4), max_size=16), st.booleans())
def test_any_metadata_are_parsed_or_refused(numbers: list[int], times: bool) -> None:
    try:
        rows, found = parse_parts(buffer(*numbers), 2, times=times)
    except ValueError:
        return
    assert rows[:, 2].tolist() in ([2], [1, 1])
    assert found is None or [int(each[:, 0].sum()) for each in found] == rows[:, 2].tolist()


def test_the_longest_tickets_have_room() -> None:
    escaped, life = "\udcff" * 255, (2**62, 2**63, 2**62)
    asked = AskedRange(escaped, escaped, MAX_OFFSET - 1, MAX_OFFSET, life, life)
    request = GetManyRequest((asked,) * limits.MAX_RANGES, times=True)
    assert request.checked() == request
    assert ticket_version(request.packed()) == 2
    with pytest.raises(InvalidRequestError, match=r"'ranges'.* of length <= 1000"):
        GetManyRequest((AskedRange("t", "P", 0, 1),) * (limits.MAX_RANGES + 1)).checked()


@pytest.mark.parametrize(
    ("members", "member"),
    [
        ({"ranges": []}, "ranges"),
        ({"ranges": [["t", "P", 5, 4]]}, "ranges"),
        ({"ranges": [["t", "P", 0]]}, "ranges"),
        ({"ranges": [["t", "P", 0, -1]]}, "ranges"),
        ({"ranges": [["t", "P", 0, 2**63]]}, "ranges"),
        ({"ranges": [["t", "P", 0, 1.5]]}, "ranges"),
        ({"ranges": [["", "P", 0, 1]]}, "ranges"),
        ({"ranges": [["t", "a\0b", 0, 1]]}, "ranges"),
        ({"ranges": [["t", "P", 0, 1, [1, 2]]]}, "ranges"),
        ({"ranges": [["t", "P", 0, 1, [1, 2, -1]]]}, "ranges"),
        ({"ranges": "t"}, "ranges"),
        ({"columns": ["valeu"]}, "columns"),
        ({"max_records": 0}, "max_records"),
        ({"start": 0}, "start"),
    ],
)
def test_tickets_that_are_none_are_refused(members: dict[str, Any], member: str) -> None:
    packed = json.dumps({"v": 2, "ranges": [["t", "P", 0, 1]]} | members)
    with pytest.raises(InvalidRequestError) as caught:
        GetManyRequest.parse(packed)
    assert caught.value.member == member


def test_tickets_are_told_apart() -> None:
    assert ticket_version(GetRequest("t", "P", 0, 1).packed()) == 1
    assert ticket_version(b'{"ranges": [], "v": 2}') == 2
    for other in (b"", b"[]", b"2", b'{"v": "2"}', b'{"v": 3}', b"[" * 5_000, b"\xff"):
        assert ticket_version(other) != 2
