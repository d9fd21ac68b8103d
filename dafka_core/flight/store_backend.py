"""What the Flight service needs of the store node it serves for."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Protocol

from dafka_core.flight.store_location import StoreLocation
from dafka_core.log_entries import Discard
from dafka_core.records import (
    RecordBatch,
    StagedTransaction,
    TopicPartition,
    Transaction,
    TransactionState,
)


class StoreBackend(Protocol):
    """A store node, from the service's threads."""

    def put(self, batch: RecordBatch) -> Future[int]:
        """Appends exactly at ``batch.offset``, synced; gives the partition's durable end.

        May wait for room.  The future fails with OffsetConflictError when the run does not begin
        at the partition's end.
        """

    def stage(self, batch: RecordBatch, attempt: str, version: int) -> Future[int]:
        """Puts a run on disk, synced, where nobody sees it; gives the end of what is staged.

        May wait for room.  The future fails with FencedError, OffsetConflictError or
        TransactionExistsError when the attempt cannot go on there.
        """

    def commit(self, transactions: Sequence[StagedTransaction]) -> Future[None]:
        """Makes what was staged visible, all of it in one transaction, synced, or nothing.

        The future fails with FencedError or OffsetConflictError.
        """

    def discard(self, discards: Sequence[Discard]) -> Future[None]:
        """Gives up what attempts have staged."""

    def transaction_states(self, partitions: Sequence[TopicPartition]) -> list[TransactionState]:
        """How far partitions and their units are on disk."""

    def end(self, tp: TopicPartition) -> int:
        """The partition's durable end."""

    def wait(
        self,
        tp: TopicPartition,
        end: int,
        timeout_s: float,
        transaction: Transaction | None = None,
    ) -> int:
        """Waits until the partition is durable up to ``end``, but ``timeout_s`` seconds.

        With a ``transaction`` its marker is that one, or a newer one, when it is.  Returns its durable
        end, which is less than ``end`` when the time has passed.
        """

    def store_locations(self) -> list[StoreLocation]:
        """The stores it knows of, itself included."""
