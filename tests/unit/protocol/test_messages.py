"""A message object cannot be invalid, and its ``end`` is exclusive."""

import re
from dataclasses import replace
from pathlib import Path
from struct import Struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dafka_core.config.node_options import LAYOUTS
from dafka_core.errors import ProtocolError
from dafka_core.model.epochs import (
    EPOCH_BYTES,
    MAX_EPOCHS,
    MAX_NUMBER,
    NO_LIFE,
    Epoch,
    EpochId,
    History,
)
from dafka_core.model.name_limits import MAX_ADDRESS_BYTES, MAX_TOPIC_BYTES
from dafka_core.model.records import (
    NO_VERSION,
    KnownStore,
    PartitionInfo,
    RecordBatch,
    TopicPartition,
    Transaction,
    times_between,
)
from dafka_core.protocol import messages as m
from dafka_core.protocol.codec import decode, encode, subscription
from dafka_core.protocol.limits import (
    MAX_BATCH_COUNT,
    MAX_FETCH_COUNT,
    MAX_FETCH_PARTITIONS,
    MAX_HELLO_BYTES,
    MAX_REPLY_ENTRIES,
    MAX_SEQUENCE,
    MAX_STORES,
    RUN_BYTES,
)
from dafka_core.protocol.messages import Message
from tests.unit.protocol.costs import quickly_and_without_memory
from tests.unit.protocol.strategies import COMMANDS, packed, runs_of
from tests.unit.protocol.vectors import VECTORS

MESSAGES = {type(vector.message): vector.message for vector in VECTORS}
FETCH = m.Fetch("C", "t", "P", 1, 2)
HEAD_ENTRY = PartitionInfo("t", "P", 1, 2)
HEADS_REPLY = m.HeadsReply("C", 1, "S", 0, 1, (HEAD_ENTRY,))
TIMES_REPLY = m.TimesReply("C", 1, "S", 0, 1, ((1, 2),))
RANGE = PartitionInfo("t", "P", 0, MAX_FETCH_COUNT)
FETCH_BATCH = m.FetchBatch("S", "C", (RANGE,))
TIMES_QUERY = m.TimesQuery("C", 1, "t", "P", 1, 2)

MAY_BE_EMPTY = [
    (MESSAGES[kind], name)
    for kind, name in (
        (m.Ack, "store"),
        (m.GetHeads, "topic"),
        (m.ConsumerHello, "store"),
        (m.StoreHello, "consumer"),
    )
]


def fields_named(*names: str) -> list[tuple[m.Message, str]]:
    """Return each message with such a field, and the field's name."""
    return [(each, name) for kind, each in MESSAGES.items() for name in names if name in kind.kinds]


ALL_NAMES = fields_named("topic", "partition", "requestor", "store", "consumer")
BAD_NAMES = {
    "too long": "x" * 256,
    "too long as UTF-8": "é" * 128,
    "with NUL": "a\0b",
    "with a surrogate": "\ud800",
    "with escaped UTF-8": b"\xc3".decode("utf-8", "surrogateescape")
    + b"\xa9".decode("utf-8", "surrogateescape"),
}


def changed(message: m.Message, name: str, value: Any) -> m.Message:
    return replace(message, **{name: value})


@pytest.mark.parametrize(("message", "name"), ALL_NAMES)
def test_names_have_1_to_255_bytes_that_the_wire_can_carry(message: m.Message, name: str) -> None:
    assert MAX_TOPIC_BYTES == MAX_ADDRESS_BYTES == 255
    may_be_empty = (message, name) in MAY_BE_EMPTY
    for good in ("x" * 255, "é" * 127 + "x", *[""] * may_be_empty):
        assert getattr(changed(message, name, good), name) == good
    for bad in BAD_NAMES.values():
        with pytest.raises(ProtocolError):
            changed(message, name, bad)
    if not may_be_empty:
        with pytest.raises(ProtocolError, match="must have 1 to 255 bytes"):
            changed(message, name, "")


BAD_HEADS = [
    PartitionInfo("", "P", 1, 2),
    PartitionInfo("t", "", 1, 2),
    PartitionInfo("t", "P", 3, 2),
    PartitionInfo("t", "P", -1, 2),
    PartitionInfo("t", "P", 1, MAX_SEQUENCE + 2),
]
BAD_RANGES = [
    PartitionInfo("t", "P", 2, 2),
    PartitionInfo("t", "P", 0, MAX_FETCH_COUNT + 1),
    PartitionInfo("t", "P", MAX_SEQUENCE, MAX_SEQUENCE + 2),
]
BAD_NUMBERS = [
    *((*each, MAX_SEQUENCE, "a sequence") for each in fields_named("sequence")),
    *((*each, 2**64 - 1, "a query") for each in fields_named("query")),
    (FETCH, "count", MAX_FETCH_COUNT, "a count"),
    (TIMES_QUERY, "end", MAX_SEQUENCE + 1, "an end"),
    (m.RecordTooLarge("C", "t", "P", 1, 2), "size_bytes", MAX_SEQUENCE, "a record's size"),
]
BAD_LISTS = [
    *((HEADS_REPLY, "entries", (HEAD_ENTRY, bad), "must") for bad in BAD_HEADS),
    *((HEADS_REPLY, "entries", (bad,), "must") for bad in BAD_HEADS),
    *((FETCH_BATCH, "entries", (RANGE, bad), "must|a range has") for bad in BAD_HEADS + BAD_RANGES),
    (FETCH_BATCH, "entries", (), "one partition at least"),
    *((TIMES_REPLY, "entries", ((1, 2), bad), "must") for bad in ((-1, 0), (0, 2**63))),
    *(
        (MESSAGES[m.StoreEndpoints], "locations", bad, "endpoint")
        for bad in ((), ("h:1",) * 9, ("",), ("g" * 401,), ("h:1", "a\nb"), ("grpc://é",))
    ),
    *(
        (MESSAGES[m.StoresKnown], "entries", (KnownStore(*bad),), why)
        for *bad, why in (
            ("", "an address must have 1 to 255 bytes"),
            ("S", "tcp://h", "an endpoint must be tcp://HOST:PORT"),
            ("S", "tcp://h\n:1", "an endpoint must be tcp://HOST:PORT"),
            ("S", "", 2**63, "a sequence must be between"),
        )
    ),
]
COUNTS = [
    (HEADS_REPLY, "entries", HEAD_ENTRY, MAX_REPLY_ENTRIES),
    (TIMES_REPLY, "entries", (1, 2), MAX_REPLY_ENTRIES),
    (FETCH_BATCH, "entries", RANGE, MAX_FETCH_PARTITIONS),
    (MESSAGES[m.StoresKnown], "entries", KnownStore("S"), MAX_STORES),
    (MESSAGES[m.HistoryReply], "stores", "S", MAX_STORES),
    (MESSAGES[m.StoreEndpoints], "locations", "g" * 400, 8),
]


@pytest.mark.parametrize(("message", "name", "most", "what"), BAD_NUMBERS)
def test_numbers_are_limited(message: m.Message, name: str, most: int, what: str) -> None:
    if not isinstance(message, m.Packed | m.TimesQuery):  # others limit these, too
        for good in (0, most):
            assert getattr(changed(message, name, good), name) == good
    for bad in (-1, most + 1, 2**64):
        with pytest.raises(ProtocolError, match=f"{what} must be between 0 and"):
            changed(message, name, bad)


@pytest.mark.parametrize(("message", "name", "entries", "why"), BAD_LISTS)
def test_entries_are_checked(message: m.Message, name: str, entries: Any, why: str) -> None:
    with pytest.raises(ProtocolError, match=why):
        changed(message, name, entries)


@pytest.mark.parametrize(("message", "name", "entry", "most"), COUNTS)
def test_entries_are_limited(message: m.Message, name: str, entry: Any, most: int) -> None:
    for layout in LAYOUTS:
        longest = changed(message, name, (entry,) * most)
        assert decode(encode(longest, layout)) == longest
    with pytest.raises(ProtocolError, match=rf"must be between 0 and {most}|1 to {most} endpoints"):
        changed(message, name, (entry,) * (most + 1))


@pytest.mark.parametrize("kind", [m.ConsumerHello, m.HeadsQuery])
def test_topics_are_checked_one_by_one_and_together(kind: type[m.Message]) -> None:
    message = MESSAGES[kind]
    fitting = ("x" * 255,) * (MAX_HELLO_BYTES // 2 // 259)
    longest = changed(message, "topics", fitting)
    assert decode(encode(longest)) == longest
    with pytest.raises(ProtocolError, match=f"at most {MAX_HELLO_BYTES // 2} bytes"):
        changed(message, "topics", (*fitting, "x" * 255))
    for bad in ("", *BAD_NAMES.values()):
        with pytest.raises(ProtocolError):
            changed(message, "topics", ("good", bad))


@pytest.mark.parametrize("reply", [HEADS_REPLY, TIMES_REPLY])
def test_a_part_is_one_of_the_parts(reply: m.HeadsReply | m.TimesReply) -> None:
    for part, parts in ((0, 1), (1, 2), (0, 2**32 - 1), (2**32 - 2, 2**32 - 1)):
        again = replace(reply, part=part, parts=parts)
        assert (again.part, again.parts) == (part, parts)
    for part, parts in ((0, 0), (1, 1), (-1, 1), (0, -1), (0, 2**32)):
        with pytest.raises(ProtocolError, match="a part must be below the number of parts"):
            replace(reply, part=part, parts=parts)


def test_batches_of_many_partitions_arrive_unchanged() -> None:
    batches = [
        RecordBatch.of(TopicPartition("t", "P"), 7, [b"one", b"", b"ab"]),
        RecordBatch.of(TopicPartition("u", "Q"), 0, [b""]),
        RecordBatch.of(TopicPartition("t", "R"), 1, [b"x" * 1_000, b"y"]),
    ]
    parts = [batch.between(batch.offset, batch.offset + 1) for batch in batches]
    assert list(m.DirectRecordBatches.of("C", batches).batches()) == batches
    assert list(m.DirectRecordBatches.of("C", parts).batches()) == parts


def test_messages_of_a_partition_name_it() -> None:
    for message in MESSAGES.values():
        if isinstance(message, m.OfPartition):
            assert message.tp == (message.topic, message.partition)
        if isinstance(message, m.UpTo):
            assert message.end == message.sequence + 1


def test_the_end_after_the_greatest_offset_is_valid() -> None:
    end = m.Head("t", "P", MAX_SEQUENCE).end
    assert end == 2**63 - 1
    assert replace(TIMES_QUERY, end=end).end == end
    assert replace(HEADS_REPLY, entries=(PartitionInfo("t", "P", 0, end),)).entries[0].end == end
    assert FETCH.end == 3
    assert replace(FETCH, count=0).end == 1
    for count in (1, MAX_FETCH_COUNT):
        assert replace(FETCH, sequence=MAX_SEQUENCE, count=count).end == end


@pytest.mark.parametrize("kind", COMMANDS, ids=lambda kind: kind.__name__)
def test_each_field_of_a_message_is_checked(kind: type[m.Message]) -> None:
    made: Any = MESSAGES[kind]
    make: Any = kind
    for name in kind.kinds.keys() - {"life", "promised"}:  # any numbers are a life
        fields = {each: getattr(made, each) for each in make.__slots__}
        with pytest.raises((ProtocolError, TypeError, AttributeError)):
            make(**fields | {name: object()})


# -- packed records -------------------------------------------------------------------------------

BATCHES: list[m.RecordBatchMessage | m.DirectRecordBatch] = [
    m.RecordBatchMessage("t", "P", 7, 1, bytes(4)),
    m.DirectRecordBatch("C", "t", "P", 7, 1, bytes(4)),
]


@given(
    st.lists(st.binary(max_size=3), min_size=1, max_size=5),
    st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=6),
    st.data(),
)
def test_timestamps_of_a_part_survive(
    values: list[bytes], stamps: list[int], data: st.DataObject
) -> None:
    times = np.array(runs_of(len(values), stamps))
    start = data.draw(st.integers(0, len(values) - 1))
    stop = data.draw(st.integers(start + 1, len(values)))
    octets = m.pack_times(times, start, stop)
    content = octets + packed(values[start:stop])
    found = m.unpack_batch(stop - start, content, len(octets) // RUN_BYTES)
    assert found.times is not None
    assert found.times.tolist() == times_between(times, start, stop).tolist()
    assert bytes(found.records) == b"".join(values[start:stop])


@pytest.mark.parametrize("batch", BATCHES, ids=lambda batch: type(batch).__name__)
@pytest.mark.parametrize(
    ("runs", "content", "why"),
    [
        (1, packed([b"a", b"b"], [(1, 5)]), "are not those of its records"),
        (1, packed([b"a", b"b"], [(3, 5)]), "are not those of its records"),
        (2, packed([b"a", b"b"], [(2, 5), (0, 6)]), "are not those of its records"),
        (2, packed([b"a", b"b"], [(2**32 - 1, 5), (3, 6)]), "are not those of its records"),
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


def test_256_bytes_do_not() -> None:
    long = b"x" * 256
    for frames in (
        [b"G" + long + b"\0\x01\x01C"],
        [b"G" + long, b"\xaa\xa5G\x01\x01C"],
        [b"F" + long + b"\0\x01\x01C\x01t" + bytes(12)],
        [b"W" + long + b"\0\x01\x01C" + bytes(4)],
        [b"WS\0\x01\x01C" + (1).to_bytes(4, "big") + (256).to_bytes(4, "big") + long],
    ):
        with pytest.raises(ProtocolError, match="must have 1 to 255 bytes"):
            decode(frames)


EPOCH = Epoch(1, 2, 3, 7, 5)
NO_EPOCH = Epoch(0, 0, 0, 0, 0)
NUMBERS = Struct(">QIqQQ")
TAIL_BYTES = NUMBERS.size + EPOCH_BYTES + 4

COUNT, LENGTHS, SUM = "a batch has 1 to 65536 records", "shorter than its lengths", "do not add up"
SEQUENCE, WITHIN = "a sequence must be between", "within its transaction"
END, VERSION, LIFE = "an end must be", "a version must be", "a life must be"
INVALID = [
    (COUNT, (0, 0), b""),
    (COUNT, (0, MAX_BATCH_COUNT + 1), bytes(4 * MAX_BATCH_COUNT + 4)),
    (COUNT, (0, 2**32 - 1), b""),
    (LENGTHS, (0, 1), b""),
    (LENGTHS, (0, 3), bytes(11)),
    (LENGTHS, (0, MAX_BATCH_COUNT), bytes(4)),
    (SUM, (0, 1), b"\1\0\0\0"),
    (SUM, (0, 1), b"\0\0\0\0x"),
    (SUM, (0, 2), b"\1\0\0\0\1\0\0\0abc"),
    (SUM, (0, 1), b"\0\0\0\1x"),  # big endian
    (SUM, (0, 2), b"\xff\xff\xff\xff\1\0\0\0"),  # 0 in 32 bits
    (SEQUENCE, (MAX_SEQUENCE, 2), bytes(8)),
    (SEQUENCE, (MAX_SEQUENCE + 1, 1), bytes(4)),
    (SEQUENCE, (2**64 - 1, 2), bytes(8)),
    *(
        (why, (7, 1, *transaction), bytes(4))
        for why, *transaction in (
            (WITHIN, 0, 8, 9),
            (WITHIN, 0, 0, 7),
            (WITHIN, 0, 7, 7),
            (WITHIN, 0, 2**64 - 1, 2**63 - 1),
            (WITHIN, 1, 0, 0),
            (END, 0, 0, 2**63),
            (END, 0, 0, 2**64 - 1),
            (VERSION, 2**63 - 1, 0, 8),
            (VERSION, -(2**63), 0, 8),
            (VERSION, -2, 0, 8),
        )
    ),
    *(
        (why, (7, 1, 0, 0, 0, epoch), bytes(4))
        for why, epoch in (
            ("an epoch must be between", EPOCH._replace(number=0)),
            (LIFE, EPOCH._replace(number=MAX_NUMBER + 1)),
            ("an epoch must be between", Epoch(0, 0, 0, 7, 0)),
            ("within its epoch", EPOCH._replace(start=8)),
            (SEQUENCE, EPOCH._replace(start=MAX_SEQUENCE + 1)),
            (SEQUENCE, EPOCH._replace(start=2**64 - 1)),
        )
    ),
]


def numbered(
    batch: m.Message,
    layout: str,
    value: bytes,
    sequence: int,
    count: int,
    version: int = 0,
    start: int = 0,
    end: int = 0,
    epoch: Epoch = NO_EPOCH,
) -> list[bytes]:
    """Return the frames of a batch with other numbers and another content."""
    *others, header, _ = encode(batch, layout)
    tail = NUMBERS.pack(sequence, count, version, start, end) + epoch.packed() + bytes(4)
    return [*others, header[:-TAIL_BYTES] + tail, value]


@pytest.mark.parametrize("batch", BATCHES, ids=lambda batch: type(batch).__name__)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("why", "numbers", "value"), INVALID)
def test_invalid_batches_are_refused(
    batch: m.Message, layout: str, why: str, numbers: tuple[Any, ...], value: bytes
) -> None:
    with quickly_and_without_memory(), pytest.raises(ProtocolError, match=why):
        decode(numbered(batch, layout, value, *numbers))


@pytest.mark.parametrize("batch", BATCHES, ids=lambda batch: type(batch).__name__)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_batch_may_fill_its_transaction_and_begin_its_epoch(
    batch: m.RecordBatchMessage | m.DirectRecordBatch, layout: str
) -> None:
    frames = numbered(batch, layout, bytes(4), 7, 1, NO_VERSION, 7, 8, EPOCH)
    whole = Transaction(NO_VERSION, 7, 8)
    assert decode(frames) == replace(batch, transaction=whole, epoch=EPOCH)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("counts", "value", "why"),
    [
        ((), b"", "a message has 1 to 65536 records"),
        ((MAX_BATCH_COUNT, 1), bytes(4 * MAX_BATCH_COUNT + 4), "a message has 1 to 65536 records"),
        ((1, 2), bytes(11), "shorter than its lengths"),
        ((1, 1), b"\1\0\0\0\1\0\0\0abc", "do not add up"),
        ((1, 1), b"\1\0\0\0\1\0\0\0a", "do not add up"),
        ((1, 1), b"\xff\xff\xff\xff\1\0\0\0", "do not add up"),
    ],
)
def test_invalid_batches_of_many_partitions_are_refused(
    layout: str, counts: tuple[int, ...], value: bytes, why: str
) -> None:
    entries = [PartitionInfo("t", "P", 0, count) for count in counts]
    fields = len(entries).to_bytes(4, "big") + b"".join(
        b"\1t\1P" + bytes(8) + entry.end.to_bytes(8, "big") for entry in entries
    )
    fields += len(entries).to_bytes(4, "big") + bytes(EPOCH_BYTES * len(entries) + 4)
    frames = [b"CC\0\1" + fields, value]
    if layout != LAYOUTS[0]:
        frames = [b"CC", b"\xaa\xa5C\1" + fields, value]
    with pytest.raises(ProtocolError, match=why):
        decode(frames)


LATER = Epoch(2, 0, 1, 9, 6)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "message",
    [
        m.HistoryQuery("C", 1, "t", "P", EpochId(MAX_NUMBER, 7, 1)),
        m.EpochAck("t", "P", 9, "S", EpochId(MAX_NUMBER, 7, 1)),
        m.HistoryReply("C", 1, "S", "t", "P", 10, EpochId(MAX_NUMBER, 7, 1), (), (), None),
    ],
    ids=lambda message: type(message).__name__,
)
def test_a_life_leaves_room_for_greater_numbers(layout: str, message: m.Message) -> None:
    """Otherwise a message could keep a store from beginning its next life."""
    good = EpochId(MAX_NUMBER, 7, 1).packed()
    frames = encode(message, layout)
    assert decode(frames) == message
    wrong = [each.replace(good, EpochId(MAX_NUMBER + 1, 7, 1).packed()) for each in frames]
    assert wrong != frames
    with pytest.raises(ProtocolError, match="a life must be between 0 and"):
        decode(wrong)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("history", "why"),
    [
        ((EPOCH._replace(number=0),), "an epoch must be between"),
        ((EPOCH, LATER._replace(number=MAX_NUMBER + 1)), "a life must be between"),
        ((EPOCH._replace(start=MAX_SEQUENCE + 1),), "a sequence must be between"),
        ((EPOCH, EPOCH), "the epochs of a history ascend"),
        ((EPOCH, LATER._replace(start=7)), "the epochs of a history ascend"),
        ((EPOCH, LATER._replace(start=6)), "the epochs of a history ascend"),
        ((EPOCH, LATER._replace(number=1)), "the epochs of a history ascend"),
        ((LATER, EPOCH), "the epochs of a history ascend"),
    ],
)
def test_invalid_histories_are_refused(layout: str, history: History, why: str) -> None:
    good = (EPOCH, LATER)
    reply = m.HistoryReply("C", 1, "S", "t", "P", 10, NO_LIFE, good)
    frames = encode(reply, layout)
    packed = len(good).to_bytes(4, "big") + b"".join(map(Epoch.packed, good))
    assert packed in frames[-1]
    false = len(history).to_bytes(4, "big") + b"".join(map(Epoch.packed, history))
    frames[-1] = frames[-1].replace(packed, false)
    with pytest.raises(ProtocolError, match=why):
        decode(frames)


INVALID_RANGES = [(3, 3), (4, 3), (3, 11), (2**63, 2**63 + 1), (3, 2**64 - 1)]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("start", "end"), INVALID_RANGES)
def test_invalid_last_transactions_are_refused(layout: str, start: int, end: int) -> None:
    reply = m.HistoryReply("C", 1, "S", "t", "P", 10, NO_LIFE, (), (), Transaction(7, 3, 10))
    frames = encode(reply, layout)
    packed = Struct(">QQ").pack(3, 10)
    assert frames[-1].endswith(packed)
    frames[-1] = frames[-1].removesuffix(packed) + Struct(">QQ").pack(start, end)
    with pytest.raises(ProtocolError, match=r"transaction|a sequence|an end"):
        decode(frames)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_histories_and_their_stores_are_limited(layout: str) -> None:
    history = tuple(Epoch(n, n, 1, n, n) for n in range(1, MAX_EPOCHS + 1))
    stores = tuple(f"S{n}" for n in range(MAX_STORES))
    reply = m.HistoryReply("C", 1, "S", "t", "P", 10, NO_LIFE, history, stores)
    assert decode(encode(reply, layout)) == reply
    more = MAX_EPOCHS + 1
    for fields in ({"history": (*history, Epoch(more, 0, 1, more, 0))}, {"stores": (*stores, "S")}):
        with pytest.raises(ProtocolError, match="must be between 0 and 1000"):
            replace(reply, **fields)
    # A false count allocates no memory.
    frames = encode(m.HistoryReply("C", 1, "S", "t", "P", 10, NO_LIFE, ()), layout)
    for at in (-32, -28):  # a transaction follows them
        false = bytearray(frames[-1])
        false[len(false) + at : len(false) + at + 4] = (1000).to_bytes(4, "big")
        with quickly_and_without_memory(), pytest.raises(ProtocolError, match="ends within"):
            decode([*frames[:-1], bytes(false)])


def test_largest_batches_are_not_refused() -> None:
    value = b"\1\0\0\0" * MAX_BATCH_COUNT + bytes(MAX_BATCH_COUNT)
    last = MAX_SEQUENCE - MAX_BATCH_COUNT + 1
    batch = m.DirectRecordBatch("C", "t", "P", last, MAX_BATCH_COUNT, value)
    for layout in LAYOUTS:
        assert decode(encode(batch, layout)) == batch


def test_longest_endpoints_of_known_stores_fit() -> None:
    host = f"tcp://{'h.' * 127}h:65535"
    longest = [KnownStore(f"S{n}".ljust(255, "x"), host, 1, True) for n in range(MAX_STORES)]
    message = m.StoresKnown("C", "S", tuple(longest))
    for layout in LAYOUTS:
        assert decode(encode(message, layout)) == message


DOCS = Path(__file__).parents[3] / "docs"
PAGE = (DOCS / "wire.md").read_text()
PRINTED_NAMES = {"RECORD-MESSAGE": "RECORD", "RECORD-BATCH-MESSAGE": "RECORD-BATCH"}


@pytest.mark.parametrize("kind", COMMANDS, ids=lambda kind: kind.__name__)
def test_each_command_is_listed_with_its_identifier(kind: type[Message]) -> None:
    name = re.sub("(?<=.)([A-Z])", r"-\1", kind.__name__).upper()
    identifier = subscription(kind).decode()
    row = f"| {PRINTED_NAMES.get(name, name)} | `{identifier}` {ord(identifier):X} |"
    assert PAGE.count(row) == 1, row


def test_no_identifier_is_listed_twice() -> None:
    listed = re.findall(r"^\| [A-Z-]+ \| `([A-Za-z])` ([0-9A-F]{2}) \|", PAGE, re.MULTILINE)
    assert len(listed) == len(set(listed)) == len(COMMANDS)
    assert all(ord(letter) == int(octet, 16) for letter, octet in listed)
