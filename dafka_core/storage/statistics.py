"""What a partition takes on disk, and when it was written."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from dafka_core.records import TopicPartition
from dafka_core.storage.environment import Environment
from dafka_core.storage.tables import held_row, size_of, time_at

if TYPE_CHECKING:
    from dafka_core.storage.environment import Txn


class PartitionStatistics(NamedTuple):
    """What a partition takes and when it was written.

    ``records`` lie at offsets ``earliest`` to ``end`` (exclusive).  ``size_bytes`` is that of
    their blocks: their values, 4 bytes for each and little else.  Of a block that is trimmed in
    part, ``size_bytes`` has the whole.  ``first_time_us`` and ``last_time_us`` are when the store
    wrote the first record that is held and the last one, in microseconds since the epoch UTC;
    None when no record is held.
    """

    topic: str
    partition: str
    earliest: int
    end: int
    records: int
    size_bytes: int
    first_time_us: int | None
    last_time_us: int | None


def statistics_of(env: Environment, txn: Txn, tp: TopicPartition) -> PartitionStatistics | None:
    """See ``Log.statistics``."""
    row = held_row(env, txn, tp)
    if row is None:
        return None
    first_us = last_us = None
    if row.earliest < row.end:
        first_us = time_at(env, txn, tp, row.earliest)
        last_us = row.last_timestamp_us
    return PartitionStatistics(
        *tp,
        row.earliest,
        row.end,
        row.end - row.earliest,
        size_of(env, txn, row),
        first_us,
        last_us,
    )
