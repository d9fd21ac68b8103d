"""Requests: as they travel, and what is refused."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings

from dafka_core.errors import InvalidRequestError
from dafka_core.flight import limits, requests
from dafka_core.flight.columns import COLUMNS
from dafka_core.flight.requests import MAX_OFFSET as MAX
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
        # Anything but InvalidRequestError fails the test.
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
    escaped = "\udcff" * 255  # each octet takes six characters
    tickets = requests.GetRequest(escaped, escaped, MAX - 1, MAX, tuple(COLUMNS), times=True)
    assert tickets.checked() == tickets
    rows = tuple(
        ("t" * 255, f"{n:0255}", "A" * 32, MAX - 1, MAX, MAX - 1)
        for n in range(limits.MAX_TRANSACTIONS)
    )
    assert requests.CommitRequest(rows).checked().transactions == rows
