"""Requests and answers: their wire form, and refusals."""

import json
import re
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dafka_core.errors import InvalidRequestError
from dafka_core.flight import limits, requests
from dafka_core.flight.backup_requests import (
    BACKUP_TICKET,
    BATCH_BYTES,
    BATCH_ENTRIES,
    SCHEMA,
    BackupRequest,
    CheckRequest,
    FoundLinks,
    LinksRequest,
    batches,
    entries_of,
)
from dafka_core.flight.columns import (
    COLUMNS,
    OFFSET,
    TIMESTAMP,
    VALUE,
    Part,
    batch_of,
    packed_parts,
    schema_of,
)
from dafka_core.flight.limits import MAX_KNOWN, MAX_LEASED_BLOCKS, MAX_TICKET_BYTES
from dafka_core.flight.requests import MAX_OFFSET as MAX
from dafka_core.flight.requests import (
    Done,
    DurableEnd,
    GetRequest,
    Heads,
    LeaseGranted,
    Offsets,
    Peers,
    PeersRequest,
    RecordRange,
    TransactionStates,
)
from dafka_core.flight.store_client import records_of
from dafka_core.flight.store_location import StoreLocation
from dafka_core.model.json_message import JsonMessage, short
from dafka_core.model.records import (
    MatchedRecords,
    Neighbour,
    PartitionInfo,
    TopicPartition,
    Transaction,
    TransactionState,
)
from dafka_core.model.values import Values
from dafka_core.storage.backup import BLOCKS, META, Entry
from dafka_core.storage.environment import Space
from dafka_core.storage.leases import MAX_LEASES
from dafka_core.storage.log_check import Checked, Damage, PartitionLink

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


def test_peers_travel_with_names_of_any_octets() -> None:
    made = Peers((Neighbour("A", "consumer", "tcp://h:1", True, ("t\udcff",)), Neighbour("B")))
    assert Peers.parse(made.packed()) == made
    assert PeersRequest.parse(b"") == PeersRequest()


@pytest.mark.parametrize("body", [b'{"v": 1}', b'{"v": 1, "peers": [["A", "", "", 5, []]]}'])
def test_what_is_none_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequestError):
        Peers.parse(body)


def entry(table: int, key: bytes, value: bytes) -> Entry:
    return Entry(table, key, memoryview(value))


def test_entries_come_as_they_were_in_batches_of_bounded_size() -> None:
    large = b"x" * (BATCH_BYTES // 3)
    sent = [entry(META, b"a", b""), *(entry(BLOCKS, b"%d" % n, large) for n in range(7))]
    sent += [entry(META, b"%d" % n, b"v") for n in range(BATCH_ENTRIES + 5)]
    sent += [entry(BLOCKS, b"huge", b"y" * (2 * BATCH_BYTES))]
    made = list(batches(sent))
    assert len(made) >= 5
    assert all(each.nbytes < 1.2 * BATCH_BYTES for each in made[:-1])
    came = entries_of((each, None) for each in made)
    assert [each._replace(value=memoryview(bytes(each.value))) for each in came] == sent


def test_what_is_no_backup_is_refused() -> None:
    other = pa.record_batch({"value": pa.array([b"x"])})
    with pytest.raises(ValueError, match="not of a backup"):
        list(entries_of(iter([(other, None)])))
    columns = [pa.array([9], pa.uint8()), pa.array([b"k"]), pa.array([b"v"], pa.large_binary())]
    with pytest.raises(ValueError, match="table 9 is unknown"):
        list(entries_of(iter([(pa.record_batch(columns, schema=SCHEMA), None)])))


def test_a_ticket_has_room_for_many_partitions() -> None:
    known = tuple((2**40 + n, 2**50 + n, "f" * 16) for n in range(MAX_KNOWN))
    ticket = BackupRequest(known=known, store="S" * 32).checked().packed()
    assert len(ticket) <= MAX_TICKET_BYTES
    assert BACKUP_TICKET.search(ticket)
    assert BackupRequest.parse(ticket).known == known
    with pytest.raises(InvalidRequestError, match="known"):
        BackupRequest(known=(*known, known[0])).checked()


def test_other_tickets_are_not_those_of_backups() -> None:
    where = """key = '{"v": 2}' AND value = '"v":2'"""
    get = GetRequest((RecordRange('"v": 2', '{"v": 2}', 2, 2, (2, 2, 2)),), where=where)
    for ticket in (get.packed(), b'{"v": 1}', b'{"v": 22}', b"", b"\xff"):
        assert not BACKUP_TICKET.search(ticket)
    for ticket in (b'{"v":2}', b'{"known": [], "v" : 2}'):
        assert BACKUP_TICKET.search(ticket)


def test_what_was_checked_travels() -> None:
    checked = Checked(1, 2, 3, 4, (Damage("hole", "t", "p", 5, "why"),), 2)
    assert Checked.parse(checked.packed()) == checked
    request = CheckRequest((TopicPartition("t", "p"),))
    assert CheckRequest.parse(request.packed()) == request


@pytest.mark.parametrize(
    "wrong",
    [{"start": -5}, {"end": 2**64}, {"life": "zz"}, {"records": "a" * 63}, {"chain": "A" * 64}],
)
def test_links_that_cannot_be_are_refused(wrong: dict[str, Any]) -> None:
    link = PartitionLink("t", "p", 0, 5, "0" * 16, "a" * 64, "b" * 64)._replace(**wrong)
    with pytest.raises(InvalidRequestError, match="links"):
        FoundLinks.parse(FoundLinks((link,)).packed())
    with pytest.raises(InvalidRequestError, match="saved"):
        CheckRequest.parse(CheckRequest(saved=(link,)).packed())


def test_links_travel() -> None:
    link = PartitionLink("t", "p", 0, 5, "0" * 16, "a" * 64, "b" * 64)
    assert FoundLinks.parse(FoundLinks((link,)).packed()).links == (link,)
    saved = CheckRequest(saved=(link,))
    assert CheckRequest.parse(saved.packed()) == saved
    request = LinksRequest((link.tp,), newest=True)
    assert LinksRequest.parse(request.packed()) == request


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
