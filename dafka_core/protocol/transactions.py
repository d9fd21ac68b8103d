"""Transactions on the mesh: which records belong to one, and publishing committed ones.

A store that has all of a transaction makes it visible at once and keeps it as the partition's last
transaction, so each packed message says which transaction its records belong to.  A store knows
that of records that are committed there, and of those of a partition's last transaction.  It sends
older ones as records like any other (docs/wire.md, "Transactions").
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from dafka_core.records import RecordBatch, TopicPartition, Transaction

MAX_PUBLISHED_TRANSACTIONS: Final = 64
"""Transactions of one partition that wait to be published and are still told apart: a client may
commit faster than the mesh takes them.  The records of older ones are sent without."""


@dataclass(frozen=True, slots=True)
class PublishCommitted:
    """Publish the records from ``start`` to ``end`` (exclusive), which were committed here.

    ``transactions`` ascend without overlap; records between them belong to none.
    """

    tp: TopicPartition
    start: int
    end: int
    transactions: tuple[Transaction, ...]

    def joined(self, newer: PublishCommitted) -> PublishCommitted:
        """What to publish when something newer has been committed.

        If that does not follow, the records between came from another store, which published
        them; a consumer that misses the rest of this one fetches it.
        """
        if newer.start != self.end:
            return newer
        transactions = (self.transactions + newer.transactions)[-MAX_PUBLISHED_TRANSACTIONS:]
        return PublishCommitted(self.tp, self.start, newer.end, transactions)

    def rest(self, start: int) -> PublishCommitted:
        """What is left to publish from ``start`` on."""
        transactions = tuple(each for each in self.transactions if each.end > start)
        return PublishCommitted(self.tp, start, self.end, transactions)


def split_by_transaction(
    batch: RecordBatch, transactions: Sequence[Transaction]
) -> list[RecordBatch]:
    """The batch, cut where transactions (ascending, without overlap) begin and end."""
    parts: list[RecordBatch] = []
    start = batch.offset

    def cut(end: int, transaction: Transaction | None) -> None:
        nonlocal start
        if start < end:
            parts.append(replace(batch.between(start, end), transaction=transaction))
            start = end

    for transaction in transactions:
        cut(min(transaction.start, batch.end), None)
        cut(min(transaction.end, batch.end), transaction)
    cut(batch.end, None)
    return parts


def continued(
    batch: RecordBatch, staged: Transaction | None
) -> tuple[RecordBatch, Transaction | None]:
    """The next batch of a partition as a store keeps it, and the transaction it leaves in part.

    ``staged`` is the transaction of which the store has the first part.  A batch of another one,
    or of none, shows that its sender has ``staged`` complete: it is stored without a transaction.
    """
    if staged is not None and batch.transaction != staged:
        batch = replace(batch, transaction=None)
    transaction = batch.transaction
    return batch, transaction if transaction is not None and batch.end < transaction.end else None
