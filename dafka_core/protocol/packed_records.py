"""The content of packed messages (docs/wire.md): timestamps, lengths of records, records."""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from dafka_core.errors import ProtocolError
from dafka_core.protocol.limits import LENGTH_BYTES, RUN_BYTES
from dafka_core.records import times_between
from dafka_core.values import Longs

_ONE_RUN: Final = Struct("<qI")


class PackedRecords(NamedTuple):
    """A packed message's records: how long each is, and all one after the other.

    ``times`` are their timestamps, as a ``RecordBatch`` has them.
    """

    lengths: npt.NDArray[np.uint32]
    records: memoryview
    times: Longs | None


def unpack_batch(count: int, value: bytes | memoryview, runs: int = 0) -> PackedRecords:
    """What the content of a packed message has: ``count`` records and ``runs`` of timestamps.

    Raises:
        ProtocolError: the lengths do not add up, or the runs do not.
    """
    lengths_at = RUN_BYTES * runs
    records_at = lengths_at + LENGTH_BYTES * count
    if len(value) < records_at:
        raise ProtocolError("a batch is shorter than its lengths")
    lengths = np.frombuffer(value, "<u4", count, lengths_at)
    records = memoryview(value)[records_at:]
    if int(lengths.sum(dtype=np.uint64)) != len(records):
        raise ProtocolError("the lengths of a batch do not add up to its records")
    return PackedRecords(lengths, records, _unpack_times(count, value, runs) if runs else None)


def _unpack_times(count: int, value: bytes | memoryview, runs: int) -> Longs:
    if runs == 1:  # as most messages have
        stamp, of = _ONE_RUN.unpack_from(value)
        if of == count and stamp >= 0:
            return np.array([[count, stamp]], np.int64)
    stamps = np.frombuffer(value, "<i8", runs)
    counts = np.frombuffer(value, "<u4", runs, stamps.nbytes)
    if not counts.all() or int(counts.sum(dtype=np.uint64)) != count:
        raise ProtocolError("the timestamps of a batch are not those of its records")
    if stamps.min() < 0:
        raise ProtocolError("a timestamp is after the epoch")
    return np.column_stack((counts, stamps))


def pack_times(times: Longs | None, start: int, stop: int) -> bytes:
    """The timestamps of records ``start`` to ``stop``, as in the content of a packed message.

    Each run has ``limits.RUN_BYTES``.
    """
    if times is None:
        return b""
    if len(times) == 1:
        return _ONE_RUN.pack(times.item(1), stop - start)
    times = times_between(times, start, stop)
    return times[:, 1].astype("<i8").tobytes() + times[:, 0].astype("<u4").tobytes()
