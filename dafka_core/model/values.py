"""The values of consecutive records as columns, from the log, from Arrow or from the network.

``RowDigest`` is a digest of rows in any order: it shows if two writes contain the same rows.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self, overload

import numpy as np
import numpy.typing as npt
import xxhash

if TYPE_CHECKING:
    import pyarrow as pa

Bytes = bytes | bytearray | memoryview
Longs = npt.NDArray[np.int64]

_NONE = np.zeros(1, np.int64)
_EMPTY = memoryview(b"")

# A loop over fewer objects is faster than NumPy, as for a consumer that receives single records.
FEW: Final = 200

# Objects searched in one buffer: new memory for a larger one takes three times as long as that.
MANY: Final = 10_000


class Values(Sequence[bytes]):
    """One buffer with all values, and the offsets at which they begin and end.  Immutable.

    The log, Arrow and packed messages use the same layout, so values pass between them without a
    copy or a loop.  ``bytes`` objects are created on first use.
    """

    __slots__ = ("_buffer", "_ends", "_list")

    def __init__(
        self,
        ends: npt.NDArray[np.integer] | None = _NONE,
        buffer: memoryview = _EMPTY,
        items: list[bytes] | None = None,
    ) -> None:
        """See ``of``, ``from_columns`` and ``from_arrow``."""
        self._ends = ends  # and the buffer is valid with it
        self._buffer = buffer
        self._list = items

    @classmethod
    def of(cls, values: Iterable[bytes]) -> Self:
        """Return values from objects; takes ownership of a list."""
        if isinstance(values, cls):
            return values
        return cls(None, _EMPTY, values if isinstance(values, list) else list(values))

    @classmethod
    def from_columns(cls, ends: npt.NDArray[np.integer], buffer: Bytes) -> Self:
        """Return values ``buffer[ends[i] : ends[i + 1]]``, without a copy."""
        return cls(ends, memoryview(buffer))

    @classmethod
    def from_arrow(cls, array: pa.Array) -> Self:
        """Return values from an Arrow binary or string array without nulls; shares its buffers."""
        _, offsets, data = array.buffers()
        if len(array) == 0 or offsets is None:
            return cls()
        dtype = np.dtype("<i8" if str(array.type).startswith("large") else "<i4")
        ends = np.frombuffer(offsets, dtype, len(array) + 1, array.offset * dtype.itemsize)
        # Arrow's bytes are signed; a concatenation needs one type.
        return cls.from_columns(ends, memoryview(data).cast("B") if data else b"")

    @classmethod
    def concat(cls, parts: Sequence[Values]) -> Values:
        """Concatenate; a single part is returned, several are copied into a new buffer."""
        if len(parts) == 1:
            return parts[0]
        columns = [part.columns() for part in parts]
        sizes = np.array([len(data) for _, data in columns], np.int64)
        bases = sizes.cumsum() - sizes
        ends = [each[1:] + base for (each, _), base in zip(columns, bases, strict=True)]
        dtype = np.int32 if sizes.sum() <= np.iinfo(np.int32).max else np.int64
        joined: npt.NDArray[np.integer] = np.concatenate([_NONE, *ends]).astype(dtype)
        return cls.from_columns(joined, b"".join([data for _, data in columns]))

    def columns(self) -> tuple[Longs, memoryview]:
        """Return ``count + 1`` offsets, the first one 0, and the concatenated values."""
        ends = self._offsets()
        first = int(ends[0])
        rebased = ends.astype(np.int64, copy=False)
        return (rebased - first if first else rebased), self._buffer[first : int(ends[-1])]

    def to_list(self) -> list[bytes]:
        """Return the values as objects, in a list that must not be changed."""
        if self._list is None:
            ends, data = self.columns()
            # One unpack of "100s98s..." is the fastest way to create many bytes objects.
            # struct.unpack would cache the last hundred formats, which are megabytes here.
            lengths = tuple(np.diff(ends).tolist())
            self._list = list(struct.Struct("%ds" * len(lengths) % lengths).unpack(data))
        return self._list

    def to_arrow(self) -> pa.BinaryArray:
        """Return an Arrow array of binary, without a copy; raise OverflowError from 2 GiB on."""
        # Nodes that don't use Arrow need not load it.
        import pyarrow as pa  # noqa: PLC0415

        ends, buffer = self._offsets(), self._buffer
        if ends.dtype != np.int32:
            ends, buffer = self.columns()
            if ends[-1] > np.iinfo(np.int32).max:
                raise OverflowError("an array of binary holds less than 2 GiB; take a part")
            ends = ends.astype(np.int32)
        buffers = [None, pa.py_buffer(ends), pa.py_buffer(buffer)]
        return pa.Array.from_buffers(pa.binary(), len(self), buffers, null_count=0)

    def fitting(self, start: int, max_bytes: int) -> int:
        """Return how many values from ``start`` on fit into ``max_bytes``."""
        ends = self._offsets()
        return int(ends.searchsorted(int(ends[start]) + max_bytes, side="right")) - 1 - start

    def starting_with(self, prefix: bytes) -> Longs:
        """Return the ascending indices of values that begin with a prefix of at least one byte."""
        if self._list is not None and len(self._list) < FEW:
            found = [at for at, value in enumerate(self._list) if value.startswith(prefix)]
            return np.array(found, np.int64)
        if self._ends is None and self._list is not None and len(self._list) > MANY:
            starts = range(0, len(self._list), MANY)
            parts = (Values.of(self._list[start : start + MANY]) for start in starts)
            each = [part.starting_with(prefix) + at for part, at in zip(parts, starts, strict=True)]
            return np.concatenate(each)
        ends = self._offsets()
        octets = np.frombuffer(self._buffer, np.uint8)
        if len(ends) < 2 or not len(octets):
            return _NONE[:0]
        # An empty value at the very end begins past the buffer.
        firsts = octets.take(ends[:-1], mode="clip")
        rows = np.flatnonzero(firsts == prefix[0])
        rows = rows[ends[rows + 1] - ends[rows] >= len(prefix)]
        for at, octet in enumerate(prefix[1:], 1):
            rows = rows[octets[ends[rows] + at] == octet]
        return rows

    @property
    def largest_bytes(self) -> int:
        """Return the length of the longest value; 0 without values."""
        if self._ends is None:
            return max(map(len, self.to_list()), default=0)
        return int(np.diff(self._ends).max(initial=0))

    @property
    def size_bytes(self) -> int:
        """Return the total length of the values."""
        ends = self._offsets()
        return int(ends[-1]) - int(ends[0])

    def _offsets(self) -> npt.NDArray[np.integer]:
        if self._ends is None:
            values = self.to_list()
            ends = np.zeros(len(values) + 1, np.int64)
            np.fromiter(map(len, values), np.int64, len(values)).cumsum(out=ends[1:])
            data = b"".join(values)
            if len(data) != int(ends[-1]):  # another buffer type, where len() counts elements
                raise TypeError("values must be bytes")
            self._buffer, self._ends = memoryview(data), ends
        return self._ends

    def __len__(self) -> int:
        return len(self.to_list()) if self._ends is None else len(self._ends) - 1

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> Values: ...
    def __getitem__(self, index: int | slice) -> bytes | Values:
        if not isinstance(index, slice):
            return self.to_list()[index]
        start, stop, step = index.indices(len(self))
        if self._ends is None or step != 1:
            return Values.of(self.to_list()[index])
        if start >= stop:
            return Values()
        return Values.from_columns(self._ends[start : stop + 1], self._buffer)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.to_list())

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Values | list | tuple):
            return self.to_list() == list(other)
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]  # as a list's: equal to one

    def __repr__(self) -> str:
        return f"Values.of({self.to_list()!r})"

    def __reduce__(self) -> tuple[object, ...]:
        return (Values.of, (self.to_list(),))


@dataclass
class RowDigest:
    """The number of rows and the sum of their hashes, which does not depend on their order.

    128 bits reveal any changed, missing or duplicate row, but not a deliberate forgery.
    """

    count: int = 0
    total: int = 0

    def add(self, values: Values) -> Self:
        """Include some rows."""
        hashes = map(xxhash.xxh3_128_intdigest, values.to_list())
        self.count += len(values)
        self.total = (self.total + sum(hashes)) % (1 << 128)
        return self

    def __add__(self, other: RowDigest) -> RowDigest:
        """Return the digest of the rows of both."""
        return RowDigest(self.count + other.count, (self.total + other.total) % (1 << 128))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the text of a digest; raise ValueError if it is invalid."""
        count, _, total = text.partition(":")
        return cls(int(count), int(total, 16))

    def __str__(self) -> str:
        """Return the count and the sum as 32 hexadecimal digits."""
        return f"{self.count}:{self.total:032X}"
