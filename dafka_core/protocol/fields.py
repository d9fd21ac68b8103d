"""The kinds of message fields: their valid values, and their encoding in a frame.

A message class annotates its fields with kinds.  ``messages`` validates a message by them,
``codec`` encodes and decodes it by them.  ``docs/wire.md`` lists the fields of each message.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from io import BytesIO
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

    def count(self, most: int) -> int:
        """Return the number of entries that follow: a false one must not cost a loop."""
        count = self.number(4)
        check_number("the count of entries", 0, most, count)
        return count

    def finish(self) -> None:
        """Raise ProtocolError if bytes are left."""
        if self.read(1):
            raise ProtocolError("the frame has bytes after its last field")


class FieldKind(NamedTuple):
    """The valid values of a field (``check`` raises ProtocolError), and its encoding."""

    check: Callable[[Any], None]
    pack: Callable[[Any], bytes]
    unpack: Callable[[FrameReader], Any]


def _anything(value: object) -> None:
    """Accept any value: it is checked together with other fields."""


def check_number(what: str, least: int, most: int, number: int) -> None:
    """Raise ProtocolError unless ``least <= number <= most``."""
    if not least <= number <= most:
        raise ProtocolError(f"{what} must be between {least} and {most}")


check_sequence: Final = partial(check_number, "a sequence", 0, limits.MAX_SEQUENCE)
"""Check the offset of a record."""
check_end: Final = partial(check_number, "an end", 0, limits.MAX_SEQUENCE + 1)
"""Check the offset after a record, or 0."""


def _fixed(
    size_bytes: int,
    check: Callable[[Any], None],
    pack: Callable[[Any], bytes],
    parse: Callable[[bytes], Any],
) -> FieldKind:
    return FieldKind(check, pack, lambda frame: parse(frame.take(size_bytes)))


def _number(size_bytes: int, check: Callable[[int], None]) -> FieldKind:
    return _fixed(
        size_bytes, check, lambda number: int(number).to_bytes(size_bytes, "big"), int.from_bytes
    )


def pack_text(text: str, length_size_bytes: int = 1) -> bytes:
    """Encode a string: its length, then its bytes."""
    octets = octets_of(text)
    return len(octets).to_bytes(length_size_bytes, "big") + octets


def _text(check: Callable[[str], None], length_size_bytes: int = 1) -> FieldKind:
    return FieldKind(
        check,
        lambda text: pack_text(text, length_size_bytes),
        lambda frame: frame.text(length_size_bytes),
    )


def _or_empty(check: Callable[[str], None]) -> Callable[[str], None]:
    return lambda text: check(text) if text else None


# -- records of the model -------------------------------------------------------------------------


_TRANSACTION: Final = Struct(">qQQ")
TRANSACTION_BYTES: Final = _TRANSACTION.size


def pack_transaction(transaction: Transaction | None) -> bytes:
    """Encode a transaction; zeros if None, as no transaction ends at 0."""
    return bytes(TRANSACTION_BYTES) if transaction is None else _TRANSACTION.pack(*transaction)


def transaction_of(octets: bytes) -> Transaction | None:
    """Decode ``pack_transaction``, without validation."""
    return Transaction._make(_TRANSACTION.unpack(octets)) if any(octets) else None


_Life = TypeVar("_Life", EpochId, Epoch)


def _life_of(kind: type[_Life], octets: bytes) -> _Life:
    """Decode a life; its number must have room for the next life, which a node makes for itself."""
    life = kind.unpack(octets)
    check_number("a life", 0, MAX_NUMBER, life.number)
    return life


def pack_epoch(epoch: Epoch | None) -> bytes:
    """Encode an epoch; zeros if None."""
    return bytes(EPOCH_BYTES) if epoch is None else epoch.packed()


@lru_cache(maxsize=1024)  # many consecutive messages have one life
def epoch_of(octets: bytes) -> Epoch | None:
    """Decode ``pack_epoch``; only the number of the life is checked."""
    return _life_of(Epoch, octets) if any(octets) else None


@lru_cache(maxsize=1024)
def check_epoch(epoch: Epoch | None) -> None:
    """Raise ProtocolError for a life that no producer can have."""
    if epoch is not None:
        check_number("an epoch", 1, 2**32 - 1, epoch.number)
        check_sequence(epoch.start)


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
    check_number("a version", NO_VERSION, limits.MAX_SEQUENCE, transaction.version)
    check_end(transaction.end)
    if not 0 <= transaction.start <= sequence or sequence + count > transaction.end:
        raise ProtocolError("a batch must be within its transaction")


# -- lists ----------------------------------------------------------------------------------------


def _list(
    entry: FieldKind, most: int, check_all: Callable[[tuple[Any, ...]], None] = _anything
) -> FieldKind:
    def check(entries: tuple[Any, ...]) -> None:
        check_number("the count of entries", 0, most, len(entries))
        check_all(entries)
        for each in entries:
            entry.check(each)

    return FieldKind(
        check,
        lambda entries: len(entries).to_bytes(4, "big") + b"".join(map(entry.pack, entries)),
        lambda frame: tuple([entry.unpack(frame) for _ in range(frame.count(most))]),
    )


_PAIR: Final = Struct(">QQ")
_TIMESTAMP: Final = Struct(">Qq")
_HEAD: Final = Struct(">QQIQB")
_KNOWN: Final = Struct(">QB")


def _check_heads(infos: tuple[PartitionInfo, ...]) -> None:
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


def _partitions(
    numbers: Struct, most: int, check_all: Callable[[tuple[PartitionInfo, ...]], None]
) -> FieldKind:
    """Return the kind of a list of partitions with their offsets, and with ``_HEAD`` their lives.

    It is encoded as any list, but by one loop: messages have thousands of partitions, mostly of one
    topic.
    """
    lives = numbers is _HEAD

    def check(infos: tuple[PartitionInfo, ...]) -> None:
        check_number("the count of entries", 0, most, len(infos))
        check_all(infos)

    def pack(infos: tuple[PartitionInfo, ...]) -> bytes:
        parts = [len(infos).to_bytes(4, "big")]
        known, packed = "", b""
        for info in infos:
            if info.topic != known:
                known, packed = info.topic, pack_text(info.topic)
            offsets = info[2:4] + info.life if lives else info[2:4]
            parts += (packed, pack_text(info.partition), numbers.pack(*offsets))
        return b"".join(parts)

    def unpack(frame: FrameReader) -> tuple[PartitionInfo, ...]:
        count, octets, at, infos = frame.count(most), frame.getvalue(), frame.tell(), []
        known, topic = b"", ""
        try:
            for _ in range(count):
                stop = at + 1 + octets[at]
                if octets[at + 1 : stop] != known:
                    known = octets[at + 1 : stop]
                    topic = text_of(known)
                at = stop + 1 + octets[stop]
                partition = text_of(octets[stop + 1 : at])
                earliest, end, *of_life = numbers.unpack_from(octets, at)
                life = EpochId._make(of_life) if lives else NO_LIFE
                infos.append(PartitionInfo(topic, partition, earliest, end, life))
                at += numbers.size
        except (IndexError, struct_error):
            raise ProtocolError("the frame ends within a field") from None
        frame.seek(at)
        return tuple(infos)

    return FieldKind(check, pack, unpack)


def check_topics(topics: tuple[str, ...]) -> None:
    """Raise ProtocolError unless all are topics and fit into one message."""
    for topic in topics:
        check_topic(topic)
    if sum(4 + text_size_bytes(topic) for topic in topics) > limits.MAX_HELLO_BYTES // 2:
        raise ProtocolError(f"a message's topics have at most {limits.MAX_HELLO_BYTES // 2} bytes")


def _check_locations(locations: tuple[str, ...]) -> None:
    if not 1 <= len(locations) <= limits.MAX_LOCATIONS:
        raise ProtocolError(f"a store has 1 to {limits.MAX_LOCATIONS} endpoints")
    for location in locations:
        if not 1 <= text_size_bytes(location) <= limits.MAX_LOCATION_BYTES:
            raise ProtocolError(f"an endpoint has 1 to {limits.MAX_LOCATION_BYTES} bytes")
        if not location.isascii() or not location.isprintable():
            raise ProtocolError("an endpoint must be a URI, of printable ASCII")


def _check_history(history: History) -> None:
    steps = pairwise(history)
    if any(one.life >= next_.life or one.start >= next_.start for one, next_ in steps):
        raise ProtocolError("the epochs of a history ascend, and so do their first offsets")


def _check_time(entry: tuple[int, int]) -> None:
    check_sequence(entry[0])
    check_number("a timestamp", -(2**63), 2**63 - 1, entry[1])


def _check_store(each: KnownStore) -> None:
    check_address(each.store)
    if each.endpoint:
        check_endpoint(each.endpoint)
    check_sequence(each.seen_us)


def _pack_store(each: KnownStore) -> bytes:
    numbers = _KNOWN.pack(each.seen_us, each.here)
    return pack_text(each.store) + pack_text(each.endpoint, 4) + numbers


def _unpack_store(frame: FrameReader) -> KnownStore:
    store, endpoint = frame.text(), frame.text(4)
    seen_us, here = _KNOWN.unpack(frame.take(_KNOWN.size))
    check_number("the presence of a store", 0, 1, here)
    return KnownStore(store, endpoint, seen_us, bool(here))


# -- the kinds ------------------------------------------------------------------------------------

_ADDRESS: Final = _text(check_address)
_LONG_TEXT: Final = _text(_anything, length_size_bytes=4)
_MOST_TEXTS: Final = limits.MAX_HELLO_BYTES // 4  # each takes at least four bytes
_EPOCH: Final = _fixed(EPOCH_BYTES, check_epoch, pack_epoch, epoch_of)
_KNOWN_EPOCH: Final = _fixed(EPOCH_BYTES, check_epoch, Epoch.packed, partial(_life_of, Epoch))
_LIFE: Final = _fixed(LIFE_BYTES, _anything, EpochId.packed, partial(_life_of, EpochId))
_TIME: Final = _fixed(
    _TIMESTAMP.size, _check_time, lambda entry: _TIMESTAMP.pack(*entry), _TIMESTAMP.unpack
)
_STORE: Final = FieldKind(_check_store, _pack_store, _unpack_store)

Topic = Annotated[str, _text(check_topic)]
AnyTopic = Annotated[str, _text(_or_empty(check_topic))]
Address = Annotated[str, _ADDRESS]
AnyAddress = Annotated[str, _text(_or_empty(check_address))]
"""Empty: any node, or an unnamed one."""
Offset = Annotated[int, _number(8, check_sequence)]
End = Annotated[int, _number(8, check_end)]
Number = Annotated[int, _number(4, _anything)]
RecordSize = Annotated[
    int, _number(8, partial(check_number, "a record's size", 0, limits.MAX_SEQUENCE))
]
QueryId = Annotated[int, _number(8, partial(check_number, "a query", 0, 2**64 - 1))]
FetchCount = Annotated[
    int,
    # Clamped instead of refused: C nodes accept any count.
    _number(4, partial(check_number, "a count", 0, limits.MAX_FETCH_COUNT))._replace(
        unpack=lambda frame: min(frame.number(4), limits.MAX_FETCH_COUNT)
    ),
]
MaybeTransaction = Annotated[
    Transaction | None, _fixed(TRANSACTION_BYTES, _anything, pack_transaction, transaction_of)
]
MaybeEpoch = Annotated[Epoch | None, _EPOCH]
EntryEpochs = Annotated[tuple[Epoch | None, ...], _list(_EPOCH, limits.MAX_FETCH_PARTITIONS)]
Life = Annotated[EpochId, _LIFE]
Epochs = Annotated[History, _list(_KNOWN_EPOCH, MAX_EPOCHS, _check_history)]
Stores = Annotated[tuple[str, ...], _list(_ADDRESS, limits.MAX_STORES)]
KnownStores = Annotated[tuple[KnownStore, ...], _list(_STORE, limits.MAX_STORES)]
Topics = Annotated[tuple[str, ...], _list(_LONG_TEXT, _MOST_TEXTS, check_topics)]
Locations = Annotated[tuple[str, ...], _list(_LONG_TEXT, _MOST_TEXTS, _check_locations)]
Heads = Annotated[
    tuple[PartitionInfo, ...], _partitions(_HEAD, limits.MAX_REPLY_ENTRIES, _check_heads)
]
Ranges = Annotated[
    tuple[PartitionInfo, ...], _partitions(_PAIR, limits.MAX_FETCH_PARTITIONS, _check_ranges)
]
"""Ranges of partitions from ``earliest`` to ``end`` (exclusive)."""
Times = Annotated[tuple[tuple[int, int], ...], _list(_TIME, limits.MAX_REPLY_ENTRIES)]
"""(offset, microseconds since 1970 UTC): the time of records from this offset up to the next one.
"""
