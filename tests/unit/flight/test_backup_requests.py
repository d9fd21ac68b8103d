"""The wire form of a log's entries, and requests for them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from msgspec.structs import astuple

from dafka_core.errors import InvalidRequestError
from dafka_core.flight.backup_requests import (
    BACKUP_TICKET,
    BATCH_BYTES,
    BATCH_ENTRIES,
    SCHEMA,
    BackupRequest,
    CheckRequest,
    FoundLinks,
    LinksRequest,
    LogChecked,
    batches,
    entries_of,
)
from dafka_core.flight.limits import MAX_KNOWN, MAX_TICKET_BYTES
from dafka_core.flight.requests import GetRequest, RecordRange
from dafka_core.model.records import TopicPartition
from dafka_core.storage.backup import BLOCKS, META, Entry
from dafka_core.storage.log_check import Checked, Damage, PartitionLink


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
    assert Checked(*astuple(LogChecked.parse(LogChecked(*checked).packed()))) == checked
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
