"""A message object cannot be invalid, and its ``end`` is exclusive."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import FrozenInstanceError, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dafka_core.errors import ProtocolError
from dafka_core.model.name_limits import MAX_ADDRESS_BYTES, MAX_TOPIC_BYTES
from dafka_core.model.records import (
    NO_VERSION,
    PartitionInfo,
    RecordBatch,
    TopicPartition,
    Transaction,
    times_between,
)
from dafka_core.protocol import messages
from dafka_core.protocol import messages as m
from dafka_core.protocol.limits import (
    MAX_BATCH_COUNT,
    MAX_FETCH_COUNT,
    MAX_HELLO_BYTES,
    MAX_SEQUENCE,
    RUN_BYTES,
)
from dafka_core.protocol.messages import (
    Ack,
    ConsumerHello,
    DirectHead,
    DirectRecord,
    DirectRecordBatch,
    DirectRecordBatches,
    Fetch,
    FetchBatch,
    GetHeads,
    Head,
    HeadsQuery,
    HeadsReply,
    Message,
    OfPartition,
    RecordBatchMessage,
    RecordMessage,
    RecordTooLarge,
    StoreEndpoints,
    StoreHello,
    TimesQuery,
    TimesReply,
    UpTo,
    pack_times,
    unpack_batch,
)
from tests.unit.protocol.strategies import packed, runs_of
from tests.unit.protocol.vectors import VECTORS

RECORD = RecordMessage("t", "P", 1, b"v")
DIRECT_RECORD = DirectRecord("C", "t", "P", 1, b"v")
FETCH = Fetch("P", "C", "t", 1, 2)
ACK = Ack("P", "t", 1, "S")
HEAD = Head("t", "P", 1)
DIRECT_HEAD = DirectHead("C", "t", "P", 1)
GET_HEADS = GetHeads("t", "C")
CONSUMER_HELLO = ConsumerHello("S", "C", ("t",))
STORE_HELLO = StoreHello("C", "S")
RECORD_BATCH = RecordBatchMessage("t", "P", 1, 1, b"\1\0\0\0v")
DIRECT_BATCH = DirectRecordBatch("C", "t", "P", 1, 1, b"\1\0\0\0v")
HEADS_QUERY = HeadsQuery("C", 1, ("t",))
TIMES_QUERY = TimesQuery("C", 1, "t", "P", 1, 2)
HEADS_REPLY = HeadsReply("C", 1, "S", 0, 1, (PartitionInfo("t", "P", 1, 2),))
TIMES_REPLY = TimesReply("C", 1, "S", 0, 1, ((1, 2),))
FETCH_BATCH = FetchBatch("S", "C", (PartitionInfo("t", "P", 1, 2),))
BATCHES = DirectRecordBatches("C", (PartitionInfo("t", "P", 1, 2),), (None,), 0, b"\1\0\0\0v")

TOO_LARGE = RecordTooLarge("C", "t", "P", 1, 2)

NAMES = [
    (RECORD, "topic"),
    (RECORD, "partition"),
    (DIRECT_RECORD, "requestor"),
    (DIRECT_RECORD, "topic"),
    (DIRECT_RECORD, "partition"),
    (FETCH, "partition"),
    (FETCH, "requestor"),
    (FETCH, "topic"),
    (ACK, "partition"),
    (ACK, "topic"),
    (HEAD, "topic"),
    (HEAD, "partition"),
    (DIRECT_HEAD, "requestor"),
    (DIRECT_HEAD, "topic"),
    (DIRECT_HEAD, "partition"),
    (GET_HEADS, "requestor"),
    (CONSUMER_HELLO, "consumer"),
    (STORE_HELLO, "store"),
    (RECORD_BATCH, "topic"),
    (RECORD_BATCH, "partition"),
    (DIRECT_BATCH, "requestor"),
    (DIRECT_BATCH, "topic"),
    (DIRECT_BATCH, "partition"),
    (HEADS_QUERY, "requestor"),
    (TIMES_QUERY, "requestor"),
    (TIMES_QUERY, "topic"),
    (TIMES_QUERY, "partition"),
    (HEADS_REPLY, "requestor"),
    (HEADS_REPLY, "store"),
    (TIMES_REPLY, "requestor"),
    (TIMES_REPLY, "store"),
    (TOO_LARGE, "requestor"),
    (TOO_LARGE, "topic"),
    (TOO_LARGE, "partition"),
    (FETCH_BATCH, "store"),
    (FETCH_BATCH, "requestor"),
    (BATCHES, "requestor"),
]
NAMES_THAT_MAY_BE_EMPTY = [
    (ACK, "store"),
    (GET_HEADS, "topic"),
    (CONSUMER_HELLO, "store"),
    (STORE_HELLO, "consumer"),
]
SEQUENCES = [
    (RECORD, "sequence"),
    (DIRECT_RECORD, "sequence"),
    (FETCH, "sequence"),
    (ACK, "sequence"),
    (HEAD, "sequence"),
    (DIRECT_HEAD, "sequence"),
    (TIMES_QUERY, "sequence"),
    (RECORD_BATCH, "sequence"),
    (DIRECT_BATCH, "sequence"),
    (TOO_LARGE, "sequence"),
]
UNSIGNED = [
    (HEADS_QUERY, "query", 64),
    (TIMES_QUERY, "query", 64),
    (HEADS_REPLY, "query", 64),
    (TIMES_REPLY, "query", 64),
]
BAD_NAMES = {
    "too long": "x" * 256,
    "too long as UTF-8": "é" * 128,
    "with NUL": "a\0b",
    "with a surrogate": "\ud800",
    "with escaped UTF-8": b"\xc3".decode("utf-8", "surrogateescape")
    + b"\xa9".decode("utf-8", "surrogateescape"),
}


def changed(message: Message, name: str, value: Any) -> Message:
    return replace(message, **{name: value})


@pytest.mark.parametrize(("message", "name"), NAMES)
def test_names_must_not_be_empty(message: Message, name: str) -> None:
    with pytest.raises(ProtocolError, match="must have 1 to 255 bytes"):
        changed(message, name, "")


@pytest.mark.parametrize(("message", "name"), NAMES_THAT_MAY_BE_EMPTY)
def test_some_names_may_be_empty(message: Message, name: str) -> None:
    assert getattr(changed(message, name, ""), name) == ""


@pytest.mark.parametrize("bad", BAD_NAMES.values(), ids=BAD_NAMES)
@pytest.mark.parametrize(("message", "name"), [*NAMES, *NAMES_THAT_MAY_BE_EMPTY])
def test_names_must_be_possible_on_the_wire(message: Message, name: str, bad: str) -> None:
    with pytest.raises(ProtocolError):
        changed(message, name, bad)


@pytest.mark.parametrize(("message", "name"), [*NAMES, *NAMES_THAT_MAY_BE_EMPTY])
def test_names_may_have_255_bytes(message: Message, name: str) -> None:
    assert MAX_TOPIC_BYTES == MAX_ADDRESS_BYTES == 255
    for longest in ("x" * 255, "é" * 127 + "x"):
        assert getattr(changed(message, name, longest), name) == longest


@pytest.mark.parametrize(("message", "name"), SEQUENCES)
def test_sequences_must_fit_signed_64_bits(message: Message, name: str) -> None:
    for good in (0, MAX_SEQUENCE):
        assert getattr(changed(message, name, good), name) == good
    for bad in (-1, MAX_SEQUENCE + 1, 2**64):
        with pytest.raises(ProtocolError, match="a sequence must lie in 0 to"):
            changed(message, name, bad)


@pytest.mark.parametrize(("message", "name", "bits"), UNSIGNED)
def test_numbers_must_fit_their_field(message: Message, name: str, bits: int) -> None:
    for good in (0, 2**bits - 1):
        assert getattr(changed(message, name, good), name) == good
    for bad in (-1, 2**bits):
        with pytest.raises(ProtocolError, match=f"a query must lie in 0 to {2**bits - 1}"):
            changed(message, name, bad)


def test_fetch_count_is_limited() -> None:
    assert replace(FETCH, count=MAX_FETCH_COUNT).count == MAX_FETCH_COUNT
    for bad in (-1, MAX_FETCH_COUNT + 1):
        with pytest.raises(ProtocolError, match="a count must lie in 0 to 100000"):
            replace(FETCH, count=bad)


@pytest.mark.parametrize("message", [CONSUMER_HELLO, HEADS_QUERY])
def test_topics_are_checked_one_by_one_and_together(message: Message) -> None:
    fitting = ("x" * 255,) * (MAX_HELLO_BYTES // 2 // 259)
    changed(message, "topics", fitting)
    with pytest.raises(ProtocolError, match=f"at most {MAX_HELLO_BYTES // 2} bytes"):
        changed(message, "topics", (*fitting, "x" * 255))
    for bad in ("", *BAD_NAMES.values()):
        with pytest.raises(ProtocolError):
            changed(message, "topics", ("good", bad))


@pytest.mark.parametrize("reply", [HEADS_REPLY, TIMES_REPLY])
def test_a_part_is_one_of_the_parts(reply: HeadsReply | TimesReply) -> None:
    for part, parts in ((0, 1), (1, 2), (0, 2**32 - 1), (2**32 - 2, 2**32 - 1)):
        again = replace(reply, part=part, parts=parts)
        assert (again.part, again.parts) == (part, parts)
    for part, parts in ((0, 0), (1, 1), (-1, 1), (0, -1), (0, 2**32)):
        with pytest.raises(ProtocolError, match="a part must be below the number of parts"):
            replace(reply, part=part, parts=parts)


@pytest.mark.parametrize(
    "locations",
    [(), ("grpc://h:1",) * 9, ("",), ("g" * 401,), ("grpc://h:1", "a\nb"), ("grpc://é",)],
)
def test_endpoints_are_checked(locations: tuple[str, ...]) -> None:
    assert StoreEndpoints("C1", "S1", ("g" * 400,) * 8).locations[7] == "g" * 400
    with pytest.raises(ProtocolError, match="endpoint"):
        StoreEndpoints("C1", "S1", locations)


@pytest.mark.parametrize("batch", [RECORD_BATCH, DIRECT_BATCH])
def test_batches_are_checked(batch: RecordBatchMessage | DirectRecordBatch) -> None:
    for count, value in ((0, b""), (-1, b""), (2, b"\1\0\0\0v"), (1, b""), (1, b"\1\0\0\0")):
        with pytest.raises(ProtocolError):
            replace(batch, count=count, value=value)
    with pytest.raises(ProtocolError, match="a sequence must lie in"):
        replace(batch, sequence=MAX_SEQUENCE, count=2, value=bytes(8))


@pytest.mark.parametrize("batch", [RECORD_BATCH, DIRECT_BATCH])
def test_transactions_of_batches_are_checked(batch: RecordBatchMessage | DirectRecordBatch) -> None:
    for right in (
        Transaction(NO_VERSION, 1, 2),
        Transaction(0, 0, 9),
        Transaction(MAX_SEQUENCE, 1, MAX_SEQUENCE + 1),
    ):
        assert replace(batch, transaction=right).transaction == right
    for wrong in (
        Transaction(-2, 1, 2),
        Transaction(MAX_SEQUENCE + 1, 1, 2),
        Transaction(0, 2, 3),
        Transaction(0, 0, 1),
        Transaction(0, -1, 2),
        Transaction(0, 1, MAX_SEQUENCE + 2),
    ):
        with pytest.raises(ProtocolError, match=r"version|transaction|end"):
            replace(batch, transaction=wrong)


def test_batches_of_many_partitions_come_as_they_were() -> None:
    batches = [
        RecordBatch.of(TopicPartition("t", "P"), 7, [b"one", b"", b"ab"]),
        RecordBatch.of(TopicPartition("u", "Q"), 0, [b""]),
        RecordBatch.of(TopicPartition("t", "R"), 1, [b"x" * 1_000, b"y"]),
    ]
    parts = [batch.between(batch.offset, batch.offset + 1) for batch in batches]
    assert list(DirectRecordBatches.of("C", batches).batches()) == batches
    assert list(DirectRecordBatches.of("C", parts).batches()) == parts
    with pytest.raises(ProtocolError):
        replace(DirectRecordBatches.of("C", batches), value=b"")


def test_a_fetch_batch_asks_for_something() -> None:
    with pytest.raises(ProtocolError, match="one partition at least"):
        replace(FETCH_BATCH, entries=())


@pytest.mark.parametrize("message", [ACK, HEAD, DIRECT_HEAD])
def test_end_is_after_the_last_record(message: Ack | Head | DirectHead) -> None:
    assert message.end == 2


def test_end_of_the_last_record_there_can_be_is_valid() -> None:
    end = Head("t", "P", MAX_SEQUENCE).end
    assert end == 2**63 - 1
    assert replace(TIMES_QUERY, end=end).end == end
    assert replace(HEADS_REPLY, entries=(PartitionInfo("t", "P", 0, end),)).entries[0].end == end
    for bad in (-1, end + 1):
        with pytest.raises(ProtocolError, match="an end must lie in 0 to"):
            replace(TIMES_QUERY, end=bad)


def test_end_of_a_fetch_fits_signed_64_bits() -> None:
    assert FETCH.end == 3
    assert replace(FETCH, count=0).end == 1
    assert replace(FETCH, sequence=MAX_SEQUENCE, count=1).end == 2**63 - 1
    assert replace(FETCH, sequence=MAX_SEQUENCE, count=MAX_FETCH_COUNT).end == 2**63 - 1


@pytest.mark.parametrize(
    "change",
    [lambda: setattr(HEAD, "sequence", -1), lambda: setattr(HEADS_REPLY, "entries", ())],
)
def test_messages_cannot_be_changed(change: Callable[[], None]) -> None:
    with pytest.raises(FrozenInstanceError):
        change()


def test_a_record_has_a_size() -> None:
    for good in (0, MAX_SEQUENCE):
        assert replace(TOO_LARGE, size_bytes=good).size_bytes == good
    for bad in (-1, MAX_SEQUENCE + 1):
        with pytest.raises(ProtocolError, match="a record's size"):
            replace(TOO_LARGE, size_bytes=bad)


KINDS = [
    kind
    for _, kind in inspect.getmembers(messages, inspect.isclass)
    if issubclass(kind, Message) and not kind.__subclasses__()
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_each_field_of_a_message_that_travels_is_checked(kind: type[Message]) -> None:
    made = next(vector.message for vector in VECTORS if type(vector.message) is kind)
    make: Any = kind
    for name in kind.kinds.keys() - {"life", "promised"}:  # any numbers are a life
        fields = {each: getattr(made, each) for each in make.__slots__}
        with pytest.raises((ProtocolError, TypeError, AttributeError)):
            make(**fields | {name: object()})


def test_messages_of_a_partition_name_it() -> None:
    for message in (vector.message for vector in VECTORS):
        if isinstance(message, OfPartition):
            assert message.tp == (message.topic, message.partition)
        if isinstance(message, UpTo):
            assert message.end == message.sequence + 1


PACKED_RECORDS_BATCHES: list[m.RecordBatchMessage | m.DirectRecordBatch] = [
    m.RecordBatchMessage("t", "P", 7, 1, bytes(4)),
    m.DirectRecordBatch("C", "t", "P", 7, 1, bytes(4)),
]


def test_the_most_records_there_may_be() -> None:
    value = b"\1\0\0\0" * MAX_BATCH_COUNT + bytes(MAX_BATCH_COUNT)
    lengths, records, times = unpack_batch(MAX_BATCH_COUNT, value)
    assert times is None
    assert lengths.tolist() == [1] * MAX_BATCH_COUNT
    assert records == bytes(MAX_BATCH_COUNT)


@given(
    st.lists(st.binary(max_size=3), min_size=1, max_size=5),
    st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=6),
    st.data(),
)
def test_timestamps_of_a_part_come_back(
    values: list[bytes], stamps: list[int], data: st.DataObject
) -> None:
    times = np.array(runs_of(len(values), stamps))
    start = data.draw(st.integers(0, len(values) - 1))
    stop = data.draw(st.integers(start + 1, len(values)))
    octets = pack_times(times, start, stop)
    content = octets + packed(values[start:stop])
    found = unpack_batch(stop - start, content, len(octets) // RUN_BYTES)
    assert found.times is not None
    assert found.times.tolist() == times_between(times, start, stop).tolist()
    assert bytes(found.records) == b"".join(values[start:stop])


@pytest.mark.parametrize("batch", PACKED_RECORDS_BATCHES, ids=lambda batch: type(batch).__name__)
@pytest.mark.parametrize(
    ("runs", "content", "why"),
    [
        (1, packed([b"a", b"b"], [(1, 5)]), "are not those of its records"),
        (1, packed([b"a", b"b"], [(3, 5)]), "are not those of its records"),
        (2, packed([b"a", b"b"], [(2, 5), (0, 6)]), "are not those of its records"),
        (2, packed([b"a", b"b"], [(2**32 - 1, 5), (3, 6)]), "are not those of its records"),
        (1, packed([b"a", b"b"], [(2, -1)]), "a timestamp is after the epoch"),
        (1, packed([b"a", b"b"]), "shorter than its lengths"),
        (2**32 - 1, packed([b"a", b"b"], [(2, 5)]), "shorter than its lengths"),
    ],
)
def test_timestamps_are_those_of_the_records(
    batch: m.RecordBatchMessage | m.DirectRecordBatch, runs: int, content: bytes, why: str
) -> None:
    with pytest.raises(ProtocolError, match=why):
        replace(batch, count=2, runs=runs, value=content)
    right = packed([b"a", b"b"], [(2, 5)])
    assert replace(batch, count=2, runs=1, value=right).value == right


def test_a_run_of_timestamps_has_records_of_one_partition() -> None:
    entries = (PartitionInfo("t", "P", 3, 5), PartitionInfo("t", "Q", 0, 1))
    values = [b"a", b"b", b"c"]
    for runs in ([(3, 5)], [(1, 5), (2, 6)]):
        with pytest.raises(ProtocolError, match="records of one partition"):
            m.DirectRecordBatches("C", entries, (None, None), len(runs), packed(values, runs))
    runs = [(1, 5), (1, 6), (1, 4)]
    batches = m.DirectRecordBatches("C", entries, (None, None), 3, packed(values, runs))
    found = [*batches.batches()]
    assert [b.times.tolist() for b in found if b.times is not None] == [[[1, 5], [1, 6]], [[1, 4]]]
    assert m.DirectRecordBatches.of("C", found) == batches
