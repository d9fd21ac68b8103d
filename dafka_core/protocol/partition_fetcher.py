"""What one reader of one partition still misses: when to ask for it, and when to ask again.

Every role that receives records is built on this.  A partition is complete when ``next_offset``
has reached ``head``; until then somebody is asked, however long the partition is and whoever is
gone.  (C consumers stop for ever after one block when the producer is gone.)
"""

from __future__ import annotations

from bisect import bisect_right
from math import inf
from typing import Final

from dafka_core.protocol.messages import Fetch
from dafka_core.records import RecordBatch, TopicPartition

FETCH_FIRST_COUNT: Final = 1_000
"""The first block is small: nothing is known yet of the records' size."""

FETCH_BLOCK_COUNT: Final = 50_000
"""At most one and a half of these are under way, below what C nodes ask for at once."""

FETCH_BLOCK_BYTES: Final = 16 << 20
"""A block is asked for by count; records this large in sum keep a peer's queue within bounds."""

RETRY_FIRST_S: Final = 1.0
"""C nodes answer one identical FETCH a second."""

RETRY_MAX_S: Final = 8.0
"""A head that nobody has records for (they are lost, or it was forged) is asked for this rarely."""

MAX_AHEAD_RECORDS: Final = 262_144
MAX_AHEAD_BYTES: Final = 64 << 20
"""What is kept of records behind gaps, per role; the rest is fetched again."""

MAX_PARTITIONS: Final = 1_000_000
"""Partitions one role keeps track of.  Anybody can name new ones; at some 1 KB each this is what
a node can still hold."""


class ReorderBudget:
    """What all of a role's partitions together keep behind gaps."""

    __slots__ = ("records", "size_bytes")

    def __init__(self) -> None:
        self.records = 0
        self.size_bytes = 0

    def add(self, batch: RecordBatch) -> bool:
        """Takes room for a run, if there is room."""
        size_bytes = batch.values.size_bytes
        if self.records + len(batch.values) > MAX_AHEAD_RECORDS:
            return False
        if self.size_bytes + size_bytes > MAX_AHEAD_BYTES:
            return False
        self.records += len(batch.values)
        self.size_bytes += size_bytes
        return True

    def remove(self, batch: RecordBatch) -> None:
        """Gives the room of a run back."""
        self.records -= len(batch.values)
        self.size_bytes -= batch.values.size_bytes


class PartitionFetcher:
    """One partition as one reader sees it.  Gives out each record once and in order."""

    __slots__ = (
        "_ahead",
        "_ahead_room",
        "_asked_end",
        "_count",
        "_quiet_since",
        "_retry_s",
        "_unanswered",
        "head",
        "next_offset",
        "tp",
    )

    def __init__(self, tp: TopicPartition, next_offset: int, ahead: ReorderBudget) -> None:
        self.tp = tp
        self.next_offset = next_offset
        """The record to give out next."""
        self.head = next_offset
        """The partition is known to reach this far (exclusive).  It never goes backwards."""
        self._ahead: list[RecordBatch] = []  # behind a gap: sorted, none touching next_offset
        self._ahead_room = ahead
        self._asked_end = next_offset  # asked for up to here; nothing is under way if <= next
        self._unanswered = False  # nothing has come since the last time of asking
        self._quiet_since = 0.0
        self._retry_s = RETRY_FIRST_S
        self._count = FETCH_FIRST_COUNT

    def raise_head(self, end: int) -> None:
        """Somebody says that the partition reaches ``end`` (exclusive)."""
        self.head = max(self.head, end)

    def take(self, now: float, batch: RecordBatch) -> list[RecordBatch]:
        """Offers records; returns those that are next, each once and in order."""
        self.raise_head(batch.end)
        if batch.end <= self.next_offset:
            return []
        if batch.offset > self.next_offset:
            self._keep_ahead(batch)
            return []
        taken = [batch.between(self.next_offset, batch.end), *self.advance(batch.end)]
        self._quiet_since = now
        self._unanswered = False
        self._retry_s = RETRY_FIRST_S
        self._fit_count(batch)
        return taken

    def advance(self, end: int) -> list[RecordBatch]:
        """The reader has the records up to ``end`` (exclusive) from elsewhere.

        Returns those kept that are next now.
        """
        self.raise_head(end)
        self.next_offset = max(self.next_offset, end)
        taken: list[RecordBatch] = []
        used = 0
        for later in self._ahead:
            if later.offset > self.next_offset:
                break
            used += 1
            self._ahead_room.remove(later)
            if later.end > self.next_offset:
                taken.append(later.between(self.next_offset, later.end))
                self.next_offset = later.end
        del self._ahead[:used]
        return taken

    def lose(self, batch: RecordBatch) -> None:
        """Records came for which there was no room: they are to be asked for again."""
        self.raise_head(batch.end)
        self._asked_end = max(self.next_offset, min(self._asked_end, batch.offset))

    def retry_unanswered(self) -> None:
        """Somebody hears us from now on who may have missed what was asked before."""
        if self._unanswered:
            self._asked_end = self.next_offset
            self._count = max(1, self._count // 2)  # the same block again, not a larger one

    def ask(self, now: float, requestor: str) -> Fetch | None:
        """What to ask for now, if anything."""
        end = self._ahead[0].offset if self._ahead else self.head
        if self.next_offset >= end:
            return None
        start = max(self.next_offset, self._asked_end)
        under_way = start - self.next_offset
        if under_way and now >= self._quiet_since + self._retry_s:
            start = self.next_offset
            self._retry_s = min(self._retry_s * 2, RETRY_MAX_S)
        elif start >= end or under_way > self._count // 2:
            return None
        else:
            self._count = min(self._count * 2, FETCH_BLOCK_COUNT)
        count = min(self._count, end - start)
        self._asked_end = start + count
        if start == self.next_offset:
            self._quiet_since = now
            self._unanswered = True
        return Fetch(self.tp.partition, requestor, self.tp.topic, start, count)

    def deadline(self) -> float | None:
        """When to call ``ask`` again if nothing comes."""
        if self.next_offset >= self.head:
            return None
        return self._quiet_since + self._retry_s

    def close(self) -> None:
        """Lets go of what is kept."""
        for batch in self._ahead:
            self._ahead_room.remove(batch)
        self._ahead.clear()

    def _keep_ahead(self, batch: RecordBatch) -> None:
        position = bisect_right(self._ahead, batch.offset, key=lambda other: other.offset)
        before = self._ahead[position - 1] if position else None
        if before is not None and before.end >= batch.end:
            return
        if self._ahead_room.add(batch):
            self._ahead.insert(position, batch)

    def _fit_count(self, batch: RecordBatch) -> None:
        mean_bytes = batch.values.size_bytes // len(batch.values) + 1
        self._count = max(1, min(self._count, FETCH_BLOCK_BYTES // mean_bytes))


class FetchScheduler:
    """The partitions of a role that miss something, and when the first of them is to ask again.

    Heads may be forged for any number of partitions, so nothing here looks at all of them but
    when the time of one has come.
    """

    __slots__ = ("_catchups", "_due")

    def __init__(self) -> None:
        self._catchups: dict[TopicPartition, PartitionFetcher] = {}
        self._due = inf

    def __len__(self) -> int:
        return len(self._catchups)

    def ask(self, now: float, requestor: str, catchup: PartitionFetcher) -> list[Fetch]:
        """What to ask for one partition now, after something has changed about it."""
        key = catchup.tp
        if catchup.deadline() is None:
            self._catchups.pop(key, None)
            return []
        self._catchups[key] = catchup
        fetch = catchup.ask(now, requestor)
        self._due = min(self._due, catchup.deadline() or inf)
        return [fetch] if fetch is not None else []

    def postpone(self, catchup: PartitionFetcher) -> None:
        """The partition may miss something, and is to be looked at in the next ``ask_due``."""
        self._catchups[catchup.tp] = catchup
        self._due = -inf

    def ask_due(self, now: float, requestor: str) -> list[Fetch]:
        """What to ask for all partitions now."""
        if now < self._due:
            return []
        self._due = inf
        catchups = list(self._catchups.values())
        return [fetch for catchup in catchups for fetch in self.ask(now, requestor, catchup)]

    def retry_unanswered(self, partition: str) -> None:
        """Somebody hears us from now on who has a partition, or (empty) any of them."""
        for catchup in self._catchups.values():
            if partition in ("", catchup.tp.partition):
                catchup.retry_unanswered()
                self._due = -inf

    def forget(self, tp: TopicPartition) -> None:
        """The partition is of no interest any more."""
        self._catchups.pop(tp, None)

    def deadline(self) -> float | None:
        """When to call ``ask_due`` next."""
        return self._due if self._catchups else None
