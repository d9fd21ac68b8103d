"""The offset in Spark's checkpoint: the position of a query in each partition.

Positions are exclusive: the offset of the next record to read.  As JSON::

    {"start": {}, "topics": {"flights": {"EB0A...": 1000}}, "version": 4}

Spark compares offsets as strings, so an offset has only one form: sorted keys, none left out.  The
partitions of a long offset, or of one with names that are not plain text, are ``packed``;
``partitions`` and ``records``, the sum of the positions, are for people::

    {"packed": "c-n=d...", "partitions": 1000, "records": 10000, "version": 4}

- ``start`` is the start of the batch that ends here, for each partition of which the previous
  offset does not hold it: all partitions in the first batch (Spark keeps no initial offset of a
  Python source and requests a new one when it repeats that batch), new partitions later, and
  those that lost their next records.
- ``lives``, if the partitions' producers have lives (``dafka_core.model.epochs``), holds the newest
  life at the time of planning.  A store compares it with its own history.
- ``begun`` is the start time of a query that started at ``latest`` or at a time, in microseconds
  since the epoch UTC.  Partitions that appear later are read from there on.
- ``version`` covers this format and the rule that cuts a batch into tasks
  (``offset_ranges.plan_input_partitions``), as a repeated batch must have the same tasks.

The packed text is base 85 of a zlib stream of these parts, with numbers in little endian order::

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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from itertools import groupby
from operator import attrgetter
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np

from dafka_core.errors import ConfigError
from dafka_core.model.epochs import NO_LIFE, EpochId
from dafka_core.model.names import escape, is_plain, octets_of, text_of
from dafka_core.model.records import TopicPartition

VERSION: Final = 4

SHOWN_CHARS: Final = 500  # the part of an unreadable offset that an error shows

T = TypeVar("T")
Positions = Mapping[TopicPartition, int]
Lives = Mapping[TopicPartition, EpochId]


class BatchRange(NamedTuple):
    """The offsets ``start`` up to, not including, ``end`` that a batch reads of a partition.

    ``life`` is that of its newest producer when the end was planned, ``after`` when the start was,
    if the query has read the records before it.
    """

    topic: str
    partition: str
    start: int
    end: int
    life: EpochId
    after: EpochId


@dataclass(frozen=True, slots=True)
class SourceOffset:
    """The positions at the end of a batch, and its start (see the module's documentation)."""

    positions: Positions
    start: Positions = field(default_factory=dict)
    lives: Lives = field(default_factory=dict)
    begun_us: int | None = None

    @classmethod
    def initial(cls, positions: Positions, begun_us: int | None = None) -> SourceOffset:
        """Return the offset before the first batch, as the end of that batch holds it."""
        return cls(positions, positions, begun_us=begun_us)

    @property
    def is_initial(self) -> bool:
        """No batch has ended here yet."""
        return self.start == self.positions

    def since(self, begin: SourceOffset) -> Iterator[BatchRange]:
        """Yield the ranges of the batch that ends here, by partition.

        A start that this offset holds counts more than ``begin``.  Raises ConfigError if the batch
        would go backwards.
        """
        # A new initial offset may have partitions that the repeated batch did not have.
        known = self.positions if begin.is_initial else {**begin.positions, **self.positions}
        for tp in sorted(known):
            start = self.start.get(tp, begin.positions.get(tp, 0))
            end = self.positions.get(tp, 0)
            if start > end:
                raise ConfigError(
                    "checkpointLocation",
                    "/".join(map(escape, tp)),
                    f"holds a batch that starts at offset {start} and ends before it, at {end}: "
                    "its files belong to several queries, or were edited; restore the original "
                    "files, or start the query with a new checkpoint",
                )
            # If this offset holds the start, the query has not read the records before it.
            after = NO_LIFE if tp in self.start else begin.lives.get(tp, NO_LIFE)
            yield BatchRange(*tp, start, end, self.lives.get(tp, NO_LIFE), after)

    def as_json(self) -> dict[str, Any]:
        """Return the offset for Spark; equal offsets give equal JSON."""
        lives = {tp: life for tp, life in self.lives.items() if life != NO_LIFE}
        tree: dict[str, Any] = {} if self.begun_us is None else {"begun": self.begun_us}
        if self._is_packed:
            packed = pack(self.positions, self.start, lives)
            return {**tree, "packed": packed, **self.summary(), "version": VERSION}
        if lives:
            tree["lives"] = nested({tp: list(life) for tp, life in lives.items()})
        topics, start = nested(self.positions), nested(self.start)
        return {**tree, "start": start, "topics": topics, "version": VERSION}

    def summary(self) -> dict[str, Any]:
        """Return the number of partitions and the sum of their positions."""
        return {"partitions": len(self.positions), "records": sum(self.positions.values())}

    def report(self) -> dict[str, Any]:
        """Return the offset for a progress report, or the summary of one that would be packed."""
        return self.summary() if self._is_packed else self.as_json()

    @property
    def _is_packed(self) -> bool:
        # Spark would change bytes that are not UTF-8.
        return len(self.positions) >= PACKED_PARTITIONS or not all(
            is_plain(name) for tp in (*self.positions, *self.start) for name in tp
        )

    @classmethod
    def parse(cls, given: Any) -> SourceOffset:
        """Parse what Spark kept; raise ConfigError if this version cannot read it."""
        try:
            if not isinstance(given, dict) or "version" not in given:
                raise ValueError("it is another source's")
            if given["version"] != VERSION:
                raise ValueError(f"it has version {given['version']!r}, not {VERSION}")
            begun_us = _whole(given["begun"]) if "begun" in given else None
            if "packed" in given:
                return cls(*unpack(given["packed"]), begun_us)
            positions, start = flat(given["topics"], _whole), flat(given["start"], _whole)
            lives = flat(given.get("lives", {}), lambda life: EpochId(*map(_whole, life)))
            return cls(positions, start, lives, begun_us)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise ConfigError(
                "checkpointLocation",
                given if len(repr(given)) <= SHOWN_CHARS else f"{repr(given)[:SHOWN_CHARS]}...",
                "holds an offset that this version of format 'dafka' cannot read "
                f"({type(error).__name__}: {error}); start the query with a new checkpoint",
            ) from None


def nested(positions: Mapping[TopicPartition, T]) -> dict[str, dict[str, T]]:
    """Return the values by topic and partition, with sorted keys."""
    tree: dict[str, dict[str, T]] = {}
    for tp in sorted(positions):
        tree.setdefault(tp.topic, {})[tp.partition] = positions[tp]
    return tree


def _whole(number: object) -> int:
    if type(number) is not int:
        raise ValueError(f"{number!r} is not a whole number")
    return number


def flat(
    tree: Mapping[str, Mapping[str, Any]], read: Callable[[Any], T]
) -> dict[TopicPartition, T]:
    """Parse what ``nested`` returns."""
    return {TopicPartition(t, p): read(tree[t][p]) for t in tree for p in tree[t]}


# -- the packed text -------------------------------------------------------------------------------

MAX_UNPACKED_BYTES: Final = 1 << 28  # some millions of partitions; a larger text is an attack
PACKED_PARTITIONS: Final = 100  # that are packed; people can read offsets of fewer

_SIZE: Final = struct.Struct("<I")
_ADDRESS: Final = re.compile(r"[0-9A-F]{32}\Z")
_NAMES, _ADDRESSES = 0, 1
_SIGNED, _UNSIGNED = "<i8", "<u8"


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


def unpack(text: str, max_bytes: int = MAX_UNPACKED_BYTES) -> Unpacked:
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
