"""The limits of a message's fields: valid values pass the codec, others do not."""

from __future__ import annotations

from dataclasses import replace
from struct import Struct
from typing import Any

import pytest

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
from dafka_core.model.name_limits import text_size_bytes
from dafka_core.model.records import NO_VERSION, KnownStore, PartitionInfo, Transaction
from dafka_core.protocol import messages as m
from dafka_core.protocol.codec import decode, encode
from dafka_core.protocol.limits import MAX_BATCH_COUNT, MAX_SEQUENCE, MAX_STORES
from tests.unit.protocol.costs import quickly_and_without_memory


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("long", ["x" * 255, "é" * 127 + "x"])
def test_255_bytes_fit(layout: str, long: str) -> None:
    for message in (
        m.RecordMessage(long, long, 1, b"v"),
        m.DirectRecord(long, long, long, 1, b"v"),
        m.Fetch(long, long, long, 1, 1),
        m.GetHeads(long, long),
        m.ConsumerHello(long, long, (long, long)),
        m.TimesQuery(long, 1, long, long, 0, 1),
        m.HeadsReply(long, 1, long, 0, 1, (PartitionInfo(long, long, 0, 1),)),
        m.FetchBatch(long, long, (PartitionInfo(long, long, 0, 1),)),
        m.DirectRecordBatches(long, (PartitionInfo(long, long, 0, 1),), (None,), 0, bytes(4)),
        m.EpochAck(long, long, 1, long, NO_LIFE),
        m.HistoryQuery(long, 1, long, long),
        m.HistoryReply(long, 1, long, long, long, 1, NO_LIFE, (), (long, long)),
        m.StoresKnown(long, long, (KnownStore(long),)),
    ):
        assert decode(encode(message, layout)) == message


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


BATCHES: list[m.RecordBatchMessage | m.DirectRecordBatch] = [
    m.RecordBatchMessage("t", "P", 7, 1, bytes(4)),
    m.DirectRecordBatch("C", "t", "P", 7, 1, bytes(4)),
]
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
        m.EpochAck("P", "t", 9, "S", EpochId(MAX_NUMBER, 7, 1)),
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


@pytest.mark.parametrize(
    ("text", "size_bytes"), [("", 0), ("abc", 3), ("é", 2), ("\udcff", 1), ("日本\udc80", 7)]
)
def test_text_size_is_that_on_the_wire(text: str, size_bytes: int) -> None:
    assert text_size_bytes(text) == size_bytes


def test_longest_endpoints_of_known_stores_fit() -> None:
    host = f"tcp://{'h.' * 127}h:65535"
    longest = [KnownStore(f"S{n}".ljust(255, "x"), host, 1, True) for n in range(MAX_STORES)]
    message = m.StoresKnown("C", "S", tuple(longest))
    for layout in LAYOUTS:
        assert decode(encode(message, layout)) == message
