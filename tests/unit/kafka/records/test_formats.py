"""Record batches and message sets, against two other implementations, and invalid ones."""

import struct
import zlib
from collections.abc import Sequence

import crc32c
import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from dafka_core.model.envelope import MAGIC as ENVELOPE
from dafka_core.model.envelope import closed
from dafka_core.model.records import RecordBatch, TopicPartition
from dafka_kafka.errors import KafkaError, RefusedError
from dafka_kafka.records import formats
from dafka_kafka.records.compression import Codec
from dafka_kafka.records.formats import (
    MAX_FEW,
    NO_TIMESTAMP,
    KafkaBatch,
    contents_of,
    decode_batches,
    decode_few,
    decode_message_set,
    decode_record_batch,
    encode_few,
    encode_message_set,
    encode_record_batch,
    largest_batch,
    times_of,
)
from dafka_kafka.records.record_columns import RecordColumns, decode_records, encode_records
from tests.unit.kafka.records import batches
from tests.unit.kafka.records.batches import (
    AIOKAFKA,
    LIBRARIES,
    RECORDS,
    START_MS,
    TP,
    Library,
    Parts,
    as_dafka,
    by_aiokafka,
    compressed,
    records_of,
)

NONE, GZIP, SNAPPY, LZ4, ZSTD = Codec
MAGICS = pytest.mark.parametrize("magic", [0, 1, 2])


def decode(octets: bytes) -> list[KafkaBatch]:
    """Decode what is whole: one batch, or messages up to the end."""
    is_batch = len(octets) > 16 and octets[16] >= 2 and octets[16] != 0xFF
    return [decode_record_batch(octets)] if is_batch else [*decode_message_set(octets)]


def decoded(octets: bytes) -> list[Parts]:
    return [record for batch in decode(octets) for record in records_of(batch)]


def encoded(batch: RecordBatch, magic: int) -> bytes:
    """Encode records in one batch."""
    return encode_message_set(batch, magic) if magic < 2 else encode_record_batch(batch)


def as_of(magic: int, records: Sequence[Parts]) -> list[Parts]:
    """The part of records that a format preserves."""
    if magic == 2:
        return [*records]
    return [e._replace(headers=(), timestamp_ms=e[3] if magic else NO_TIMESTAMP) for e in records]


def with_crc(octets: bytes) -> bytes:
    """Return a batch, or messages, with valid CRCs, and a batch with a valid length."""
    if octets[16] == 2:
        length = struct.pack(">i", len(octets) - 12)
        checksum = struct.pack(">I", crc32c.crc32c(octets[21:]))
        return octets[:8] + length + octets[12:17] + checksum + octets[21:]
    parts, at = [], 0
    while at < len(octets):
        end = at + 12 + int.from_bytes(octets[at + 8 : at + 12], "big")
        body = octets[at + 16 : end]
        parts += [octets[at : at + 12], zlib.crc32(body).to_bytes(4, "big"), body]
        at = end
    return b"".join(parts)


VECTORS = {
    0: bytes.fromhex(
        "0000000000000007 00000012 9391e657 00 00 00000001 6b 00000003 616263"  # k, abc
        "0000000000000008 0000000e a7ec6803 00 00 ffffffff ffffffff"  # null, null
    ),
    1: bytes.fromhex(
        "0000000000000007 0000001a 61acc55b 01 00 0000018bcfe56800 00000001 6b 00000003 616263"
        "0000000000000008 00000016 3440542d 01 00 0000018bcfe5686e ffffffff ffffffff"
    ),
    2: bytes.fromhex(
        "0000000000000007"  # base offset 7
        "0000004d"  # length: 77 after it
        "ffffffff"  # leader epoch
        "02"  # magic
        "0375ef95"  # CRC-32C
        "0000"  # attributes
        "00000001"  # last offset delta
        "0000018bcfe56800"  # base timestamp: 1700000000000
        "0000018bcfe5686e"  # max timestamp, 110 ms later
        "ffffffffffffffff"  # producer's id
        "ffff"  # its epoch
        "ffffffff"  # base sequence
        "00000002"  # number of records
        "14 00 00 00 02 6b 06 616263 00"  # 10 bytes: key k, value abc, no headers
        "20 00 dc01 02 01 01 04 02 68 04 7879 04 6969 01"  # 16: null, null, h is xy, ii is null
    ),
}
VECTOR = VECTORS[2]
RECORDS_OF_VECTOR = [
    Parts(b"k", b"abc"),
    Parts(None, None, (("h", b"xy"), ("ii", None)), START_MS + 110),
]


@MAGICS
def test_a_format_byte_by_byte(magic: int) -> None:
    octets = VECTORS[magic]
    assert with_crc(octets) == octets
    (batch,) = decode(octets)
    assert (batch.head.magic, batch.offsets.tolist()) == (magic, [7, 8])
    assert records_of(batch) == as_of(magic, RECORDS_OF_VECTOR)
    assert encoded(as_dafka(RECORDS_OF_VECTOR, offset=7), magic) == octets


BUILT = [(magic, codec) for magic in range(3) for codec in (NONE, GZIP)] + [(2, ZSTD)]


@pytest.mark.parametrize(("magic", "codec"), BUILT)
@pytest.mark.parametrize("library", LIBRARIES)
@given(parts=RECORDS)
@settings(max_examples=25)
def test_what_other_implementations_build_is_decoded(
    library: Library, magic: int, codec: Codec, parts: list[Parts]
) -> None:
    (batch,) = decode(library.built(parts, magic, codec))
    assert records_of(batch) == as_of(magic, parts)
    # kafka-python compresses only if the result is smaller
    assert batch.head.codec in (codec, NONE)
    assert batch.offsets.tolist() == list(range(len(parts)))
    assert batch.contents() == as_dafka(as_of(magic, parts)).values
    batch.values.validate(full=True)


@pytest.mark.parametrize(
    ("magic", "codec"), [(0, SNAPPY), (1, SNAPPY), (1, LZ4), (2, SNAPPY), (2, LZ4)]
)
def test_snappy_and_lz4_of_aiokafka_are_decoded(magic: int, codec: Codec) -> None:
    parts = [Parts(b"k%d" % number, b"value " * 20) for number in range(500)]
    assert decoded(AIOKAFKA.built(parts, magic, codec)) == as_of(magic, parts)


@MAGICS
@pytest.mark.parametrize("library", LIBRARIES)
@given(parts=RECORDS)
@settings(max_examples=25)
def test_other_implementations_decode_what_is_encoded(
    library: Library, magic: int, parts: list[Parts]
) -> None:
    octets = encoded(as_dafka(parts, 5), magic)
    assert library.read(octets) == [*enumerate(as_of(magic, parts), 5)]
    if magic == 2:
        assert octets[57:] == by_aiokafka(parts)[57:]


def compressed_batch(octets: bytes, codec: Codec) -> bytes:
    """Return a batch with its records compressed."""
    attributes = struct.pack(">h", codec)
    return with_crc(octets[:21] + attributes + octets[23:61] + compressed(codec, octets[61:]))


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("is_enveloped", [False, True])
def test_large_batches_come_back_in_parts(codec: Codec, is_enveloped: bool) -> None:
    values = [b"%d" % number * (number % 40) for number in range(20_000)]
    parts = [
        Parts(b"k" if is_enveloped and number % 3 == 0 else None, value, (), START_MS + number // 7)
        for number, value in enumerate(values)
    ]
    whole = as_dafka(parts, offset=1 << 40)
    octets = [encode_record_batch(each) for each in whole.split(50_000, 100_000)]
    found = [decode_record_batch(compressed_batch(each, codec)) for each in octets]
    assert len(found) > 10
    assert all(each.contents().size_bytes <= 110_000 for each in found)
    assert np.concatenate([each.offsets for each in found]).tolist() == whole.offsets.tolist()
    assert [record for each in found for record in records_of(each)] == parts


def test_records_without_times_have_none() -> None:
    (batch,) = decode(encoded(RecordBatch.of(TP, 3, [b"a", b"b"]), 2))
    assert batch.timestamps_ms.tolist() == [-1, -1]
    assert times_of(batch.timestamps_ms) is None


def test_a_value_that_begins_as_an_envelope_does_stays_one() -> None:
    parts = [Parts(None, ENVELOPE + b"\1\2\1\4" + ENVELOPE), Parts(None, ENVELOPE)]
    contents = decode_record_batch(by_aiokafka(parts)).contents()
    again = decoded(encoded(RecordBatch(TP, 0, contents), 2))
    assert [each.value for each in again] == [each.value for each in parts]


CORRUPT_MESSAGE, INVALID_RECORD = KafkaError.CORRUPT_MESSAGE, KafkaError.INVALID_RECORD


def changed(octets: bytes, at: int, by: bytes) -> bytes:
    return with_crc(octets[:at] + by + octets[at + len(by) :])


def test_what_its_head_says_is_told() -> None:
    octets = batches.batch([b"a"], producer=(77, 3, 900), transactional=True)
    batch = decode_record_batch(octets)
    assert batch.head.is_transactional
    assert not batch.head.is_control
    leader_epoch, *producer = batch.head[2:]
    assert (leader_epoch, producer) == (-1, [77, 3, 900])
    assert decode_record_batch(changed(VECTOR, 21, b"\0\x20")).head.is_control
    appended = decode_record_batch(changed(VECTOR, 21, b"\0\x08"))
    assert appended.head.is_append_time
    assert appended.timestamps_ms.tolist() == [START_MS + 110] * 2


def message(
    magic: int, value: bytes | None, attributes: int = 0, offset: int = 0, stamp: int = START_MS
) -> bytes:
    """One message with a valid CRC."""
    head = struct.pack(">bb", magic, attributes) + (struct.pack(">q", stamp) if magic else b"")
    length = struct.pack(">i", -1 if value is None else len(value))
    body = head + b"\xff\xff\xff\xff" + length + (value or b"")
    return struct.pack(">qiI", offset, len(body) + 4, zlib.crc32(body)) + body


def wrapped(magic: int, *inner: bytes, offset: int = 0, attributes: int = 0) -> bytes:
    """Messages compressed in a message."""
    packed = bytes(compressed(GZIP, b"".join(inner)))
    return message(magic, packed, attributes | GZIP, offset, START_MS + 9)


def offsets_of(octets: bytes) -> list[list[int]]:
    return [batch.offsets.tolist() for batch in decode(octets)]


def test_lz4_of_kafka_before_its_0_10_is_taken_in_v0_alone() -> None:
    for magic in (0, 1):
        frame = bytearray(compressed(LZ4, message(magic, b"a")))
        frame[6] = xxhash.xxh32_intdigest(bytes(frame[:6])) >> 8 & 0xFF
        octets = message(magic, bytes(frame), LZ4)
        if magic == 0:
            assert [record.value for record in decoded(octets)] == [b"a"]
        else:
            with pytest.raises(RefusedError, match="not compressed with lz4"):
                decoded(octets)


def test_a_compressed_set_has_offsets_and_times_of_its_messages() -> None:
    old = wrapped(0, message(0, b"a", offset=40), message(0, b"b", offset=42), offset=42)
    assert offsets_of(old) == [[40, 42]]
    new = [message(1, b"a", offset=0, stamp=5), message(1, b"b", offset=2, stamp=6)]
    for offset, found in ((42, [40, 42]), (2, [0, 2]), (0, [0, 2])):
        assert offsets_of(wrapped(1, *new, offset=offset)) == [found]
    with pytest.raises(RefusedError, match="has offset 2, and the set 1"):
        decoded(wrapped(1, *new, offset=1))
    for attributes, stamps in ((0, [5, 6]), (8, [START_MS + 9] * 2)):  # a broker's time for all
        (batch,) = decode(wrapped(1, *new, attributes=attributes))
        assert batch.timestamps_ms.tolist() == stamps
        assert batch.head.is_append_time == bool(attributes)


def test_messages_that_are_alike_are_a_batch() -> None:
    octets = message(1, b"a") + message(1, b"b") + message(1, b"c", attributes=8)
    octets += message(0, b"d") + wrapped(0, message(0, b"e"), message(0, b"f"))
    octets += wrapped(1, message(1, b"g")) + message(1, b"h")
    found = [
        (each.values.to_pylist(), each.head.magic, int(each.head.codec), each.head.is_append_time)
        for each in decode(octets)
    ]
    assert found == [
        ([b"a", b"b"], 1, 0, False),
        ([b"c"], 1, 0, True),
        ([b"d"], 0, 0, False),
        ([b"e", b"f"], 0, 1, False),
        ([b"g"], 1, 1, False),
        ([b"h"], 1, 0, False),
    ]


TOO_SHORT = bytes(8) + b"\0\0\0\x0e" + bytes(4) + b"\1" + bytes(9)
"""A message of v1 with 14 bytes, enough for v0 only."""


@pytest.mark.parametrize(
    ("octets", "error", "why"),
    [
        (VECTOR[:60], CORRUPT_MESSAGE, "61 bytes at least"),
        (VECTOR[:16] + b"\3" + VECTOR[17:], CORRUPT_MESSAGE, "magic 3"),
        (VECTOR[:-1] + b"\0", CORRUPT_MESSAGE, "CRC"),
        (VECTOR + b"\0", CORRUPT_MESSAGE, "no batch of 77"),
        (with_crc(VECTOR + b"\0"), INVALID_RECORD, "are not 2 records"),
        (with_crc(VECTOR[:61]), INVALID_RECORD, "are not 2 records"),
        (changed(VECTOR, 57, bytes(4)), INVALID_RECORD, "a batch of 0 records"),
        (changed(VECTOR, 57, b"\xff" * 4), INVALID_RECORD, "a batch of -1 records"),
        (changed(VECTOR, 57, b"\0\0\0\1"), INVALID_RECORD, "its last one is number 1"),
        (changed(VECTOR, 23, b"\x7f\xff\xff\xfe\0"), INVALID_RECORD, "is number"),
        (changed(VECTOR, 22, b"\1"), INVALID_RECORD, "not compressed with gzip"),
        (changed(VECTOR, 22, b"\7"), KafkaError.UNSUPPORTED_COMPRESSION_TYPE, "compression 7"),
        (message(0, b"a")[:25], CORRUPT_MESSAGE, "ends early"),
        (message(0, b"a")[:-1], CORRUPT_MESSAGE, "cannot have 15 bytes"),
        (message(0, b"a")[:11] + b"\5" + bytes(20), CORRUPT_MESSAGE, "cannot have 5"),
        (message(0, b"a")[:-1] + b"b", CORRUPT_MESSAGE, "CRC"),
        (message(-1, b"a"), CORRUPT_MESSAGE, "no message has magic 255"),
        (message(1, b"a", attributes=4), KafkaError.UNSUPPORTED_COMPRESSION_TYPE, "compression 4"),
        (message(0, None, attributes=1), INVALID_RECORD, "is null"),
        (message(0, b"a", attributes=1), INVALID_RECORD, "not compressed with gzip"),
        (wrapped(0), INVALID_RECORD, "is empty"),
        (wrapped(0, message(1, b"a")), INVALID_RECORD, "more than one version"),
        (wrapped(0, message(0, b"a")[:-1]), CORRUPT_MESSAGE, "cannot have 15 bytes"),
        (wrapped(1, message(1, b"a")[:-1] + b"b"), CORRUPT_MESSAGE, "CRC"),
        (wrapped(1, wrapped(1, message(1, b"a"))), INVALID_RECORD, "in another one"),
        (with_crc(message(0, b"")[:-1] + b"\1"), INVALID_RECORD, "do not end where"),
        (with_crc(message(0, b"")[:-4] + b"\xff\xff\xff\xfe"), INVALID_RECORD, "not end"),
        (with_crc(message(0, b"a")[:-5] + bytes(5)), INVALID_RECORD, "do not end where"),
        (with_crc(TOO_SHORT), INVALID_RECORD, "do not end where"),
    ],
)
def test_a_wrong_batch_is_an_error_of_kafka(octets: bytes, error: int, why: str) -> None:
    with pytest.raises(RefusedError, match=why) as caught:
        decode(octets)
    assert caught.value.code == error


@pytest.mark.parametrize(
    ("magic", "codec"),
    [*((2, codec) for codec in Codec), (0, NONE), (0, GZIP), (1, NONE), (1, GZIP)],
)
def test_every_truncation_and_every_flipped_octet_is_found(magic: int, codec: Codec) -> None:
    parts = [Parts(b"k", b"value", (("h", b"x"),), START_MS + number) for number in range(3)]
    octets = AIOKAFKA.built(parts, magic, codec)
    decode_one = decode_record_batch if magic == 2 else lambda each: [*decode_message_set(each)]
    size = 12 + int.from_bytes(octets[8:12], "big")
    wholes = range(0, len(octets), size)
    for stop in range(len(octets)):
        if magic == 2 or stop not in wholes:  # a set may end after any message
            with pytest.raises(RefusedError):
                decode_one(octets[:stop])
    uncovered = {*range(8), *(range(12, 16) if magic == 2 else ())}  # base offset, leader epoch
    for at in range(size):
        for flip in (1, 0x80, 0xFF):
            other = bytearray(octets)
            other[at] ^= flip
            if at not in uncovered:
                with pytest.raises(RefusedError):
                    decode_one(bytes(other))
            elif magic == 2:
                assert decoded(bytes(other)) == parts


@given(data=st.data(), magic=st.sampled_from([0, 1, 2, 2]))
@settings(max_examples=400)
def test_wrong_octets_under_a_right_crc_are_an_error_or_records(
    data: st.DataObject, magic: int
) -> None:
    whole = VECTOR if data.draw(st.booleans()) else by_aiokafka(data.draw(RECORDS))
    octets = bytearray(message(magic, b"value") if magic < 2 else whole)
    first = 21 if magic == 2 else 16
    for _ in range(data.draw(st.integers(1, 4))):
        octets[data.draw(st.integers(first, len(octets) - 1))] = data.draw(st.integers(0, 255))
    if magic == 2:
        stop = data.draw(st.integers(61, len(octets)) | st.just(len(octets)))
        right = with_crc(bytes(octets[:stop]))
    else:
        octets[16:17] = bytes([magic])
        right = with_crc(bytes(octets))
        right = wrapped(magic, right) if data.draw(st.booleans()) else right
    try:
        found = decode(right)
    except RefusedError:
        return
    for batch in found:
        for column in (batch.values, batch.keys, batch.headers):
            if column is not None:
                column.validate(full=True)
                assert len(column) == len(batch.values)
        assert len(batch.contents()) == len(batch.values)
        times = times_of(batch.timestamps_ms)
        assert times is None or times[:, 0].sum() == len(batch.values)


@pytest.mark.parametrize("magic", [0, 1])
def test_what_a_set_has_is_bounded_as_a_whole(magic: int, monkeypatch: pytest.MonkeyPatch) -> None:
    one = wrapped(magic, message(magic, bytes(1_000)))
    assert len(list(decode_message_set(one * 3, 3_200))) == 3
    with pytest.raises(RefusedError, match="more than") as caught:
        list(decode_message_set(one * 4, 3_200))
    assert caught.value.code == KafkaError.MESSAGE_TOO_LARGE
    monkeypatch.setattr(formats, "MAX_MESSAGES", 3)
    assert len(decoded(message(magic, b"a") * 3)) == 3
    for octets in (message(magic, b"a") * 4, wrapped(magic, message(magic, b"a") * 4)):
        with pytest.raises(RefusedError, match="more than 3 messages") as caught:
            decoded(octets)
        assert caught.value.code == KafkaError.MESSAGE_TOO_LARGE


# -- consecutive batches ---------------------------------------------------------------------------

BATCHES = [
    (2, by_aiokafka([Parts(None, b"a"), Parts(None, b"b")])),
    (0, encoded(as_dafka([Parts(None, b"c"), Parts(None, b"d")]), 0)),
    (1, encoded(as_dafka([Parts(None, b"e")]), 1)),
    (2, by_aiokafka([Parts(None, b"f")], GZIP)),
    (2, encoded(as_dafka([Parts(None, b"g")]), 2)),
    (1, encoded(as_dafka([Parts(None, b"h"), Parts(None, b"i")]), 1)),
]
ALL = b"".join(octets for _, octets in BATCHES)


def values_of(octets: bytes) -> list[bytes]:
    return [value for batch in decode_batches(octets) for value in batch.values.to_pylist()]


def test_batches_of_all_versions_follow_each_other_and_a_truncated_last_one_is_ignored() -> None:
    assert [batch.head.magic for batch in decode_batches(ALL)] == [magic for magic, _ in BATCHES]
    assert b"".join(values_of(ALL)) == b"abcdefghi"
    for stop in range(len(ALL)):
        assert b"abcdefghi".startswith(b"".join(values_of(ALL[:stop])))
    assert values_of(ALL[:-1])[-1] == b"h"


def test_a_batch_is_decoded_when_it_is_asked_for() -> None:
    for size in (0, 13, -1, -(2**31)):
        head = bytes(8) + size.to_bytes(4, "big", signed=True)
        for rest in (b"", bytes(60)):
            batches = decode_batches(BATCHES[0][1] + head + rest)
            assert next(batches).values.to_pylist() == [b"a", b"b"]
            with pytest.raises(RefusedError, match=f"no batch has {size} bytes") as caught:
                next(batches)
            assert caught.value.code == CORRUPT_MESSAGE
    for magic in (3, 255):
        octets = bytearray(BATCHES[0][1])
        octets[16] = magic
        with pytest.raises(RefusedError, match="magic"):
            values_of(bytes(octets))


def test_what_is_decompressed_is_bounded() -> None:
    octets = encode_record_batch(RecordBatch.of(TP, 0, [bytes(1_000)]))
    octets = compressed_batch(octets, GZIP)
    with pytest.raises(RefusedError, match="more than 1000 bytes"):
        list(decode_batches(octets, 1_000))
    assert len(list(decode_batches(octets, 1_010))) == 1


# -- few records -----------------------------------------------------------------------------------


def by_columns(values: list[bytes], deltas: list[int]) -> bytes:
    columns = RecordColumns(pa.array(values, pa.binary()), None, None, np.array(deltas))
    return bytes(encode_records(columns))


DELTAS = st.integers(-(2**62), 2**62)
SIZES = (0, 1, 55, 56, 57, 63, 64, 8_180, 8_191, 8_192, 1 << 20, 1 << 21)
"""Sizes at which a number takes more bytes."""


@given(st.lists(st.tuples(st.binary(max_size=70), DELTAS), min_size=1, max_size=MAX_FEW))
def test_few_records_are_encoded_as_columns_are(records: list[tuple[bytes, int]]) -> None:
    values, deltas = [value for value, _ in records], [delta for _, delta in records]
    assert encode_few(values, deltas) == by_columns(values, deltas)


def test_few_records_of_any_size_are_encoded_as_columns_are() -> None:
    for size in SIZES:
        values, deltas = [b"x" * size] * 2, [0, 64]
        assert encode_few(values, deltas) == by_columns(values, deltas)


@given(st.data())
def test_few_records_are_decoded_as_columns_are_or_left_to_them(data: st.DataObject) -> None:
    records = data.draw(RECORDS)
    whole = by_aiokafka(records)[61:]
    octets = bytearray(whole)
    for _ in range(data.draw(st.integers(0, 3))):
        octets[data.draw(st.integers(0, len(octets) - 1))] = data.draw(st.integers(0, 255))
    few = decode_few(octets, len(records))
    if few is None:
        assert octets != whole or any(each.headers for each in records)
        return
    columns = decode_records(bytes(octets), len(records))
    contents = contents_of(columns.values, columns.keys, columns.headers)
    assert (few[0], few[1]) == (contents.to_list(), columns.deltas.tolist())


def test_a_key_of_a_length_below_minus_1_is_left_to_columns() -> None:
    assert decode_few(bytes((12, 0, 0, 0, 1, 1, 0)), 1) is not None
    assert decode_few(bytes((12, 0, 0, 0, 3, 1, 0)), 1) is None


@pytest.mark.parametrize("count", [1, MAX_FEW, MAX_FEW + 1])
@pytest.mark.parametrize("last", [b"bare", closed(b"value", b"key", [("a", None)])])
def test_a_batch_of_few_or_of_more_comes_back(count: int, last: bytes) -> None:
    values = [b"%d" % number for number in range(count - 1)] + [last]
    times = np.array([(1, 1_000_000 + number * 1_000) for number in range(count)], np.int64)
    batch = RecordBatch.of(TopicPartition("t", "A"), 7, values)
    octets = encoded(RecordBatch(batch.tp, 7, batch.values, times=times), 2)
    [found] = decode_batches(octets)
    assert list(found.contents()) == values
    assert found.offsets.tolist() == list(range(7, 7 + count))
    assert found.timestamps_ms.tolist() == [1_000 + number for number in range(count)]


def test_the_largest_batch_or_message_counts() -> None:
    small, large = (encode_record_batch(RecordBatch.of(TP, 0, [bytes(size)])) for size in (10, 100))
    assert largest_batch(small + large + small) == len(large)
    assert largest_batch(small + bytes(20) + large) == len(small)
