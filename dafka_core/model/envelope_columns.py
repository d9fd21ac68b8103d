"""Envelopes opened and closed by column: all records of a batch at once, without a Python loop.

The parts of an envelope are adjacent, so the parts of all records of a batch are one Arrow array
over the batch's own buffer, and each column takes its parts from it.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dafka_core.model.envelope import (
    HAS_KEY,
    HAS_VALUE,
    LENGTHS_AT,
    MAGIC,
    MAX_VARINT_BYTES,
    VERSION,
    check_lengths,
)
from dafka_core.model.values import Longs, Values

Octets = npt.NDArray[np.uint8]
Flags = npt.NDArray[np.bool_]

MAX_INT32: Final = np.iinfo(np.int32).max

KEY: Final = "key"
VALUE: Final = "value"
HEADERS: Final = "headers"  # the columns of opened contents

HEADERS_TYPE: Final = pa.list_(pa.struct([("key", pa.utf8()), ("value", pa.binary())]))
"""As in Spark's Kafka connector."""

# Bytes of a head's lengths that are decoded as columns: more would cost more, for few records, than
# the general method.
MAX_COLUMNS: Final = 64

# Records opened at a time: the intermediate arrays stay in the processor's cache, and in memory
# that the process has. For 50,000 the system would take the memory back and provide it anew.
PART_RECORDS: Final = 8_192

# The first numbers that need one more byte as a varint.
_BOUNDS: Final = np.array([1 << 7, 1 << 14, 1 << 21, 1 << 28], np.int64)


class Heads(NamedTuple):
    """The parts of records: each bare value, or the head of an envelope and its contents."""

    rows: Longs  # records in envelopes
    flags: Octets  # of each of these rows
    firsts: Longs  # index of each record's first part among all parts
    starts: npt.NDArray[np.integer]  # where each part begins in the buffer, and the last one ends
    header_counts: Longs  # of each of these rows
    names: Longs  # indices of headers' names, each before its value's
    are_null: Flags  # true for headers with the value null


def heads_of(octets: Octets, ends: Longs, rows: Longs) -> Heads:
    """Decode the heads; ``rows`` are the records that begin with the magic.

    Most records of a topic have heads of one shape: the same flags, header count and number of
    bytes for each length.  Then each length is a column, which takes half as long as the general
    method that decodes all heads' bytes in sequence.
    """
    alike = _of_one_shape(octets, ends) if len(rows) == len(ends) - 1 else None
    return _of_any_shape(octets, ends, rows) if alike is None else alike


def _of_one_shape(octets: Octets, ends: Longs) -> Heads | None:
    """Decode by column; return None unless all records are envelopes with heads of one shape."""
    starts, least = ends[:-1], int(np.diff(ends).min())
    first = octets[: min(int(ends[1]), LENGTHS_AT + 1 + MAX_COLUMNS)].tobytes()
    widths = _widths(first)
    before_parts = LENGTHS_AT + 1 + sum(widths)
    if not widths or least < before_parts or ends[-1] > MAX_INT32:
        return None

    def column(at: int) -> Octets:
        return octets.take(starts + at)

    flags = first[LENGTHS_AT - 1]
    for at, octet in enumerate((VERSION, flags, sum(widths)), LENGTHS_AT - 2):
        if (column(at) != octet).any():
            return None
    own = (flags & HAS_KEY) + flags // HAS_VALUE
    each = len(widths) - own
    if flags > HAS_KEY | HAS_VALUE or each < 0 or each % 2 or (flags == HAS_VALUE and not each):
        return None
    flat = np.empty(len(starts) * (1 + len(widths)) + 1, np.int32)
    parts = flat[:-1].reshape(len(starts), -1)
    are_null = np.empty((len(starts), each // 2), np.bool_)
    parts[:, 0], flat[-1] = starts, ends[-1]
    at, place = LENGTHS_AT + 1, starts + before_parts
    for index, width in enumerate(widths):
        numbers = _numbers([column(at + octet) for octet in range(width)])
        if numbers is None:
            return None
        parts[:, 1 + index] = place
        header, is_value = divmod(index - own, 2)
        if header >= 0 and is_value:
            are_null[:, header] = numbers == 0
            numbers -= ~are_null[:, header]
        at, place = at + width, place + numbers
    if (place != ends[1:]).any():
        return None
    firsts = np.arange(0, len(flat) - 1, 1 + len(widths))
    names = firsts[:, None] + np.arange(1 + own, 1 + len(widths), 2)
    of_rows = np.full(len(starts), flags, np.uint8), firsts, flat, np.full(len(starts), each // 2)
    return Heads(np.arange(len(starts)), *of_rows, names.ravel(), are_null.ravel())


def _widths(content: bytes) -> list[int]:
    """Return the number of bytes of each length in a head; empty if invalid or too many."""
    size = content[LENGTHS_AT] if len(content) > LENGTHS_AT else 0
    packed = content[LENGTHS_AT + 1 :][:size] if size <= MAX_COLUMNS else b""
    lasts = [at for at, octet in enumerate(packed) if octet < 0x80]
    return np.diff([-1, *lasts]).tolist() if lasts[-1:] == [size - 1] else []


def _numbers(columns: list[Octets]) -> Longs | None:
    """Decode varints with one byte in each column; None if one has another number of bytes."""
    *others, last = columns
    if len(others) >= MAX_VARINT_BYTES or last.max() > 0x7F or (others and last.min() == 0):
        return None
    numbers: Longs = last.astype(np.int64)
    for column in reversed(others):
        if column.min() < 0x80:
            return None
        numbers = numbers << 7 | column & 0x7F
    return numbers


def _of_any_shape(octets: Octets, ends: Longs, rows: Longs) -> Heads:
    """Decode the lengths of all heads in sequence, then leave out envelopes that are invalid."""
    rows, flags, heads, bodies = _begun(octets, ends, rows)
    sizes, stops = bodies - heads, ends[rows + 1]
    runs = Runs(sizes)
    packed = octets.take(runs.from_(heads))
    are_last = packed < 0x80
    with_lengths = np.flatnonzero(sizes)
    ends_at = (runs.firsts + sizes - 1)[with_lengths]
    fit = np.ones(len(rows), np.bool_)
    fit[with_lengths] = are_last[ends_at]
    # An unfinished last varint must not affect the next record.
    are_last[ends_at] = True
    numbers = packed.astype(np.int64)
    if not are_last.all():
        runs = Runs(runs.sums(are_last))
        numbers, are_canonical = _decoded(packed, np.flatnonzero(are_last))
        fit &= runs.sums(are_canonical) == runs.counts
    own = (flags & HAS_KEY != 0).astype(np.int64) + (flags & HAS_VALUE != 0)
    in_headers = runs.counts - own
    fit &= (in_headers >= 0) & (in_headers % 2 == 0)
    headers = Runs((in_headers // 2).clip(min=0))
    names = headers.from_(runs.firsts + own, step=2)
    # A value alone is in an envelope only if it begins with the magic.
    alone = np.flatnonzero((flags == HAS_VALUE) & (in_headers == 0))
    fit[alone] &= (stops - bodies)[alone] >= len(MAGIC)
    for at, octet in enumerate(MAGIC):
        fit[alone] &= octets.take(bodies[alone] + at, mode="clip") == octet
    of_values = numbers[names + 1]
    are_null: Flags = of_values == 0
    numbers[names + 1] = of_values - ~are_null
    sums = before(numbers)
    of_row = sums[runs.firsts]
    fit &= sums[runs.firsts + runs.counts] - of_row == stops - bodies
    if not fit.all():
        return _of_any_shape(octets, ends, rows[fit])
    parts = np.ones(len(ends) - 1, np.int64)
    parts[rows] += runs.counts
    # In the order of the buffer.
    order = Runs(parts)
    starts = np.empty(order.total + 1, np.int64)
    starts[-1] = ends[-1]
    starts[order.firsts] = ends[:-1]
    places = runs.from_(order.firsts[rows] + 1)
    starts[places] = sums[:-1] + runs.spread(bodies - of_row)
    return Heads(rows, flags, order.firsts, starts, headers.counts, places[names], are_null)


def _begun(octets: Octets, ends: Longs, rows: Longs) -> tuple[Longs, Octets, Longs, Longs]:
    """Return the rows that begin as envelopes, their flags, and where lengths begin and end."""
    rows = rows[ends[rows + 1] - ends[rows] > LENGTHS_AT]
    starts, stops = ends[rows] + LENGTHS_AT, ends[rows + 1]
    flags, sizes = octets[starts - 1], octets[starts].astype(np.int64)
    fit = (octets[starts - 2] == VERSION) & (flags <= HAS_KEY | HAS_VALUE)
    heads = starts + 1
    if sizes.max(initial=0) > 0x7F:
        is_long, second = sizes > 0x7F, octets.take(heads, mode="clip").astype(np.int64)
        sizes = np.where(is_long, sizes - 0x80 + (second << 7), sizes)
        heads += is_long
        # The shortest encoding, and of two bytes.
        fit &= ~is_long | ((second > 0) & (second <= 0x7F))
    bodies = heads + sizes
    fit &= bodies <= stops
    if fit.all():
        return rows, flags, heads, bodies
    return rows[fit], flags[fit], heads[fit], bodies[fit]


def _decoded(packed: Octets, ends: Longs) -> tuple[Longs, Flags]:
    """Decode varints with their last bytes at ``ends``; return numbers and their validity."""
    firsts = np.concatenate(([0], ends[:-1] + 1))
    widths = ends - firsts + 1
    at = np.arange(len(packed)) - np.repeat(firsts, widths)
    shifted = (packed & 0x7F).astype(np.int64) << 7 * at.clip(max=MAX_VARINT_BYTES)
    are_canonical = (widths <= MAX_VARINT_BYTES) & ((widths == 1) | (packed[ends] != 0))
    return np.add.reduceat(shifted, firsts), are_canonical


class Runs:
    """Items that belong to rows, numbered in the order of the rows.

    Each row has ``counts`` items, the first one with the number ``firsts``, of ``total``.
    """

    def __init__(self, counts: Longs) -> None:
        self.counts = counts
        ends = counts.cumsum()
        self.firsts: Longs = ends - counts
        self.total = int(ends[-1]) if len(ends) else 0
        # Usually all rows have the same count, which halves the time of the methods.
        self._each = int(counts[0]) if len(counts) and (counts == counts[0]).all() else None

    def spread(self, of_rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return each item's row's element."""
        return np.repeat(of_rows, self.counts if self._each is None else self._each)

    def from_(self, starts: Longs, step: int = 1) -> Longs:
        """Return numbers that ascend by a step from each row's start."""
        if self._each is not None:
            return (starts[:, None] + np.arange(self._each) * step).ravel()
        return self.spread(starts - self.firsts * step) + np.arange(self.total) * step

    def sums(self, of_things: Longs | Flags) -> Longs:
        """Return the sum of each row's items; for flags, the number that are set."""
        ends = before(of_things)
        sums: Longs = ends[self.firsts + self.counts] - ends[self.firsts]
        return sums


def before(numbers: Longs | Flags) -> Longs:
    """Return the sums of the numbers before each index, and of all."""
    sums = np.zeros(len(numbers) + 1, np.int64)
    numbers.cumsum(out=sums[1:])
    return sums


def opened_columns(
    values: Values, names: Collection[str] = (KEY, VALUE, HEADERS)
) -> dict[str, pa.Array] | None:
    """Open envelopes into columns by name; return None if all records are bare values.

    ``KEY`` and ``VALUE`` are binary, ``HEADERS`` has ``HEADERS_TYPE``; each is null for records
    without one.
    """
    rows = values.starting_with(MAGIC)
    if not len(rows):
        return None
    opened: dict[str, list[pa.Array]] = {name: [] for name in names}
    count = 0
    for start in range(0, len(values), PART_RECORDS):
        first, stop = rows.searchsorted((start, start + PART_RECORDS))
        ends, data = values[start : start + PART_RECORDS].columns()
        heads = heads_of(np.frombuffer(data, np.uint8), ends, rows[first:stop] - start)
        parts = _array(heads.starts, data)
        count += len(heads.rows)
        for name, columns in opened.items():
            columns.append(_headers(heads, parts) if name == HEADERS else _own(heads, parts, name))
    # One column after the other, so each frees its parts.
    return {name: pa.concat_arrays(opened.pop(name)) for name in names} if count else None


def _own(heads: Heads, parts: pa.Array, name: str) -> pa.BinaryArray:
    """Return the column of values or keys."""
    rows, firsts, flags = heads.rows, heads.firsts, heads.flags
    places = firsts.copy() if name == VALUE else np.full(len(firsts), -1)
    has = flags & (HAS_VALUE if name == VALUE else HAS_KEY) != 0
    at = 1 + (flags & HAS_KEY).astype(np.int64) if name == VALUE else 1
    places[rows] = np.where(has, firsts[rows] + at, -1)
    return _taken(parts, places)


def _headers(heads: Heads, parts: pa.Array) -> pa.ListArray:
    counts = np.zeros(len(heads.firsts), np.int64)
    counts[heads.rows] = heads.header_counts
    values = np.where(heads.are_null, -1, heads.names + 1)
    columns = [texts(_taken(parts, heads.names)), _taken(parts, values)]
    pairs = pa.StructArray.from_arrays(columns, fields=list(HEADERS_TYPE.value_type))
    ends = pa.array(before(counts), pa.int32())
    return pa.ListArray.from_arrays(ends, pairs, HEADERS_TYPE, mask=pa.array(counts == 0))


def _taken(parts: pa.Array, places: Longs) -> pa.BinaryArray:
    """Return parts by index; null for -1."""
    null = places < 0
    taken = parts.take(pa.array(places, mask=null if null.any() else None))
    return taken if taken.type == pa.binary() else taken.cast(pa.binary())


def close_columns(
    values: pa.Array, keys: pa.Array | None = None, headers: pa.Array | None = None
) -> pa.Array:
    """Encode contents as binary without nulls, in envelopes where needed.

    Values and keys are binary or string; headers are lists of pairs, where null means empty.
    Raises ValueError if a header has no name, or a record has too many.
    """
    values = as_binary(values)
    columns, present = [values], [valid(values)]
    flags = present[0] * np.uint8(HAS_VALUE)
    needed = ~present[0]
    needed[Values.from_arrow(values).starting_with(MAGIC)] = True
    if keys is not None and keys.null_count < len(keys):
        columns, present = [as_binary(keys), values], [valid(keys), *present]
        flags += present[0] * np.uint8(HAS_KEY)
        needed |= present[0]
    counts = np.zeros(len(values), np.int64)
    if headers is not None:
        counts = pc.list_value_length(headers).fill_null(0).to_numpy().astype(np.int64)
        needed |= counts > 0
    if not needed.any():
        return values
    rows = np.flatnonzero(needed)
    parts = Runs(np.sum([needed, 2 * counts, *present], 0, np.int64))
    heads_at, place = parts.firsts[rows], parts.firsts + needed
    # The index of each part, counted column by column, and its length: heads have none.
    order, base = np.empty(parts.total, np.int32), len(rows)
    order[heads_at] = np.arange(len(rows))
    lengths: list[npt.NDArray[Any]] = [np.zeros(len(rows), np.int32)]
    for column, has in zip(columns, present, strict=True):
        order[place[has]] = base + np.flatnonzero(has)
        lengths.append(_lengths_of(column))
        base, place = base + len(column), place + has
    if headers is not None and counts.any():
        names, contents = headers.flatten().flatten()
        if names.null_count:
            raise ValueError("a header's name is null")
        at, every = Runs(counts).from_(place, step=2), base + np.arange(len(names))
        order[at], order[at + 1] = every, every + len(names)
        lengths += [_lengths_of(names), _lengths_of(contents) + valid(contents)]
        columns += [as_binary(names), as_binary(contents)]
    have_lengths: Flags = parts.spread(needed)
    have_lengths[heads_at] = False
    numbers = np.concatenate(lengths)[order[have_lengths]]
    columns.insert(0, _heads(flags[rows], Runs(parts.counts[rows] - 1), numbers))
    if any(column.type != pa.binary() for column in columns) or (
        sum(column.nbytes for column in columns) > MAX_INT32
    ):
        columns = [column.cast(pa.large_binary()) for column in columns]
    joined = pa.concat_arrays(columns).take(pa.array(order))
    ends, data = Values.from_arrow(joined).columns()
    return _array(ends[np.append(parts.firsts, parts.total)], data)


def _heads(flags: Octets, runs: Runs, lengths: Longs) -> pa.Array:
    """Encode heads of envelopes; ``runs`` are each one's lengths."""
    widths: Longs = np.ones(len(lengths), np.int64)
    if lengths.max(initial=0) >= _BOUNDS[0]:
        widths += np.searchsorted(_BOUNDS, lengths, side="right")
    sizes = runs.sums(widths)
    check_lengths(int(sizes.max()))
    size_widths: Longs = 1 + (sizes > 0x7F)
    heads = Runs(LENGTHS_AT + size_widths + sizes)
    octets = np.empty(heads.total, np.uint8)
    for at, octet in enumerate((*MAGIC, VERSION)):
        octets[heads.firsts + at] = octet
    octets[heads.firsts + LENGTHS_AT - 1] = flags
    put_varints(octets, heads.firsts + LENGTHS_AT, sizes, size_widths)
    places = widths.cumsum() - widths
    of_row = np.append(places, 0)[runs.firsts]
    starts = heads.firsts + LENGTHS_AT + size_widths
    put_varints(octets, places + runs.spread(starts - of_row), lengths, widths)
    return _array(np.append(heads.firsts, heads.total), octets)


def put_varints(octets: Octets, at: Longs, numbers: Longs, widths: Longs) -> None:
    """Write numbers as varints of these widths."""
    octets[at] = numbers & 0x7F
    for shift in range(1, int(widths.max(initial=1))):
        longer = widths > shift
        at, numbers, widths = at[longer], numbers[longer], widths[longer]
        octets[at + shift - 1] |= 0x80
        octets[at + shift] = numbers >> 7 * shift & 0x7F


def _array(ends: npt.NDArray[np.integer], data: Any) -> pa.Array:
    """Return the bytes between ends as an array of binary, or of large binary if needed."""
    is_large = int(ends[-1]) > MAX_INT32
    kind, dtype = (pa.large_binary(), np.int64) if is_large else (pa.binary(), np.int32)
    buffers = [None, pa.py_buffer(ends.astype(dtype, copy=False)), pa.py_buffer(data)]
    return pa.Array.from_buffers(kind, len(ends) - 1, buffers, null_count=0)


def as_binary(array: pa.Array) -> pa.Array:
    """Convert binary or string, large or not, to binary, without a copy."""
    is_large = str(array.type).startswith("large")
    return array.cast(pa.large_binary() if is_large else pa.binary())


def valid(array: pa.Array) -> Flags:
    """Return the mask of elements that are not null."""
    if not array.null_count:
        return np.ones(len(array), np.bool_)
    valid: Flags = array.is_valid().to_numpy(zero_copy_only=False)
    return valid


def _lengths_of(array: pa.Array) -> npt.NDArray[np.integer]:
    lengths: npt.NDArray[np.integer] = pc.binary_length(array).fill_null(0).to_numpy()
    return lengths


def texts(octets: pa.Array) -> pa.Array:
    """Decode text; invalid UTF-8 is replaced, as Kafka's clients do."""
    try:
        return octets.cast(pa.utf8())
    except pa.ArrowInvalid:
        found = octets.dictionary_encode()
        texts = [each.decode("utf-8", "replace") for each in found.dictionary.to_pylist()]
        return pa.array(texts, pa.utf8()).take(found.indices)
