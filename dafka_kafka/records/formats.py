"""Batches of records in Kafka's formats: record batch v2, and message sets v0 and v1.

Clients since Kafka 0.11 send record batches:

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

Clients up to Kafka 0.9 and 0.10 send message sets, which are sequences of messages:

    offset              8 bytes
    size                4          of the following fields
    CRC-32              4          of the following fields
    magic               1          0 or 1
    attributes          1          3 bits: the codec; in v1 then: append time
    timestamp           8          in v1 only
    key's length, key   4, …       -1: null
    value's length, value          as the key

The value of a message with a codec is a compressed set of messages without one. Each message has
its own CRC, so they are decoded one by one; these formats need not be fast.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Final, NamedTuple

import crc32c
import numpy as np
import pyarrow as pa

from dafka_core.model.envelope import MAGIC as ENVELOPE
from dafka_core.model.envelope import closed
from dafka_core.model.envelope_columns import HEADERS, KEY, VALUE, close_columns, opened_columns
from dafka_core.model.records import UNKNOWN_US, RecordBatch
from dafka_core.model.values import Bytes, Longs, Values
from dafka_kafka.errors import corrupt_message, invalid_record, too_large
from dafka_kafka.records.compression import (
    CODEC_BITS,
    MAX_DECOMPRESSED_BYTES,
    Codec,
    codec_of,
    decompressed,
)
from dafka_kafka.records.record_columns import (
    INT_OCTETS,
    LONG_OCTETS,
    RecordColumns,
    decode_records,
    encode_records,
    read_varint,
)

# -- batches and their columns ---------------------------------------------------------------------

NO_TIMESTAMP: Final = -1  # the milliseconds of a record without a timestamp
_US: Final = 1_000  # microseconds in a millisecond

_MAX_MS: Final = 2**63 // _US - 1

_APPEND_TIME: Final = 1 << 3
_TRANSACTIONAL: Final = 1 << 4
_CONTROL: Final = 1 << 5


class BatchHead(NamedTuple):
    """What a Kafka client says of records that it has sent together.

    Attributes:
        magic: the format's version: 0 and 1 are message sets, 2 is a record batch.
        attributes: the codec, and bits that the properties explain.
        leader_epoch, producer_id, producer_epoch, base_sequence: Kafka's fields, or -1.
    """

    magic: int
    attributes: int
    leader_epoch: int = -1
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1

    @property
    def codec(self) -> Codec:
        """The records' compression."""
        return Codec(self.attributes & CODEC_BITS)

    @property
    def is_append_time(self) -> bool:
        """True if a broker set the timestamps, not the client."""
        return bool(self.attributes & _APPEND_TIME)

    @property
    def is_transactional(self) -> bool:
        """True if the records belong to a transaction."""
        return bool(self.attributes & _TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        """True if they are markers of a transaction's end."""
        return bool(self.attributes & _CONTROL)


class KafkaBatch(NamedTuple):
    """Records that a Kafka client has sent together.

    Attributes:
        offsets: of each record; in a Produce request they count from 0, or are arbitrary.
        values, keys: of binary, with nulls; keys are None if all are null.
        headers: of ``HEADERS_TYPE``; None if no record has any.
        timestamps_ms: of each record, in milliseconds since 1970 UTC, or ``NO_TIMESTAMP``.
    """

    head: BatchHead
    offsets: Longs
    values: pa.Array
    keys: pa.Array | None
    headers: pa.Array | None
    timestamps_ms: Longs

    def contents(self) -> Values:
        """Return the contents: envelopes for records with a key, headers or a null value.

        Raises:
            RefusedError: a record has too many headers.
        """
        return contents_of(self.values, self.keys, self.headers)


def contents_of(values: pa.Array, keys: pa.Array | None, headers: pa.Array | None) -> Values:
    """Return the contents of these columns, as ``KafkaBatch.contents``."""
    try:
        return Values.from_arrow(close_columns(values, keys, headers))
    except ValueError as error:
        raise too_large(str(error)) from error


def times_of(stamps_ms: Longs) -> Longs | None:
    """Convert timestamps to ``RecordBatch.times``; None if no record has one."""
    count = len(stamps_ms)
    bounds = np.flatnonzero(stamps_ms[1:] != stamps_ms[:-1])
    times = np.empty((len(bounds) + 1, 2), np.int64)
    counts, of_runs = times[:, 0], times[:, 1]
    counts[:-1], counts[-1] = bounds + 1, count
    of_runs[:] = stamps_ms.take(counts - 1)
    counts[1:] -= counts[:-1].copy()
    unknown = of_runs == NO_TIMESTAMP
    if len(times) == 1 and unknown[0]:
        return None
    np.minimum(np.maximum(of_runs, -_MAX_MS, out=of_runs), _MAX_MS, out=of_runs)
    of_runs *= _US
    of_runs[unknown] = UNKNOWN_US
    return times


def milliseconds(times: Longs | None, count: int) -> Longs:
    """Expand ``RecordBatch.times`` to the timestamps of ``count`` records."""
    if times is None:
        return np.full(count, NO_TIMESTAMP, np.int64)
    of_runs = times[:, 1]
    stamps = np.where(of_runs == UNKNOWN_US, NO_TIMESTAMP, of_runs // _US)
    return np.repeat(stamps, times[:, 0])


# -- a few records ---------------------------------------------------------------------------------

# A few records are encoded and decoded one by one, which is quicker than by column. Consumers of
# many quiet partitions get a record or two of each, and producers that wait for each record send
# single ones.

MAX_FEW: Final = 32  # with more records, columns are quicker


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


# -- record batch v2 -------------------------------------------------------------------------------

MAGIC_V2: Final = 2

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


def is_uncompressed(octets: Bytes) -> bool:
    """Return True if the bytes begin as a batch that is not compressed."""
    return (
        len(octets) > _RECORDS_AT
        and octets[_MAGIC_AT] == MAGIC_V2
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
    if magic != MAGIC_V2 or length != len(octets) - _LENGTH_AT:
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
    if len(contents) <= MAX_FEW:
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
    head = _HEAD.pack(offset, length, _NO_EPOCH, MAGIC_V2, checksum)
    return b"".join((head, covered, records))


# -- message sets v0 and v1 ------------------------------------------------------------------------

MAGIC_V0: Final = 0
MAGIC_V1: Final = 1

MIN_MESSAGE_BYTES: Final = 14  # size of a v0 message without key and value

MAX_MESSAGES: Final = 250_000
"""Messages in a set, and in a compressed one: each takes about 300 bytes while it is decoded. A set
of 1 MiB, the clients' default, has at most 40,000."""

ENTRY: Final = struct.Struct(">qi")
"""Offset and size: the first fields of each message, and of record batch v2."""

_CRC: Final = struct.Struct(">I")
_HEADS: Final = {MAGIC_V0: struct.Struct(">bb"), MAGIC_V1: struct.Struct(">bbq")}
_LENGTH: Final = struct.Struct(">i")


class _Message(NamedTuple):
    offset: int
    magic: int
    attributes: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None

    @property
    def run(self) -> tuple[int, int]:
        return self.magic, self.attributes & _APPEND_TIME


def decode_message_set(
    octets: Bytes, max_bytes: int = MAX_DECOMPRESSED_BYTES
) -> Iterator[KafkaBatch]:
    """Decode a set's messages, with a separate batch for each compressed one.

    Args:
        max_bytes: the limit of their decompressed size together.

    Raises:
        RefusedError: a message, its CRC or its content is invalid.
    """
    left = max_bytes
    messages = _messages(memoryview(octets))
    for codec, run in groupby(messages, lambda message: codec_of(message.attributes, Codec.LZ4)):
        if codec == Codec.NONE:
            for _, alike in groupby(run, lambda message: message.run):
                yield _batch(list(alike), codec)
            continue
        for wrapper in run:
            if wrapper.value is None:
                raise invalid_record("a compressed message set is null")
            inner = decompressed(codec, wrapper.value, left, broken_lz4=wrapper.magic == MAGIC_V0)
            left -= len(inner)
            yield _batch(_unwrapped(wrapper, list(_messages(memoryview(inner)))), codec)


def _messages(octets: memoryview) -> Iterator[_Message]:
    at = count = 0
    while at < len(octets):
        count += 1
        if count > MAX_MESSAGES:
            raise too_large(f"more than {MAX_MESSAGES} messages")
        if len(octets) - at < ENTRY.size + MIN_MESSAGE_BYTES:
            raise corrupt_message("a message ends early")
        offset, size = ENTRY.unpack_from(octets, at)
        at += ENTRY.size
        if not MIN_MESSAGE_BYTES <= size <= len(octets) - at:
            raise corrupt_message(f"a message cannot have {size} bytes here")
        yield _message(offset, octets[at : at + size])
        at += size


def _message(offset: int, octets: memoryview) -> _Message:
    (checksum,) = _CRC.unpack_from(octets)
    if zlib.crc32(octets[_CRC.size :]) != checksum:
        raise corrupt_message("the CRC of a message is wrong")
    head = _HEADS.get(octets[_CRC.size])
    if head is None:
        raise corrupt_message(f"no message has magic {octets[_CRC.size]}")
    try:
        magic, attributes, *timestamp = head.unpack_from(octets, _CRC.size)
        key, at = _part(octets, _CRC.size + head.size)
        value, at = _part(octets, at)
    except struct.error:
        at = -1
    if at != len(octets):
        raise invalid_record("the parts of a message do not end where it ends")
    stamp = timestamp[0] if timestamp else NO_TIMESTAMP
    return _Message(offset, magic, attributes, stamp, key, value)


def _part(octets: memoryview, at: int) -> tuple[bytes | None, int]:
    (length,) = _LENGTH.unpack_from(octets, at)
    at += _LENGTH.size
    if length == -1:
        return None, at
    if not 0 <= length <= len(octets) - at:
        raise struct.error
    return octets[at : at + length].tobytes(), at + length


def _unwrapped(wrapper: _Message, inner: list[_Message]) -> list[_Message]:
    if not inner or any(message.magic != wrapper.magic for message in inner):
        raise invalid_record("a compressed message set is empty, or of more than one version")
    if any(message.attributes & 7 for message in inner):
        raise invalid_record("a compressed message set is in another one")
    if wrapper.magic == MAGIC_V0:  # v0: absolute offsets
        return inner
    # v1: they count from the set's first message, and the wrapper has the last one's offset, or 0
    # from some versions of librdkafka.
    first = wrapper.offset - inner[-1].offset if wrapper.offset else 0
    if first < 0:
        raise invalid_record(
            f"the last message of a compressed set has offset {inner[-1].offset}, and the set "
            f"{wrapper.offset}"
        )
    inner = [message._replace(offset=first + message.offset) for message in inner]
    if wrapper.attributes & _APPEND_TIME:
        stamp = wrapper.timestamp_ms
        inner = [each._replace(timestamp_ms=stamp, attributes=_APPEND_TIME) for each in inner]
    return inner


def _batch(messages: list[_Message], codec: Codec) -> KafkaBatch:
    first, keys = messages[0], [message.key for message in messages]
    append_time = first.attributes & _APPEND_TIME if first.magic == MAGIC_V1 else 0
    return KafkaBatch(
        BatchHead(first.magic, codec | append_time),
        np.array([message.offset for message in messages], np.int64),
        pa.array([message.value for message in messages], pa.binary()),
        pa.array(keys, pa.binary()) if any(key is not None for key in keys) else None,
        None,
        np.array([message.timestamp_ms for message in messages], np.int64),
    )


def encode_message_set(batch: RecordBatch, magic: int) -> bytes:
    """Encode records as an uncompressed message set of v0 or v1.

    Envelopes are opened. The formats have no headers, and v0 has no timestamps: these are dropped.
    """
    opened = opened_columns(batch.values, (KEY, VALUE))
    values: Iterable[bytes | None] = batch.values
    keys: Iterable[bytes | None] = [None] * batch.count
    if opened is not None:
        keys, values = opened[KEY].to_pylist(), opened[VALUE].to_pylist()
    head = _HEADS[magic].pack
    stamps = milliseconds(batch.times, batch.count).tolist()
    rows = zip(range(batch.offset, batch.end), keys, values, stamps, strict=True)
    parts: list[bytes] = []
    for offset, key, value, stamp in rows:
        start = head(magic, 0, stamp) if magic == MAGIC_V1 else head(magic, 0)
        body = b"".join((start, *_lengthy(key), *_lengthy(value)))
        parts += (ENTRY.pack(offset, _CRC.size + len(body)), _CRC.pack(zlib.crc32(body)), body)
    return b"".join(parts)


def _lengthy(part: bytes | None) -> tuple[bytes, bytes]:
    return _LENGTH.pack(-1 if part is None else len(part)), part or b""


# -- any batches -----------------------------------------------------------------------------------


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
        if size < MIN_MESSAGE_BYTES:
            raise corrupt_message(f"no batch has {size} bytes")
        end = at + ENTRY.size + size
        if end > len(octets):
            break
        if octets[at + _MAGIC_AT] >= MAGIC_V2:
            yield from decode_message_set(octets[first:at], max_bytes)
            yield decode_record_batch(octets[at:end], max_bytes)
            first = end
        at = end
    yield from decode_message_set(octets[first:at], max_bytes)
