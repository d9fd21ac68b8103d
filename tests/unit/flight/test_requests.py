"""Requests: their wire form, and refusals."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dafka_core.errors import InvalidRequestError
from dafka_core.flight import limits, requests
from dafka_core.flight.columns import COLUMNS
from dafka_core.flight.requests import (
    MAX_OFFSET,
    AskedRange,
    GetManyRequest,
    GetRequest,
    Part,
    Peers,
    PeersRequest,
    packed_parts,
    parse_parts,
    ticket_version,
)
from dafka_core.flight.requests import MAX_OFFSET as MAX
from dafka_core.model.records import Neighbour, RecordBatch, TopicPartition
from dafka_core.model.values import Values
from tests.unit.flight.malformed import anything


@pytest.fixture(scope="module")
def parsers() -> list[Callable[[bytes], object]]:
    return [
        requests.GetRequest.parse,
        requests.PutRequest.parse,
        requests.InfoRequest.parse,
        requests.Criteria.parse,
        requests.HeadsRequest.parse,
        requests.OffsetsRequest.parse,
        requests.WaitRequest.parse,
        requests.TransactionsRequest.parse,
        requests.CommitRequest.parse,
        requests.DiscardRequest.parse,
        requests.StoresRequest.parse,
        requests.DescribeRequest.parse,
    ]


@settings(deadline=None, max_examples=300)
@given(packed=anything)
def test_anything_is_parsed_or_refused(
    parsers: list[Callable[[bytes], object]], packed: bytes
) -> None:
    for parse in parsers:
        # Any other error than InvalidRequestError fails the test.
        with contextlib.suppress(InvalidRequestError):
            request: Any = parse(packed)
            assert parse(request.packed()) == request


def test_what_is_its_default_is_left_out() -> None:
    packed = b'{"v": 1, "topic": "t", "partition": "P", "start": 0, "end": 5}'
    request = requests.GetRequest("t", "P", 0, 5)
    assert request.packed() == packed
    assert requests.GetRequest.parse(packed) == request
    assert requests.DescribeRequest.parse(b"") == requests.DescribeRequest()


def test_larger_batches_than_there_are_may_be_asked_for() -> None:
    fitted = requests.GetRequest("t", "P", 0, 5, max_records=1 << 40, max_bytes=1 << 40).fitted()
    assert fitted.max_records == limits.MAX_BATCH_RECORDS
    assert fitted.max_bytes == limits.MAX_BATCH_BYTES
    assert requests.GetRequest("t", "P", 0, 5, max_bytes=7).fitted().max_bytes == 7
    with pytest.raises(InvalidRequestError, match="'max_records' = 1048577: must be `int` <= "):
        requests.GetRequest("t", "P", 0, 5, max_records=(1 << 20) + 1).checked()


def test_the_longest_names_and_lists_have_room() -> None:
    escaped = "\udcff" * 255  # each byte takes six characters
    tickets = requests.GetRequest(escaped, escaped, MAX - 1, MAX, tuple(COLUMNS), times=True)
    assert tickets.checked() == tickets
    rows = tuple(
        ("t" * 255, f"{n:0255}", "A" * 32, MAX - 1, MAX, MAX - 1)
        for n in range(limits.MAX_TRANSACTIONS)
    )
    assert requests.CommitRequest(rows).checked().transactions == rows


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


def test_peers_travel_with_names_of_any_octets() -> None:
    made = Peers((Neighbour("A", "consumer", "tcp://h:1", True, ("t\udcff",)), Neighbour("B")))
    assert Peers.parse(made.packed()) == made
    assert PeersRequest.parse(b"") == PeersRequest()


@pytest.mark.parametrize("body", [b'{"v": 1}', b'{"v": 1, "peers": [["A", "", "", 5, []]]}'])
def test_what_is_none_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequestError):
        Peers.parse(body)
