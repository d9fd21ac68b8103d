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
    MAX_LENGTHS_BYTES,
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

# Greater than any place in a buffer: that of a varint that is invalid.
NOWHERE: Final = 1 << 62

# Records opened at a time: the intermediate arrays stay in the processor's cache, and in memory
# that the process has. For 50,000 the system would take the memory back and provide it anew.
PART_RECORDS: Final = 8_192

# The first numbers that need one more byte as a varint.
_BOUNDS: Final = np.array([1 << 7, 1 << 14, 1 << 21, 1 << 28], np.int64)


class Pairs(NamedTuple):
    """Pairs of adjacent parts of a buffer, in its order: a key or a header's name, and a value."""

    edges: npt.NDArray[np.int64]  # of shape (n, 3): where both begin, and the second one ends
    are_null: Flags  # of shape (n, 2)


class Heads(NamedTuple):
    """Where the parts of records are: of bare values, and of envelopes."""

    envelope_count: int
    own: Pairs
    header_counts: Longs  # of all records
    headers: Pairs


def heads_of(octets: Octets, ends: Longs, rows: Longs) -> Heads:
    """Decode the heads; ``rows`` are the records that begin with the magic.

    Keys' and values' lengths are decoded one column after the other, and those of headers, of which
    a record may have any number, in sequence.
    """
    starts, stops = ends.take(rows), ends.take(rows + 1)
    version, flags = (octets.take(starts + at, mode="clip") for at in (len(MAGIC), LENGTHS_AT - 1))
    sizes, at = _varints(octets, starts + LENGTHS_AT)
    bodies = at + sizes
    has_key, has_value = flags & HAS_KEY != 0, flags & HAS_VALUE != 0
    key_ends, at = _after(octets, at, bodies, has_key)
    value_ends, at = _after(octets, at, key_ends, has_value)
    fit = (version == VERSION) & (flags <= HAS_KEY | HAS_VALUE) & (sizes <= MAX_LENGTHS_BYTES)
    fit &= (at <= bodies) & (bodies <= stops) & (octets.take(bodies - 1, mode="clip") < 0x80)
    lengths, counts, are_pairs = _pairs(octets, at, np.where(fit, bodies, at))
    fit &= are_pairs
    # A value alone is in an envelope only if it begins with the magic.
    alone = np.flatnonzero((flags == HAS_VALUE) & (counts == 0))
    begun = octets.take(key_ends[alone, None] + np.arange(len(MAGIC)), mode="clip")
    fit[alone] &= (begun == np.frombuffer(MAGIC, np.uint8)).all(1)
    fit[alone] &= (value_ends - key_ends)[alone] >= len(MAGIC)
    if not fit.all():  # a half pair would shift the later ones
        return heads_of(octets, ends, rows[fit])
    headers, are_null = Runs(counts), lengths[1::2] == 0
    lengths[1::2] -= ~are_null
    sums = before(lengths)
    of_row = sums[2 * headers.firsts]
    fit = value_ends + sums[2 * (headers.firsts + counts)] - of_row == stops
    if not fit.all():
        return heads_of(octets, ends, rows[fit])
    shift = headers.spread(value_ends - of_row)
    of_headers = np.column_stack((sums[:-1:2] + shift, sums[1::2] + shift, sums[2::2] + shift))
    edges = np.column_stack((bodies, key_ends, value_ends))
    nulls = np.column_stack((~has_key, ~has_value))
    if len(rows) < len(ends) - 1:
        of_all: tuple[npt.NDArray[Any], ...] = (
            np.column_stack((ends[:-1], ends[:-1], ends[1:])),
            np.tile((True, False), (len(ends) - 1, 1)),
            np.zeros(len(ends) - 1, np.int64),
        )
        for each, own in zip(of_all, (edges, nulls, counts), strict=True):
            each[rows] = own
        edges, nulls, counts = of_all
    names_and_values = Pairs(of_headers, np.column_stack((np.zeros_like(are_null), are_null)))
    return Heads(len(rows), Pairs(edges, nulls), counts, names_and_values)


def _after(octets: Octets, at: Longs, place: Longs, has: Flags) -> tuple[Longs, Longs]:
    """Return where rows' next part ends, and the place after its length, if they have it."""
    if not has.any():
        return place, at
    lengths, after = _varints(octets, at)
    return place + lengths * has, np.where(has, after, at)


def _varints(octets: Octets, at: Longs) -> tuple[Longs, Longs]:
    """Decode the varints at some places; return them, and the places after them."""
    last = octets.take(at, mode="clip")
    numbers, at, are_longer = (last & 0x7F).astype(np.int64), at + 1, last > 0x7F
    for shift in range(7, 7 * MAX_VARINT_BYTES, 7):
        if not are_longer.any():
            break
        last = octets.take(at, mode="clip")
        numbers += np.where(are_longer, last & 0x7F, 0).astype(np.int64) << shift
        at += are_longer
        at[are_longer & (last == 0)] = NOWHERE  # there is a shorter encoding
        are_longer &= last > 0x7F
    at[are_longer] = NOWHERE
    return numbers, at


def _pairs(octets: Octets, starts: Longs, ends: Longs) -> tuple[Longs, Longs, Flags]:
    """Decode the lengths of headers; return also each row's header count, and if they are valid."""
    runs = Runs(ends - starts)
    packed = octets.take(runs.from_(starts))
    numbers, counts, are_last = packed.astype(np.int64), runs.counts, packed < 0x80
    are_valid = np.ones(len(counts), np.bool_)
    if not are_last.all():
        counts = runs.sums(are_last)
        numbers, are_canonical = _decoded(packed, np.flatnonzero(are_last))
        are_valid = Runs(counts).sums(are_canonical) == counts
    return numbers, counts // 2, are_valid & (counts % 2 == 0)


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
        count += heads.envelope_count
        parts = _array(heads.own.edges.ravel(), data)
        for name, columns in opened.items():
            if name == HEADERS:
                columns.append(_headers(heads, data))
            else:
                columns.append(_taken(parts, heads.own, (KEY, VALUE).index(name)))
    # One column after the other, so each frees its parts.
    return {name: pa.concat_arrays(opened.pop(name)) for name in names} if count else None


def _headers(heads: Heads, data: Any) -> pa.ListArray:
    counts, headers = heads.header_counts, heads.headers
    if not len(headers.edges):
        return pa.nulls(len(counts), HEADERS_TYPE)
    parts = _array(headers.edges.ravel(), data)
    columns = [texts(_taken(parts, headers, 0)), _taken(parts, headers, 1)]
    pairs = pa.StructArray.from_arrays(columns, fields=list(HEADERS_TYPE.value_type))
    ends = pa.array(before(counts), pa.int32())
    return pa.ListArray.from_arrays(ends, pairs, HEADERS_TYPE, mask=pa.array(counts == 0))


def _taken(parts: pa.Array, pairs: Pairs, which: int) -> pa.BinaryArray:
    """Return the first or the second ones of pairs; ``parts`` also has what is between pairs."""
    null = pairs.are_null[:, which]
    places = np.arange(which, len(parts) + 1, 3)
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
    runs = Runs(np.sum([2 * counts, *present], 0, np.int64) * needed)
    lengths, at = np.empty(runs.total, np.int64), runs.firsts
    for column, has in zip(columns, present, strict=True):
        with_length = has & needed
        lengths[at[with_length]] = _lengths_of(column)[with_length]
        at = at + with_length
    if headers is not None and counts.any():
        names, contents = map(as_binary, headers.flatten().flatten())
        if names.null_count:
            raise ValueError("a header's name is null")
        at = Runs(counts).from_(at, step=2)
        lengths[at], lengths[at + 1] = _lengths_of(names), _lengths_of(contents) + valid(contents)
        ends, data = _joined(names, contents).columns()
        columns.append(_array(ends[before(counts)], data))
    return _array(*_joined(_heads(flags, needed, runs, lengths), *columns).columns())


def _joined(*columns: pa.Array) -> Values:
    """Concatenate columns row by row; null is empty."""
    if any(column.type != pa.binary() for column in columns) or (
        sum(column.nbytes for column in columns) > MAX_INT32
    ):
        columns = tuple(column.cast(pa.large_binary()) for column in columns)
    separated = *columns, pa.scalar(b"", columns[0].type)
    nulls = pc.JoinOptions(null_handling="replace", null_replacement="")
    return Values.from_arrow(pc.binary_join_element_wise(*separated, options=nulls))


def _heads(flags: Octets, needed: Flags, runs: Runs, lengths: Longs) -> pa.Array:
    """Encode the heads of rows that need an envelope; ``runs`` are the lengths of each row."""
    widths: Longs = np.ones(len(lengths), np.int64)
    if lengths.max(initial=0) >= _BOUNDS[0]:
        widths += np.searchsorted(_BOUNDS, lengths, side="right")
    sizes = runs.sums(widths)
    check_lengths(int(sizes.max()))
    size_widths: Longs = 1 + (sizes > 0x7F)
    heads = Runs(needed * (LENGTHS_AT + size_widths + sizes))
    octets, firsts = np.empty(heads.total, np.uint8), heads.firsts[needed]
    for at, octet in enumerate((*MAGIC, VERSION)):
        octets[firsts + at] = octet
    octets[firsts + LENGTHS_AT - 1] = flags[needed]
    put_varints(octets, firsts + LENGTHS_AT, sizes[needed], size_widths[needed])
    places = before(widths)
    shift = heads.firsts + LENGTHS_AT + size_widths - places[runs.firsts]
    put_varints(octets, places[:-1] + runs.spread(shift), lengths, widths)
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
