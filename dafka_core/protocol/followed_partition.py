"""A partition as a consumer or reader delivers it: records in order, of one history at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from dafka_core.errors import CHANGED, HistoryChangedError, RecordTooLargeError
from dafka_core.model.epochs import (
    Epoch,
    History,
    diverged_by,
    divergence,
    last_life,
    prefix,
    with_epoch,
)
from dafka_core.model.records import RecordBatch
from dafka_core.protocol import timing
from dafka_core.protocol.messages import HistoryReply, RecordTooLarge
from dafka_core.protocol.partition_fetcher import PartitionFetcher
from dafka_core.protocol.record_limits import error_of

Delivered = RecordBatch | RecordTooLargeError | HistoryChangedError


@dataclass(slots=True, eq=False)
class FollowedPartition(PartitionFetcher):
    """The received records of a partition, and the epochs of the delivered ones.

    If another history has won, the delivered records from the first difference on are replaced: the
    partition restarts there, after an error that reports it.  Records without an epoch, from C
    nodes, are compatible with any history.
    """

    epochs: History = ()
    history_asked_at: float = -inf  # time of the last question for the partition's history
    is_beginning: bool = False  # at the earliest record that any store has
    is_orphan: bool = False  # all stores have lost the life that wrote the delivered records
    _unknown_from: int | None = None  # the delivered or skipped records from here on have any epoch

    def is_stale(self, batch: RecordBatch) -> bool:
        """Return True if a newer life has replaced the one that wrote these records."""
        epoch, known = batch.epoch, self.epochs
        return epoch is not None and epoch.life < last_life(known) and epoch not in known

    def asks_history(self, now: float) -> bool:
        """Return True if its history was asked for a moment ago."""
        return now < self.history_asked_at + timing.HISTORY_INTERVAL_S

    def follow(self, now: float, batch: RecordBatch) -> Sequence[Delivered]:
        """Add records; return those that are next."""
        epoch = batch.epoch
        if epoch is not None and epoch not in self.epochs[-1:]:
            start = diverged_by(self.epochs, epoch, self._known_end())
            if start is not None:
                return [self._restart(start, self.next_offset, batch.end)]
        return self._of_one_history(self.take(now, batch))

    def skip(self, end: int, now: float | None = None) -> Sequence[Delivered]:
        """Skip the next records up to ``end`` (exclusive); see ``advance``."""
        self._unknown_from = self._known_end()
        self.is_beginning = False
        return self._of_one_history(self.advance(end, now))

    def skip_too_large(
        self, now: float, record: RecordTooLarge, limit_bytes: int, node: str
    ) -> Sequence[Delivered]:
        """Deliver an error in the place of the next record, if it is the one above the limit."""
        # For a smaller record the report is wrong: another node may still send it.
        if record.sequence != self.next_offset or record.size_bytes <= limit_bytes:
            return []
        return [error_of(record, limit_bytes, node), *self.skip(record.sequence + 1, now)]

    def on_history(self, reply: HistoryReply) -> Sequence[Delivered]:
        """Restart where a store's history differs first, if it is newer; else return nothing.

        The newest one may also be older, if all stores have lost the life of the delivered records.
        """
        start = divergence(self.epochs, reply.history)
        replaces = self.is_orphan or last_life(reply.history) > last_life(self.epochs)
        if not replaces or start is None or start >= self._known_end():
            return []
        return [self._restart(start, self.next_offset, reply.end)]

    def _known_end(self) -> int:
        """Return the end of the delivered records with known epochs."""
        return self.next_offset if self._unknown_from is None else self._unknown_from

    def _of_one_history(self, taken: list[RecordBatch]) -> Sequence[Delivered]:
        for index, batch in enumerate(taken):
            start = self._extend_history(batch.epoch, batch.offset)
            if start is not None:
                return [*taken[:index], self._restart(start, batch.offset, taken[-1].end)]
        return taken

    def _extend_history(self, epoch: Epoch | None, offset: int) -> int | None:
        """Add the epoch of the next record; return where its history differs, if it does."""
        unknown_from, self._unknown_from = self._unknown_from, None
        if epoch is None:
            self._unknown_from = offset if unknown_from is None else unknown_from
            return None
        if epoch in self.epochs[-1:]:
            return None  # all earlier records belong to this life, too
        follows = epoch.start == offset and epoch.continues(self.epochs)
        if unknown_from is not None and epoch.start >= unknown_from:
            follows = epoch.life > last_life(self.epochs)  # lives between may have been skipped
        if self.epochs and not follows:
            # The older life's records at its first offsets were next, or arrived earlier.
            return epoch.start if epoch.continues(self.epochs) else self.epochs[0].start
        self.epochs = with_epoch(self.epochs, epoch)
        return None

    def _restart(self, start: int, position: int, end: int) -> HistoryChangedError:
        """Continue at ``start``, in place of ``position``; the new history reaches ``end``."""
        self.epochs, self._unknown_from = prefix(self.epochs, start), None
        self.is_beginning = self.is_orphan = False
        self.head = start
        self.begin(start)
        self.raise_head(end)
        return HistoryChangedError(*self.tp, start, start, CHANGED, position)
