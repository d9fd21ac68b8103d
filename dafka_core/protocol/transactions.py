"""Units on their way through the mesh: which runs carry one, and publishing what was committed.

A store that gets all of a unit makes it visible at once and leaves its marker, so every run of
one says which it belongs to.  That is known of units that are published when they are committed,
and of a partition's last one; older ones are records like any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from struct import Struct
from typing import Final

from dafka_core.errors import ProtocolError
from dafka_core.records import RecordBatch, TopicPartition, Transaction

TRANSACTION: Final = Struct(">qQQ")
"""A unit on the wire: number, start and end."""

NO_TRANSACTION: Final = (0, 0, 0)
"""Of records that belong to none.  No unit ends at 0."""

BATCH_TAIL: Final = Struct(">QIqQQ")
"""What follows the names in the header of packed records: sequence, count and unit."""

MAX_PUBLISHED_TRANSACTIONS: Final = 64
"""Units of one partition that wait to be published and are still told apart: their writer commits
faster than the mesh takes them.  The records of older ones are sent without."""


def transaction_of(numbers: tuple[int, ...]) -> Transaction | None:
    """The unit that was unpacked; nothing of it is checked."""
    return None if numbers == NO_TRANSACTION else Transaction._make(numbers)


def pack_batch_tail(sequence: int, count: int, transaction: Transaction | None) -> bytes:
    """What follows the names in the header of packed records."""
    return BATCH_TAIL.pack(sequence, count, *(transaction or NO_TRANSACTION))


def unpack_batch_tail(tail: bytes) -> tuple[int, int, Transaction | None]:
    """Sequence, count and unit of packed records; nothing of it is checked but the length.

    Raises:
        ProtocolError: it has another length.
    """
    if len(tail) != BATCH_TAIL.size:
        raise ProtocolError("a run's header ends within a field")
    sequence, count, *transaction = BATCH_TAIL.unpack(tail)
    return sequence, count, transaction_of(tuple(transaction))


@dataclass(frozen=True, slots=True)
class PublishCommitted:
    """Publish the records from ``start`` to ``end`` (exclusive), which were committed here."""

    tp: TopicPartition
    start: int
    end: int
    transactions: tuple[Transaction, ...]
    """Ascending, without overlap; records between them belong to none."""

    def joined(self, newer: PublishCommitted) -> PublishCommitted:
        """What is to be published when something more has been committed.

        If that does not follow, what is between came from elsewhere and was published there;
        whoever misses what is left of this asks for it.
        """
        if newer.start != self.end:
            return newer
        transactions = (self.transactions + newer.transactions)[-MAX_PUBLISHED_TRANSACTIONS:]
        return PublishCommitted(self.tp, self.start, newer.end, transactions)

    def rest(self, start: int) -> PublishCommitted:
        """What is left of it from ``start`` on."""
        transactions = tuple(
            transaction for transaction in self.transactions if transaction.end > start
        )
        return PublishCommitted(self.tp, start, self.end, transactions)


def split_by_transaction(
    batch: RecordBatch, transactions: Sequence[Transaction]
) -> list[RecordBatch]:
    """The run, cut where units (ascending, without overlap) begin and end; each part with its."""
    parts: list[RecordBatch] = []
    at = batch.offset
    for transaction in transactions:
        start, end = max(transaction.start, at), min(transaction.end, batch.end)
        if start >= end:
            continue
        if at < start:
            parts.append(_part(batch, at, start, None))
        parts.append(_part(batch, start, end, transaction))
        at = end
    if at < batch.end:
        parts.append(_part(batch, at, batch.end, None))
    return parts


def _part(batch: RecordBatch, start: int, end: int, transaction: Transaction | None) -> RecordBatch:
    return replace(batch.between(start, end), transaction=transaction)


def continued(
    batch: RecordBatch, staged: Transaction | None
) -> tuple[RecordBatch, Transaction | None]:
    """A run that comes next in a partition, after a part of the unit ``staged`` if there is one.

    Returns the run as it is to be stored, and the unit of which a part is there then.  Whoever
    sends something else than what is missing of the unit knows it as whole, and older.
    """
    if staged is not None and batch.transaction != staged:
        batch = replace(batch, transaction=None)
    transaction = batch.transaction
    return batch, transaction if transaction is not None and batch.end < transaction.end else None
