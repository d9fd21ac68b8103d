"""Message sets of v0 and v1, against two other implementations, and invalid ones."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from typing import Any

import pytest
import xxhash
from aiokafka.record import memory_records as aiokafka
from aiokafka.record.legacy_records import LegacyRecordBatchBuilder
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.record import legacy_records as kafka_python
from kafka.record import memory_records as kafka_python_memory

from dafka_kafka import errors
from dafka_kafka.errors import CorruptRecordsError
from dafka_kafka.records import message_set
from dafka_kafka.records.compression import Codec, compressed
from dafka_kafka.records.kafka_batch import NO_TIMESTAMP, KafkaBatch
from dafka_kafka.records.message_set import decode_message_set, encode_message_set
from tests.unit.kafka.records.batches import OCTETS, STAMPS, START_MS, Parts, as_dafka, records_of

VECTORS = {
    0: bytes.fromhex(
        "0000000000000007 00000012 9391e657 00 00 00000001 6b 00000003 616263"  # k, abc
        "0000000000000008 0000000e a7ec6803 00 00 ffffffff ffffffff"  # null, null
    ),
    1: bytes.fromhex(
        "0000000000000007 0000001a 61acc55b 01 00 0000018bcfe56800 00000001 6b 00000003 616263"
        "0000000000000008 00000016 a0e10e1b 01 00 0000018bcfe56800 ffffffff ffffffff"
    ),
}
RECORDS_OF_VECTOR = [Parts(b"k", b"abc"), Parts(None, None)]
RECORDS = st.lists(
    st.builds(Parts, OCTETS, OCTETS, st.just(()), STAMPS.map(lambda delta: max(delta, 0))),
    min_size=1,
    max_size=8,
)
BUILDERS = [LegacyRecordBatchBuilder, kafka_python.LegacyRecordBatchBuilder]


def built(builder: Any, records: Sequence[Parts], magic: int, codec: int = 0) -> bytes:
    made = builder(magic, codec, 1 << 20)
    for offset, (key, value, _, stamp) in enumerate(records):
        made.append(offset, timestamp=stamp, key=key, value=value)
    return bytes(made.build())


def message(
    magic: int, value: bytes | None, attributes: int = 0, offset: int = 0, stamp: int = START_MS
) -> bytes:
    """One message with a valid CRC."""
    head = struct.pack(">bb", magic, attributes) + (struct.pack(">q", stamp) if magic else b"")
    length = struct.pack(">i", -1 if value is None else len(value))
    body = head + b"\xff\xff\xff\xff" + length + (value or b"")
    return struct.pack(">qiI", offset, len(body) + 4, zlib.crc32(body)) + body


def wrapped(magic: int, *inner: bytes, offset: int = 0, attributes: int = 0) -> bytes:
    """Messages compressed in another one."""
    packed = bytes(compressed(Codec.GZIP, b"".join(inner)))
    return message(magic, packed, attributes | Codec.GZIP, offset, START_MS + 9)


def with_crcs(octets: bytes) -> bytes:
    """Parse messages and check their CRCs."""
    parts, at = [], 0
    while at < len(octets):
        size = int.from_bytes(octets[at + 8 : at + 12], "big")
        body = octets[at + 16 : at + 12 + size]
        parts += [octets[at : at + 12], zlib.crc32(body).to_bytes(4, "big"), body]
        at += 12 + size
    return b"".join(parts)


def decoded(octets: bytes) -> list[Parts]:
    return [record for batch in decode_message_set(octets) for record in records_of(batch)]


def offsets_of(batches: Sequence[KafkaBatch]) -> list[list[int]]:
    return [batch.offsets.tolist() for batch in batches]


def as_of(magic: int, records: Sequence[Parts]) -> list[Parts]:
    """The part of records that a message set preserves."""
    return [
        Parts(key, value, (), stamp if magic else NO_TIMESTAMP) for key, value, _, stamp in records
    ]


@pytest.mark.parametrize("magic", VECTORS)
def test_a_set_octet_by_octet(magic: int) -> None:
    octets = VECTORS[magic]
    assert with_crcs(octets) == octets
    (batch,) = decode_message_set(octets)
    assert (batch.magic, batch.offsets.tolist(), batch.headers) == (magic, [7, 8], None)
    assert records_of(batch) == as_of(magic, RECORDS_OF_VECTOR)
    assert encode_message_set(as_dafka(RECORDS_OF_VECTOR, offset=7), magic) == octets


@pytest.mark.parametrize("magic", VECTORS)
@pytest.mark.parametrize("builder", BUILDERS)
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
@given(records=RECORDS)
@settings(max_examples=25)
def test_what_other_implementations_build_is_decoded(
    magic: int, builder: Any, codec: Codec, records: list[Parts]
) -> None:
    (batch,) = decode_message_set(built(builder, records, magic, codec))
    assert records_of(batch) == as_of(magic, records)
    assert batch.codec == codec
    assert len(batch.contents()) == len(records)


@pytest.mark.parametrize(("magic", "codec"), [(0, Codec.SNAPPY), (1, Codec.SNAPPY), (1, Codec.LZ4)])
def test_snappy_and_lz4_of_aiokafka_are_decoded(magic: int, codec: Codec) -> None:
    records = [Parts(b"k%d" % number, b"value " * 20) for number in range(300)]
    octets = built(LegacyRecordBatchBuilder, records, magic, codec)
    assert decoded(octets) == as_of(magic, records)


@pytest.mark.parametrize("magic", VECTORS)
@pytest.mark.parametrize("reader", [aiokafka, kafka_python_memory])
@given(records=RECORDS)
@settings(max_examples=25)
def test_other_implementations_decode_what_is_encoded(
    magic: int, reader: Any, records: list[Parts]
) -> None:
    with_headers = [record._replace(headers=(("h", b"v"),)) for record in records]
    found = reader.MemoryRecords(encode_message_set(as_dafka(with_headers, 5), magic))
    got = []
    while found.has_next():
        batch = found.next_batch()
        assert batch.validate_crc()
        got += [
            (each.offset, each.key, each.value, each.timestamp if magic else NO_TIMESTAMP)
            for each in batch
        ]
    expected = as_of(magic, records)
    assert got == [(5 + at, each.key, each.value, each[3]) for at, each in enumerate(expected)]


def test_lz4_of_kafka_before_its_0_10_is_taken_in_v0_alone() -> None:
    for magic in VECTORS:
        frame = bytearray(compressed(Codec.LZ4, message(magic, b"a")))
        frame[6] = xxhash.xxh32_intdigest(bytes(frame[:6])) >> 8 & 0xFF
        octets = message(magic, bytes(frame), Codec.LZ4)
        if magic == 0:
            assert [record.value for record in decoded(octets)] == [b"a"]
        else:
            with pytest.raises(CorruptRecordsError, match="not compressed with lz4"):
                decoded(octets)


def test_offsets_in_a_compressed_set_are_its_own_in_v0_and_relative_in_v1() -> None:
    old = wrapped(0, message(0, b"a", offset=40), message(0, b"b", offset=42), offset=42)
    assert offsets_of(list(decode_message_set(old))) == [[40, 42]]
    new = [message(1, b"a", offset=0), message(1, b"b", offset=2)]
    for offset, found in ((42, [40, 42]), (2, [0, 2]), (0, [0, 2])):
        assert offsets_of(list(decode_message_set(wrapped(1, *new, offset=offset)))) == [found]
    with pytest.raises(CorruptRecordsError, match="has offset 2, and the set 1"):
        decoded(wrapped(1, *new, offset=1))


def test_a_broker_stamps_a_compressed_set_as_a_whole() -> None:
    inner = message(1, b"a", stamp=5), message(1, b"b", stamp=6)
    (batch,) = decode_message_set(wrapped(1, *inner))
    assert (batch.timestamps_ms.tolist(), batch.is_append_time) == ([5, 6], False)
    (batch,) = decode_message_set(wrapped(1, *inner, attributes=8))
    assert (batch.timestamps_ms.tolist(), batch.is_append_time) == ([START_MS + 9] * 2, True)


def test_messages_that_are_alike_are_a_batch() -> None:
    octets = b"".join(
        (
            message(1, b"a"),
            message(1, b"b"),
            message(1, b"c", attributes=8),
            message(0, b"d"),
            wrapped(0, message(0, b"e"), message(0, b"f")),
            wrapped(1, message(1, b"g")),
            message(1, b"h"),
        )
    )
    batches = list(decode_message_set(octets))
    assert [batch.values.to_pylist() for batch in batches] == [
        [b"a", b"b"], [b"c"], [b"d"], [b"e", b"f"], [b"g"], [b"h"]
    ]  # fmt: skip
    assert [batch.magic for batch in batches] == [1, 1, 0, 0, 1, 1]
    assert [batch.codec for batch in batches] == [0, 0, 0, 1, 1, 0]
    assert [batch.is_append_time for batch in batches] == [False, True, *[False] * 4]


TOO_SHORT = bytes(8) + b"\0\0\0\x0e" + bytes(4) + b"\1" + bytes(9)
"""A message of v1 with 14 bytes, enough for v0 only."""


@pytest.mark.parametrize(
    ("octets", "error", "why"),
    [
        (message(0, b"a")[:25], errors.CORRUPT_MESSAGE, "ends early"),
        (message(0, b"a")[:-1], errors.CORRUPT_MESSAGE, "cannot have 15 bytes"),
        (message(0, b"a")[:11] + b"\5" + bytes(20), errors.CORRUPT_MESSAGE, "cannot have 5"),
        (message(0, b"a")[:-1] + b"b", errors.CORRUPT_MESSAGE, "CRC"),
        (message(2, b"a"), errors.CORRUPT_MESSAGE, "no message has magic 2"),
        (message(1, b"a", attributes=4), errors.UNSUPPORTED_COMPRESSION_TYPE, "compression 4"),
        (message(0, None, attributes=1), errors.INVALID_RECORD, "is null"),
        (message(0, b"a", attributes=1), errors.INVALID_RECORD, "not compressed with gzip"),
        (wrapped(0), errors.INVALID_RECORD, "is empty"),
        (wrapped(0, message(1, b"a")), errors.INVALID_RECORD, "more than one version"),
        (wrapped(0, message(0, b"a")[:-1]), errors.CORRUPT_MESSAGE, "cannot have 15 bytes"),
        (wrapped(1, message(1, b"a")[:-1] + b"b"), errors.CORRUPT_MESSAGE, "CRC"),
        (wrapped(1, wrapped(1, message(1, b"a"))), errors.INVALID_RECORD, "in another one"),
        (with_crcs(message(0, b"")[:-1] + b"\1"), errors.INVALID_RECORD, "do not end where"),
        (with_crcs(message(0, b"")[:-4] + b"\xff\xff\xff\xfe"), errors.INVALID_RECORD, "not end"),
        (with_crcs(message(0, b"a")[:-5] + bytes(5)), errors.INVALID_RECORD, "do not end where"),
        (with_crcs(TOO_SHORT), errors.INVALID_RECORD, "do not end where"),
    ],
)
def test_a_wrong_set_is_an_error_of_kafka(octets: bytes, error: str, why: str) -> None:
    with pytest.raises(CorruptRecordsError, match=why) as caught:
        decoded(octets)
    assert caught.value.error == error


@pytest.mark.parametrize("magic", VECTORS)
def test_every_truncation_and_every_flipped_octet_is_found(magic: int) -> None:
    records = [Parts(b"k", b"value"), Parts(None, b"other")]
    for codec in (Codec.NONE, Codec.GZIP):
        octets = built(LegacyRecordBatchBuilder, records, magic, codec)
        size = 12 + int.from_bytes(octets[8:12], "big")
        for stop in range(1, len(octets)):
            if stop != size:
                with pytest.raises(CorruptRecordsError):
                    decoded(octets[:stop])
        for at in range(8, size):  # except the offset, which no CRC covers
            for flip in (1, 0x80, 0xFF):
                other = bytearray(octets)
                other[at] ^= flip
                with pytest.raises(CorruptRecordsError):
                    decoded(bytes(other))


@given(data=st.data(), magic=st.sampled_from([0, 1]))
@settings(max_examples=200)
def test_wrong_octets_under_a_right_crc_are_an_error_or_records(
    data: st.DataObject, magic: int
) -> None:
    octets = bytearray(message(magic, b"value"))
    for _ in range(data.draw(st.integers(1, 4))):
        octets[data.draw(st.integers(16, len(octets) - 1))] = data.draw(st.integers(0, 255))
    nested = data.draw(st.booleans())
    right = with_crcs(bytes(octets))
    try:
        found = decoded(wrapped(magic, right) if nested else right)
    except CorruptRecordsError:
        return
    assert len(found) == 1


@pytest.mark.parametrize("magic", VECTORS)
def test_what_a_set_is_decompressed_to_is_bounded_as_a_whole(magic: int) -> None:
    one = wrapped(magic, message(magic, bytes(1_000)))
    assert len(list(decode_message_set(one * 3, 3_200))) == 3
    with pytest.raises(CorruptRecordsError, match="more than") as caught:
        list(decode_message_set(one * 4, 3_200))
    assert caught.value.error == errors.MESSAGE_TOO_LARGE


def test_how_many_messages_a_set_has_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_set, "MAX_MESSAGES", 3)
    for octets in (message(0, b"a") * 4, wrapped(0, message(0, b"a") * 4)):
        with pytest.raises(CorruptRecordsError, match="more than 3 messages") as caught:
            decoded(octets)
        assert caught.value.error == errors.MESSAGE_TOO_LARGE
    assert len(decoded(message(0, b"a") * 3)) == 3
