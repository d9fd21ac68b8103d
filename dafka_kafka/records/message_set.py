"""Message sets of v0 and v1, the formats of Kafka's clients up to 0.9 and 0.10.

A set is a sequence of messages:

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
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from dafka_core.model.envelope_columns import KEY, VALUE, opened_columns
from dafka_core.model.records import RecordBatch
from dafka_core.model.values import Bytes
from dafka_kafka.errors import corrupt_message, invalid_record, too_large
from dafka_kafka.records.compression import (
    MAX_DECOMPRESSED_BYTES,
    Codec,
    codec_of,
    decompressed,
)
from dafka_kafka.records.kafka_batch import NO_TIMESTAMP, BatchHead, KafkaBatch, milliseconds

V0: Final = 0
V1: Final = 1

MIN_SIZE: Final = 14  # size of a v0 message without key and value

MAX_MESSAGES: Final = 250_000
"""Messages in a set, and in a compressed one: each takes about 300 bytes while it is decoded. A set
of 1 MiB, the clients' default, has at most 40,000."""

ENTRY: Final = struct.Struct(">qi")
"""Offset and size: the first fields of each message, and of record batch v2."""

_CRC: Final = struct.Struct(">I")
_HEADS: Final = {V0: struct.Struct(">bb"), V1: struct.Struct(">bbq")}
_LENGTH: Final = struct.Struct(">i")
_APPEND_TIME: Final = 1 << 3


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
            is_old = wrapper.magic == V0
            inner = decompressed(codec, wrapper.value, left, broken_lz4=is_old)
            left -= len(inner)
            yield _batch(_unwrapped(wrapper, list(_messages(memoryview(inner)))), codec)


def _messages(octets: memoryview) -> Iterator[_Message]:
    at = count = 0
    while at < len(octets):
        count += 1
        if count > MAX_MESSAGES:
            raise too_large(f"more than {MAX_MESSAGES} messages")
        if len(octets) - at < ENTRY.size + MIN_SIZE:
            raise corrupt_message("a message ends early")
        offset, size = ENTRY.unpack_from(octets, at)
        at += ENTRY.size
        if not MIN_SIZE <= size <= len(octets) - at:
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
    if wrapper.magic == V0:  # v0: absolute offsets
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
    append_time = first.attributes & _APPEND_TIME if first.magic == V1 else 0
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
        start = head(magic, 0, stamp) if magic == V1 else head(magic, 0)
        body = b"".join((start, *_lengthy(key), *_lengthy(value)))
        parts += (ENTRY.pack(offset, _CRC.size + len(body)), _CRC.pack(zlib.crc32(body)), body)
    return b"".join(parts)


def _lengthy(part: bytes | None) -> tuple[bytes, bytes]:
    return _LENGTH.pack(-1 if part is None else len(part)), part or b""
