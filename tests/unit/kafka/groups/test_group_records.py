"""The records that gateways keep of groups: their octets, and what is none."""

from __future__ import annotations

import json

import pytest

from dafka_core.errors import InvalidRequestError
from dafka_core.kafka.groups.group_records import Committed, Generation, GroupRecord, KeptMember

MEMBER = KeptMember("m-1", 10_000, 300_000, (("range", b"\xff\0"),), b"\0part", "one", "app", "::1")


@pytest.mark.parametrize(
    "record",
    [
        GroupRecord("g", 7, (Committed("flüge", 0, 1_000, 3, "über", 1_700_000_000_000),)),
        GroupRecord("g", 2**62, generation=Generation(3, "consumer", "range", "m-1", (MEMBER,), 9)),
        GroupRecord("a topic of octets \udcff", 1, (Committed("\udcff", 2**31 - 1, -1),)),
        GroupRecord("g", 1, (Committed("t", 0, -(2**63)), Committed("t", 1, 2**63 - 1))),
        GroupRecord("g", 8, deleted=True),
        GroupRecord(repeats=500),
    ],
)
def test_a_record_is_read_as_it_was_written(record: GroupRecord) -> None:
    assert GroupRecord.parse(record.packed()) == record


def test_the_octets_stay_as_they_are() -> None:
    record = GroupRecord("g", 7, (Committed("t", 0, 5, -1, "m", 9),), Generation(1))
    assert record.packed() == (
        b'{"v": 1, "group": "g", "counter": 7, "offsets": [["t", 0, 5, -1, "m", 9]], '
        b'"generation": {"number": 1}}'
    )


@pytest.mark.parametrize(
    "members",
    [
        {"v": 2, "group": "g"},
        {"v": 1, "group": "g", "counter": -1},
        {"v": 1, "group": "g", "counter": 2**63},
        {"v": 1, "group": 7},
        {"v": 1, "group": "g", "offsets": [["t", -1, 0]]},
        {"v": 1, "group": "g", "offsets": [["t", 0, -(2**63) - 1]]},
        {"v": 1, "group": "g", "offsets": [["t", 0, 2**63]]},
        {"v": 1, "group": "g", "offsets": [["t"]]},
        {"v": 1, "generation": {"number": 1, "members": [{}]}},
        [],
        "g",
    ],
)
def test_what_is_no_record_is_refused(members: object) -> None:
    with pytest.raises(InvalidRequestError):
        GroupRecord.parse(json.dumps(members).encode())
