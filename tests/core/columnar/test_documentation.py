"""docs/flight.md: its examples are what the service takes and says."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from dafka_core.columnar import actions, limits
from dafka_core.columnar.members import COLUMNS
from dafka_core.columnar.places import Place
from dafka_core.columnar.requests import Criteria, GetRequest, InfoRequest, PutRequest
from tests.core.columnar.hosts import PARTITION, TOPIC, Served

TEXT = (Path(__file__).parents[3] / "docs" / "flight.md").read_text()


def examples() -> list[dict[str, Any]]:
    return [json.loads(block) for block in re.findall(r"```json\n(.*?)```", TEXT, re.DOTALL)]


def packed(example: dict[str, Any]) -> bytes:
    return json.dumps(example).encode()


def test_the_examples_of_requests_are_taken() -> None:
    criteria, info, _, ticket, put, end, stage, place, _ = examples()
    assert Criteria.parse(packed(criteria)).topic == "flights"
    assert InfoRequest.parse(packed(info)).columns == ("value",)
    assert GetRequest.parse(packed(ticket)).end == 1_000
    assert PutRequest.parse(packed(put)).start == 1_000
    assert actions.parse_end(packed(end)) == 2_000
    assert PutRequest.parse(packed(stage)).unit == 17
    assert Place.parse(packed(place)).directory == "/data"


def test_the_examples_of_answers_are_like_those_given(served: Served) -> None:
    served.append(10)
    _, _, facts, _, _, _, _, place, error = examples()
    (info,) = served.plain().list_flights()
    assert list(json.loads(info.app_metadata)) == list(facts)
    assert json.loads(served.place.as_json()).keys() == place.keys()
    served.log.trim(TOPIC, PARTITION, 5)
    ticket = info.endpoints[0].ticket
    with pytest.raises(Exception, match="offset 0 was") as refused:
        served.plain().do_get(ticket)
    assert list(json.loads(refused.value.extra_info)) == list(error)  # type: ignore[attr-defined]


def test_everything_that_there_is_is_there() -> None:
    for name in (*actions.DESCRIPTIONS, *COLUMNS):
        assert f"| `{name}` |" in TEXT
    for number in (
        limits.MAX_REQUEST_BYTES,
        limits.MAX_ACTION_BYTES,
        limits.MAX_NAMES,
        limits.MAX_TIMES,
        limits.MAX_BATCH_RECORDS,
        limits.MAX_BATCH_BYTES,
        limits.MAX_PUT_BATCH_RECORDS,
        limits.MAX_GETS,
        limits.MAX_PUTS,
        limits.MAX_WAITS,
        limits.MAX_UNITS,
        limits.MAX_UNITS_BYTES,
        limits.MAX_COMMITS,
        limits.MAX_MESSAGE_CHARS,
    ):
        assert f"{number:,}" in TEXT
    for size_bytes in (
        limits.MAX_PUT_BATCH_BYTES,
        limits.MAX_PUT_RECORD_BYTES,
        limits.MAX_UNDER_WAY_BYTES,
    ):
        assert f"{size_bytes >> 20} MiB" in TEXT
