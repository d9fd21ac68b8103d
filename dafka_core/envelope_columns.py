"""Envelopes opened and closed by column: all records of a batch at once, none of them in Python.

What is in an envelope lies one after the other, so the parts of all records of a batch are one
Arrow array over the batch's own buffer, of which a column takes those that are its own.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dafka_core.envelope import HAS_KEY, HAS_VALUE, LENGTHS_AT, MAGIC, VERSION, check_lengths
from dafka_core.envelope_heads import MAX_INT32, Flags, Octets, Runs, before, heads_of
from dafka_core.values import Longs, Values

KEY: Final = "key"
VALUE: Final = "value"
HEADERS: Final = "headers"
"""The columns that are made of contents, and that contents are made of."""

HEADERS_TYPE: Final = pa.list_(pa.struct([("key", pa.utf8()), ("value", pa.binary())]))
"""As Spark's Kafka connector has them."""

PART_RECORDS: Final = 8_192
"""Opened at a time: what is made in between stays in the processor's cache and in memory that the
process has; of 50,000 it is so large that the system takes it back, and gives it anew."""

_BOUNDS: Final = np.array([1 << 7, 1 << 14, 1 << 21, 1 << 28], np.int64)
"""The first number that takes one octet more as a varint."""


def opened_columns(
    values: Values, names: Collection[str] = (KEY, VALUE, HEADERS)
) -> dict[str, pa.Array] | None:
    """What is in the envelopes: columns by their names; None where all records are bare values.

    ``KEY`` and ``VALUE`` are of binary, ``HEADERS`` of ``HEADERS_TYPE``; each is null where a
    record has none.
    """
    rows = values.starting_with(MAGIC)
    if not len(rows):
        return None
    parts: dict[str, list[pa.Array]] = {name: [] for name in names}
    count = 0
    for start in range(0, len(values), PART_RECORDS):
        first, stop = rows.searchsorted((start, start + PART_RECORDS))
        part = _Opened(values[start : start + PART_RECORDS], rows[first:stop] - start)
        count += len(part.rows)
        for name, columns in parts.items():
            columns.append(part.column(name))
    # One column after the other gives its parts back.
    return {name: pa.concat_arrays(parts.pop(name)) for name in names} if count else None


class _Opened:
    """What is in the envelopes of some records; ``rows`` are those that are in envelopes."""

    def __init__(self, values: Values, rows: Longs) -> None:
        """``rows`` are those that may be, as they begin with the magic."""
        ends, data = values.columns()
        self._heads = heads_of(np.frombuffer(data, np.uint8), ends, rows)
        self._parts = _array(self._heads.starts, data)
        self.rows = self._heads.rows

    def column(self, name: str) -> pa.Array:
        """One of the columns."""
        if name == HEADERS:
            return self._headers()
        firsts, flags = self._heads.firsts, self._heads.flags
        places = firsts.copy() if name == VALUE else np.full(len(firsts), -1)
        has = flags & (HAS_VALUE if name == VALUE else HAS_KEY) != 0
        at = 1 + (flags & HAS_KEY).astype(np.int64) if name == VALUE else 1
        places[self.rows] = np.where(has, firsts[self.rows] + at, -1)
        return self._taken(places)

    def _headers(self) -> pa.ListArray:
        heads = self._heads
        counts = np.zeros(len(heads.firsts), np.int64)
        counts[self.rows] = heads.header_counts
        values = np.where(heads.are_null, -1, heads.names + 1)
        pairs = pa.StructArray.from_arrays(
            [texts(self._taken(heads.names)), self._taken(values)],
            fields=list(HEADERS_TYPE.value_type),
        )
        ends = pa.array(before(counts), pa.int32())
        return pa.ListArray.from_arrays(ends, pairs, HEADERS_TYPE, mask=pa.array(counts == 0))

    def _taken(self, places: Longs) -> pa.BinaryArray:
        """Parts by their places; null for -1."""
        null = places < 0
        indices = pa.array(places, mask=null if null.any() else None)
        taken = self._parts.take(indices)
        return taken if taken.type == pa.binary() else taken.cast(pa.binary())


def close_columns(
    values: pa.Array, keys: pa.Array | None = None, headers: pa.Array | None = None
) -> pa.Array:
    """The contents of records, of binary without nulls: in envelopes those that need one.

    Args:
        values, keys: of binary or string, with nulls.
        headers: lists of (name, value), of string and binary; null lists are empty ones.

    Raises:
        ValueError: a header has no name, or there are too many headers.
    """
    values = as_binary(values)
    needed = ~valid(values)
    needed[Values.from_arrow(values).starting_with(MAGIC)] = True
    columns = [(values, HAS_VALUE)]
    if keys is not None and keys.null_count < len(keys):
        columns.insert(0, (as_binary(keys), HAS_KEY))
        needed |= valid(keys)
    counts = np.zeros(len(values), np.int64)
    if headers is not None:
        counts = pc.list_value_length(headers).fill_null(0).to_numpy().astype(np.int64)
        needed |= counts > 0
    if not needed.any():
        return values
    return _Closing(columns, Runs(counts), needed).closed(headers)


class _Closing:
    """Puts the contents of rows together from parts: columns of them, and which is where.

    The parts of a row are the head of its envelope, if it needs one, then its key and its value, if
    it has them, then each header's name and value.
    """

    def __init__(
        self, columns: Sequence[tuple[pa.Array, int]], headers: Runs, needed: Flags
    ) -> None:
        """``columns`` are keys and values, each with its flag; ``needed`` says who needs a head."""
        self._rows = np.flatnonzero(needed)
        self._headers = headers
        self._columns = [column for column, _ in columns]
        present = [valid(column) for column in self._columns]
        flags = np.sum([has * flag for has, (_, flag) in zip(present, columns, strict=True)], 0)
        self._flags: Octets = flags[self._rows].astype(np.uint8)
        self._parts = Runs(np.sum([needed, 2 * headers.counts, *present], 0, np.int64))
        firsts = self._parts.firsts
        # The number of each part, where all are counted column after column.
        self._order = np.empty(self._parts.total, np.int32)
        self._order[firsts[self._rows]] = np.arange(len(self._rows))
        self._have_lengths: Flags = self._parts.spread(needed)
        self._have_lengths[firsts[self._rows]] = False
        before, place = len(self._rows), firsts + needed
        for has in present:
            self._order[place[has]] = before + np.flatnonzero(has)
            before, place = before + len(has), place + has
        names = headers.from_(place, step=2)
        self._order[names] = before + np.arange(headers.total)
        self._order[names + 1] = before + headers.total + np.arange(headers.total)

    def closed(self, headers: pa.Array | None) -> pa.Array:
        """The contents; ``headers`` are those of all rows."""
        lengths = [np.zeros(len(self._rows), np.int32), *map(_lengths_of, self._columns)]
        if headers is not None and self._headers.total:
            names, values = headers.flatten().flatten()
            if names.null_count:
                raise ValueError("a header's name is null")
            self._columns += [as_binary(names), as_binary(values)]
            lengths += [_lengths_of(names), _lengths_of(values) + valid(values)]
        heads = self._heads(np.concatenate(lengths)[self._order[self._have_lengths]])
        columns = [heads, *self._columns]
        if any(column.type != pa.binary() for column in columns) or (
            sum(column.nbytes for column in columns) > MAX_INT32
        ):
            columns = [column.cast(pa.large_binary()) for column in columns]
        joined = pa.concat_arrays(columns).take(pa.array(self._order))
        ends, data = Values.from_arrow(joined).columns()
        return _array(ends[np.append(self._parts.firsts, self._parts.total)], data)

    def _heads(self, numbers: Longs) -> pa.Array:
        runs = Runs(self._parts.counts[self._rows] - 1)
        widths: Longs = np.ones(len(numbers), np.int64)
        if numbers.max(initial=0) >= _BOUNDS[0]:
            widths += np.searchsorted(_BOUNDS, numbers, side="right")
        sizes = runs.sums(widths)
        check_lengths(int(sizes.max()))
        size_widths: Longs = 1 + (sizes > 0x7F)
        heads = Runs(LENGTHS_AT + size_widths + sizes)
        octets = np.empty(heads.total, np.uint8)
        for at, octet in enumerate((*MAGIC, VERSION)):
            octets[heads.firsts + at] = octet
        octets[heads.firsts + LENGTHS_AT - 1] = self._flags
        put_varints(octets, heads.firsts + LENGTHS_AT, sizes, size_widths)
        before = widths.cumsum() - widths
        of_row = np.append(before, 0)[runs.firsts]
        starts = heads.firsts + LENGTHS_AT + size_widths
        put_varints(octets, before + runs.spread(starts - of_row), numbers, widths)
        return _array(np.append(heads.firsts, heads.total), octets)


def put_varints(octets: Octets, at: Longs, numbers: Longs, widths: Longs) -> None:
    """Writes numbers as varints of these widths."""
    octets[at] = numbers & 0x7F
    for shift in range(1, int(widths.max(initial=1))):
        longer = widths > shift
        at, numbers, widths = at[longer], numbers[longer], widths[longer]
        octets[at + shift - 1] |= 0x80
        octets[at + shift] = numbers >> 7 * shift & 0x7F


def _array(ends: npt.NDArray[np.integer], data: Any) -> pa.Array:
    """The octets between ends as an array of binary, of large binary where it must be."""
    is_large = int(ends[-1]) > MAX_INT32
    kind, dtype = (pa.large_binary(), np.int64) if is_large else (pa.binary(), np.int32)
    buffers = [None, pa.py_buffer(ends.astype(dtype, copy=False)), pa.py_buffer(data)]
    return pa.Array.from_buffers(kind, len(ends) - 1, buffers, null_count=0)


def as_binary(array: pa.Array) -> pa.Array:
    """An array of binary or string, large or not, as one of binary; without a copy."""
    is_large = str(array.type).startswith("large")
    return array.cast(pa.large_binary() if is_large else pa.binary())


def valid(array: pa.Array) -> Flags:
    """Which elements are not null."""
    if not array.null_count:
        return np.ones(len(array), np.bool_)
    valid: Flags = array.is_valid().to_numpy(zero_copy_only=False)
    return valid


def _lengths_of(array: pa.Array) -> npt.NDArray[np.integer]:
    """How long the elements are; 0 for nulls."""
    lengths: npt.NDArray[np.integer] = pc.binary_length(array).fill_null(0).to_numpy()
    return lengths


def texts(octets: pa.Array) -> pa.Array:
    """Octets as text; what is not UTF-8 is replaced, as Kafka's clients do."""
    try:
        return octets.cast(pa.utf8())
    except pa.ArrowInvalid:
        found = octets.dictionary_encode()
        texts = [each.decode("utf-8", "replace") for each in found.dictionary.to_pylist()]
        return pa.array(texts, pa.utf8()).take(found.indices)
