"""Requests for many ranges at once, and what the batches of such a get say of themselves.

A batch has records of one range or of several.  Its metadata are signed 64-bit numbers in little
endian order: 2 (the version); how many parts the batch has; of each part the number of its range in
the ticket, from 0 on, the offset of its first record, how many records it has, and how many pairs
of times; then those pairs, (record count, microseconds since the epoch UTC), where they were asked
for.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Annotated, ClassVar, Final, NamedTuple

import numpy as np
import pyarrow as pa
from msgspec import Meta

from dafka_core.errors import InvalidRequestError
from dafka_core.flight import limits
from dafka_core.flight.columns import DEFAULT_COLUMNS
from dafka_core.flight.requests import (
    ActionRequest,
    LeaseId,
    Life,
    MaxBytes,
    MaxRecords,
    Offset,
    Request,
)
from dafka_core.json_message import short
from dafka_core.records import RecordBatch, TopicPartition
from dafka_core.values import Longs

_LONG: Final = np.dtype("<i8")
_HEAD, _PART, _RUN = 2, 4, 2  # numbers of each


class AskedRange(NamedTuple):
    """The records from ``start`` up to ``end`` (exclusive) of one partition.

    Lives are as those of ``RangeRequest``.
    """

    topic: str
    partition: str
    start: Offset
    end: Offset
    life: Life | None = None
    after: Life | None = None

    @property
    def tp(self) -> TopicPartition:
        """The partition."""
        return TopicPartition(self.topic, self.partition)


Ranges = Annotated[tuple[AskedRange, ...], Meta(min_length=1, max_length=limits.MAX_RANGES)]


class GetManyRequest(Request, frozen=True):
    """A ticket: the records of many ranges, one range after the other.

    Of a range that the store does not hold, or not of the history that is meant, there are no
    records, or no more; the next range follows.  The other members are those of ``GetRequest``.
    """

    what: ClassVar[str] = "ticket"
    json_version: ClassVar[int] = 2
    largest_bytes: ClassVar[int] = limits.MAX_MANY_BYTES
    rows: ClassVar[tuple[str, ...]] = ("ranges",)

    ranges: Ranges
    columns: tuple[str, ...] = DEFAULT_COLUMNS
    times: bool = False
    max_records: MaxRecords = limits.MAX_BATCH_RECORDS
    max_bytes: MaxBytes = limits.MAX_BATCH_BYTES

    def check(self) -> None:
        """The ranges are some."""
        super().check()
        _check_ranges(self.ranges)


class LeaseManyRequest(ActionRequest, frozen=True):
    """Where in the store's file the blocks of many ranges lie, which one lease covers.

    {v, ranges: [[topic, partition, start, end, life?, after?], ...], done?} -> {v, lease, slot,
    ranges, blocks: [[number of the range, first offset, position, size], ...]}: of so many of the
    ranges, without those that are not held
    """

    action: ClassVar[str] = "dafka.lease.v2"
    rows: ClassVar[tuple[str, ...]] = ("ranges",)
    largest_bytes: ClassVar[int] = limits.MAX_MANY_BYTES

    ranges: Ranges
    done: LeaseId = ""

    def check(self) -> None:
        """The ranges are some."""
        super().check()
        _check_ranges(self.ranges)


class SizesRequest(ActionRequest, frozen=True):
    """About how many bytes the records of ranges take, by samples of the log's blocks.

    {v, ranges: [[topic, partition, start, end], ...]} -> {v, sizes: [[bytes of a record, in each
    quarter of the range], or null where nothing is held, ...]}
    """

    action: ClassVar[str] = "dafka.sizes.v1"
    rows: ClassVar[tuple[str, ...]] = ("ranges",)
    largest_bytes: ClassVar[int] = limits.MAX_MANY_BYTES

    ranges: Ranges

    def check(self) -> None:
        """The ranges are some."""
        super().check()
        _check_ranges(self.ranges)


def ticket_version(ticket: bytes) -> object:
    """The version of a ticket; None if it is none."""
    if len(ticket) > limits.MAX_WHERE_BYTES:  # too long to be read twice
        found = re.match(rb'\{"v": ?(\d)\b', ticket)
        return int(found[1]) if found else None
    try:
        found = json.loads(ticket)
    except (ValueError, RecursionError):
        return None
    return found.get("v") if isinstance(found, dict) else None


class Part(NamedTuple):
    """Records of the range with this number in a ticket, counted from 0."""

    number: int
    batch: RecordBatch


def packed_parts(parts: Sequence[Part], *, times: bool) -> bytes:
    """The metadata of a batch with these parts; see the module."""
    runs = [part.batch.times for part in parts if times and part.batch.times is not None]
    counts = [len(each) for each in runs] or [0] * len(parts)
    rows = [
        (part.number, part.batch.offset, part.batch.count, count)
        for part, count in zip(parts, counts, strict=True)
    ]
    numbers = [np.array((GetManyRequest.json_version, len(parts))), np.array(rows), *runs]
    return np.concatenate([each.ravel() for each in numbers]).astype(_LONG).tobytes()


def parse_parts(
    metadata: pa.Buffer | None, count: int, *, times: bool
) -> tuple[Longs, list[Longs] | None]:
    """Parts of a batch of ``count`` records from its metadata, and the times of each.

    Parts are rows of (number of the range, offset, records, pairs of times).

    Raises:
        ValueError: with a sentence that says what is wrong with them.
    """
    size = 0 if metadata is None else len(metadata)
    if metadata is None or size < _HEAD * _LONG.itemsize or size % (2 * _LONG.itemsize):
        raise ValueError(f"a batch's metadata have {size} bytes, not pairs of numbers")
    numbers = np.frombuffer(metadata, _LONG)
    version, length = numbers[:_HEAD].tolist()
    if version != GetManyRequest.json_version:
        raise ValueError(f"a batch's metadata are of version {version}, not 2")
    stop = _HEAD + _PART * length
    if not 0 < length <= len(numbers) or stop > len(numbers):
        raise ValueError(f"a batch's metadata have no room for {length} parts")
    parts = numbers[_HEAD:stop].reshape(-1, _PART)
    runs = numbers[stop:].reshape(-1, _RUN)
    # A sum of numbers that are too large could come out right.
    if parts[:, 2].min() < 1 or parts[:, 2].max() > count or int(parts[:, 2].sum()) != count:
        raise ValueError("a batch's parts are not its records")
    most = count if times else 0
    if parts[:, 3].min() < 0 or parts[:, 3].max() > most or int(parts[:, 3].sum()) != len(runs):
        raise ValueError("a batch's times are not those of its parts")
    if not times:
        return parts, None
    pieces = np.split(runs, parts[:, 3].cumsum()[:-1])
    for part, piece in zip(parts, pieces, strict=True):
        if piece[:, 0].min(initial=1) < 1 or int(piece[:, 0].sum()) != part[2]:
            raise ValueError("a batch's times are not those of its records")
    return parts, pieces


def _check_ranges(ranges: Sequence[AskedRange]) -> None:
    for asked in ranges:
        if asked.start > asked.end:
            why = "must have a start that is not above the end"
            raise InvalidRequestError("ranges", short(list(asked)), why)
