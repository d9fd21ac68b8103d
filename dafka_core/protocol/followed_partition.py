"""A partition as a consumer or reader delivers it: records in order, of one history at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from dafka_core.errors import CHANGED, HistoryChangedError, RecordTooLargeError
from dafka_core.model.epochs import History, last_life, parting
from dafka_core.model.records import RecordBatch
from dafka_core.protocol.histories import FollowedHistory
from dafka_core.protocol.messages import RecordTooLarge
from dafka_core.protocol.partition_fetcher import PartitionFetcher
from dafka_core.protocol.record_limits import error_of

Delivered = RecordBatch | RecordTooLargeError | HistoryChangedError


@dataclass(slots=True, eq=False)
class FollowedPartition(PartitionFetcher):
    """The received records of a partition, and their history.

    If another history has won, the delivered records from the first difference on are replaced: the
    partition restarts there, after an error that reports it.
    """

    history: FollowedHistory = field(default_factory=FollowedHistory)
    is_beginning: bool = False  # at the earliest record that any store has

    def follow(self, now: float, batch: RecordBatch) -> list[Delivered]:
        """Add records; return those that are next."""
        position = self.next_offset
        start = self.history.parted_by(batch.epoch, position)
        if start is not None:
            return [self._restart(start, position, batch.end)]
        return self._of_one_history(position, self.take(now, batch))

    def skip(self, end: int, now: float | None = None) -> list[Delivered]:
        """Skip the next records up to ``end`` (exclusive); see ``advance``."""
        self.history.skip_from(self.next_offset)
        self.is_beginning = False
        return self._of_one_history(end, self.advance(end, now))

    def skip_too_large(
        self, now: float, record: RecordTooLarge, limit_bytes: int, node: str
    ) -> list[Delivered]:
        """Deliver an error in the place of the next record, if it is the one above the limit."""
        # For a smaller record the report is wrong: another node may still send it.
        if record.sequence != self.next_offset or record.size_bytes <= limit_bytes:
            return []
        return [error_of(record, limit_bytes, node), *self.skip(record.sequence + 1, now)]

    def change_history(self, history: History, end: int) -> list[Delivered]:
        """Restart at the first difference of a store's history, if it is newer; else return []."""
        known, position = self.history.epochs, self.next_offset
        start = parting(known, history) if last_life(history) > last_life(known) else None
        if start is None or start >= self.history.read_to(position):
            return []
        return [self._restart(start, position, end)]

    def _of_one_history(self, position: int, taken: Sequence[RecordBatch]) -> list[Delivered]:
        followed, start = self.history.take(taken)
        if start is None:
            return [*followed]
        position = followed[-1].end if followed else position
        return [*followed, self._restart(start, position, taken[-1].end)]

    def _restart(self, start: int, position: int, end: int) -> HistoryChangedError:
        """Continue at ``start``, in place of ``position``; the new history reaches ``end``."""
        self.history.rewind(start)
        self.is_beginning = False
        self.head = start
        self.begin(start)
        self.raise_head(end)
        return HistoryChangedError(*self.tp, start, start, CHANGED, position)
