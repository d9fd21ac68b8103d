"""Retention: deletes the oldest blocks of a log by rules (``config/topic_rules.py``).

*Age*: a block is deleted when all its records are older.  *Size* is that of the topic in this
store, all partitions together: the oldest blocks are deleted, as long as at least this size
remains.  So a small size never empties a topic, and a topic exceeds its size by at most one block.
"""

from __future__ import annotations

import heapq
import logging
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from operator import attrgetter
from typing import Final, NamedTuple, Protocol

from dafka_core.config.topic_rules import RetentionRule, rule_of
from dafka_core.errors import ClosedError, DafkaError, StoreError
from dafka_core.model.names import quoted
from dafka_core.model.records import PartitionInfo, TopicPartition
from dafka_core.storage.environment import UNCOMPRESSED, Compressed
from dafka_core.storage.log import Log
from dafka_core.storage.snapshot import HeldBlock

Archive = Callable[[TopicPartition, int], int]
"""Archives a partition's records below an offset, synced, as far as they are not archived yet.

Returns the offset below which all of the store's records are archived, at most the given one: the
store deletes only these.  After a DafkaError it deletes nothing now, and retries later.
"""


class Unread(NamedTuple):
    """The first unread record of a partition, and its reader."""

    offset: int
    reader: str


class Readers(Protocol):
    """Readers for which a store keeps records that its rules would delete."""

    def look(self) -> list[StoreError]:
        """Read their positions again; return errors, after which everything counts as unread."""

    def unread(self, tp: TopicPartition) -> Unread | None:
        """Return the unread records of the slowest reader; None without readers."""


def old_blocks(blocks: Sequence[HeldBlock], before_us: int) -> int:
    """Return how many of a partition's blocks, in order, have no record from ``before_us`` on.

    It examines few: twice the logarithm of the result.
    """
    stop = 1
    while stop <= len(blocks) and blocks[stop - 1].newest_us < before_us:
        stop *= 2
    low, high = stop // 2, min(stop - 1, len(blocks))
    return bisect_left(blocks, before_us, low, high, key=attrgetter("newest_us"))


def before_by_size(
    partitions: Mapping[TopicPartition, Sequence[HeldBlock]], size_bytes: int
) -> dict[TopicPartition, int]:
    """Return the offsets below which to delete, so that at least ``size_bytes`` remain in all.

    Partitions without deletions are left out.
    """
    left = sum(block.size_bytes for blocks in partitions.values() for block in blocks)
    waiting = [(blocks[0].newest_us, tp, 0) for tp, blocks in partitions.items() if blocks]
    heapq.heapify(waiting)
    before: dict[TopicPartition, int] = {}
    while waiting:
        _, tp, at = heapq.heappop(waiting)
        blocks = partitions[tp]
        left -= blocks[at].size_bytes
        if left < size_bytes:
            break
        before[tp] = blocks[at].end
        if at + 1 < len(blocks):
            heapq.heappush(waiting, (blocks[at + 1].newest_us, tp, at + 1))
    return before


STEP_BYTES: Final = 64 << 20  # bytes examined at a time; LMDB reuses no freed page meanwhile

Pause = Callable[[], None]
"""Called between the steps of a long task: it may wait, or end the task with ClosedError."""


class HeldBlocks(dict[TopicPartition, tuple[PartitionInfo, Compressed, list[HeldBlock]]]):
    """The available offsets of partitions, what of them is compressed, and their blocks.

    These are examined in small steps, and no block again while its offsets are unchanged, unless it
    was compressed.
    """

    def __init__(self, log: Log) -> None:
        super().__init__()
        self._log = log

    def found(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, list[HeldBlock]]:
        """Return the blocks of those partitions that were examined and exist."""
        return {tp: self[tp][-1] for tp in tps if tp in self}

    def keep_only(self, tps: Collection[TopicPartition]) -> None:
        """Forget all other partitions."""
        for tp in self.keys() - tps:
            del self[tp]

    def look_at(
        self,
        infos: Sequence[PartitionInfo],
        damaged: dict[TopicPartition, StoreError],
        pause: Pause,
    ) -> dict[TopicPartition, list[HeldBlock]]:
        """Examine the blocks of partitions, a few in each step; return them.

        Damaged partitions, whose errors ``damaged`` receives, are as last seen.
        """
        for info in infos:
            compressed = self._log.compressed.get(info.tp, UNCOMPRESSED)
            if self.get(info.tp, ())[:2] != (info, compressed):
                try:
                    self.look(info.tp, pause)
                except StoreError as error:
                    damaged[info.tp] = error
        return self.found(info.tp for info in infos)

    def look(self, tp: TopicPartition, pause: Pause) -> None:
        """Examine the blocks of a partition that were not examined before."""
        _, before, blocks = self.get(tp, (None, UNCOMPRESSED, []))
        compressed = self._log.compressed.get(tp, UNCOMPRESSED)
        since = before.end if before.returns == compressed.returns else 0
        kept = (block for block in blocks if not since < block.end <= compressed.end)
        known = {(block.first, block.end): block for block in kept}
        examined_bytes = STEP_BYTES
        while examined_bytes >= STEP_BYTES:
            examined_bytes = 0
            with self._log.snapshot() as snapshot:
                found = snapshot.blocks(tp)
                if found is None:
                    self.pop(tp, None)
                    return
                wanted = list(pairwise(found.bounds))
                for number, bounds in enumerate(wanted):
                    if bounds not in known and examined_bytes < STEP_BYTES:
                        known[bounds] = found[number]
                        examined_bytes += known[bounds].size_bytes
                info = found.info
            pause()
        self[tp] = info, compressed, [known[bounds] for bounds in wanted]


TRIM_BLOCKS: Final = 16  # blocks deleted at a time: appends wait meanwhile, as for another append

_log = logging.getLogger("dafka.store")


@dataclass(slots=True)
class RetentionCounts:
    """Totals of retention since the start of the store."""

    passes: int = 0
    trims: int = 0
    records: int = 0
    unread: int = 0  # of these, records that a protected query had not read


@dataclass(slots=True)
class _Pass:
    """The state of one pass, and of its present topic."""

    pause: Pause
    now_us: int | None  # None if the clock is in doubt: nothing is deleted by age
    partitions: Sequence[PartitionInfo] = ()  # of the topic
    limit: RetentionRule | None = None  # up to which unread records of the topic are kept
    beyond_size: dict[TopicPartition, int] | None = None  # the offsets beyond it, once known
    doomed: list[tuple[PartitionInfo, int]] = field(default_factory=list)  # not deleted yet
    doomed_blocks: int = 0
    unread_ends: dict[TopicPartition, int] = field(default_factory=dict)  # of counted records
    waits: dict[str, str] = field(default_factory=dict)  # as ``Retention._waits``
    damaged: dict[TopicPartition, StoreError] = field(default_factory=dict)

    @contextmanager
    def noting(self, tp: TopicPartition) -> Iterator[None]:
        """Note a damaged partition, which is kept."""
        try:
            yield
        except StoreError as error:
            self.damaged[tp] = error


class Retention:
    """Deletes whole blocks by rules; for one thread.

    Args:
        log: it is read beside appends, and trimmed between them.
        rules: they may be replaced at any time, for the next pass.
        archive: copies records before they are deleted.
        until_read: limits up to which records of a topic unread by ``readers`` are kept.
        readers: the protected readers.
    """

    def __init__(
        self,
        log: Log,
        rules: Sequence[RetentionRule] = (),
        archive: Archive | None = None,
        until_read: Sequence[RetentionRule] = (),
        readers: Readers | None = None,
    ) -> None:
        self.rules, self.until_read = tuple(rules), until_read
        self.counts = RetentionCounts()
        self._log = log
        self._archive = archive
        self._readers = readers
        self._waits: dict[str, str] = {}  # topics with kept records, and their reader
        # Of each partition's first block: its first available offset, and its greatest time.
        self._first: dict[TopicPartition, tuple[int, int]] = {}
        self._held = HeldBlocks(log)
        self._pass = _Pass(lambda: None, None)

    def run(self, pause: Pause) -> None:
        """Make one pass, in steps; raise the first DafkaError at the end.

        A damaged partition, or a topic that cannot be archived, is kept, and the others continue.
        """
        rules, now_us = self.rules, self._log.now_us()
        failed = list[DafkaError]()
        if self._readers is not None:
            failed += self._readers.look()
        seen: set[TopicPartition] = set()
        infos = [info for info in self._log.partitions() if info.earliest < info.end]
        # After the listing: the clock was compared with all of these records.
        self._pass = this = _Pass(pause, None if self._log.clock.doubt() else now_us)
        for topic, found in groupby(infos, attrgetter("topic")):
            if (rule := rule_of(topic, rules)) is None:
                continue
            this.partitions, this.beyond_size = list(found), None
            this.limit = rule_of(topic, self.until_read) if self._readers is not None else None
            seen.update(info.tp for info in this.partitions)
            try:
                if (before_us := self._before_us(rule)) is not None:
                    self._by_age(before_us)
                if rule.size_bytes is not None:
                    self._by_size(rule.size_bytes)
            except ClosedError:
                raise
            except DafkaError as error:
                failed.append(error)
        self._trim()
        for topic, reader in this.waits.items():
            if self._waits.get(topic) != reader:
                text = "topic %(topic)s: retention waits for query %(query)s to read more"
                facts = {"topic": quoted(topic), "query": quoted(reader)}
                _log.info(text, facts, extra={"event": "retention_waits"})
        self._waits = this.waits
        for tp in self._first.keys() - seen:
            del self._first[tp]
        self._held.keep_only(seen)
        for failure in (*this.damaged.values(), *failed):
            raise failure
        self.counts.passes += 1

    def _before_us(self, rule: RetentionRule) -> int | None:
        """Return the time before which records are too old; None if age does not count now."""
        now_us, age_s = self._pass.now_us, rule.age_s
        return None if now_us is None or age_s is None else now_us - int(age_s * 1_000_000)

    def _by_age(self, before_us: int) -> None:
        for info in self._pass.partitions:
            earliest, newest_us = self._first.get(info.tp, (-1, 0))
            # More records may have been merged into the block; then its greatest time is later.
            if earliest != info.earliest or newest_us < before_us:
                with self._pass.noting(info.tp):
                    self._doom(*self._older(info, before_us))

    def _older(self, info: PartitionInfo, before_us: int) -> tuple[PartitionInfo, list[int]]:
        """Return the offsets of a partition, and the bounds of its blocks from before a time."""
        with self._log.snapshot() as snapshot:
            blocks = snapshot.blocks(info.tp)
            if blocks is None:
                return info, [0]
            count = old_blocks(blocks, before_us)
            if count < len(blocks):
                start = max(blocks.bounds[count], blocks.info.earliest)
                self._first[info.tp] = start, blocks[count].newest_us
            held, bounds = blocks.info, blocks.bounds[: count + 1]
        self._pass.pause()
        return held, bounds

    def _by_size(self, size_bytes: int) -> None:
        this = self._pass
        held = self._held.look_at(this.partitions, this.damaged, this.pause)
        doomed = before_by_size(held, size_bytes)
        for tp in doomed:  # blocks may have been merged since
            with this.noting(tp):
                self._held.look(tp, this.pause)
        again = before_by_size(self._held.found(held), size_bytes) if doomed else {}
        for tp, before in again.items():
            if tp not in this.damaged:
                info, _, blocks = self._held[tp]
                bounds = [*(block.first for block in blocks), info.end]
                with this.noting(tp):
                    self._doom(info, _up_to(bounds, before))

    def _doom(self, info: PartitionInfo, bounds: list[int]) -> None:
        """Delete the blocks between these bounds, as far as readers and the archive allow."""
        if len(bounds) < 2:
            return
        this, unread = self._pass, None
        if self._readers is not None and this.limit is not None:
            unread = self._readers.unread(info.tp)
            if unread is not None and unread.offset < bounds[-1]:
                allowed = max(unread.offset, self._beyond(this.limit, info))
                if allowed < bounds[-1]:
                    this.waits.setdefault(info.topic, unread.reader)
                bounds = _up_to(bounds, allowed)
        if self._archive is not None and len(bounds) > 1:
            bounds = _up_to(bounds, self._archive(info.tp, bounds[-1]))
            this.pause()
        if unread is not None and len(bounds) > 1:
            self._count_unread(info, bounds[-1], unread)
        for start in range(0, len(bounds) - 1, TRIM_BLOCKS):
            part = bounds[start : start + TRIM_BLOCKS + 1]
            this.doomed.append((info, part[-1]))
            this.doomed_blocks += len(part) - 1
            if this.doomed_blocks >= TRIM_BLOCKS:
                self._trim()

    def _beyond(self, limit: RetentionRule, info: PartitionInfo) -> int:
        """Return the offset up to which a partition is beyond the limit for unread records."""
        this, found = self._pass, 0
        if (before_us := self._before_us(limit)) is not None:
            found = self._older(info, before_us)[1][-1]
        if limit.size_bytes is not None:
            if this.beyond_size is None:
                held = self._held.look_at(this.partitions, this.damaged, this.pause)
                this.beyond_size = before_by_size(held, limit.size_bytes)
            found = max(found, this.beyond_size.get(info.tp, 0))
        return found

    def _count_unread(self, info: PartitionInfo, before: int, unread: Unread) -> None:
        counted = self._pass.unread_ends.get(info.tp, info.earliest)  # by age, before the size
        count = before - max(unread.offset, counted)
        if count > 0:
            self._pass.unread_ends[info.tp] = before
            self.counts.unread += count
            text = (
                "%(partition)s: deleted %(records)d records that query %(query)s has not read: "
                "they are beyond the limits of option retain_until_read"
            )
            facts = {"partition": str(info.tp), "records": count, "query": quoted(unread.reader)}
            _log.warning(text, facts, extra={"event": "unread_given_up"})

    def _trim(self) -> None:
        this = self._pass
        doomed, this.doomed, this.doomed_blocks = this.doomed, [], 0
        if doomed:
            self.counts.records += sum(self._log.trim_each(doomed))
            self.counts.trims += 1
            this.pause()


def _up_to(bounds: list[int], offset: int) -> list[int]:
    """Return the bounds of the blocks that end at an offset or before."""
    return bounds[: bisect_right(bounds, offset)]
