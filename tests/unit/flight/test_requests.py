"""Requests: their wire form, and refusals."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings

from dafka_core.errors import InvalidRequestError
from dafka_core.flight import limits, requests
from dafka_core.flight.columns import COLUMNS
from dafka_core.flight.requests import MAX_OFFSET as MAX
from dafka_core.flight.requests import GetRequest, Peers, PeersRequest, RecordRange
from dafka_core.model.records import Neighbour
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


ONE = (RecordRange("t", "P", 0, 5),)


def test_what_is_its_default_is_left_out() -> None:
    packed = b'{"v": 1, "ranges": [["t", "P", 0, 5, null, null]]}'
    assert GetRequest(ONE).packed() == packed
    assert GetRequest.parse(packed) == GetRequest(ONE)
    assert GetRequest.parse(b'{"v": 1, "ranges": [["t", "P", 0, 5]]}') == GetRequest(ONE)
    assert requests.DescribeRequest.parse(b"") == requests.DescribeRequest()


def test_larger_batches_than_there_are_may_be_asked_for() -> None:
    fitted = GetRequest(ONE, max_records=1 << 40, max_bytes=1 << 40).fitted()
    assert fitted.max_records == limits.MAX_BATCH_RECORDS
    assert fitted.max_bytes == limits.MAX_BATCH_BYTES
    assert GetRequest(ONE, max_bytes=7).fitted().max_bytes == 7
    with pytest.raises(InvalidRequestError, match="'max_records' = 1048577: must be `int` <= "):
        GetRequest(ONE, max_records=(1 << 20) + 1).checked()


def test_the_longest_lists_have_room() -> None:
    rows = tuple(
        ("t" * 255, f"{n:0255}", "A" * 32, MAX - 1, MAX, MAX - 1)
        for n in range(limits.MAX_TRANSACTIONS)
    )
    assert requests.CommitRequest(rows).checked().transactions == rows


def test_the_longest_tickets_have_room() -> None:
    escaped, life = "\udcff" * 255, (2**62, 2**63, 2**62)
    asked = RecordRange(escaped, escaped, MAX - 1, MAX, life, life)
    where = "value = '" + "é" * 4_086 + "'"
    ranges = (asked,) * limits.MAX_RANGES
    request = GetRequest(ranges, tuple(COLUMNS), times=True, where=where, envelope="none")
    assert request.checked() == request
    with pytest.raises(InvalidRequestError, match=r"'ranges'.* of length <= 1000"):
        GetRequest((*ranges, asked)).checked()


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
        ({"where": "vaule = 'a'"}, "where"),
        ({"where": ""}, "where"),
        ({"where": "x" * 4_097}, "where"),
        ({"where": 5}, "where"),
        ({"envelope": "some"}, "envelope"),
        ({"v": 2}, "v"),
        ({"columns": ["valeu"]}, "columns"),
        ({"max_records": 0}, "max_records"),
        ({"start": 0}, "start"),
    ],
)
def test_tickets_that_are_none_are_refused(members: dict[str, Any], member: str) -> None:
    packed = json.dumps({"v": 1, "ranges": [["t", "P", 0, 1]]} | members)
    with pytest.raises(InvalidRequestError) as caught:
        GetRequest.parse(packed)
    assert caught.value.member == member


def test_peers_travel_with_names_of_any_octets() -> None:
    made = Peers((Neighbour("A", "consumer", "tcp://h:1", True, ("t\udcff",)), Neighbour("B")))
    assert Peers.parse(made.packed()) == made
    assert PeersRequest.parse(b"") == PeersRequest()


@pytest.mark.parametrize("body", [b'{"v": 1}', b'{"v": 1, "peers": [["A", "", "", 5, []]]}'])
def test_what_is_none_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequestError):
        Peers.parse(body)
