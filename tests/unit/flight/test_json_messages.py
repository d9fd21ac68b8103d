"""JSON messages: equal after parsing, or refused with the invalid member."""

from __future__ import annotations

import json
import re

import pytest

from dafka_core.errors import InvalidRequestError
from dafka_core.flight.limits import MAX_LEASED_BLOCKS
from dafka_core.flight.requests import (
    Done,
    DurableEnd,
    Heads,
    LeaseGranted,
    Offsets,
    TransactionStates,
)
from dafka_core.flight.store_location import StoreLocation
from dafka_core.model.json_message import JsonMessage, short
from dafka_core.model.records import PartitionInfo, Transaction, TransactionState
from dafka_core.storage.environment import Space
from dafka_core.storage.leases import MAX_LEASES


def test_members_that_a_later_version_has_are_passed_over() -> None:
    assert StoreLocation.parse(
        '{"v": 1, "store": "S", "locations": [], "more": 1}'
    ) == StoreLocation("S", ())


@pytest.mark.parametrize(
    "answer",
    [
        Heads((PartitionInfo("t", "\udcff", 3, 9), PartitionInfo("é", "P", 0, 0))),
        Offsets((5, None), 1),
        TransactionStates((TransactionState(9, 9, "A" * 32, Transaction(7, 3, 9)),)),
        TransactionStates((TransactionState(0, 0, "", None),)),
        Done(),
        DurableEnd(5),
        DurableEnd(5, failed=True),
        LeaseGranted(),
        LeaseGranted("9" * 32, MAX_LEASES - 1, 9, ((8, 0, 2**62, 2**31),) * MAX_LEASED_BLOCKS),
        Space(7, 5, 1, 0.5),
    ],
)
def test_answers_are_read_as_they_were(answer: JsonMessage) -> None:
    assert type(answer).parse(answer.packed()) == answer


@pytest.mark.parametrize(
    ("kind", "text", "sentence"),
    [
        (Offsets, '{"v": 1, "offsets": [1, "x"]}', "'offsets' = 'x': must be `int | null`"),
        (Heads, '{"v": 1, "heads": [["t", "P", 0, []]]}', "'heads' = []: must be `int`"),
        (Offsets, '{"v": 1}', "'offsets' = None: is required"),
        (Done, '{"v": true}', "'v' = True: must be the version, 1"),
    ],
)
def test_the_value_that_is_wrong_is_shown(
    kind: type[JsonMessage], text: str, sentence: str
) -> None:
    with pytest.raises(InvalidRequestError, match=re.escape(sentence)):
        kind.parse(text)


BLOCKS_WRONG = ([-1, 0, 0, 8], [0, -1, 0, 8], [0, 0, 2**63, 8], [0, 0, 0])


@pytest.mark.parametrize(
    "wrong",
    [
        *({"slot": slot} for slot in (-1, MAX_LEASES, 2**62, 2**70)),
        *({"blocks": [block]} for block in BLOCKS_WRONG),
        *({"blocks": [[0, 0, 0, size_bytes]]} for size_bytes in (0, -1, 2**31 + 1)),
        {"ranges": -1},
        {"blocks": [[0, 0, 0, 8]] * (MAX_LEASED_BLOCKS + 1)},
    ],
)
def test_what_no_file_of_leases_and_no_block_can_have_is_refused(wrong: dict[str, object]) -> None:
    """A reader finds the slot in the file, and reserves memory for the blocks."""
    text = json.dumps({"v": 1, "lease": "9" * 32, "slot": 0, "blocks": []} | wrong)
    with pytest.raises(InvalidRequestError, match=next(iter(wrong))):
        LeaseGranted.parse(text)


@pytest.mark.parametrize(
    ("text", "member"),
    [
        ("", "location"),
        ("[]", "location"),
        ("[" * 100_000, "location"),
        (b"\xff\xfe\xfd", "location"),
        ("{}", "v"),
        ('{"v": 2, "locations": []}', "v"),
        ('{"v": 1, "locations": []}', "store"),
        ('{"v": 1, "store": "S"}', "locations"),
        ('{"v": 1, "store": "S", "locations": "grpc://a:1"}', "locations"),
        ('{"v": 1, "store": "S", "locations": [1]}', "locations"),
        ('{"v": 1, "store": 1, "locations": []}', "store"),
        ('{"v": 1, "store": "S", "locations": [], "directory": null}', "directory"),
    ],
)
def test_what_is_no_location_is_refused(text: str | bytes, member: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        StoreLocation.parse(text)
    assert refused.value.member == member
    assert len(str(refused.value)) < 300


def test_what_came_from_elsewhere_is_cut() -> None:
    assert short(5) == 5
    assert short("x" * 90) == "x" * 90
    assert len(str(short(["x" * 200]))) == 103


def test_json_has_nothing_that_is_not_ascii() -> None:
    text = StoreLocation("é\udcff", ("grpc://é:1",)).packed()
    assert text.isascii()
    assert json.loads(text)["v"] == 1
