"""Commits of groups: the newest wins, in any order of reading."""

import json
import random

import pytest

from dafka_core.errors import InvalidRequestError
from dafka_kafka.groups.group import Generation, Joining, KeptMember
from dafka_kafka.groups.offsets import (
    MAX_RECORD_OFFSETS,
    Committed,
    GroupRecord,
    Offsets,
    records_of,
)

A, B = "A" * 32, "B" * 32


def commit(counter: int, offset: int, number: int = 0, group: str = "g") -> GroupRecord:
    return GroupRecord(group, counter, (Committed("t", number, offset),))


def taken(*records: tuple[str, GroupRecord]) -> Offsets:
    offsets = Offsets()
    for writer, record in records:
        offsets.take(writer, record)
    return offsets


def positions(offsets: Offsets, group: str = "g") -> dict[tuple[str, int], int]:
    return {place: each.offset for place, each in offsets.committed(group).items()}


def test_the_newest_commit_of_each_partition_counts() -> None:
    offsets = taken((A, commit(1, 10)), (A, commit(2, 5, 1)), (A, commit(3, 8)))
    assert positions(offsets) == {("t", 0): 8, ("t", 1): 5}
    assert positions(offsets, "h") == {}


def test_a_gateway_that_takes_over_counts_on() -> None:
    offsets = taken((A, commit(41, 10)))
    assert [offsets.next_counter(), offsets.next_counter()] == [42, 43]
    offsets.take(B, commit(50, 1, group="other"))
    assert offsets.next_counter() == 51


def test_of_the_same_counter_the_higher_address_counts() -> None:
    assert positions(taken((A, commit(5, 1)), (B, commit(5, 2)))) == {("t", 0): 2}
    assert positions(taken((B, commit(5, 2)), (A, commit(5, 1)))) == {("t", 0): 2}


def test_what_is_deleted_stays_so_whenever_older_records_are_read() -> None:
    gone = taken((B, commit(3, -1)), (A, commit(2, 10)))
    assert positions(gone) == {}
    assert not gone.is_there("g")
    deleted = taken(
        (B, GroupRecord("g", 3, deleted=True)), (A, commit(2, 10)), (A, commit(4, 1, 1))
    )
    assert positions(deleted) == {("t", 1): 1}


def test_a_negative_offset_is_a_commit_and_survives_a_rewrite() -> None:
    lows = (-1, -2, -(2**63))
    commits = tuple(Committed("t", at, low, time_ms=7) for at, low in enumerate(lows))
    offsets = taken((A, commit(1, 10)), (A, GroupRecord("g", 2, commits)))
    expected = {("t", 0): -1, ("t", 1): -2, ("t", 2): -(2**63)}
    assert positions(offsets) == expected
    assert offsets.is_there("g")
    offsets.forget({A: 99})
    again = taken(*((A, GroupRecord.parse(each.packed())) for each in offsets.repeated(A)))
    assert positions(again) == expected
    again.take(A, commit(3, -1))  # as OffsetDelete writes it: without a time
    assert positions(again) == {("t", 1): -2, ("t", 2): -(2**63)}


def test_a_groups_generation_is_the_newest() -> None:
    offsets = taken(
        (B, GroupRecord("g", 6, generation=Generation(4))),
        (A, GroupRecord("g", 5, generation=Generation(9))),
    )
    assert offsets.generation("g") == Generation(4)
    assert [*offsets.groups()] == ["g"]  # it had members
    assert not offsets.has_commits("g")
    member = KeptMember("m", Joining("m", (), 1.0, 1.0))
    offsets.take(A, GroupRecord("g", 7, generation=Generation(5, members=(member,))))
    assert [*offsets.groups()] == ["g"]
    offsets.take(A, GroupRecord("g", 8, deleted=True))
    assert offsets.generation("g") is None
    assert [*offsets.groups()] == []


def test_a_group_was_used_when_it_last_committed_or_changed() -> None:
    offsets = taken((A, GroupRecord("g", 1, (Committed("t", 0, 5, time_ms=7),))))
    assert (offsets.used_ms("g"), offsets.used_ms("other")) == (7, 0)
    offsets.take(A, GroupRecord("g", 2, (Committed("t", 1, 5, time_ms=9),)))
    assert offsets.used_ms("g") == 9
    offsets.take(A, GroupRecord("g", 3, generation=Generation(1, time_ms=12)))
    assert offsets.used_ms("g") == 12


def generation(number: int) -> Generation:
    return Generation(number, members=(KeptMember("m", Joining("m", (), 1.0, 1.0)),))


def test_any_order_and_repetition_gives_the_same() -> None:
    chance = random.Random(1)
    for _ in range(300):
        records = [
            (
                chance.choice([A, B]),
                chance.choice(
                    [
                        commit(counter, chance.randrange(-1, 9), chance.randrange(3)),
                        commit(counter, chance.randrange(9), chance.randrange(3)),
                        GroupRecord("g", counter, generation=generation(counter)),
                        GroupRecord("g", counter, deleted=True),
                    ]
                ),
            )
            for counter in range(1, 12)
        ]
        expected = taken(*records)
        shuffled = [*records, *chance.sample(records, 4)]
        chance.shuffle(shuffled)
        found = taken(*shuffled)
        assert positions(found) == positions(expected)
        assert found.generation("g") == expected.generation("g")
        # Compacted records give the same state beside the other gateway's records.
        expected.forget({A: 99})  # all of A's is compacted
        again = [(A, each) for each in expected.repeated(A)]
        again += [each for each in records if each[0] == B]
        assert positions(taken(*again)) == positions(taken(*records))
        assert taken(*again).generation("g") == taken(*records).generation("g")
        assert positions(expected) == positions(taken(*records))


def test_what_is_written_again_is_what_counts() -> None:
    offsets = taken(
        *((A, commit(counter, counter, counter % 3)) for counter in range(1, 1_000)),
        (A, commit(1_000, 7, group="gone")),
        (A, GroupRecord("gone", 1_001, deleted=True)),
        (A, commit(1_002, -1, 2)),
        (B, commit(1_003, 5, 1)),
    )
    offsets.forget({A: 99})
    assert [each.counter for each in offsets.repeated(A)] == [999, 1_002]
    alone = taken((A, commit(1, 7, group="gone")), (A, GroupRecord("gone", 2, deleted=True)))
    alone.forget({A: 99})
    assert alone.repeated(A) == []  # no other writer has written of it


def test_a_deletion_is_kept_as_long_as_somebodys_older_record_is() -> None:
    def told(*records: tuple[str, int, GroupRecord]) -> Offsets:
        offsets = Offsets()
        for writer, offset, record in records:
            offsets.take(writer, record, offset)
        return offsets

    records = (A, 7, commit(1, 10)), (B, 3, GroupRecord("g", 2, deleted=True))
    deletes = told(*records)
    for begins in ({}, {A: 7, B: 99}):
        deletes.forget(begins)
        assert [each.deleted for each in deletes.repeated(B)] == [True]
        deletes.take(A, records[0][2], 7)
        assert not deletes.is_there("g")
    deletes.forget({A: 8, B: 99})
    assert deletes.repeated(B) == []
    assert deletes._groups == {}
    # At a gateway that has not deleted it, it goes when its own records are compacted.
    follows = told(*records)
    follows.forget({A: 0, B: 0})
    assert [*follows._groups] == ["g"]
    follows.forget({A: 8, B: 0})
    assert follows._groups == {}
    # A group in use stays, whatever its writers.
    used = told(*records, (B, 4, commit(3, 5)))
    used.forget({A: 8, B: 99})
    assert positions(used) == {("t", 0): 5}
    assert [each.deleted for each in used.repeated(B)] == [False]


def test_a_large_commit_is_several_records() -> None:
    count = 2 * MAX_RECORD_OFFSETS + 1
    many = [Committed("t", number, number) for number in range(count)]
    records = [*records_of("g", 1, many)]
    assert len(records) == 3
    assert len(positions(taken(*((A, each) for each in records)))) == count


JOINED = Joining("", (("range", b"\xff\0"),), 10.0, 300.0, "consumer", "one", "app", "::1")
MEMBER = KeptMember("m-1", JOINED, b"\0part")


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
