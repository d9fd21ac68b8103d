"""What a store says of one partition that it holds."""

from __future__ import annotations

from typing import NamedTuple


class PartitionStatistics(NamedTuple):
    """What a partition takes and when it was written.

    ``records`` lie at offsets ``earliest`` to ``end`` (exclusive).  ``size_bytes`` is that of their
    blocks: values, 4 bytes for each and little else; a block trimmed in part counts as a whole.
    ``first_time_us`` and ``last_time_us`` are when the store wrote the first record that is held
    and the last one, in microseconds since the epoch UTC; None when no record is held.
    """

    topic: str
    partition: str
    earliest: int
    end: int
    records: int
    size_bytes: int
    first_time_us: int | None
    last_time_us: int | None
