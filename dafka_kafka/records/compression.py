"""The compression codecs of Kafka's clients.

The decompressed size is bounded, so that a small batch can't exhaust memory.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Final

import cramjam
import numpy as np
import xxhash

from dafka_core.model.values import Bytes
from dafka_kafka.errors import KafkaError, RefusedError, invalid_record, too_large

MAX_DECOMPRESSED_BYTES: Final = 64 << 20
"""Limit of one batch: Kafka's clients send 1 MiB by default, and text compresses ten to twenty
times."""

_FIRST_GUESS: Final = 16
"""First guess of the compression ratio. It only reserves address space: memory is used as bytes
arrive."""

_XERIAL: Final = b"\x82SNAPPY\x00" + (1).to_bytes(4, "big") * 2
"""Header of Java's snappy: magic, version, and the oldest compatible version."""

_LZ4: Final = (0x184D2204).to_bytes(4, "little")
_LZ4_HAS_SIZE: Final = 8
_LZ4_HAS_DICTIONARY: Final = 1

_GZIP_MEMBER: Final = b"\x1f\x8b\x08"
MAX_GZIP_MEMBERS: Final = 1_000
"""Clients send one; empty ones take 0.2 s for each MiB."""


class Codec(IntEnum):
    """Codecs, by their numbers in a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


CODEC_BITS: Final = 7  # the part of a batch's attributes that is the codec's number


def codec_of(attributes: int, largest: Codec = Codec.ZSTD) -> Codec:
    """Return the codec in attributes; ``largest`` is the last one of their format.

    Raises:
        RefusedError: the number is unknown.
    """
    number = attributes & CODEC_BITS
    if number > largest:
        why = f"compression {number} is unknown"
        raise RefusedError(KafkaError.UNSUPPORTED_COMPRESSION_TYPE, why)
    return Codec(number)


def decompressed(
    codec: Codec,
    octets: Bytes,
    max_bytes: int = MAX_DECOMPRESSED_BYTES,
    *,
    broken_lz4: bool = False,
) -> Bytes:
    """Decompress.

    ``broken_lz4``: the header's checksum may be wrong, as in Kafka before 0.10.

    Raises:
        RefusedError: the data is invalid, or larger than ``max_bytes``.
    """
    if codec == Codec.NONE:
        return octets
    try:
        if codec == Codec.GZIP:
            if bytes(octets).count(_GZIP_MEMBER) > MAX_GZIP_MEMBERS:
                raise cramjam.DecompressionError(f"more than {MAX_GZIP_MEMBERS} members")
            return _whole(cramjam.gzip.decompress_into, octets, max_bytes)
        if codec == Codec.SNAPPY:
            return _unsnapped(octets, max_bytes)
        if codec == Codec.LZ4:
            frame = _with_checksum(bytes(octets)) if broken_lz4 else octets
            return _whole(cramjam.lz4.decompress_into, frame, max_bytes)
        return _whole(cramjam.zstd.decompress_into, octets, max_bytes)
    except cramjam.DecompressionError as error:
        why = f"records are not compressed with {codec.name.lower()}: {error}"
        raise invalid_record(why) from error


def _too_large(max_bytes: int) -> RefusedError:
    why = f"compressed records have more than {max_bytes} bytes: send fewer of them in a batch"
    return too_large(why)


def _unsnapped(octets: Bytes, max_bytes: int) -> bytes:
    if bytes(octets[:8]) != _XERIAL[:8]:
        return _unsnapped_block(octets, max_bytes, max_bytes)
    if len(octets) < len(_XERIAL):
        raise cramjam.DecompressionError("its head ends early")
    parts: list[bytes] = []
    at, left = len(_XERIAL), max_bytes
    while at < len(octets):
        stop = at + 4 + int.from_bytes(octets[at : at + 4], "big")
        if stop > len(octets):
            raise cramjam.DecompressionError("a block ends early")
        parts.append(_unsnapped_block(octets[at + 4 : stop], left, max_bytes))
        at, left = stop, left - len(parts[-1])
    return b"".join(parts)


def _unsnapped_block(octets: Bytes, left: int, max_bytes: int) -> bytes:
    size_bytes = cramjam.snappy.decompress_raw_len(octets)
    if size_bytes > 22 * len(octets):  # an element of 3 bytes copies at most 64
        raise cramjam.DecompressionError(f"{len(octets)} bytes cannot become {size_bytes}")
    if size_bytes > left:
        raise _too_large(max_bytes)
    return bytes(cramjam.snappy.decompress_raw(octets))


def _whole(decompress_into: Any, octets: Bytes, max_bytes: int) -> memoryview:
    """Decompress a format without a decompressed size."""
    for size in (len(octets) * _FIRST_GUESS, max_bytes):
        room = np.empty(min(size, max_bytes), np.uint8)
        try:
            return room[: decompress_into(octets, room)].data
        except cramjam.DecompressionError as error:
            if "whole buffer" not in str(error):
                raise
    raise _too_large(max_bytes)


def _with_checksum(frame: bytes) -> bytes:
    """Return an LZ4 frame with the right checksum of its header.

    Kafka before 0.10 wrongly included the magic, and v0 still does.
    """
    flags = frame[4] if len(frame) > 4 else 0
    end = 6 + 8 * bool(flags & _LZ4_HAS_SIZE) + 4 * bool(flags & _LZ4_HAS_DICTIONARY)
    if not frame.startswith(_LZ4) or len(frame) <= end:
        return frame
    checksum = xxhash.xxh32_intdigest(frame[4:end]) >> 8 & 0xFF
    return frame[:end] + bytes((checksum,)) + frame[end + 1 :]
