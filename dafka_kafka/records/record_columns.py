"""The records of a batch, decoded and encoded by column, without a Python loop per record.

A record is (numbers are varints, except the attributes):

    length, attributes (0), timestamp delta, offset delta,
    key's length (-1: null), key, value's length (-1: null), value,
    number of headers, and of each: name's length, name, value's length (-1: null), value
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dafka_core.model.envelope import MAX_LENGTHS_BYTES
from dafka_core.model.envelope_columns import (
    HEADERS_TYPE,
    MAX_INT32,
    Octets,
    Runs,
    as_binary,
    before,
    put_varints,
    texts,
)
from dafka_core.model.values import FEW, Bytes, Longs
from dafka_kafka.errors import invalid_record, too_large

# Kafka's varints by column: those of all records at once. A signed number becomes an unsigned
# one, small near 0 (zigzag: 0, -1, 1, -2, … are 0, 1, 2, 3, …), with seven bits in each byte,
# lowest first.


INT_OCTETS: Final = 5
LONG_OCTETS: Final = 10
"""Longest varint of 32 bits, and of 64."""


_OF_ONE_OCTET: Final = np.array([octet >> 1 ^ -(octet & 1) for octet in range(1 << 7)])


def zigzag(numbers: Longs) -> Longs:
    """Encode signed numbers as unsigned ones in the same 64 bits."""
    made: Longs = numbers << 1 ^ numbers >> 63
    return made


def widths_of(unsigned: Longs) -> Longs:
    """Return the varint length of each number."""
    widths: Longs = np.ones(len(unsigned), np.int64)
    left = unsigned.view(np.uint64)
    largest = int(left.max(initial=0))
    for bits in range(7, 64, 7):
        if largest >> bits == 0:
            break
        widths += left >= 1 << bits
    return widths


def read_varints(octets: Octets, at: Longs, max_octets: int) -> tuple[Longs, Longs]:
    """Read the signed numbers at some positions; return them and the next positions.

    The position after an invalid or truncated number may be beyond the end: callers check.
    """
    firsts = octets.take(at, mode="clip")
    longer = firsts >= 0x80
    at = at + 1
    if not np.count_nonzero(longer):  # a fifth of the time of any()
        return _OF_ONE_OCTET.take(firsts), at
    numbers = (firsts & 0x7F).astype(np.int64)
    rows: Longs | slice = slice(None)
    for shift in range(7, 7 * max_octets, 7):
        count = np.count_nonzero(longer)
        if not count:
            break
        if count < len(longer):
            rows = np.flatnonzero(longer) if isinstance(rows, slice) else rows[longer]
        more = octets.take(at[rows], mode="clip")
        numbers[rows] |= (more & 0x7F).astype(np.int64) << shift
        at[rows] += 1
        longer = more >= 0x80
    if np.count_nonzero(longer):
        at[rows] += np.where(longer, len(octets), 0)
    unsigned = numbers.view(np.uint64)
    return (unsigned >> 1).view(np.int64) ^ -(numbers & 1), at


def read_varint(octets: Bytes, at: int, max_octets: int) -> tuple[int, int]:
    """Read the number at one position; see ``read_varints``."""
    number = 0
    for index, octet in enumerate(octets[at : at + max_octets]):
        number |= (octet & 0x7F) << 7 * index
        if octet < 0x80:
            return number >> 1 ^ -(number & 1), at + index + 1
    return 0, at + len(octets) + 1


# Record boundaries. A record begins with its length, so each boundary follows from the previous
# one. It is quicker to guess all of them at once, and to check that each leads to the next: as
# the first is right, all are. If the guess fails, follow them one by one.
#
# Measured for 10,000 values of about 100 bytes, in microseconds for each record: 0.006 for equal
# lengths, 0.07 for different ones, 0.11 one by one.


MIN_RECORD_BYTES: Final = 7  # length, attributes, two deltas, two lengths and the number of headers

_FEW_RUNS: Final = 16
"""Runs of records of equal length to look for; each costs as much as about 50 records."""

_MIN_RUN: Final = 32  # deltas take one byte more from 64 on
_MAX_CANDIDATES: Final = 8  # zero bytes for each record: with more of them, checking takes longer
_MANY: Final = 100_000  # with more records, checking takes too much memory
_MAX_RECORD_BYTES: Final = 512  # in larger records, finding the zero bytes takes longer
_COMPARED_OCTETS: Final = 2  # bytes of a length to compare: the first and the last one

_COPIED_BYTES: Final = 64 << 10

_ROUNDS: Final = 3  # passes that drop candidates without a predecessor or successor


class Boundaries(NamedTuple):
    """Record boundaries: from ``starts``, after the lengths, to ``ends`` (exclusive)."""

    starts: Longs
    ends: Longs


def boundaries_of(octets: Octets, count: int) -> Boundaries | None:
    """Return the boundaries of ``count`` records that take all of the bytes; None if invalid."""
    if count * MIN_RECORD_BYTES > len(octets):
        return None
    found = None
    if count > _MIN_RUN:
        found = _runs(octets, count)
    if found is None and FEW <= count <= _MANY and len(octets) < count * _MAX_RECORD_BYTES:
        found = _by_zeros(octets, count)
    return _one_by_one(octets, count) if found is None else found


def boundaries_of_each(octets: Octets, size_bytes: int, count: int) -> Boundaries | None:
    """Return the boundaries in consecutive batches of equal size and count.

    None unless all batches have the boundaries of the first one, as usual with values of equal
    length: producers send a batch when it is full.
    """
    first = boundaries_of(octets[:size_bytes], count)
    if first is None:
        return None
    heads = np.concatenate(([0], first.ends[:-1]))
    if (first.starts - heads).max() > _COMPARED_OCTETS:
        return None
    rows = octets.reshape(-1, size_bytes)
    lengths = rows[:, np.concatenate((heads, first.starts - 1))]
    if (lengths != lengths[0]).any():
        return None
    bases = np.arange(0, len(octets), size_bytes)[:, np.newaxis]
    return Boundaries((bases + first.starts).ravel(), (bases + first.ends).ravel())


def _runs(octets: Octets, count: int) -> Boundaries | None:
    starts: list[Longs] = []
    ends: list[Longs] = []
    at = 0
    for _ in range(_FEW_RUNS):
        length, after = read_varint(octets.data, at, INT_OCTETS)
        width, size = after - at, after - at + length
        if length <= 0 or at + size > len(octets):
            return None
        left = min((len(octets) - at) // size, count)
        columns = octets[at : at + left * size].reshape(left, size)
        run = left
        for column in range(width):
            run = int((columns[:run, column] != columns[0, column]).argmax()) or run
        if run < min(_MIN_RUN, left):
            return None
        starts.append(np.arange(at + width, at + run * size, size))
        ends.append(np.arange(at + size, at + run * size + 1, size))
        at, count = at + run * size, count - run
        if not count or at == len(octets):
            break
    if count or at != len(octets):
        return None
    return Boundaries(np.concatenate(starts), np.concatenate(ends))


def _by_zeros(octets: Octets, count: int) -> Boundaries | None:
    """Guess from zero bytes: each record has one after its length, its attributes."""
    starts = np.flatnonzero(octets == 0)
    if len(starts) > count * _MAX_CANDIDATES:
        return None
    starts = starts[int(len(starts) > 0 and starts[0] == 0) :]  # a length precedes it
    last, other = octets[starts - 1].astype(np.int64), octets[starts - 2].astype(np.int64)
    has_two = (other >= 0x80) & (starts != 1)
    lengths = np.where(has_two, last << 7 | other & 0x7F, last)
    ends = starts + (lengths >> 1)
    heads = starts - 1 - has_two
    fit = (last < 0x80) & (lengths & 1 == 0) & (ends <= len(octets))
    fit &= lengths >= 2 * (MIN_RECORD_BYTES - 1)
    for _ in range(_ROUNDS):
        heads, starts, ends = heads[fit], starts[fit], ends[fit]
        if not len(starts):
            return None
        if len(starts) == count and (ends[:-1] == heads[1:]).all():
            is_whole = heads[0] == 0 and ends[-1] == len(octets)
            return Boundaries(starts, ends) if is_whole else None
        leads, is_led_to = np.zeros((2, len(octets) + 1), np.bool_)
        leads[heads] = leads[len(octets)] = True
        is_led_to[ends] = is_led_to[0] = True
        fit = leads[ends] & is_led_to[heads]
    return None


def _one_by_one(octets: Octets, count: int) -> Boundaries | None:
    # Indexing bytes is quicker; for many bytes the copy takes longer.
    data: Bytes = octets.tobytes() if len(octets) < _COPIED_BYTES else octets.data
    bounds = [0]
    at = 0
    try:
        for _ in range(count):
            first = data[at]
            if first < 0x80:
                at += 1 + (first >> 1)
            else:
                second = data[at + 1]
                if second < 0x80:
                    at += 2 + ((first & 0x7F | second << 7) >> 1)
                else:
                    length, at = read_varint(data, at, INT_OCTETS)
                    if length < 0:
                        return None
                    at += length
            bounds.append(at)
    except IndexError:
        return None
    ends = np.array(bounds)
    lengths, starts = read_varints(octets, ends[:-1], INT_OCTETS)
    if at != len(octets) or lengths.min() < 0:
        return None
    return Boundaries(starts, ends[1:])


MAX_RECORDS: Final = 1_000_000
"""Records in one batch. Compressed, a few bytes can stand for many records without a value, and
each takes about 100 here; Kafka's clients send 1 MiB by default."""

MAX_HEADERS: Final = 1_000_000  # headers in one batch, for the same reason
_MAX_HEADERS_OF_ONE: Final = MAX_LENGTHS_BYTES // 2  # the limit of an envelope

_PART_RECORDS: Final = 16_384
"""Records decoded at a time: intermediate arrays stay in the CPU cache."""

_MAX_HEADER_COLUMNS: Final = 64
"""Headers of a record decoded by column: with more, each column would have few records, and cost
more than one by one."""

_NUMBERS: Final = 7  # numbers in a record without headers, each at least one byte


class RecordColumns(NamedTuple):
    """The records of a batch, as in ``KafkaBatch``; deltas are of timestamps."""

    values: pa.Array
    keys: pa.Array | None
    headers: pa.Array | None
    deltas: Longs


class _Parts(NamedTuple):
    """Positions of a field in the records; the length of a null is -1."""

    starts: Longs
    lengths: Longs

    @property
    def ends(self) -> Longs:
        return self.starts + np.maximum(self.lengths, 0)


def decode_records(data: Bytes, count: int) -> RecordColumns:
    """Decode ``count`` records, whose offset deltas must be 0, 1, 2, ….

    Raises:
        RefusedError: the records are invalid, or too many.
    """
    return decode_together([data], [count])


def decode_together(batches: Sequence[Bytes], counts: Sequence[int]) -> RecordColumns:
    """Decode consecutive batches together, in the time of one as large as all of them."""
    total = sum(counts)
    data = batches[0] if len(batches) == 1 else b"".join(batches)
    octets = np.frombuffer(data, np.uint8)
    if MAX_RECORDS < total <= len(octets) // _NUMBERS:
        raise too_large(f"{total} records, of {MAX_RECORDS} at most")
    boundaries = None
    sizes = [len(each) for each in batches]
    if len(batches) > 1 and len({*sizes}) == len({*counts}) == 1:
        boundaries = boundaries_of_each(octets, sizes[0], counts[0])
    boundaries = boundaries or boundaries_of(octets, total)
    if boundaries is None:
        raise invalid_record(f"{len(octets)} bytes are not {total} records")
    numbers = np.arange(total)
    if len(batches) > 1:
        stops = np.cumsum(counts)
        if (boundaries.ends[stops - 1] != np.cumsum(sizes)).any():
            raise invalid_record("the records of a batch do not end where it ends")
        numbers -= np.repeat(stops - counts, counts)
    parts: list[RecordColumns] = []
    left = MAX_HEADERS
    for first in range(0, total, _PART_RECORDS):
        part = slice(first, first + _PART_RECORDS)
        bounds = Boundaries(boundaries.starts[part], boundaries.ends[part])
        parts.append(_decoded(octets, data, bounds, numbers[part], left))
        left -= 0 if parts[-1].headers is None else len(parts[-1].headers.values)
    if len(parts) == 1:
        return parts[0]
    values, keys, headers, deltas = zip(*parts, strict=True)
    return RecordColumns(
        pa.concat_arrays(values),
        _joined(keys, values, pa.binary()),
        _joined(headers, values, HEADERS_TYPE),
        np.concatenate(deltas),
    )


def _decoded(
    octets: Octets, data: Bytes, boundaries: Boundaries, numbers: Longs, max_headers: int
) -> RecordColumns:
    starts, ends = boundaries
    deltas, at = read_varints(octets, starts + 1, LONG_OCTETS)
    offsets, at = read_varints(octets, at, INT_OCTETS)
    keys = _parts(octets, at)
    values = _parts(octets, keys.ends)
    counts, at = read_varints(octets, values.ends, INT_OCTETS)
    # Positions beyond a record fail the later checks.
    if np.count_nonzero(np.minimum(keys.lengths, values.lengths) < -1):
        raise invalid_record("the length of a key or a value is less than -1")
    if np.count_nonzero((counts < 0) | (at + 2 * counts > ends)):
        raise invalid_record("a record has not as many headers as it says, or ends within a value")
    headers = None
    if np.count_nonzero(counts):
        if counts.max() > _MAX_HEADERS_OF_ONE or counts.sum() > max_headers:
            raise too_large("a record or a batch has too many headers")
        headers, at = _headers(octets, data, Runs(counts), at, ends)
    if np.count_nonzero(at != ends):
        raise invalid_record("the parts of a record do not end where it ends")
    if np.count_nonzero(offsets != numbers):
        raise invalid_record("offset deltas are not 0, 1, 2, …")
    has_keys = np.count_nonzero(keys.lengths >= 0)
    return RecordColumns(
        _taken(data, values), _taken(data, keys) if has_keys else None, headers, deltas
    )


def _joined(
    parts: Sequence[pa.Array | None], values: Sequence[pa.Array], kind: pa.DataType
) -> pa.Array | None:
    """Concatenate a column's parts; a part of None has as many nulls as values."""
    if all(part is None for part in parts):
        return None
    each = zip(parts, values, strict=True)
    return pa.concat_arrays(
        [pa.nulls(len(of), kind) if part is None else part for part, of in each]
    )


def _parts(octets: Octets, at: Longs) -> _Parts:
    lengths, starts = read_varints(octets, at, INT_OCTETS)
    return _Parts(starts, lengths)


def _taken(data: Bytes, parts: _Parts) -> pa.Array:
    count = len(parts.starts)
    bounds = np.empty(2 * count, np.int32)
    bounds[0::2], bounds[1::2] = parts.starts, parts.ends
    buffers = [None, pa.py_buffer(bounds), pa.py_buffer(data)]
    pieces = pa.Array.from_buffers(pa.binary(), 2 * count - 1, buffers, null_count=0)
    null = parts.lengths < 0
    places = np.arange(0, 2 * count, 2)
    return pieces.take(pa.array(places, mask=null if np.count_nonzero(null) else None))


def _headers(
    octets: Octets, data: Bytes, runs: Runs, at: Longs, ends: Longs
) -> tuple[pa.Array, Longs]:
    counts, at = runs.counts, at.copy()
    names = _Parts(*np.empty((2, runs.total), np.int64))
    values = _Parts(*np.empty((2, runs.total), np.int64))
    few = counts <= _MAX_HEADER_COLUMNS
    rows = np.flatnonzero(few)
    for column in range(int(counts[few].max(initial=0))):
        rows = rows[counts[rows] > column]
        name = _parts(octets, at[rows])
        value = _parts(octets, name.ends)
        places = runs.firsts[rows] + column
        for of_all, found in ((names, name), (values, value)):
            of_all.starts[places], of_all.lengths[places] = found
        at[rows] = value.ends
    for row in np.flatnonzero(~few).tolist():
        first = int(runs.firsts[row])
        at[row] = _many_headers(
            octets.data, names, values, range(first, first + counts[row]), at[row]
        )
    if names.lengths.min() < 0 or values.lengths.min() < -1:
        raise invalid_record("a header has no name, or its value's length is less than -1")
    if np.count_nonzero(at != ends):  # before positions are used
        raise invalid_record("the headers of a record do not end where it ends")
    fields = list(HEADERS_TYPE.value_type)
    columns = [texts(_taken(data, names)), _taken(data, values)]
    pairs = pa.StructArray.from_arrays(columns, fields=fields)
    bounds = pa.array(before(counts), pa.int32())
    mask = pa.array(counts == 0)
    return pa.ListArray.from_arrays(bounds, pairs, HEADERS_TYPE, mask=mask), at


def _many_headers(
    octets: memoryview, names: _Parts, values: _Parts, places: range, start: int
) -> int:
    at = int(start)
    for place in places:
        for of_all in (names, values):
            length, at = read_varint(octets, at, INT_OCTETS)
            of_all.starts[place], of_all.lengths[place] = at, length
            at += max(length, 0)
    return at


def encode_records(columns: RecordColumns) -> memoryview:
    """Encode records with offset deltas 0, 1, 2, ….

    Raises:
        ValueError: they would be 2 GiB or more.
    """
    values, keys, headers, deltas = columns
    count = len(values)
    header_counts = np.zeros(count, np.int64)
    data = [as_binary(values)] if keys is None else [as_binary(keys), as_binary(values)]
    if headers is not None:
        header_counts = pc.list_value_length(headers).fill_null(0).to_numpy().astype(np.int64)
        data += map(as_binary, headers.flatten().flatten())
    of_headers = Runs(header_counts)
    numbers = Runs(_NUMBERS + 2 * header_counts)
    firsts = numbers.firsts
    # by column, the numbers that data follows
    after = [firsts + 5] if keys is None else [firsts + 4, firsts + 5]
    if headers is not None:
        names = of_headers.from_(firsts + _NUMBERS, step=2)
        after += [names, names + 1]
    flat = np.zeros(numbers.total, np.int64)
    flat[firsts + 2] = zigzag(deltas)
    flat[firsts + 3] = np.arange(0, 2 * count, 2)
    flat[firsts + 4] = 1  # a null key
    flat[firsts + 6] = 2 * header_counts
    sizes = np.zeros(numbers.total, np.int64)
    order = np.full(numbers.total, -1, np.int64)
    at = 0
    for column, places in zip(data, after, strict=True):
        lengths = pc.binary_length(column).fill_null(-1).to_numpy().astype(np.int64)
        flat[places] = zigzag(lengths)
        sizes[places] = lengths.clip(min=0)
        order[places] = np.arange(at, at + len(places))
        at += len(places)
    widths = widths_of(flat)
    lengths = numbers.sums(widths + sizes) - 1
    flat[firsts] = 2 * lengths
    widths[firsts] = widths_of(flat[firsts])
    ends = before(widths)
    if int(ends[-1] + sizes.sum()) > MAX_INT32:
        raise ValueError("the records of a batch are less than 2 GiB")
    octets = np.empty(int(ends[-1]), np.uint8)
    put_varints(octets, ends[:-1], flat.view(np.uint64), widths)
    cuts = np.flatnonzero(order >= 0)
    return _woven(octets, ends[cuts + 1], data, order[cuts])


def _woven(octets: Octets, cuts: Longs, data: list[pa.Array], order: Longs) -> memoryview:
    ends = np.concatenate(([0], cuts, [len(octets)])).astype(np.int32)
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(octets)]
    between = pa.Array.from_buffers(pa.binary(), len(ends) - 1, buffers, null_count=0)
    places = np.empty(len(cuts) + len(between), np.int64)
    places[0::2] = np.arange(len(between))
    places[1::2] = order + len(between)
    woven = pa.concat_arrays([between, *data]).take(pa.array(places))
    stop = int(np.frombuffer(woven.buffers()[1], np.int32)[len(woven)])
    return memoryview(woven.buffers()[2])[:stop].cast("B")
