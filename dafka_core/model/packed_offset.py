"""An offset of many partitions as one short text, which says the same as the long one.

A partition takes some 20 octets of text, or 33 if its producer has lives, in place of 40 or 105:
what is left is the random part of its name and of its life.  The text is that of Python's
``base64.b85encode``, of what zlib makes of these octets, with numbers in little endian order::

    topics       how many, and for each: size of its name, its name, its partitions, their form
    partitions   those of each topic: 16 octets each (form 1), or size and name (form 0)
    positions    of each partition, 64 bits; -1: it has none
    start        the same, of where the batch began
    lives        which one each partition has, 64 bits; -1: none
    life table   how many, and their numbers, ids and acks, 64 bits each

Numbers that stand alone have 32 bits.  Columns of 64 bits are kept octet by octet: all lowest
octets first, then the next ones, most of which are zero.
"""

from __future__ import annotations

import base64
import re
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Final, NamedTuple

import numpy as np

from dafka_core.model.epochs import EpochId
from dafka_core.model.names import octets_of, text_of
from dafka_core.model.records import TopicPartition

MAX_BYTES: Final = 1 << 28
"""Of what is packed: some millions of partitions.  Who sends more means harm."""

PACKED_PARTITIONS: Final = 100
"""With so many partitions an offset is packed; one with fewer can be read by people."""

_SIZE: Final = struct.Struct("<I")
_ADDRESS: Final = re.compile(r"[0-9A-F]{32}\Z")
_ADDRESS_BYTES: Final = 16
_NAMES, _ADDRESSES = 0, 1

Positions = Mapping[TopicPartition, int]
Lives = Mapping[TopicPartition, EpochId]


class Unpacked(NamedTuple):
    """What a text says: positions, where the batch began, and lives."""

    positions: dict[TopicPartition, int]
    start: dict[TopicPartition, int]
    lives: dict[TopicPartition, EpochId]


def pack(positions: Positions, start: Positions, lives: Lives) -> str:
    """The text; equal offsets have equal texts.

    Raises:
        OverflowError: a number has more than 64 bits.
    """
    tps = sorted({*positions, *start, *lives})
    table = sorted(set(lives.values()))
    places = {life: place for place, life in enumerate(table)}
    octets = [
        *_packed_names(tps),
        _column((positions.get(tp, -1) for tp in tps), "<i8"),
        _column((start.get(tp, -1) for tp in tps), "<i8"),
        _column((places[lives[tp]] if tp in lives else -1 for tp in tps), "<i8"),
        _SIZE.pack(len(table)),
        *(_column((life[part] for life in table), "<u8") for part in range(3)),
    ]
    return base64.b85encode(zlib.compress(b"".join(octets))).decode("ascii")


def unpack(text: str, max_bytes: int = MAX_BYTES) -> Unpacked:
    """The inverse of ``pack``.

    Raises:
        ValueError: it is no such text, or has more than ``max_bytes`` when it is unpacked.
    """
    try:
        return _unpacked(text, max_bytes)
    except (zlib.error, struct.error, ValueError) as error:
        raise ValueError(f"the packed offset is damaged: {error}") from None


def _unpacked(text: str, max_bytes: int) -> Unpacked:
    unpacking = zlib.decompressobj()
    octets = unpacking.decompress(base64.b85decode(text), max_bytes)
    if not unpacking.eof:
        raise ValueError("it does not end")
    reading = _Reading(octets)
    tps = list(reading.names())
    columns = [reading.column(len(tps), "<i8") for _ in range(3)]
    length = reading.size()
    parts = [reading.column(length, "<u8") for _ in range(3)]
    if reading.left:
        raise ValueError(f"it has {reading.left} octets more")
    table = [EpochId(*life) for life in zip(*parts, strict=True)]
    positions, start, places = (
        {tp: number for tp, number in zip(tps, column, strict=True) if number >= 0}
        for column in columns
    )
    if max(places.values(), default=-1) >= len(table):
        raise ValueError("it has too few lives")
    return Unpacked(positions, start, {tp: table[place] for tp, place in places.items()})


def _packed_names(tps: Sequence[TopicPartition]) -> Iterable[bytes]:
    topics = [(name, [tp.partition for tp in each]) for name, each in groupby(tps, _TOPIC)]
    forms = [_ADDRESSES if all(map(_ADDRESS.match, names)) else _NAMES for _, names in topics]
    yield _SIZE.pack(len(topics))
    for (topic, names), form in zip(topics, forms, strict=True):
        yield from (*_sized(topic), _SIZE.pack(len(names)), _SIZE.pack(form))
    for (_, names), form in zip(topics, forms, strict=True):
        if form == _ADDRESSES:
            yield bytes.fromhex("".join(names))
        else:
            yield from (octets for name in names for octets in _sized(name))


def _sized(name: str) -> tuple[bytes, bytes]:
    octets = octets_of(name)
    return _SIZE.pack(len(octets)), octets


def _column(numbers: Iterable[int], kind: str) -> bytes:
    array = np.fromiter(numbers, kind)
    return array.view(np.uint8).reshape(len(array), array.itemsize).T.tobytes()


class _Reading:
    """Octets, read from the first on; each step raises ValueError where there are too few."""

    def __init__(self, octets: bytes) -> None:
        self._octets = octets
        self._at = 0

    @property
    def left(self) -> int:
        return len(self._octets) - self._at

    def size(self) -> int:
        number: int = _SIZE.unpack(self._take(_SIZE.size))[0]
        return number

    def names(self) -> Iterable[TopicPartition]:
        topics = [(self._name(), self.size(), self.size()) for _ in range(self.size())]
        for topic, count, form in topics:
            if form == _ADDRESSES:
                digits = self._take(count * _ADDRESS_BYTES).hex().upper()
                for start in range(0, len(digits), 2 * _ADDRESS_BYTES):
                    yield TopicPartition(topic, digits[start : start + 2 * _ADDRESS_BYTES])
            else:
                yield from (TopicPartition(topic, self._name()) for _ in range(count))

    def column(self, count: int, kind: str) -> list[int]:
        octets = self._take(count * np.dtype(kind).itemsize)
        rows = np.frombuffer(octets, np.uint8).reshape(np.dtype(kind).itemsize, count).T
        numbers: list[int] = np.frombuffer(rows.tobytes(), kind).tolist()
        return numbers

    def _name(self) -> str:
        return text_of(self._take(self.size()))

    def _take(self, count: int) -> bytes:
        if count > self.left:
            raise ValueError("it ends too early")
        self._at += count
        return self._octets[self._at - count : self._at]


_TOPIC: Final = attrgetter("topic")
