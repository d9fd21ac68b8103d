"""Requests with records, and their responses, without making objects of them."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final, NamedTuple

from dafka_core.errors import ProtocolError

_LENGTH: Final = struct.Struct(">h")
_COUNT: Final = struct.Struct(">i")
_PARTITION: Final = struct.Struct(">ii")
_ACKS_AND_TIMEOUT_BYTES: Final = 6
_FIRST_WITH_TRANSACTIONS: Final = 3

_ANSWER: Final = struct.Struct(">ihqqq")
_ANSWER_BYTES: Final = (14, 14, 22, 22, 22, 30, 30, 30, 30)
"""As many of its octets as each version has: two, three or all of its last three numbers."""

_FIRST_WITH_THROTTLING: Final = 1
_FIRST_WITH_REASONS: Final = 8


class PartitionAnswer(NamedTuple):
    """What has become of the records for one partition: their first offset, or an error."""

    topic: str
    number: int
    error: int
    base_offset: int
    why: str | None = None


def encoded_answers(answers: Iterable[PartitionAnswer], version: int) -> bytes:
    """The body of a response to a Produce request of version 0 to 8."""
    topics: dict[str, list[PartitionAnswer]] = {}
    for each in answers:
        topics.setdefault(each.topic, []).append(each)
    pieces = [_COUNT.pack(len(topics))]
    for topic, parts in topics.items():
        pieces += _text(topic), _COUNT.pack(len(parts))
        for each in parts:
            # Neither the time of an append nor where the log begins.
            fields = _ANSWER.pack(each.number, each.error, each.base_offset, -1, -1)
            pieces.append(fields[: _ANSWER_BYTES[version]])
            if version >= _FIRST_WITH_REASONS:
                why = _LENGTH.pack(-1) if each.why is None else _text(each.why)
                pieces += _COUNT.pack(0), why
    if version >= _FIRST_WITH_THROTTLING:
        pieces.append(_COUNT.pack(0))
    return b"".join(pieces)


def _text(text: str) -> bytes:
    octets = text.encode()
    return _LENGTH.pack(len(octets)) + octets


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
