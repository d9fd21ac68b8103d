"""Whether two writes of a transaction have the same rows, in any order.

Nobody needs to know before a transaction is written again, and then its rows are at a store: so
nothing is computed, sent or kept for it before.
"""

from __future__ import annotations

from typing import Self

import xxhash

from dafka_core.flight.limits import MAX_BATCH_BYTES, MAX_BATCH_RECORDS
from dafka_core.flight.store_client import StoreClient
from dafka_core.records import TopicPartition, Transaction
from dafka_core.values import Values


class RowDigest:
    """How many rows there are, and the sum of their hashes, which has no order.

    128 bits find any row that has changed, been left out or doubled; they resist nobody who looks
    for other rows with the same sum.
    """

    def __init__(self) -> None:
        self.count = 0
        self._sum = 0

    def add(self, values: Values) -> Self:
        """Counts some rows in."""
        self.count += len(values)
        self._sum += sum(map(xxhash.xxh3_128_intdigest, values.to_list()))
        self._sum %= 1 << 128
        return self

    def __add__(self, other: RowDigest) -> RowDigest:
        """That of the rows of both."""
        both = RowDigest()
        both.count = self.count + other.count
        both._sum = (self._sum + other._sum) % (1 << 128)
        return both

    @classmethod
    def parse(cls, text: str) -> Self:
        """What ``str`` makes.

        Raises:
            ValueError: it is none.
        """
        count, _, total = text.partition(":")
        digest = cls()
        digest.count, digest._sum = int(count), int(total, 16)
        return digest

    def __str__(self) -> str:
        """As it is written down: the count, and the sum as 32 hexadecimal digits."""
        return f"{self.count}:{self._sum:032X}"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RowDigest):
            return NotImplemented
        return (self.count, self._sum) == (other.count, other._sum)

    __hash__ = None  # type: ignore[assignment]  # it changes


def digest_at(
    client: StoreClient, tp: TopicPartition, transaction: Transaction, *, timeout_s: float
) -> RowDigest:
    """That of the rows which a transaction has at a store.

    Raises:
        DataLossError: the store has trimmed them.
        StoreUnreachableError: it does not answer.
    """
    digest = RowDigest()
    batches = client.read(
        tp,
        transaction.start,
        transaction.end,
        times=False,
        max_records=MAX_BATCH_RECORDS,
        max_bytes=MAX_BATCH_BYTES,
        timeout_s=timeout_s,
    )
    for batch in batches:
        digest.add(batch.values)
    return digest
