"""A few records of a batch, encoded one by one: less work than columns are for so many.

Consumers of many partitions in which little happens get a record or two of each.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

MOST: Final = 32
"""For more records columns are quicker."""


def encode_few(values: Sequence[bytes], deltas: Iterable[int]) -> bytes:
    """The octets of records without keys and headers, as ``record_columns`` has them.

    ``deltas`` are those of their timestamps.
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
