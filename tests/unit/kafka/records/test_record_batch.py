"""Record batches v2, against two other implementations, and invalid ones."""

from __future__ import annotations

import struct
from collections.abc import Callable

import crc32c
import numpy as np
import pyarrow as pa
import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from hypothesis import given, settings
from hypothesis import strategies as st

from dafka_core.model.envelope import MAGIC as ENVELOPE
from dafka_core.model.envelope import closed
from dafka_core.model.records import RecordBatch, TopicPartition
from dafka_kafka import errors
from dafka_kafka.errors import CorruptRecordsError
from dafka_kafka.records.compression import Codec
from dafka_kafka.records.kafka_batch import contents_of, times_of
from dafka_kafka.records.record_batch import (
    MOST,
    decode_batches,
    decode_few,
    decode_record_batch,
    encode_few,
    encode_record_batches,
    largest_batch,
)
from dafka_kafka.records.record_columns import RecordColumns, decode_records, encode_records
from tests.unit.kafka.records.batches import (
    BUILDERS,
    READERS,
    RECORDS,
    START_MS,
    TP,
    Parts,
    as_dafka,
    by_aiokafka,
    records_of,
)

VECTOR = bytes.fromhex(
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
)
RECORDS_OF_VECTOR = [
    Parts(b"k", b"abc"),
    Parts(None, None, (("h", b"xy"), ("ii", None)), START_MS + 110),
]


def with_crc(octets: bytes) -> bytes:
    """Return the bytes with a valid CRC and length."""
    length = struct.pack(">i", len(octets) - 12)
    checksum = struct.pack(">I", crc32c.crc32c(octets[21:]))
    return octets[:8] + length + octets[12:17] + checksum + octets[21:]


def changed(octets: bytes, at: int, by: bytes) -> bytes:
    return with_crc(octets[:at] + by + octets[at + len(by) :])


@pytest.mark.parametrize("build", BUILDERS)
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP, Codec.ZSTD])
@given(parts=RECORDS)
@settings(max_examples=40)
def test_what_other_implementations_build_is_decoded(
    build: Callable[..., bytes], codec: Codec, parts: list[Parts]
) -> None:
    batch = decode_record_batch(build(parts, codec))
    assert records_of(batch) == parts
    assert batch.codec in (
        codec,
        Codec.NONE,
    )  # kafka-python compresses only if the result is smaller
    assert batch.offsets.tolist() == list(range(len(parts)))
    assert batch.contents() == as_dafka(parts).values
    batch.values.validate(full=True)


@pytest.mark.parametrize("codec", [Codec.SNAPPY, Codec.LZ4])
def test_snappy_and_lz4_of_aiokafka_are_decoded(codec: Codec) -> None:
    parts = [Parts(b"k%d" % number, b"value " * 20) for number in range(500)]
    assert records_of(decode_record_batch(by_aiokafka(parts, codec))) == parts


@pytest.mark.parametrize("read", READERS)
@given(parts=RECORDS)
@settings(max_examples=40)
def test_other_implementations_decode_what_is_encoded(
    read: Callable[[bytes], list[Parts]], parts: list[Parts]
) -> None:
    (octets,) = encode_record_batches(as_dafka(parts))
    assert read(octets) == parts


@given(parts=RECORDS)
def test_it_is_encoded_as_aiokafka_does(parts: list[Parts]) -> None:
    (octets,) = encode_record_batches(as_dafka(parts))
    assert octets[57:] == by_aiokafka(parts)[57:]


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("is_enveloped", [False, True])
def test_large_batches_come_back_in_parts(codec: Codec, is_enveloped: bool) -> None:
    values = [b"%d" % number * (number % 40) for number in range(20_000)]
    parts = [
        Parts(b"k" if is_enveloped and number % 3 == 0 else None, value, (), START_MS + number // 7)
        for number, value in enumerate(values)
    ]
    whole = as_dafka(parts, offset=1 << 40)
    found = [decode_record_batch(each) for each in encode_record_batches(whole, codec, 100_000)]
    assert len(found) > 10
    assert all(each.contents().size_bytes <= 110_000 for each in found)
    assert np.concatenate([each.offsets for each in found]).tolist() == whole.offsets.tolist()
    assert [record for each in found for record in records_of(each)] == parts


def test_a_record_larger_than_a_batch_is_one() -> None:
    whole = as_dafka([Parts(None, bytes(50)), Parts(None, bytes(500)), Parts(None, b"")])
    counts = [
        decode_record_batch(each).count for each in encode_record_batches(whole, max_bytes=100)
    ]
    assert counts == [1, 1, 1]


def test_records_without_times_have_none() -> None:
    (octets,) = encode_record_batches(RecordBatch.of(TP, 3, [b"a", b"b"]))
    batch = decode_record_batch(octets)
    assert batch.timestamps_ms.tolist() == [-1, -1]
    assert times_of(batch.timestamps_ms) is None


def test_a_value_that_begins_as_an_envelope_does_stays_one() -> None:
    parts = [Parts(None, ENVELOPE + b"\1\2\1\4" + ENVELOPE), Parts(None, ENVELOPE)]
    contents = decode_record_batch(by_aiokafka(parts)).contents()
    (octets,) = encode_record_batches(RecordBatch(TP, 0, contents))
    assert [each.value for each in records_of(decode_record_batch(octets))] == [
        each.value for each in parts
    ]


def test_a_batch_octet_by_octet() -> None:
    batch = decode_record_batch(with_crc(VECTOR))
    assert with_crc(VECTOR) == VECTOR
    assert batch.offsets.tolist() == [7, 8]
    assert records_of(batch) == RECORDS_OF_VECTOR
    (octets,) = encode_record_batches(as_dafka(RECORDS_OF_VECTOR, offset=7))
    assert octets == VECTOR


def test_what_its_head_says_is_told() -> None:
    builder = DefaultRecordBatchBuilder(2, 0, True, 77, 3, 900, 1 << 20)
    builder.append(0, timestamp=5, key=None, value=b"a", headers=[])
    batch = decode_record_batch(bytes(builder.build()))
    assert batch.is_transactional
    assert not batch.is_control
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (77, 3, 900)
    assert batch.leader_epoch == -1
    assert decode_record_batch(changed(VECTOR, 21, b"\0\x20")).is_control
    appended = decode_record_batch(changed(VECTOR, 21, b"\0\x08"))
    assert appended.is_append_time
    assert appended.timestamps_ms.tolist() == [START_MS + 110] * 2


@pytest.mark.parametrize(
    ("octets", "error", "why"),
    [
        (VECTOR[:60], errors.CORRUPT_MESSAGE, "61 bytes at least"),
        (VECTOR[:16] + b"\3" + VECTOR[17:], errors.CORRUPT_MESSAGE, "magic 3"),
        (VECTOR[:-1] + b"\0", errors.CORRUPT_MESSAGE, "CRC"),
        (VECTOR + b"\0", errors.CORRUPT_MESSAGE, "no batch of 77"),
        (with_crc(VECTOR + b"\0"), errors.INVALID_RECORD, "are not 2 records"),
        (with_crc(VECTOR[:61]), errors.INVALID_RECORD, "are not 2 records"),
        (changed(VECTOR, 57, bytes(4)), errors.INVALID_RECORD, "a batch of 0 records"),
        (changed(VECTOR, 57, b"\xff" * 4), errors.INVALID_RECORD, "a batch of -1 records"),
        (changed(VECTOR, 57, b"\0\0\0\1"), errors.INVALID_RECORD, "its last one is number 1"),
        (changed(VECTOR, 23, b"\x7f\xff\xff\xfe\0"), errors.INVALID_RECORD, "is number"),
        (changed(VECTOR, 22, b"\1"), errors.INVALID_RECORD, "not compressed with gzip"),
        (changed(VECTOR, 22, b"\7"), errors.UNSUPPORTED_COMPRESSION_TYPE, "compression 7"),
    ],
)
def test_a_wrong_batch_is_an_error_of_kafka(octets: bytes, error: str, why: str) -> None:
    with pytest.raises(CorruptRecordsError, match=why) as caught:
        decode_record_batch(octets)
    assert caught.value.error == error


@pytest.mark.parametrize("codec", Codec)
def test_every_truncation_and_every_flipped_octet_is_found(codec: Codec) -> None:
    parts = [Parts(b"k", b"value", (("h", b"x"),), START_MS + number) for number in range(3)]
    octets = by_aiokafka(parts, codec)
    for size in range(len(octets)):
        with pytest.raises(CorruptRecordsError):
            decode_record_batch(octets[:size])
    uncovered = {*range(8), *range(12, 16)}  # base offset and leader epoch
    for at in range(len(octets)):
        for flip in (1, 0x80, 0xFF):
            other = bytearray(octets)
            other[at] ^= flip
            if at in uncovered:
                assert records_of(decode_record_batch(bytes(other))) == parts
            else:
                with pytest.raises(CorruptRecordsError):
                    decode_record_batch(bytes(other))


@given(data=st.data())
@settings(max_examples=300)
def test_wrong_octets_under_a_right_crc_are_an_error_or_records(data: st.DataObject) -> None:
    octets = bytearray(VECTOR if data.draw(st.booleans()) else by_aiokafka(data.draw(RECORDS)))
    for _ in range(data.draw(st.integers(1, 4))):
        octets[data.draw(st.integers(21, len(octets) - 1))] = data.draw(st.integers(0, 255))
    stop = data.draw(st.integers(61, len(octets)) | st.just(len(octets)))
    try:
        batch = decode_record_batch(with_crc(bytes(octets[:stop])))
    except CorruptRecordsError:
        return
    for column in (batch.values, batch.keys, batch.headers):
        if column is not None:
            column.validate(full=True)
            assert len(column) == batch.count
    assert len(batch.contents()) == batch.count
    times = times_of(batch.timestamps_ms)
    assert times is None or times[:, 0].sum() == batch.count


def by_columns(values: list[bytes], deltas: list[int]) -> bytes:
    return bytes(
        encode_records(RecordColumns(pa.array(values, pa.binary()), None, None, np.array(deltas)))
    )


@given(
    st.lists(
        st.tuples(st.binary(max_size=70), st.integers(-(2**62), 2**62)), min_size=1, max_size=MOST
    )
)
def test_they_are_what_columns_are(records: list[tuple[bytes, int]]) -> None:
    values, deltas = [value for value, _ in records], [delta for _, delta in records]
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


@pytest.mark.parametrize("size", [0, 1, 55, 56, 57, 63, 64, 8_180, 8_191, 8_192, 1 << 20, 1 << 21])
def test_sizes_at_which_a_number_takes_more_octets(size: int) -> None:
    values, deltas = [b"x" * size] * 2, [0, 64]
    assert encode_few(values, deltas) == by_columns(values, deltas)


def test_the_largest_batch_or_message_counts() -> None:
    small, large = (
        b"".join(encode_record_batches(RecordBatch.of(TP, 0, [bytes(size)]))) for size in (10, 100)
    )
    assert largest_batch(small + large + small) == len(large)
    assert largest_batch(small + bytes(20) + large) == len(small)
    assert largest_batch(b"") == 0


@pytest.mark.parametrize("count", [1, MOST, MOST + 1])
@pytest.mark.parametrize("last", [b"bare", closed(b"value", b"key", [("a", None)])])
def test_a_batch_of_few_or_of_more_comes_back(count: int, last: bytes) -> None:
    values = [b"%d" % number for number in range(count - 1)] + [last]
    times = np.array([(1, 1_000_000 + number * 1_000) for number in range(count)], np.int64)
    batch = RecordBatch.of(TopicPartition("t", "A"), 7, values)
    octets = b"".join(encode_record_batches(RecordBatch(batch.tp, 7, batch.values, times=times)))
    [found] = decode_batches(octets)
    assert list(found.contents()) == values
    assert found.offsets.tolist() == list(range(7, 7 + count))
    assert found.timestamps_ms.tolist() == [1_000 + number for number in range(count)]
