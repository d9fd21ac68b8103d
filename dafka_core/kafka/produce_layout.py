"""Where the parts of a request with records are, without making objects of them."""

from __future__ import annotations

import struct
from typing import Final

from dafka_core.errors import ProtocolError

_LENGTH: Final = struct.Struct(">h")
_COUNT: Final = struct.Struct(">i")
_PARTITION: Final = struct.Struct(">ii")
_ACKS_AND_TIMEOUT_BYTES: Final = 6
_FIRST_WITH_TRANSACTIONS: Final = 3


def check_partitions(octets: memoryview, at: int, version: int, limit: int) -> None:
    """Checks a Produce request of version 0 to 8, whose body begins at octet ``at``.

    Raises:
        ProtocolError: it has more than ``limit`` topics and partitions, or is cut short.
    """
    count = 0
    try:
        if version >= _FIRST_WITH_TRANSACTIONS:
            at = _after_text(octets, at)
        at += _ACKS_AND_TIMEOUT_BYTES
        (topics,) = _COUNT.unpack_from(octets, at)
        at += _COUNT.size
        for _ in range(topics):
            at = _after_text(octets, at)
            (partitions,) = _COUNT.unpack_from(octets, at)
            at += _COUNT.size
            count += 1 + max(partitions, 0)
            if count > limit:
                raise ProtocolError(f"a request with records for more than {limit} partitions")
            for _ in range(partitions):
                _, size_bytes = _PARTITION.unpack_from(octets, at)
                at += _PARTITION.size + max(size_bytes, 0)
    except struct.error:
        at = len(octets) + 1
    if at > len(octets):
        raise ProtocolError("a request with records that is cut short")


def _after_text(octets: memoryview, at: int) -> int:
    length: int = _LENGTH.unpack_from(octets, at)[0]
    return at + _LENGTH.size + max(length, 0)
