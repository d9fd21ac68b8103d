"""Kinds of message fields: what a field may hold, and how it lies in a frame.

A message class annotates its fields with these kinds; ``messages`` checks by them, ``codec`` packs
and unpacks by them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Final, NamedTuple, get_type_hints

from dafka_core.errors import ProtocolError
from dafka_core.protocol.limits import MAX_FETCH_COUNT, MAX_HELLO_BYTES, MAX_REPLY_ENTRIES
from dafka_core.protocol.transactions import NO_TRANSACTION, TRANSACTION, transaction_of
from dafka_core.protocol.validation import (
    check_address,
    check_end,
    check_locations,
    check_query,
    check_sequence,
    check_topic,
    check_topics,
)
from dafka_core.records import Transaction


class FrameReader:
    """Reads fields off a frame; anything short of what it claims is a ProtocolError."""

    __slots__ = ("_data", "_position")

    def __init__(self, data: bytes, position: int) -> None:
        self._data = data
        self._position = position

    def take(self, size_bytes: int) -> bytes:
        """The next octets."""
        start = self._position
        self._position = start + size_bytes
        if self._position > len(self._data):
            raise ProtocolError("the frame ends within a field")
        return self._data[start : self._position]

    def number(self, size_bytes: int) -> int:
        """The next unsigned integer, "in network byte order"."""
        return int.from_bytes(self.take(size_bytes), "big")

    def text(self, length_size_bytes: int) -> str:
        """The next string: "Strings are always length + text contents"."""
        return text_of(self.take(self.number(length_size_bytes)))

    def finish(self) -> None:
        """Raises ProtocolError unless every octet has been read."""
        if self._position != len(self._data):
            raise ProtocolError("the frame goes on after its last field")


@dataclass(frozen=True, slots=True)
class FieldKind:
    """What a field may hold (``check`` raises ProtocolError), and its form in a frame."""

    check: Callable[[Any], None]
    put: Callable[[Any], bytes]
    get: Callable[[FrameReader], Any]


def text_of(octets: bytes) -> str:
    """Octets as text; RFC 46: a topic "can be any byte sequence", so any octets survive."""
    return octets.decode("utf-8", "surrogateescape")


def octets_of(text: str) -> bytes:
    """The inverse of ``text_of``."""
    return text.encode("utf-8", "surrogateescape")


def _put_number(size_bytes: int, number: int) -> bytes:
    return int(number).to_bytes(size_bytes, "big")


def _get_number(size_bytes: int, frame: FrameReader) -> int:
    return frame.number(size_bytes)


def _put_text(length_size_bytes: int, text: str) -> bytes:
    octets = octets_of(text)
    return len(octets).to_bytes(length_size_bytes, "big") + octets


def _get_text(frame: FrameReader) -> str:
    return frame.text(1)


_number4 = partial(_put_number, 4), partial(_get_number, 4)
_number8 = partial(_put_number, 8), partial(_get_number, 8)
_text = partial(_put_text, 1), _get_text


def _list_of(
    put: Callable[[Any], bytes], get: Callable[[FrameReader], Any], most: int
) -> tuple[Callable[[Any], bytes], Callable[[FrameReader], Any]]:
    def put_all(entries: tuple[Any, ...]) -> bytes:
        return _put_number(4, len(entries)) + b"".join(map(put, entries))

    def get_all(frame: FrameReader) -> tuple[Any, ...]:
        count = frame.number(4)
        # An entry takes some octets at least: a count beyond that is a lie, no reason to loop.
        if count > most:
            raise ProtocolError(f"a list has at most {most} entries")
        return tuple(get(frame) for _ in range(count))

    return put_all, get_all


def _anything(value: object) -> None:
    """Checked together with other fields."""


def _or_empty(check: Callable[[str], None]) -> Callable[[str], None]:
    return lambda text: check(text) if text else None


def _check_count(count: int) -> None:
    if not 0 <= count <= MAX_FETCH_COUNT:
        raise ProtocolError(f"a count must lie in 0 to {MAX_FETCH_COUNT}")


class HeadEntry(NamedTuple):
    """What a store holds of one partition: offsets ``earliest`` to ``end`` (exclusive)."""

    topic: str
    partition: str
    earliest: int
    end: int


class TimeEntry(NamedTuple):
    """From ``offset`` on, until the next entry, records were written at ``timestamp_us``."""

    offset: int
    timestamp_us: int


def _check_heads(entries: tuple[HeadEntry, ...]) -> None:
    for entry in entries:
        check_topic(entry.topic)
        check_address(entry.partition)
        check_end(entry.end)
        if not 0 <= entry.earliest <= entry.end:
            raise ProtocolError("a partition must not begin after its end")


def _check_times(entries: tuple[TimeEntry, ...]) -> None:
    for entry in entries:
        check_sequence(entry.offset)
        check_sequence(entry.timestamp_us)


def _put_head(entry: HeadEntry) -> bytes:
    names = _put_text(1, entry.topic) + _put_text(1, entry.partition)
    return names + _put_number(8, entry.earliest) + _put_number(8, entry.end)


def _get_head(frame: FrameReader) -> HeadEntry:
    return HeadEntry(frame.text(1), frame.text(1), frame.number(8), frame.number(8))


def _put_time(entry: TimeEntry) -> bytes:
    return _put_number(8, entry.offset) + _put_number(8, entry.timestamp_us)


def _get_time(frame: FrameReader) -> TimeEntry:
    return TimeEntry(frame.number(8), frame.number(8))


def _put_transaction(transaction: Transaction | None) -> bytes:
    return TRANSACTION.pack(*(transaction or NO_TRANSACTION))


def _get_transaction(frame: FrameReader) -> Transaction | None:
    return transaction_of(TRANSACTION.unpack(frame.take(TRANSACTION.size)))


_texts = _list_of(partial(_put_text, 4), lambda frame: frame.text(4), MAX_HELLO_BYTES // 4)

Topic = Annotated[str, FieldKind(check_topic, *_text)]
AnyTopic = Annotated[str, FieldKind(_or_empty(check_topic), *_text)]
Address = Annotated[str, FieldKind(check_address, *_text)]
AnyAddress = Annotated[str, FieldKind(_or_empty(check_address), *_text)]
"""Empty: all of them, or one that is not named."""
Offset = Annotated[int, FieldKind(check_sequence, *_number8)]
End = Annotated[int, FieldKind(check_end, *_number8)]
FetchCount = Annotated[
    int,
    # A count beyond the limit is clamped rather than refused: C nodes serve any.
    FieldKind(_check_count, _number4[0], lambda frame: min(frame.number(4), MAX_FETCH_COUNT)),
]
Number = Annotated[int, FieldKind(_anything, *_number4)]
QueryId = Annotated[int, FieldKind(check_query, *_number8)]
Topics = Annotated[tuple[str, ...], FieldKind(check_topics, *_texts)]
Locations = Annotated[tuple[str, ...], FieldKind(check_locations, *_texts)]
MaybeTransaction = Annotated[
    Transaction | None, FieldKind(_anything, _put_transaction, _get_transaction)
]
Heads = Annotated[
    tuple[HeadEntry, ...],
    FieldKind(_check_heads, *_list_of(_put_head, _get_head, MAX_REPLY_ENTRIES)),
]
Times = Annotated[
    tuple[TimeEntry, ...],
    FieldKind(_check_times, *_list_of(_put_time, _get_time, MAX_REPLY_ENTRIES)),
]


_kinds: Final[dict[type, dict[str, FieldKind]]] = {}


def kinds_of(message: type) -> dict[str, FieldKind]:
    """The kind of each field of a message class, by name, in order; content has none."""
    kinds = _kinds.get(message)
    if kinds is None:
        hints = get_type_hints(message, include_extras=True)
        kinds = _kinds[message] = {
            name: hint.__metadata__[0]
            for name, hint in hints.items()
            if hasattr(hint, "__metadata__")
        }
    return kinds
