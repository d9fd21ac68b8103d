"""The kinds of message fields: their valid values, and their encoding in a frame.

A message class annotates its fields with kinds.  ``messages`` validates a message by them,
``codec`` encodes and decodes it by them.  ``docs/wire.md`` lists the fields of each message.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from io import SEEK_CUR, BytesIO
from itertools import pairwise
from struct import Struct
from struct import error as struct_error
from typing import Annotated, Any, Final, NamedTuple, TypeVar

from dafka_core.errors import ProtocolError
from dafka_core.model.epochs import (
    EPOCH_BYTES,
    LIFE_BYTES,
    MAX_EPOCHS,
    MAX_NUMBER,
    NO_LIFE,
    Epoch,
    EpochId,
    History,
)
from dafka_core.model.name_limits import check_address, check_topic, text_size_bytes
from dafka_core.model.names import octets_of, text_of
from dafka_core.model.records import NO_VERSION, KnownStore, PartitionInfo, Transaction
from dafka_core.protocol import limits
from dafka_core.protocol.beacons import check_endpoint


def check_number(what: str, least: int, most: int, number: int) -> None:
    """Raise ProtocolError unless ``least <= number <= most``."""
    if not least <= number <= most:
        raise ProtocolError(f"{what} must be between {least} and {most}")


# The offset of a record.
check_sequence: Final = partial(check_number, "a sequence", 0, limits.MAX_SEQUENCE)

# The offset after a record, or 0.
check_end: Final = partial(check_number, "an end", 0, limits.MAX_SEQUENCE + 1)

check_fetch_count: Final = partial(check_number, "a count", 0, limits.MAX_FETCH_COUNT)
check_query: Final = partial(check_number, "a query", 0, 2**64 - 1)
check_record_size: Final = partial(check_number, "a record's size", 0, limits.MAX_SEQUENCE)
_check_version: Final = partial(check_number, "a version", NO_VERSION, limits.MAX_SEQUENCE)


def check_topics(topics: tuple[str, ...]) -> None:
    """Raise ProtocolError unless all are topics and fit into one message."""
    for topic in topics:
        check_topic(topic)
    if sum(4 + text_size_bytes(topic) for topic in topics) > limits.MAX_HELLO_BYTES // 2:
        raise ProtocolError(f"a message's topics have at most {limits.MAX_HELLO_BYTES // 2} bytes")


def check_locations(locations: tuple[str, ...]) -> None:
    """Raise ProtocolError unless these can be the URIs of a store's endpoints."""
    if not 1 <= len(locations) <= limits.MAX_LOCATIONS:
        raise ProtocolError(f"a store has 1 to {limits.MAX_LOCATIONS} endpoints")
    for location in locations:
        if not 1 <= text_size_bytes(location) <= limits.MAX_LOCATION_BYTES:
            raise ProtocolError(f"an endpoint has 1 to {limits.MAX_LOCATION_BYTES} bytes")
        if not location.isascii() or not location.isprintable():
            raise ProtocolError("an endpoint must be a URI, of printable ASCII")


@lru_cache(maxsize=1024)  # many consecutive messages have one life
def check_epoch(epoch: Epoch | None) -> None:
    """Raise ProtocolError for a life that no producer can have."""
    if epoch is not None:
        check_number("an epoch", 1, 2**32 - 1, epoch.number)
        check_sequence(epoch.start)


def check_history(history: History) -> None:
    """Raise ProtocolError unless the epochs ascend."""
    steps = pairwise(history)
    if any(one.life >= next_.life or one.start >= next_.start for one, next_ in steps):
        raise ProtocolError("the epochs of a history ascend, and so do their first offsets")


def check_batch(
    sequence: int, count: int, transaction: Transaction | None, epoch: Epoch | None
) -> None:
    """Raise ProtocolError unless a message can have these records."""
    if not 1 <= count <= limits.MAX_BATCH_COUNT:
        raise ProtocolError(f"a batch has 1 to {limits.MAX_BATCH_COUNT} records")
    check_number("a sequence", 0, limits.MAX_SEQUENCE + 1 - count, sequence)
    check_epoch(epoch)
    if epoch is not None and epoch.start > sequence:
        raise ProtocolError("a batch must be within its epoch")
    if transaction is None:
        return
    _check_version(transaction.version)
    check_end(transaction.end)
    if not 0 <= transaction.start <= sequence or sequence + count > transaction.end:
        raise ProtocolError("a batch must be within its transaction")


_PAIR: Final = Struct(">QQ")
_TIME_PAIR: Final = Struct(">Qq")
_TRANSACTION: Final = Struct(">qQQ")
_HEAD: Final = Struct(">QQIQB")
_KNOWN: Final = Struct(">QB")
NO_TRANSACTION: Final = (0, 0, 0)  # of records without a transaction, as none ends at 0


class FrameReader(BytesIO):
    """Reads fields off a frame; raises ProtocolError if the frame is too short."""

    def take(self, size_bytes: int) -> bytes:
        """Return the next bytes."""
        octets = self.read(size_bytes)
        if len(octets) < size_bytes:
            raise ProtocolError("the frame ends within a field")
        return octets

    def number(self, size_bytes: int) -> int:
        """Return the next number; RFC 46: "unsigned integers in network byte order"."""
        return int.from_bytes(self.take(size_bytes), "big")

    def text(self, length_size_bytes: int = 1) -> str:
        """Return the next string; RFC 46: "Strings are always length + text contents"."""
        return text_of(self.take(self.number(length_size_bytes)))

    def finish(self) -> None:
        """Raise ProtocolError if bytes are left."""
        if self.read(1):
            raise ProtocolError("the frame has bytes after its last field")


class FieldKind(NamedTuple):
    """The valid values of a field (``check`` raises ProtocolError), and its encoding."""

    check: Callable[[Any], None]
    pack: Callable[[Any], bytes]
    unpack: Callable[[FrameReader], Any]


def pack_text(text: str, length_size_bytes: int = 1) -> bytes:
    """Encode a string: its length, then its bytes."""
    octets = octets_of(text)
    return len(octets).to_bytes(length_size_bytes, "big") + octets


def transaction_of(numbers: tuple[int, ...]) -> Transaction | None:
    """Return the transaction with this version, start and end, without validation."""
    return None if numbers == NO_TRANSACTION else Transaction._make(numbers)


def pack_epoch(epoch: Epoch | None) -> bytes:
    """Encode an epoch; zeros if None."""
    return bytes(EPOCH_BYTES) if epoch is None else epoch.packed()


_Life = TypeVar("_Life", EpochId, Epoch)


@lru_cache(maxsize=1024)  # many consecutive messages have one life
def epoch_of(octets: bytes) -> Epoch | None:
    """Decode an epoch; only its number is checked."""
    return _unpack_life(Epoch, octets) if any(octets) else None


def _unpack_life(kind: type[_Life], octets: bytes) -> _Life:
    """Decode a life; its number must have room for the next life, which a node makes for itself."""
    life = kind.unpack(octets)
    check_number("a life", 0, MAX_NUMBER, life.number)
    return life


def _anything(value: object) -> None:
    """Accept any value: it is checked together with other fields."""


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
        check_number("the count of entries", 0, most, len(entries))
        check_all(entries)
        for each in entries:
            entry.check(each)

    def pack(entries: tuple[Any, ...]) -> bytes:
        return len(entries).to_bytes(4, "big") + b"".join(map(entry.pack, entries))

    def unpack(frame: FrameReader) -> tuple[Any, ...]:
        count = frame.number(4)
        # Before the loop: the count may exceed the frame.
        check_number("the count of entries", 0, most, count)
        return tuple(entry.unpack(frame) for _ in range(count))

    return FieldKind(check, pack, unpack)


def _check_heads(infos: tuple[PartitionInfo, ...]) -> None:
    """Check many at once: messages have thousands, mostly of one topic."""
    known: str | None = None
    for topic, partition, earliest, end, _ in infos:
        if topic != known:
            check_topic(topic)
            known = topic
        check_address(partition)
        if not 0 <= earliest <= end <= limits.MAX_SEQUENCE + 1:
            raise ProtocolError(
                f"a partition's offsets must be between 0 and {limits.MAX_SEQUENCE + 1}, and ascend"
            )


def _check_ranges(wanted: tuple[PartitionInfo, ...]) -> None:
    _check_heads(wanted)
    for _, _, start, end, _ in wanted:
        if not 1 <= end - start <= limits.MAX_FETCH_COUNT:
            raise ProtocolError(f"a range has 1 to {limits.MAX_FETCH_COUNT} records")


def _pack_heads(infos: tuple[PartitionInfo, ...], *, lives: bool) -> bytes:
    parts = [len(infos).to_bytes(4, "big")]
    known, packed = "", b""
    for topic, partition, earliest, end, life in infos:
        if topic != known:
            known, packed = topic, pack_text(topic)
        parts += (packed, pack_text(partition), _PAIR.pack(earliest, end))
        if lives:
            parts.append(life.packed())
    return b"".join(parts)


def _unpack_heads(frame: FrameReader, most: int, *, lives: bool) -> tuple[PartitionInfo, ...]:
    count = frame.number(4)
    # Before the loop: the count may exceed the frame.
    check_number("the count of entries", 0, most, count)
    octets, at, infos = frame.read(), 0, []
    known, topic, life = b"", "", NO_LIFE
    numbers_of = _HEAD if lives else _PAIR
    try:
        for _ in range(count):
            stop = at + 1 + octets[at]
            if octets[at + 1 : stop] != known:
                known = octets[at + 1 : stop]
                topic = text_of(known)
            at = stop + 1 + octets[stop]
            earliest, end, *of = numbers_of.unpack_from(octets, at)
            life = EpochId._make(of) if lives else NO_LIFE
            infos.append(PartitionInfo(topic, text_of(octets[stop + 1 : at]), earliest, end, life))
            at += numbers_of.size
    except (IndexError, struct_error):
        raise ProtocolError("the frame ends within a field") from None
    frame.seek(at - len(octets), SEEK_CUR)
    return tuple(infos)


def _heads(
    most: int, check_all: Callable[[tuple[PartitionInfo, ...]], None], *, lives: bool
) -> FieldKind:
    def check(infos: tuple[PartitionInfo, ...]) -> None:
        check_number("the count of entries", 0, most, len(infos))
        check_all(infos)

    return FieldKind(
        check,
        partial(_pack_heads, lives=lives),
        lambda frame: _unpack_heads(frame, most, lives=lives),
    )


def _check_time(entry: tuple[int, int]) -> None:
    check_sequence(entry[0])
    check_number("a timestamp", -(2**63), 2**63 - 1, entry[1])


_TIME: Final = FieldKind(
    _check_time,
    lambda entry: _TIME_PAIR.pack(*entry),
    lambda frame: _TIME_PAIR.unpack(frame.take(_TIME_PAIR.size)),
)


def _check_known(each: KnownStore) -> None:
    check_address(each.store)
    if each.endpoint:
        check_endpoint(each.endpoint)
    check_sequence(each.seen_us)


def _pack_known(each: KnownStore) -> bytes:
    numbers = _KNOWN.pack(each.seen_us, each.here)
    return pack_text(each.store) + pack_text(each.endpoint, 4) + numbers


def _unpack_known(frame: FrameReader) -> KnownStore:
    store, endpoint = frame.text(), frame.text(4)
    seen_us, here = _KNOWN.unpack(frame.take(_KNOWN.size))
    check_number("the presence of a store", 0, 1, here)
    return KnownStore(store, endpoint, seen_us, bool(here))


_LONG_TEXT: Final = FieldKind(
    _anything, lambda text: pack_text(text, 4), lambda frame: frame.text(4)
)
_MAYBE_EPOCH: Final = FieldKind(
    _anything, pack_epoch, lambda frame: epoch_of(frame.take(EPOCH_BYTES))
)
_MOST_TEXTS: Final = limits.MAX_HELLO_BYTES // 4  # each takes at least four bytes

Topic = Annotated[str, _text(check_topic)]
AnyTopic = Annotated[str, _text(check_topic, may_be_empty=True)]
Address = Annotated[str, _text(check_address)]
AnyAddress = Annotated[str, _text(check_address, may_be_empty=True)]
"""Empty: any node, or an unnamed one."""
Offset = Annotated[int, _number(8, check_sequence)]
End = Annotated[int, _number(8, check_end)]
Number = Annotated[int, _number(4, _anything)]
RecordSize = Annotated[int, _number(8, check_record_size)]
QueryId = Annotated[int, _number(8, check_query)]
FetchCount = Annotated[
    int,
    # Clamped instead of refused: C nodes accept any count.
    _number(4, check_fetch_count)._replace(
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
MaybeEpoch = Annotated[Epoch | None, _MAYBE_EPOCH]
EntryEpochs = Annotated[
    tuple[Epoch | None, ...],
    _list(_MAYBE_EPOCH._replace(check=check_epoch), limits.MAX_FETCH_PARTITIONS),
]
Life = Annotated[
    EpochId,
    FieldKind(
        _anything, EpochId.packed, lambda frame: _unpack_life(EpochId, frame.take(LIFE_BYTES))
    ),
]
Epochs = Annotated[
    History,
    _list(
        FieldKind(
            check_epoch, Epoch.packed, lambda frame: _unpack_life(Epoch, frame.take(EPOCH_BYTES))
        ),
        MAX_EPOCHS,
        check_history,
    ),
]  # a partition's history
Stores = Annotated[tuple[str, ...], _list(_text(check_address), limits.MAX_STORES)]
KnownStores = Annotated[
    tuple[KnownStore, ...],
    _list(FieldKind(_check_known, _pack_known, _unpack_known), limits.MAX_STORES),
]
Topics = Annotated[tuple[str, ...], _list(_LONG_TEXT, _MOST_TEXTS, check_topics)]
Locations = Annotated[tuple[str, ...], _list(_LONG_TEXT, _MOST_TEXTS, check_locations)]
Heads = Annotated[
    tuple[PartitionInfo, ...], _heads(limits.MAX_REPLY_ENTRIES, _check_heads, lives=True)
]
Ranges = Annotated[
    tuple[PartitionInfo, ...], _heads(limits.MAX_FETCH_PARTITIONS, _check_ranges, lives=False)
]  # ranges of partitions from ``earliest`` to ``end`` (exclusive), encoded as heads
Times = Annotated[tuple[tuple[int, int], ...], _list(_TIME, limits.MAX_REPLY_ENTRIES)]
"""(offset, microseconds since 1970 UTC): the time of records from this offset up to the next one.
"""
