"""Records as a Kafka client has sent them, as columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from dafka_core.model.envelope_columns import close_columns
from dafka_core.model.records import UNKNOWN_US
from dafka_core.model.values import Longs, Values
from dafka_kafka.errors import MESSAGE_TOO_LARGE, CorruptRecordsError
from dafka_kafka.records.compression import Codec

NO_TIMESTAMP: Final = -1
"""The milliseconds of a record that has no timestamp."""

_US: Final = 1_000
"""Microseconds in a millisecond."""

_MAX_MS: Final = 2**63 // _US - 1


@dataclass(frozen=True, slots=True, eq=False)
class KafkaBatch:
    """Records that a Kafka client has sent together.

    Attributes:
        magic: the version of their format: 0 and 1 are message sets, 2 is a record batch.
        offsets: of each record; in a produce request they count from 0, or are anything.
        values, keys: of binary, with nulls; keys are None where all are null.
        headers: of ``HEADERS_TYPE``; None where no record has any.
        timestamps_ms: of each record, in milliseconds since 1970 UTC, or ``NO_TIMESTAMP``.
        codec: how they were compressed.
        is_append_time: whether a broker has given the timestamps; else a client has.
        is_transactional: whether they are of a transaction.
        is_control: whether they say how a transaction ended, and are no records of anybody.
        leader_epoch, producer_id, producer_epoch, base_sequence: as Kafka has them, -1 where there
            is none.
    """

    magic: int
    offsets: Longs
    values: pa.Array
    keys: pa.Array | None
    headers: pa.Array | None
    timestamps_ms: Longs
    codec: Codec = Codec.NONE
    is_append_time: bool = False
    is_transactional: bool = False
    is_control: bool = False
    leader_epoch: int = -1
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1

    @property
    def count(self) -> int:
        """How many records there are."""
        return len(self.values)

    def contents(self) -> Values:
        """The records' contents: in envelopes those that have a key, headers or a null value.

        Raises:
            CorruptRecordsError: a record has too many headers.
        """
        return contents_of(self.values, self.keys, self.headers)


def contents_of(values: pa.Array, keys: pa.Array | None, headers: pa.Array | None) -> Values:
    """What ``KafkaBatch.contents`` gives of these columns."""
    try:
        return Values.from_arrow(close_columns(values, keys, headers))
    except ValueError as error:
        raise CorruptRecordsError(MESSAGE_TOO_LARGE, str(error)) from error


def times_of(stamps_ms: Longs) -> Longs | None:
    """Timestamps as ``RecordBatch.times`` has them; None where no record has one."""
    count = len(stamps_ms)
    bounds = np.flatnonzero(stamps_ms[1:] != stamps_ms[:-1])
    times = np.empty((len(bounds) + 1, 2), np.int64)
    counts, of_runs = times[:, 0], times[:, 1]
    counts[:-1], counts[-1] = bounds + 1, count
    of_runs[:] = stamps_ms.take(counts - 1)
    counts[1:] -= counts[:-1].copy()
    unknown = of_runs == NO_TIMESTAMP
    if len(times) == 1 and unknown[0]:
        return None
    np.minimum(np.maximum(of_runs, -_MAX_MS, out=of_runs), _MAX_MS, out=of_runs)
    of_runs *= _US
    of_runs[unknown] = UNKNOWN_US
    return times


def milliseconds(times: Longs | None, count: int) -> Longs:
    """The timestamp of each of ``count`` records, of times as ``RecordBatch.times`` has them."""
    if times is None:
        return np.full(count, NO_TIMESTAMP, np.int64)
    of_runs = times[:, 1]
    stamps = np.where(of_runs == UNKNOWN_US, NO_TIMESTAMP, of_runs // _US)
    return np.repeat(stamps, times[:, 0])
