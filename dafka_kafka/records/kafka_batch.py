"""Records of a Kafka client, as columns."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from dafka_core.model.envelope_columns import close_columns
from dafka_core.model.records import UNKNOWN_US
from dafka_core.model.values import Longs, Values
from dafka_kafka.errors import too_large
from dafka_kafka.records.compression import CODEC_BITS, Codec

NO_TIMESTAMP: Final = -1  # the milliseconds of a record without a timestamp
_US: Final = 1_000  # microseconds in a millisecond

_MAX_MS: Final = 2**63 // _US - 1


_APPEND_TIME: Final = 1 << 3
_TRANSACTIONAL: Final = 1 << 4
_CONTROL: Final = 1 << 5


class BatchHead(NamedTuple):
    """What a Kafka client says of records that it has sent together.

    Attributes:
        magic: the format's version: 0 and 1 are message sets, 2 is a record batch.
        attributes: the codec, and bits that the properties explain.
        leader_epoch, producer_id, producer_epoch, base_sequence: Kafka's fields, or -1.
    """

    magic: int
    attributes: int
    leader_epoch: int = -1
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1

    @property
    def codec(self) -> Codec:
        """The records' compression."""
        return Codec(self.attributes & CODEC_BITS)

    @property
    def is_append_time(self) -> bool:
        """True if a broker set the timestamps, not the client."""
        return bool(self.attributes & _APPEND_TIME)

    @property
    def is_transactional(self) -> bool:
        """True if the records belong to a transaction."""
        return bool(self.attributes & _TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        """True if they are markers of a transaction's end."""
        return bool(self.attributes & _CONTROL)


class KafkaBatch(NamedTuple):
    """Records that a Kafka client has sent together.

    Attributes:
        offsets: of each record; in a Produce request they count from 0, or are arbitrary.
        values, keys: of binary, with nulls; keys are None if all are null.
        headers: of ``HEADERS_TYPE``; None if no record has any.
        timestamps_ms: of each record, in milliseconds since 1970 UTC, or ``NO_TIMESTAMP``.
    """

    head: BatchHead
    offsets: Longs
    values: pa.Array
    keys: pa.Array | None
    headers: pa.Array | None
    timestamps_ms: Longs

    def contents(self) -> Values:
        """Return the contents: envelopes for records with a key, headers or a null value.

        Raises:
            RefusedError: a record has too many headers.
        """
        return contents_of(self.values, self.keys, self.headers)


def contents_of(values: pa.Array, keys: pa.Array | None, headers: pa.Array | None) -> Values:
    """Return the contents of these columns, as ``KafkaBatch.contents``."""
    try:
        return Values.from_arrow(close_columns(values, keys, headers))
    except ValueError as error:
        raise too_large(str(error)) from error


def times_of(stamps_ms: Longs) -> Longs | None:
    """Convert timestamps to ``RecordBatch.times``; None if no record has one."""
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
    """Expand ``RecordBatch.times`` to the timestamps of ``count`` records."""
    if times is None:
        return np.full(count, NO_TIMESTAMP, np.int64)
    of_runs = times[:, 1]
    stamps = np.where(of_runs == UNKNOWN_US, NO_TIMESTAMP, of_runs // _US)
    return np.repeat(stamps, times[:, 0])
