"""What travels: records, runs of records, and what is known of a partition.

Offsets in Python are exclusive at their upper end, as Spark's are: ``end`` is the offset of the
next record.  Only the wire counts inclusively (RFC 46, HEAD: "the offset of the last published
record"), and only ``protocol/wire.py`` and the messages know it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count, repeat
from typing import TYPE_CHECKING, NamedTuple, Self, overload

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import pyarrow as pa

Bytes = bytes | bytearray | memoryview
Longs = npt.NDArray[np.int64]


class Record(NamedTuple):
    """One record as an application sees it."""

    topic: str
    partition: str
    offset: int
    value: bytes


NO_VERSION = -1
"""The number of a unit that has none: whole or not at all, but no marker is left of it."""


class Transaction(NamedTuple):
    """Records that are there as a whole or not at all: offsets ``start`` to ``end`` (exclusive).

    What one task of one micro-batch writes to one partition.  ``number`` is the batch's, which
    ascends in each partition, or ``NO_VERSION``.  The unit committed last is a partition's
    marker: it says what has been written, to whoever tries to write it again.
    """

    number: int
    start: int
    end: int


class StagedTransaction(NamedTuple):
    """A unit that is to become visible: what ``attempt`` staged from ``start`` to ``end``.

    ``attempt`` is 32 upper-case hex digits, new for each attempt of a task.
    """

    topic: str
    partition: str
    attempt: str
    start: int
    end: int
    number: int


class TransactionState(NamedTuple):
    """How far a partition's units are at a store.

    Records from ``end`` to ``staged_end`` are staged: on disk and seen by no reader.  They are
    ``attempt``'s.  When there are none (the two ends are the same), ``attempt`` is the one that
    was committed here last.  It is empty when there was none, and when what is staged comes from
    another store.  ``transaction`` is the partition's marker.
    """

    end: int
    staged_end: int
    attempt: str
    transaction: Transaction | None


class PartitionInfo(NamedTuple):
    """What a store holds of one partition: offsets ``earliest`` up to, not including, ``end``."""

    topic: str
    partition: str
    earliest: int
    end: int


class Values(Sequence[bytes]):
    """The values of consecutive records: one buffer with all of them, and where each one ends.

    That is how they lie in the log, in Arrow and in a packed message, so they pass from one to
    the other without being looked at one by one.  A sequence of ``bytes`` to whoever wants that:
    those are made at the first use.  Immutable.
    """

    __slots__ = ("_data", "_ends", "_list")

    def __init__(self) -> None:
        """Empty; see ``of``, ``from_columns`` and ``from_arrow``."""
        self._list: list[bytes] | None = []
        self._ends: Longs | None = None
        self._data: memoryview = memoryview(b"")

    @classmethod
    def of(cls, values: Iterable[bytes]) -> Self:
        """From objects; takes over a list that it is given."""
        if isinstance(values, cls):
            return values
        made = cls()
        made._list = values if isinstance(values, list) else list(values)
        return made

    @classmethod
    def from_columns(cls, ends: npt.NDArray[np.integer], data: Bytes) -> Self:
        """From ``count + 1`` offsets, ascending, of which the first is where ``data`` begins."""
        made = cls()
        made._list = None
        made._ends = ends.astype(np.int64) - int(ends[0])
        made._data = memoryview(data)
        return made

    @classmethod
    def from_arrow(cls, array: pa.Array) -> Self:
        """From an Arrow array of binary or string, without nulls; its buffers are not copied."""
        _, offsets, data = array.buffers()
        width = "<i8" if str(array.type).startswith("large") else "<i4"
        if len(array) == 0 or offsets is None:
            return cls()
        ends: npt.NDArray[np.int64] = np.frombuffer(offsets, width)[
            array.offset : array.offset + len(array) + 1
        ]
        start, stop = int(ends[0]), int(ends[-1])
        # Arrow says that its bytes are signed; whoever joins them with others must not care.
        return cls.from_columns(ends, memoryview(data).cast("B")[start:stop] if data else b"")

    def columns(self) -> tuple[Longs, memoryview]:
        """``count + 1`` offsets, the first one 0, and the values one after the other."""
        if self._ends is None:
            values = self.to_list()
            ends = np.zeros(len(values) + 1, np.int64)
            np.fromiter(map(len, values), np.int64, len(values)).cumsum(out=ends[1:])
            data = b"".join(values)
            if len(data) != int(ends[-1]):  # another buffer, whose len() counts its elements
                raise TypeError("values must be bytes")
            self._data, self._ends = memoryview(data), ends
        return self._ends, self._data

    def to_list(self) -> list[bytes]:
        """The values as objects; not to be changed."""
        if self._list is None:
            assert self._ends is not None
            # One unpack of "100s98s..." is the fastest way to that many bytes objects. Not by
            # struct.unpack: it keeps the last hundred formats, which are megabytes here.
            lengths = tuple(np.diff(self._ends).tolist())
            columns = struct.Struct("%ds" * len(lengths) % lengths)
            self._list = list(columns.unpack(self._data))
        return self._list

    def to_arrow(self) -> pa.BinaryArray:
        """The values as an Arrow array of binary, without a copy.

        Raises:
            OverflowError: they have 2 GiB or more, which the type cannot hold.
        """
        # A node that has no use for Arrow shall not wait for it to load.
        import pyarrow as pa  # noqa: PLC0415

        ends, data = self.columns()
        if len(data) > np.iinfo(np.int32).max:
            raise OverflowError("an array of binary holds less than 2 GiB; take a part")
        buffers = [None, pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(data)]
        return pa.Array.from_buffers(pa.binary(), len(self), buffers, null_count=0)

    @property
    def largest_bytes(self) -> int:
        """How long the longest value is; 0 if there is none."""
        if self._ends is None:
            return max(map(len, self.to_list()), default=0)
        return int(np.diff(self._ends).max(initial=0))

    @property
    def size_bytes(self) -> int:
        """How long all values are together."""
        return len(self.columns()[1])

    def __len__(self) -> int:
        return len(self._list) if self._ends is None else len(self._ends) - 1  # type: ignore[arg-type]

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
        ends = self._ends[start : stop + 1]
        return Values.from_columns(ends, self._data[int(ends[0]) : int(ends[-1])])

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


@dataclass(frozen=True, slots=True)
class RecordBatch:
    """Consecutive records of one partition: the unit in which everything is done.

    ``values[i]`` is the record at ``offset + i``.  A run is never empty.  ``transaction``, if any, is
    the one that all of its records belong to.
    """

    topic: str
    partition: str
    offset: int
    values: Values
    transaction: Transaction | None = None

    @classmethod
    def of(
        cls,
        topic: str,
        partition: str,
        offset: int,
        values: Iterable[bytes],
        transaction: Transaction | None = None,
    ) -> Self:
        """A run of values that are objects."""
        return cls(topic, partition, offset, Values.of(values), transaction)

    @property
    def end(self) -> int:
        """The offset after the last record of the run."""
        return self.offset + len(self.values)

    def since(self, offset: int) -> RecordBatch:
        """The part of the run from ``offset`` on; ``offset`` must lie in ``[self.offset, end)``."""
        if offset == self.offset:
            return self
        values = self.values[offset - self.offset :]
        return RecordBatch(self.topic, self.partition, offset, values, self.transaction)

    def records(self) -> Iterator[Record]:
        """The run's records, one by one and in order."""
        return records(self, self.values.to_list())


def records(batch: RecordBatch, values: list[bytes]) -> Iterator[Record]:
    """The records of a run, one by one, from its values as a list.

    Clearing the list ends the iteration.
    """
    columns = (repeat(batch.topic), repeat(batch.partition), count(batch.offset), values)
    return map(Record._make, zip(*columns, strict=False))
