"""The kinds of message fields: what a field may hold, and how it lies in a frame.

A message class annotates its fields with kinds.  ``messages`` checks a message by them, ``codec``
packs and unpacks it by them.  ``docs/wire.md`` lists the fields of each message.
"""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO
from struct import Struct
from typing import Annotated, Any, Final, NamedTuple

from dafka_core.errors import ProtocolError
from dafka_core.protocol import limits
from dafka_core.protocol import validation as v
from dafka_core.records import PartitionInfo, Transaction

_PAIR: Final = Struct(">QQ")
_TRANSACTION: Final = Struct(">qQQ")
NO_TRANSACTION: Final = (0, 0, 0)
"""Of records that belong to none: no transaction ends at 0."""


class FrameReader(BytesIO):
    """Reads fields off a frame; a frame that is shorter than it claims is a ProtocolError."""

    def take(self, size_bytes: int) -> bytes:
        """The next octets."""
        octets = self.read(size_bytes)
        if len(octets) < size_bytes:
            raise ProtocolError("the frame ends within a field")
        return octets

    def number(self, size_bytes: int) -> int:
        """The next number; RFC 46: "unsigned integers in network byte order"."""
        return int.from_bytes(self.take(size_bytes), "big")

    def text(self, length_size_bytes: int = 1) -> str:
        """The next string; RFC 46: "Strings are always length + text contents"."""
        return text_of(self.take(self.number(length_size_bytes)))

    def finish(self) -> None:
        """Raises ProtocolError unless every octet has been read."""
        if self.read(1):
            raise ProtocolError("the frame goes on after its last field")


class FieldKind(NamedTuple):
    """What a field may hold (``check`` raises ProtocolError), and its form in a frame."""

    check: Callable[[Any], None]
    pack: Callable[[Any], bytes]
    unpack: Callable[[FrameReader], Any]


def text_of(octets: bytes) -> str:
    """Octets as text; RFC 46: a topic "can be any byte sequence", so any octets survive."""
    return octets.decode("utf-8", "surrogateescape")


def octets_of(text: str) -> bytes:
    """The inverse of ``text_of``."""
    return text.encode("utf-8", "surrogateescape")


def pack_text(text: str, length_size_bytes: int = 1) -> bytes:
    """A string in a frame: its length, then its octets."""
    octets = octets_of(text)
    return len(octets).to_bytes(length_size_bytes, "big") + octets


def transaction_of(numbers: tuple[int, ...]) -> Transaction | None:
    """The transaction with this version, start and end; nothing of it is checked."""
    return None if numbers == NO_TRANSACTION else Transaction._make(numbers)


def _anything(value: object) -> None:
    """Checked together with other fields."""


def _text(check: Callable[[str], None], *, may_be_empty: bool = False) -> FieldKind:
    checked = (lambda text: check(text) if text else None) if may_be_empty else check
    return FieldKind(checked, pack_text, FrameReader.text)


def _number(size_bytes: int, check: Callable[[int], None]) -> FieldKind:
    return FieldKind(
        check,
        lambda number: int(number).to_bytes(size_bytes, "big"),
        lambda frame: frame.number(size_bytes),
    )


def _list(
    entry: FieldKind, most: int, check_all: Callable[[tuple[Any, ...]], None] = _anything
) -> FieldKind:
    def check(entries: tuple[Any, ...]) -> None:
        v.check_number("the count of entries", 0, most, len(entries))
        check_all(entries)
        for each in entries:
            entry.check(each)

    def pack(entries: tuple[Any, ...]) -> bytes:
        return len(entries).to_bytes(4, "big") + b"".join(map(entry.pack, entries))

    def unpack(frame: FrameReader) -> tuple[Any, ...]:
        count = frame.number(4)
        # Before the loop: a frame may announce more than it holds.
        v.check_number("the count of entries", 0, most, count)
        return tuple(entry.unpack(frame) for _ in range(count))

    return FieldKind(check, pack, unpack)


def _check_head(info: PartitionInfo) -> None:
    v.check_topic(info.topic)
    v.check_address(info.partition)
    v.check_end(info.end)
    v.check_number("a partition's first offset", 0, info.end, info.earliest)


def _pack_head(info: PartitionInfo) -> bytes:
    names = pack_text(info.topic) + pack_text(info.partition)
    return names + _PAIR.pack(info.earliest, info.end)


def _unpack_head(frame: FrameReader) -> PartitionInfo:
    return PartitionInfo(frame.text(), frame.text(), *_PAIR.unpack(frame.take(_PAIR.size)))


def _check_range(wanted: PartitionInfo) -> None:
    _check_head(wanted)
    v.check_number("a range's count", 1, limits.MAX_FETCH_COUNT, wanted.end - wanted.earliest)


def _check_time(entry: tuple[int, int]) -> None:
    offset, timestamp_us = entry
    v.check_sequence(offset)
    v.check_sequence(timestamp_us)


_HEAD: Final = FieldKind(_check_head, _pack_head, _unpack_head)
_RANGE: Final = _HEAD._replace(check=_check_range)
_TIME: Final = FieldKind(
    _check_time,
    lambda entry: _PAIR.pack(*entry),
    lambda frame: _PAIR.unpack(frame.take(_PAIR.size)),
)
_LONG_TEXT: Final = FieldKind(
    _anything, lambda text: pack_text(text, 4), lambda frame: frame.text(4)
)
_MOST_TEXTS: Final = limits.MAX_HELLO_BYTES // 4  # each takes four octets at least

Topic = Annotated[str, _text(v.check_topic)]
AnyTopic = Annotated[str, _text(v.check_topic, may_be_empty=True)]
Address = Annotated[str, _text(v.check_address)]
AnyAddress = Annotated[str, _text(v.check_address, may_be_empty=True)]
"""Empty: all of them, or one that is not named."""
Offset = Annotated[int, _number(8, v.check_sequence)]
End = Annotated[int, _number(8, v.check_end)]
Number = Annotated[int, _number(4, _anything)]
QueryId = Annotated[int, _number(8, v.check_query)]
FetchCount = Annotated[
    int,
    # Clamped rather than refused: C nodes accept any count.
    _number(4, v.check_fetch_count)._replace(
        unpack=lambda frame: min(frame.number(4), limits.MAX_FETCH_COUNT)
    ),
]
MaybeTransaction = Annotated[
    Transaction | None,
    FieldKind(
        _anything,
        lambda transaction: _TRANSACTION.pack(*(transaction or NO_TRANSACTION)),
        lambda frame: transaction_of(_TRANSACTION.unpack(frame.take(_TRANSACTION.size))),
    ),
]
Topics = Annotated[tuple[str, ...], _list(_LONG_TEXT, _MOST_TEXTS, v.check_topics)]
Locations = Annotated[tuple[str, ...], _list(_LONG_TEXT, _MOST_TEXTS, v.check_locations)]
Heads = Annotated[tuple[PartitionInfo, ...], _list(_HEAD, limits.MAX_REPLY_ENTRIES)]
Ranges = Annotated[tuple[PartitionInfo, ...], _list(_RANGE, limits.MAX_FETCH_PARTITIONS)]
"""Offsets ``earliest`` up to, not including, ``end`` of partitions: in frames as heads are."""
Times = Annotated[tuple[tuple[int, int], ...], _list(_TIME, limits.MAX_REPLY_ENTRIES)]
"""(offset, microseconds since 1970 UTC): written then from this offset on, until the next one."""
