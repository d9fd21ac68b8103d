"""Retention: deletes the oldest blocks of a log by rules (``config/topic_rules.py``).

*Age*: a block is deleted when all its records are older.  *Size* is that of the topic in this
store, all partitions together: the oldest blocks are deleted, as long as at least this size
remains.  So a small size never empties a topic, and a topic exceeds its size by at most one block.
"""

from __future__ import annotations

import heapq
import logging
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
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
        self, partitions: Iterable[PartitionInfo], damaged: dict[TopicPartition, StoreError]
    ) -> Generator[None, None, dict[TopicPartition, list[HeldBlock]]]:
        """Examine the blocks of partitions, a few in each step; return them.

        Damaged partitions, whose errors ``damaged`` receives, are as last seen.
        """
        infos = list(partitions)
        for info in infos:
            compressed = self._log.compressed.get(info.tp, UNCOMPRESSED)
            if self.get(info.tp, ())[:2] != (info, compressed):
                try:
                    yield from self.look(info.tp)
                except StoreError as error:
                    damaged[info.tp] = error
        return self.found(info.tp for info in infos)

    def look(self, tp: TopicPartition) -> Iterator[None]:
        """Examine the blocks of a partition that were not examined before."""
        _, before, blocks = self.get(tp, (None, UNCOMPRESSED, []))
        compressed = self._log.compressed.get(tp, UNCOMPRESSED)
        since = before.end if before.returns == compressed.returns else 0
        kept = (block for block in blocks if not since < block.end <= compressed.end)
        known = {(block.first, block.end): block for block in kept}
        while True:
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
            yield
            if examined_bytes < STEP_BYTES:
                break
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
class _TopicPass:
    """A topic in one pass: the limits up to which unread records are kept."""

    now_us: int
    limit: RetentionRule | None = None
    partitions: Sequence[PartitionInfo] = ()
    before: dict[TopicPartition, int] | None = None  # the offsets beyond these limits, once known


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
        self._topic = _TopicPass(0)
        # Of each partition's first block: its first available offset, and its greatest time.
        self._first: dict[TopicPartition, tuple[int, int]] = {}
        self._held = HeldBlocks(log)
        self._doomed: list[tuple[PartitionInfo, int]] = []
        self._doomed_blocks = 0
        self._earliest: dict[TopicPartition, int] = {}
        self._counted: dict[TopicPartition, int] = {}  # the end of deleted records, if unread
        self._damaged: dict[TopicPartition, StoreError] = {}

    def steps(self) -> Iterator[None]:
        """Make one pass in steps; raise the first DafkaError at the end.

        A damaged partition, or a topic that cannot be archived, is kept, and the others continue.
        """
        rules, now_us = self.rules, self._log.now_us()
        self._doomed, self._doomed_blocks, self._earliest, self._counted = [], 0, {}, {}
        self._damaged, failed = {}, list[DafkaError]()
        waits, self._waits = self._waits, {}
        if self._readers is not None:
            failed += self._readers.look()
        seen: set[TopicPartition] = set()
        infos = [info for info in self._log.partitions() if info.earliest < info.end]
        # After the listing: the clock was compared with all of these records.
        is_right = not self._log.clock.doubt()
        for topic, found in groupby(infos, attrgetter("topic")):
            rule, partitions = rule_of(topic, rules), list(found)
            if rule is None:
                continue
            seen.update(info.tp for info in partitions)
            limit = rule_of(topic, self.until_read) if self._readers is not None else None
            self._topic = _TopicPass(now_us if is_right else 0, limit, partitions)
            try:
                if rule.age_s is not None and is_right:
                    yield from self._by_age(partitions, now_us - int(rule.age_s * 1_000_000))
                if rule.size_bytes is not None:
                    yield from self._by_size(partitions, rule.size_bytes)
            except ClosedError:
                raise
            except DafkaError as error:
                failed.append(error)
        yield from self._trim()
        for topic, reader in self._waits.items():
            if waits.get(topic) != reader:
                text = "topic %(topic)s: retention waits for query %(query)s to read more"
                facts = {"topic": quoted(topic), "query": quoted(reader)}
                _log.info(text, facts, extra={"event": "retention_waits"})
        for tp in self._first.keys() - seen:
            del self._first[tp]
        self._held.keep_only(seen)
        for failure in (*self._damaged.values(), *failed):
            raise failure
        self.counts.passes += 1

    @contextmanager
    def _noting(self, tp: TopicPartition) -> Iterator[None]:
        try:
            yield
        except StoreError as error:
            self._damaged[tp] = error

    def _by_age(self, partitions: list[PartitionInfo], before_us: int) -> Iterator[None]:
        for info in partitions:
            earliest, newest_us = self._first.get(info.tp, (-1, 0))
            # More records may have been merged into the block; then its greatest time is later.
            if earliest == info.earliest and newest_us >= before_us:
                continue
            with self._noting(info.tp):
                with self._log.snapshot() as snapshot:
                    blocks = snapshot.blocks(info.tp)
                    if blocks is None:
                        continue
                    count = old_blocks(blocks, before_us)
                    held, bounds = blocks.info, blocks.bounds
                    if count < len(blocks):
                        first = blocks[count]
                        start = max(first.first, held.earliest)
                        self._first[info.tp] = start, first.newest_us
                yield
                yield from self._doom(held, bounds[: count + 1])

    def _by_size(self, partitions: list[PartitionInfo], size_bytes: int) -> Iterator[None]:
        held = yield from self._held.look_at(partitions, self._damaged)
        doomed = before_by_size(held, size_bytes)
        if not doomed:
            return
        for tp in doomed:  # blocks may have been merged since
            with self._noting(tp):
                yield from self._held.look(tp)
        held = self._held.found(held)
        for tp, before in before_by_size(held, size_bytes).items():
            if tp not in self._damaged:
                info, _, blocks = self._held[tp]
                bounds = [block.first for block in blocks] + [info.end]
                with self._noting(tp):
                    yield from self._doom(info, bounds[: bisect_right(bounds, before)])

    def _doom(self, info: PartitionInfo, bounds: Sequence[int]) -> Iterator[None]:
        if len(bounds) < 2:
            return
        before = bounds[-1]
        unread: Unread | None = None
        if self._readers is not None and self._topic.limit is not None:
            unread = self._readers.unread(info.tp)
        if unread is not None and unread.offset < before:
            allowed = max(unread.offset, (yield from self._beyond(info)))
            if allowed < before:
                self._waits.setdefault(info.topic, unread.reader)
            bounds = bounds[: bisect_right(bounds, allowed)]
            if len(bounds) < 2:
                return
            before = bounds[-1]
        if self._archive is not None:
            before = self._archive(info.tp, before)
            yield
        bounds = bounds[: bisect_right(bounds, before)]
        if unread is not None and len(bounds) > 1:
            self._count_unread(info, bounds[-1], unread)
        for start in range(0, len(bounds) - 1, TRIM_BLOCKS):
            part = bounds[start : start + TRIM_BLOCKS + 1]
            self._doomed.append((info, part[-1]))
            self._doomed_blocks += len(part) - 1
            if self._doomed_blocks >= TRIM_BLOCKS:
                yield from self._trim()

    def _beyond(self, info: PartitionInfo) -> Generator[None, None, int]:
        """Return the offset up to which a partition is deleted even if unread."""
        topic, found = self._topic, 0
        assert topic.limit is not None
        if topic.limit.age_s is not None:
            before_us = topic.now_us - int(topic.limit.age_s * 1_000_000)
            with self._log.snapshot() as snapshot:
                blocks = snapshot.blocks(info.tp)
                found = 0 if blocks is None else blocks.bounds[old_blocks(blocks, before_us)]
            yield
        if topic.limit.size_bytes is not None:
            if topic.before is None:
                held = yield from self._held.look_at(topic.partitions, self._damaged)
                topic.before = before_by_size(held, topic.limit.size_bytes)
            found = max(found, topic.before.get(info.tp, 0))
        return found

    def _count_unread(self, info: PartitionInfo, before: int, unread: Unread) -> None:
        counted = self._counted.get(info.tp, info.earliest)  # by age, before the size
        count = before - max(unread.offset, counted)
        if count > 0:
            self._counted[info.tp] = before
            self.counts.unread += count
            text = (
                "%(partition)s: deleted %(records)d records that query %(query)s has not read: "
                "they are beyond the limits of option retain_until_read"
            )
            facts = {"partition": str(info.tp), "records": count, "query": quoted(unread.reader)}
            _log.warning(text, facts, extra={"event": "unread_given_up"})

    def _trim(self) -> Iterator[None]:
        doomed, self._doomed, self._doomed_blocks = self._doomed, [], 0
        if doomed:
            now = self._log.trim_each(doomed)
            for (info, _), earliest in zip(doomed, now, strict=True):
                self.counts.records += earliest - self._earliest.get(info.tp, info.earliest)
                self._earliest[info.tp] = earliest
            self.counts.trims += 1
            yield
