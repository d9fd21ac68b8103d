"""Kafka's record batch v2, the format of clients since Kafka 0.11.

    base offset         8 bytes    of the first record
    length              4          of the following fields
    leader epoch        4
    magic               1          2
    CRC-32C             4          of the following fields
    attributes          2          3 bits: the codec; then: append time, transactional, control
    last offset delta   4          the number of records, less one
    base timestamp      8          the records have deltas to it
    max timestamp       8
    producer's id       8
    producer's epoch    2
    base sequence       4
    number of records   4
    records                        compressed by the codec (``record_columns``)

Offset and leader epoch are outside the CRC, so that a broker can set them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import crc32c
import numpy as np

from dafka_core.model.envelope import MAGIC as ENVELOPE
from dafka_core.model.envelope import closed
from dafka_core.model.envelope_columns import HEADERS, KEY, VALUE, opened_columns
from dafka_core.model.records import RecordBatch
from dafka_core.model.values import Bytes, Longs, Values
from dafka_kafka.errors import corrupt_message, invalid_record
from dafka_kafka.records.compression import (
    CODEC_BITS,
    MAX_DECOMPRESSED_BYTES,
    Codec,
    codec_of,
    decompressed,
)
from dafka_kafka.records.kafka_batch import BatchHead, KafkaBatch, milliseconds
from dafka_kafka.records.message_set import ENTRY, MIN_SIZE, decode_message_set
from dafka_kafka.records.record_columns import (
    INT_OCTETS,
    LONG_OCTETS,
    RecordColumns,
    decode_records,
    encode_records,
    read_varint,
)

# A few records are encoded and decoded one by one, which is quicker than by column. Consumers of
# many quiet partitions get a record or two of each, and producers that wait for each record send
# single ones.


MOST: Final = 32  # with more records, columns are quicker


def decode_few(octets: Bytes, count: int) -> tuple[list[bytes], list[int]] | None:
    """Return the contents of records without headers, and the deltas of their timestamps.

    None if a record has headers or is invalid: ``record_columns`` decodes it, or says why not.
    """
    contents: list[bytes] = []
    deltas: list[int] = []
    at = 0
    for number in range(count):
        length, start = read_varint(octets, at, INT_OCTETS)
        delta, at = read_varint(octets, start + 1, LONG_OCTETS)
        offset, at = read_varint(octets, at, INT_OCTETS)
        parts: list[bytes | None] = []
        for _ in ("key", "value"):
            size, at = read_varint(octets, at, INT_OCTETS)
            if size < -1:
                return None
            parts.append(None if size < 0 else bytes(octets[at : at + size]))
            at += max(size, 0)
        headers, at = read_varint(octets, at, INT_OCTETS)
        if offset != number or headers or at != start + length or at > len(octets):
            return None
        key, value = parts
        contents.append(closed(value, key))
        deltas.append(delta)
    return (contents, deltas) if at == len(octets) else None


def encode_few(values: Sequence[bytes], deltas: Iterable[int]) -> bytes:
    """Encode records without keys and headers, as ``record_columns`` does.

    ``deltas`` are of their timestamps.
    """
    octets = bytearray()
    for number, (value, delta) in enumerate(zip(values, deltas, strict=True)):
        head = b"\0%b%b\1%b" % (_varint(delta), _varint(number), _varint(len(value)))
        octets += b"%b%b%b\0" % (_varint(len(head) + len(value) + 1), head, value)
    return bytes(octets)


def _varint(number: int) -> bytes:
    left = (number << 1) ^ (number >> 63)
    if left < 0x80:
        return _SHORT[left]
    octets = bytearray()
    while left >= 0x80:
        octets.append(left & 0x7F | 0x80)
        left >>= 7
    octets.append(left)
    return bytes(octets)


_SHORT: Final = [bytes((octet,)) for octet in range(0x80)]


MAGIC: Final = 2

_HEAD: Final = struct.Struct(">qiibI")
_COVERED: Final = struct.Struct(">hiqqqhii")
_COVERED_AT: Final = _HEAD.size
_RECORDS_AT: Final = _HEAD.size + _COVERED.size
_MAGIC_AT: Final = 16
"""Position of the magic, in all versions."""

_CODEC_AT: Final = 22  # the lower byte of the attributes

_LENGTH_AT: Final = 12
"""The fields that the length does not count: itself, and the offset before it."""

_NO_EPOCH: Final = -1
_NO_PRODUCER: Final = (-1, -1, -1)
"""The leader epoch and the producer of batches that a gateway sends."""


class OpenedBatch(NamedTuple):
    """A batch with a valid CRC, whose records are decompressed, but not decoded yet."""

    head: BatchHead
    offset: int
    base_ms: int
    max_ms: int
    record_count: int
    records: Bytes


def is_plain(octets: Bytes) -> bool:
    """Return True if the bytes begin as a batch that is not compressed."""
    return (
        len(octets) > _RECORDS_AT
        and octets[_MAGIC_AT] == MAGIC
        and not octets[_CODEC_AT] & CODEC_BITS
    )


def open_record_batch(octets: Bytes, max_bytes: int = MAX_DECOMPRESSED_BYTES) -> OpenedBatch:
    """Parse one batch that takes all of the bytes.

    Args:
        max_bytes: the limit of its decompressed size.

    Raises:
        RefusedError: the batch or its CRC is invalid.
    """
    if len(octets) < _RECORDS_AT:
        raise corrupt_message(f"a record batch has {_RECORDS_AT} bytes at least, not {len(octets)}")
    octets = memoryview(octets)
    offset, length, leader_epoch, magic, checksum = _HEAD.unpack_from(octets)
    if magic != MAGIC or length != len(octets) - _LENGTH_AT:
        raise corrupt_message(f"{len(octets)} bytes are no batch of {length}, magic {magic}")
    if crc32c.crc32c(octets[_COVERED_AT:]) != checksum:
        raise corrupt_message("the CRC of a record batch is wrong")
    attributes, last, base_ms, max_ms, *producer, count = _COVERED.unpack_from(octets, _COVERED_AT)
    codec = codec_of(attributes)
    if count <= 0 or last != count - 1:
        raise invalid_record(f"a batch of {count} records says that its last one is number {last}")
    records = decompressed(codec, octets[_RECORDS_AT:], max_bytes)
    head = BatchHead(magic, attributes, leader_epoch, *producer)
    return OpenedBatch(head, offset, base_ms, max_ms, count, records)


def decode_record_batch(octets: Bytes, max_bytes: int = MAX_DECOMPRESSED_BYTES) -> KafkaBatch:
    """Parse a batch and decode its records; raises RefusedError if either is invalid."""
    head, offset, base_ms, max_ms, count, records = open_record_batch(octets, max_bytes)
    values, keys, headers, deltas = decode_records(records, count)
    stamps_ms = np.full(count, max_ms) if head.is_append_time else base_ms + deltas
    return KafkaBatch(head, offset + np.arange(count), values, keys, headers, stamps_ms)


def encode_record_batch(batch: RecordBatch) -> bytes:
    """Encode records as one batch.

    Envelopes are opened, and nothing is compressed. Timestamps are the producers' (create time), in
    whole milliseconds; a record without one gets -1.
    """
    stamps = milliseconds(batch.times, batch.count)
    return _with_head(batch.offset, _encoded(batch.values, stamps - stamps[0]), stamps)


def _encoded(contents: Values, deltas: Longs) -> Bytes:
    if len(contents) <= MOST:
        values = contents.to_list()
        if not any(value.startswith(ENVELOPE) for value in values):
            return encode_few(values, deltas.tolist())
    opened = opened_columns(contents)
    if opened is None:
        return encode_records(RecordColumns(contents.to_arrow(), None, None, deltas))
    return encode_records(RecordColumns(opened[VALUE], opened[KEY], opened[HEADERS], deltas))


def _with_head(offset: int, records: Bytes, stamps: Longs) -> bytes:
    count, times = len(stamps), (int(stamps[0]), int(stamps.max()))
    covered = _COVERED.pack(Codec.NONE, count - 1, *times, *_NO_PRODUCER, count)
    checksum = crc32c.crc32c(records, crc32c.crc32c(covered))
    length = _RECORDS_AT - _LENGTH_AT + len(records)
    head = _HEAD.pack(offset, length, _NO_EPOCH, MAGIC, checksum)
    return b"".join((head, covered, records))


def largest_batch(octets: Bytes) -> int:
    """Return the size of the largest record batch or message, up to the first invalid one."""
    at = largest = 0
    while len(octets) - at >= ENTRY.size:
        size = ENTRY.unpack_from(octets, at)[1] + ENTRY.size
        if size <= ENTRY.size:
            break
        at, largest = at + size, max(largest, size)
    return largest


def decode_batches(octets: Bytes, max_bytes: int = MAX_DECOMPRESSED_BYTES) -> Iterator[KafkaBatch]:
    """Yield the batches, each decoded when it is requested.

    A truncated last batch is ignored, as by Kafka's brokers and consumers.

    Args:
        max_bytes: the limit of each batch's decompressed size, and of all consecutive messages of
            v0 and v1 together.

    Raises:
        RefusedError: a batch is invalid.
    """
    octets = memoryview(octets)
    first = at = 0  # complete messages of v0 and v1
    while len(octets) - at >= ENTRY.size:
        _, size = ENTRY.unpack_from(octets, at)
        if size < MIN_SIZE:
            raise corrupt_message(f"no batch has {size} bytes")
        end = at + ENTRY.size + size
        if end > len(octets):
            break
        if octets[at + _MAGIC_AT] >= MAGIC:
            yield from decode_message_set(octets[first:at], max_bytes)
            yield decode_record_batch(octets[at:end], max_bytes)
            first = end
        at = end
    yield from decode_message_set(octets[first:at], max_bytes)
