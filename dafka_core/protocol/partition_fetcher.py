"""The records that a node has received of one partition, and the requests for the missing ones.

A record is missing if it is between ``next_offset`` and ``head``, the partition's end according
to the heads and records that have arrived.  A fetcher requests until both are equal, also after the
producer is gone.  (C consumers request one block and wait for the next head: docs/wire.md, "For C
nodes".)

``FollowedPartition`` is a fetcher as consumers and readers use it: they deliver records of one
history at a time.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from math import inf
from operator import attrgetter
from typing import Final

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
from dafka_core.model.records import RecordBatch, TopicPartition
from dafka_core.protocol import timing
from dafka_core.protocol.messages import HistoryReply, RecordTooLarge
from dafka_core.protocol.record_limits import error_of

# Doubled before each block, also before the first: small, since the records' size is not known yet.
FETCH_FIRST_COUNT: Final = 1_000
# At most one and a half of these are in flight, below the count that C nodes request.
FETCH_BLOCK_COUNT: Final = 50_000
# A block is requested by count; records of this total size keep a peer's queue within bounds.
FETCH_BLOCK_BYTES: Final = 16 << 20
# Memory of a role for records behind gaps; it fetches further ones again.
MAX_REORDER_RECORDS: Final = 262_144
MAX_REORDER_BYTES: Final = 64 << 20

_OFFSET: Final = attrgetter("offset")


@dataclass(slots=True)
class ReorderBudget:
    """The memory that all of a role's fetchers share for records behind gaps."""

    records: int = 0
    size_bytes: int = 0

    def add(self, batch: RecordBatch) -> bool:
        """Reserve room for a batch; return False without room."""
        records = self.records + len(batch.values)
        size_bytes = self.size_bytes + batch.values.size_bytes
        if records > MAX_REORDER_RECORDS or size_bytes > MAX_REORDER_BYTES:
            return False
        self.records, self.size_bytes = records, size_bytes
        return True

    def remove(self, batch: RecordBatch) -> None:
        """Release the room of a batch."""
        self.records -= len(batch.values)
        self.size_bytes -= batch.values.size_bytes


class FetchState(Enum):
    """The states of a partition, which decide what it requests in its turn (docs/states.md)."""

    UP_TO_DATE = "it has all records that it knows of"
    BEHIND = "it has not requested its missing records"
    FETCHING = "it has requested missing records, and waits for the answer"
    OVERDUE = "no answer for 1 s; twice as long after each retry, up to 8 s"
    NO_ROOM = "the application has not read enough delivered records"


@dataclass(slots=True, eq=False)
class PartitionFetcher:
    """One partition as one node receives it: each record once and in order."""

    tp: TopicPartition
    next_offset: int  # the record to return next
    _budget: ReorderBudget
    head: int = 0  # the known end of the partition (exclusive)
    kept: list[RecordBatch] = field(default_factory=list)
    """Batches behind a gap: sorted, none adjacent to ``next_offset``."""
    source: str = ""  # a store of ours that has announced the next records, if any
    unanswered_since: float | None = None
    """Time of the first request for the next record, if nothing has arrived since."""
    _requested_end: int = 0  # nothing is in flight if it is at most next_offset
    _quiet_since: float = 0.0
    _retry_s: float = timing.FETCH_RETRY_S
    _count: int = FETCH_FIRST_COUNT

    def __post_init__(self) -> None:
        self.raise_head(self.next_offset)

    def begin(self, next_offset: int) -> None:
        """Restart at an offset; the known head stays."""
        self.close()
        self.next_offset = self._requested_end = next_offset
        self.raise_head(next_offset)
        self.unanswered_since = None
        self._quiet_since = 0.0
        self._retry_s = timing.FETCH_RETRY_S
        self._count = FETCH_FIRST_COUNT

    def state(self, now: float, room: bool = True) -> FetchState:
        """Return the state, which follows from its data; ``room``: the role accepts records."""
        if not room:
            return FetchState.NO_ROOM
        if self.next_offset >= self.head:
            return FetchState.UP_TO_DATE
        in_flight = self._requested_end - self.next_offset
        if in_flight > 0 and now >= self._quiet_since + self._retry_s:
            return FetchState.OVERDUE
        if in_flight > self._count // 2 or self._requested_end >= self.gap_end():
            return FetchState.FETCHING
        return FetchState.BEHIND

    def raise_head(self, end: int) -> None:
        """Note a peer's claim that the partition reaches ``end`` (exclusive)."""
        self.head = max(self.head, end)

    def take(self, now: float, batch: RecordBatch) -> list[RecordBatch]:
        """Add records; return those that are next, each once and in order."""
        end = batch.end
        self.raise_head(end)
        if end <= self.next_offset:
            return []
        if batch.offset > self.next_offset:
            self._keep(batch)
            return []
        taken = [batch.between(self.next_offset, end), *self.advance(end, now)]
        mean_bytes = batch.values.size_bytes // (end - batch.offset) + 1
        self._count = max(1, min(self._count, FETCH_BLOCK_BYTES // mean_bytes))
        return taken

    def advance(self, end: int, now: float | None = None) -> list[RecordBatch]:
        """Skip records up to ``end`` (exclusive); return the kept ones that are next then.

        With ``now`` a peer has answered the last request, so its timeout begins again.
        """
        self.raise_head(end)
        if now is not None:
            self._quiet_since, self._retry_s = now, timing.FETCH_RETRY_S
        if end > self.next_offset:
            self.next_offset, self.unanswered_since = end, None
        taken: list[RecordBatch] = []
        used = 0
        for later in self.kept:
            if later.offset > self.next_offset:
                break
            used += 1
            self._budget.remove(later)
            if later.end > self.next_offset:
                taken.append(later.between(self.next_offset, later.end))
                self.next_offset = later.end
        del self.kept[:used]
        return taken

    def give_back(self, batch: RecordBatch) -> None:
        """Note records that the role has refused for lack of room, to request them again."""
        self.raise_head(batch.end)
        self._requested_end = max(self.next_offset, min(self._requested_end, batch.offset))
        if batch.offset <= self.next_offset < batch.end:
            self.unanswered_since = None

    def unanswered_s(self, now: float) -> float:
        """Return how long the next record has been requested without any arrival."""
        return 0.0 if self.unanswered_since is None else now - self.unanswered_since

    def retry_unanswered(self) -> None:
        """Retry at once: a peer that may have missed earlier FETCHes receives ours from now on."""
        if self.unanswered_since is not None:
            self._requested_end = self.next_offset
            self._count = max(1, self._count // 2)  # the same block again, not a larger one

    def claim(self, now: float, state: FetchState) -> tuple[int, int] | None:
        """Return the offsets to request now (end exclusive), if the partition's state needs any."""
        start = max(self.next_offset, self._requested_end)
        if state is FetchState.OVERDUE:
            start = self.next_offset
            self._retry_s = min(self._retry_s * 2, timing.MAX_FETCH_RETRY_S)
        elif state is FetchState.BEHIND:
            self._count = min(self._count * 2, FETCH_BLOCK_COUNT)
        else:
            return None
        self._requested_end = min(start + self._count, self.gap_end())
        if start == self.next_offset:
            self._quiet_since = now
            if self.unanswered_since is None:
                self.unanswered_since = now
        return start, self._requested_end

    def deadline(self) -> float:
        """Return when to call ``claim`` again if nothing arrives."""
        return self._quiet_since + self._retry_s if self.next_offset < self.head else inf

    def close(self) -> None:
        """Release the room of kept records."""
        for batch in self.kept:
            self._budget.remove(batch)
        self.kept.clear()

    def gap_end(self) -> int:
        """Return the end of the first gap: the kept records, or else the head."""
        return self.kept[0].offset if self.kept else self.head

    def _keep(self, batch: RecordBatch) -> None:
        position = bisect_right(self.kept, batch.offset, key=_OFFSET)
        known = position > 0 and self.kept[position - 1].end >= batch.end
        if not known and self._budget.add(batch):
            self.kept.insert(position, batch)


# -- of consumers and readers ----------------------------------------------------------------------

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
        is_older = epoch is not None and epoch.life < last_life(known)
        return is_older and (epoch not in known or batch.end > self.next_offset)

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
            if batch.epoch is not None and batch.epoch.life < last_life(self.epochs):
                # It has waited behind the records of a newer life, which has replaced it.
                self.begin(batch.offset)
                return taken[:index]
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
