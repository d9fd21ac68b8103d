"""The examples of docs/flight.md work, and their answers are right."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from dafka_core.flight import limits, server_requests
from dafka_core.flight.columns import COLUMNS
from dafka_core.flight.requests import Criteria, DurableEnd, GetRequest, InfoRequest, PutRequest
from dafka_core.flight.store_location import StoreLocation
from dafka_core.model.where import MAX_CHARACTERS, MAX_COMPARISONS, MAX_DEPTH, MAX_WILDCARDS
from tests.integration.flight.hosts import TP, Served

DOCS = Path(__file__).parents[3] / "docs"
TEXT = (DOCS / "flight.md").read_text()


def examples() -> list[dict[str, Any]]:
    return [json.loads(block) for block in re.findall(r"```json\n(.*?)```", TEXT, re.DOTALL)]


def packed(example: dict[str, Any]) -> bytes:
    return json.dumps(example).encode()


def test_the_examples_of_requests_are_taken() -> None:
    criteria, info, _, ticket, where, put, end, stage, _, location = examples()
    assert Criteria.parse(packed(criteria)).topic == "flights"
    assert InfoRequest.parse(packed(info)).columns == ("value",)
    assert GetRequest.parse(packed(ticket)).ranges[1].life == (2, 71, 1)
    assert str(GetRequest.parse(packed(where)).where).startswith("key = ")
    assert PutRequest.parse(packed(put)).start == 1_000
    assert DurableEnd.parse(packed(end)) == DurableEnd(2_000)
    assert PutRequest.parse(packed(stage)).version == 17
    assert StoreLocation.parse(packed(location)).directory == "/data"


def test_the_examples_of_answers_are_like_those_given(served: Served) -> None:
    served.extend(10)
    _, _, facts, *_, error, location = examples()
    (info,) = served.plain().list_flights()
    assert list(json.loads(info.app_metadata)) == list(facts)
    assert json.loads(served.location.packed()).keys() == location.keys()
    served.log.trim(TP, 5)
    ticket = info.endpoints[0].ticket
    with pytest.raises(Exception, match="offset 0 was") as refused:
        served.plain().do_get(ticket).read_all()
    assert list(json.loads(refused.value.extra_info)) == list(error)  # type: ignore[attr-defined]


def test_everything_that_there_is_is_there() -> None:
    for name in (*server_requests.ACTIONS, *COLUMNS):
        assert f"| `{name}` |" in TEXT


def mib(size_bytes: int) -> str:
    return f"{size_bytes >> 20} MiB"


@pytest.mark.parametrize(
    ("limit", "value"),
    [
        ("command, criteria", f"{limits.MAX_REQUEST_BYTES:,} bytes"),
        (
            "ranges of one get",
            f"{limits.MAX_RANGES:,}, in a ticket of {limits.MAX_TICKET_BYTES:,} bytes",
        ),
        (
            "condition",
            (
                f"{MAX_CHARACTERS:,} characters, {MAX_COMPARISONS} comparisons, {MAX_DEPTH} within "
                f"each other, {MAX_WILDCARDS} wildcards within texts of LIKE"
            ),
        ),
        ("body of an action", f"{limits.MAX_ACTION_BYTES:,} bytes"),
        ("topics of a request for heads", f"{limits.MAX_NAMES:,}"),
        ("times of a request for offsets", f"{limits.MAX_TIMES:,}"),
        (
            "partitions of a request about transactions",
            f"{limits.MAX_TRANSACTIONS:,}, in a body of {limits.MAX_TRANSACTIONS_BYTES:,} bytes",
        ),
        (
            "batch that is read",
            f"{limits.MAX_BATCH_RECORDS:,} records, {mib(limits.MAX_BATCH_BYTES)} of values",
        ),
        (
            "batch that is put",
            (
                f"{limits.MAX_BATCH_RECORDS:,} records, {mib(limits.MAX_BATCH_BYTES)} of "
                f"values, or one record of up to {mib(limits.MAX_PUT_RECORD_BYTES)}"
            ),
        ),
        ("values of a put under way to the disk", mib(limits.MAX_UNDER_WAY_BYTES)),
        ("streams read at one time", f"{limits.MAX_GETS}"),
        ("streams put at one time", f"{limits.MAX_PUTS}"),
        ("waits at one time", f"{limits.MAX_WAITS}, each an hour at the most"),
        ("commits and discards at one time", f"{limits.MAX_COMMITS}"),
        ("stores in one answer", f"{limits.MAX_LOCATIONS_LISTED:,}"),
        ("an error's sentence", f"{limits.MAX_MESSAGE_CHARS:,} characters"),
    ],
)
def test_each_limit_has_its_row(limit: str, value: str) -> None:
    assert f"| {limit} | {value} |" in TEXT
