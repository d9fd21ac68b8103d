"""How many records an answer to Fetch has: its limits, and those of each partition, in octets.

As Kafka does it: partitions take their share in the order in which the client names them, and the
first that has records gives at least one of them, however large it is, since the client would ask
for it for ever.  What records take is estimated from above, so that an answer stays below what the
client has said (librdkafka closes a connection on which more comes).
"""

from __future__ import annotations

from typing import Final

import numpy as np

from dafka_core.values import Values

MAX_FETCH_BYTES: Final = 55 << 20
"""Of records in one answer, whatever a client asks for: what Kafka's brokers send at most."""

RECORD_BYTES: Final = 36
"""What is around a content, at most: lengths, time and offset, in any of the formats."""

BATCH_BYTES: Final = 64
"""What is around a batch's records."""

LEAST_RECORD_BYTES: Final = 7
"""What a record without key, value and headers takes."""


class FetchLimits:
    """What one answer has room for; ``taken`` is how many octets its records take so far."""

    def __init__(self, max_bytes: int) -> None:
        self.taken = 0
        self._max_bytes = max_bytes

    def room(self, partition_max_bytes: int) -> int:
        """How many octets a partition's records may take: at least 1 if it is to give one anyway.

        0 if it gives none.
        """
        room = min(partition_max_bytes, self._max_bytes - self.taken)
        return max(room, 0 if self.taken else 1)

    def fitting(self, values: Values, room: int) -> int:
        """How many of the records fit; at least one if none is in the answer yet."""
        ends, _ = values.columns()
        sizes = ends + np.arange(len(ends)) * RECORD_BYTES
        count = int(sizes.searchsorted(room - BATCH_BYTES, side="right")) - 1
        return max(count, 0 if self.taken else 1)

    def take(self, octets: int) -> None:
        """So many octets are in the answer."""
        self.taken += octets


def most_records(room: int) -> int:
    """So many records are worth a look where there is so much room: they may be empty."""
    return room // LEAST_RECORD_BYTES + 1
