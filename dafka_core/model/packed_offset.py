"""The offsets of many partitions as one short text.

The text is base 85 of a zlib stream of these parts, with numbers in little endian order::

    topics      count, and for each topic: length and bytes of its name, partitions, form
    partitions  by topic: 128-bit numbers in two columns (form 1), or lengths and names (form 0)
    positions   one column of 64 bits; -1: none
    start       the same, for the offsets where the batch began
    lives       the row of each partition in the table of lives; -1: none
    life table  count, and one column each for numbers, ids and acks

A number outside of a column has 32 bits.  A column stores the lowest bytes of all numbers first,
then the next ones, most of which are zero; columns of partition names store differences.  What
remains is the random part of names and lives: 18 characters for a partition, 28 with a life.
"""

from __future__ import annotations

import base64
import re
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from io import BytesIO
from itertools import groupby
from operator import attrgetter
from typing import Final, NamedTuple

import numpy as np

from dafka_core.model.epochs import EpochId
from dafka_core.model.names import octets_of, text_of
from dafka_core.model.records import TopicPartition

MAX_BYTES: Final = 1 << 28  # unpacked, of some millions of partitions; a larger text is an attack
PACKED_PARTITIONS: Final = 100  # that are packed; people can read offsets of fewer

_SIZE: Final = struct.Struct("<I")
_ADDRESS: Final = re.compile(r"[0-9A-F]{32}\Z")
_NAMES, _ADDRESSES = 0, 1
_SIGNED, _UNSIGNED = "<i8", "<u8"

Positions = Mapping[TopicPartition, int]
Lives = Mapping[TopicPartition, EpochId]


class Unpacked(NamedTuple):
    """Positions, where the batch began, and lives."""

    positions: dict[TopicPartition, int]
    start: dict[TopicPartition, int]
    lives: dict[TopicPartition, EpochId]


def pack(positions: Positions, start: Positions, lives: Lives) -> str:
    """Return the text; equal offsets have equal texts."""
    tps = sorted({**positions, **start, **lives})  # in order already, in most cases
    table = list(dict.fromkeys(lives[tp] for tp in tps if tp in lives))
    rows = {life: row for row, life in enumerate(table)}
    parts = [
        *_packed_names(tps),
        _column([positions.get(tp, -1) for tp in tps]),
        _column([start.get(tp, -1) for tp in tps]),
        _column([rows[lives[tp]] if tp in lives else -1 for tp in tps]),
        _SIZE.pack(len(table)),
        *(_column([life[part] for life in table], _UNSIGNED) for part in range(3)),
    ]
    return base64.b85encode(zlib.compress(b"".join(parts))).decode("ascii")


def unpack(text: str, max_bytes: int = MAX_BYTES) -> Unpacked:
    """Return the offsets of a text; raise ValueError if it is invalid or too large unpacked."""
    try:
        unpacking = zlib.decompressobj()
        reader = _Reader(unpacking.decompress(base64.b85decode(text), max_bytes))
        if not unpacking.eof:
            raise ValueError("it does not end")
        tps = list(reader.names())
        columns = [reader.column(len(tps)).tolist() for _ in range(3)]
        count = reader.size()
        parts = [reader.column(count, _UNSIGNED).tolist() for _ in range(3)]
        if reader.read(1):
            raise ValueError("bytes follow its last column")
        table = [EpochId(*life) for life in zip(*parts, strict=True)]
        positions, start, rows = (
            {tp: number for tp, number in zip(tps, column, strict=True) if number >= 0}
            for column in columns
        )
        return Unpacked(positions, start, {tp: table[row] for tp, row in rows.items()})
    except (zlib.error, ValueError, IndexError) as error:
        raise ValueError(f"the packed offset is damaged: {error}") from None


def _packed_names(tps: Sequence[TopicPartition]) -> Iterable[bytes]:
    topics = {
        topic: [tp.partition for tp in each] for topic, each in groupby(tps, attrgetter("topic"))
    }
    yield _SIZE.pack(len(topics))
    names_of = []
    for topic, names in topics.items():
        form = _ADDRESSES if all(map(_ADDRESS.match, names)) else _NAMES
        names_of.append((form, names))
        yield from (_sized(topic), _SIZE.pack(len(names)), _SIZE.pack(form))
    for form, names in names_of:
        if form == _ADDRESSES:
            numbers = np.frombuffer(bytes.fromhex("".join(names)), ">u8").astype(np.uint64)
            for half in numbers.reshape(-1, 2).T:
                yield _column(np.diff(half, prepend=np.uint64(0)), _UNSIGNED)
        else:
            yield from map(_sized, names)


def _sized(name: str) -> bytes:
    encoded = octets_of(name)
    return _SIZE.pack(len(encoded)) + encoded


def _column(numbers: Sequence[int] | np.ndarray, kind: str = _SIGNED) -> bytes:
    return np.array(numbers, kind).view(np.uint8).reshape(-1, 8).T.tobytes()


class _Reader(BytesIO):
    """A reader of packed bytes; each method raises ValueError if too few bytes remain."""

    def take(self, count: int) -> bytes:
        octets = self.read(count)
        if len(octets) < count:
            raise ValueError("it ends too early")
        return octets

    def size(self) -> int:
        return int.from_bytes(self.take(_SIZE.size), "little")

    def name(self) -> str:
        return text_of(self.take(self.size()))

    def names(self) -> Iterator[TopicPartition]:
        topics = [(self.name(), self.size(), self.size()) for _ in range(self.size())]
        for topic, count, form in topics:
            if form == _ADDRESSES:
                halves = [np.cumsum(self.column(count, _UNSIGNED)) for _ in range(2)]
                digits = np.stack(halves, 1).astype(">u8").tobytes().hex().upper()
                for start in range(0, len(digits), 32):
                    yield TopicPartition(topic, digits[start : start + 32])
            else:
                yield from (TopicPartition(topic, self.name()) for _ in range(count))

    def column(self, count: int, kind: str = _SIGNED) -> np.ndarray:
        planes = np.frombuffer(self.take(count * 8), np.uint8).reshape(8, count)
        return np.frombuffer(planes.T.tobytes(), kind)
