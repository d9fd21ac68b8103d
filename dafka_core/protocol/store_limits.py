"""Limits of a store: topics, partitions and bytes per owner, and the admitted partitions.

A partition's owner follows from its address, which begins with digits of the owner's key
(docs/security.md).  A partition on the disk is always continued, within its owner's byte limit. A
partition without records, after retention or a deletion, does not count.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from dafka_core.config.node_options import StoreLimitError
from dafka_core.model.log_entries import LogEntry, Stage
from dafka_core.model.names import INTERNAL
from dafka_core.model.records import PartitionLives, RecordBatch, TopicPartition
from dafka_core.protocol.fetch_scheduler import FetchScheduler
from dafka_core.protocol.store_partition import StorePartition
from dafka_core.security.permissions import PREFIX_DIGITS

PARTITIONS: Final = "max_partitions"
TOPICS: Final = "max_topics"
OF_TOPIC: Final = "max_partitions_per_topic"
OF_KEY: Final = "max_partitions_per_key"
KEY_BYTES: Final = "max_key_bytes"
LIMITS: Final = (PARTITIONS, TOPICS, OF_TOPIC, OF_KEY, KEY_BYTES)  # the options' names
# Interval of log messages about one limit: any peer may cause thousands in a second.
LOG_INTERVAL_S: Final = 60.0

_log = logging.getLogger("dafka.store")


@dataclass(slots=True)
class Usage:
    """The contents of a store's log.

    Attributes:
        topics, owners: number of partitions with records, by topic and by owner.
        size_bytes: size by owner.
        seen: partitions that were new at the start of the scan and are in the log.
    """

    topics: Counter[str] = field(default_factory=Counter)
    owners: Counter[str] = field(default_factory=Counter)
    size_bytes: Counter[str] = field(default_factory=Counter)
    seen: set[TopicPartition] = field(default_factory=set)


class StoreLimits:
    """Counts a store's stored and pending partitions and bytes, and compares them with its limits.

    Args:
        most: the limits by the options' names; 0 or missing: unlimited.
        by_key: addresses begin with digits of keys; else each address is an owner.

    Attributes:
        new: accepted partitions that may not be in the log yet; other threads may copy it.
        over: owners that have reached their byte limit.
        refused: the number of refusals by limit.
    """

    def __init__(
        self, most: Mapping[str, int] = MappingProxyType({}), *, by_key: bool = False
    ) -> None:
        self._most = {name: most.get(name, 0) for name in LIMITS}
        self._digits = PREFIX_DIGITS if by_key else None
        self.new: dict[TopicPartition, None] = {}
        self.over: set[str] = set()
        self.refused = Counter(dict.fromkeys(LIMITS, 0))
        self._topics = Counter[str]()  # stored and new ones
        self._owners = Counter[str]()
        self._partition_count = self._topic_count = 0
        self._size_bytes = Counter[str]()  # at the last scan of the log
        # Not in the scan: in the log's queue, or written since the scan began.
        self._under_way, self._stored = Counter[str](), Counter[str]()
        self._earlier = Counter[str]()  # written before the running scan
        self._logged: dict[str, tuple[float, int]] = {}
        self._last: dict[str, StoreLimitError] = {}

    @property
    def counts_bytes(self) -> bool:
        """Return True if bytes are limited."""
        return self._most[KEY_BYTES] > 0

    def owner(self, tp: TopicPartition) -> str:
        """Return a partition's owner."""
        return tp.partition[: self._digits]

    def why_not_new(self, tp: TopicPartition) -> StoreLimitError | None:
        """Return the error that refuses a new partition, if any."""
        is_topic = self._topics[tp.topic] > 0 or tp.topic.startswith(INTERNAL)
        counts = (
            (PARTITIONS, self._partition_count),
            (TOPICS, -1 if is_topic else self._topic_count),
            (OF_TOPIC, self._topics[tp.topic]),
            (OF_KEY, self._owners[self.owner(tp)]),
        )
        for name, count in counts:
            if 0 < self._most[name] <= count:
                return self._error(name, tp)
        return self.why_no_records(tp)

    def why_no_records(self, tp: TopicPartition) -> StoreLimitError | None:
        """Return the error that refuses records of a known partition, if any."""
        is_over = bool(self.over) and self.owner(tp) in self.over
        return self._error(KEY_BYTES, tp) if is_over else None

    def add(self, tp: TopicPartition) -> None:
        """Count an accepted new partition."""
        self.new[tp] = None
        self._count(tp)

    def take(self, tp: TopicPartition, size_bytes: int) -> bool:
        """Count records in the log's queue; return True if their owner has reached its limit."""
        if not self.counts_bytes:
            return False
        owner = self.owner(tp)
        self._under_way[owner] += size_bytes
        return self._is_news(owner)

    def store(self, tp: TopicPartition, size_bytes: int) -> None:
        """Count queued records as written."""
        owner = self.owner(tp)
        self._under_way[owner] -= size_bytes
        self._stored[owner] += size_bytes
        if not self._under_way[owner]:
            del self._under_way[owner]

    def begin_scan(self) -> None:
        """Note the start of a scan of the log."""
        self._earlier += self._stored
        self._stored = Counter()

    def apply(self, held: Usage) -> set[str]:
        """Apply the result of a scan; return owners that crossed their limit either way."""
        self.new = {tp: None for tp in self.new if tp not in held.seen}
        self._topics, self._owners = held.topics, held.owners
        self._partition_count = held.topics.total()
        self._topic_count = sum(not topic.startswith(INTERNAL) for topic in held.topics)
        for tp in self.new:
            self._count(tp)
        self._size_bytes, self._earlier = held.size_bytes, Counter()
        before, self.over = self.over, set()
        for owner in {*held.size_bytes, *self._under_way, *self._stored}:
            self._is_news(owner)
        return before ^ self.over

    def check(self, tp: TopicPartition, *, is_new: bool) -> StoreLimitError | None:
        """Return the error that refuses records, if any, and count it for the next log message."""
        error = self.why_not_new(tp) if is_new else self.why_no_records(tp)
        if error is not None:
            self.refused[error.option] += 1
            self._last[error.option] = error
        return error

    def report(self, now: float) -> None:
        """Log the refusals since the last message, by limit."""
        for option, error in self._last.items():
            count = self.refused[option]
            logged_at, logged = self._logged.get(option, (-LOG_INTERVAL_S, 0))
            if count == logged or now - logged_at < LOG_INTERVAL_S:
                continue
            self._logged[option] = now, count
            _log.error(
                "refused %(count)d times by limit %(option)s; the last one: %(why)s",
                {"count": count - logged, "option": option, "why": str(error)},
                extra={"event": "limit_reached"},
            )

    def _count(self, tp: TopicPartition) -> None:
        self._partition_count += 1
        self._topic_count += not (self._topics[tp.topic] or tp.topic.startswith(INTERNAL))
        self._topics[tp.topic] += 1
        self._owners[self.owner(tp)] += 1

    def _is_news(self, owner: str) -> bool:
        unseen = self._under_way, self._earlier, self._stored
        size_bytes = self._size_bytes[owner] + sum(each[owner] for each in unseen)
        if not 0 < self._most[KEY_BYTES] <= size_bytes or owner in self.over:
            return False
        self.over.add(owner)
        return True

    def _error(self, option: str, tp: TopicPartition) -> StoreLimitError:
        return StoreLimitError(*tp, self.owner(tp), option, self._most[option])


class AdmittedPartitions:
    """Admits partitions: all in the log, and new ones below the limits.

    Args:
        scheduler: fetches their missing records.
        lives_of: returns the end and history of a partition on disk.
    """

    def __init__(
        self,
        scheduler: FetchScheduler,
        lives_of: Callable[[TopicPartition], PartitionLives],
        limits: StoreLimits,
    ) -> None:
        self.by_name: dict[TopicPartition, StorePartition] = {}
        self.limits = limits
        self._scheduler = scheduler
        self._lives_of = lives_of
        self._is_full = False  # the disk

    def find(self, tp: TopicPartition) -> StorePartition | None:
        """Return a partition, new ones included; None if a limit refuses it."""
        found = self.admit(tp)
        return None if isinstance(found, StoreLimitError) else found

    def admit(self, tp: TopicPartition) -> StorePartition | StoreLimitError:
        """Return a partition, or the error that refuses it, which is counted."""
        partition = self.by_name.get(tp)
        if partition is None:
            end, history, promised, _ = self._lives_of(tp)
            if not end:
                if (error := self.limits.check(tp, is_new=True)) is not None:
                    return error
                self.limits.add(tp)
            fetcher = self._scheduler.fetcher(tp, end)
            partition = self.by_name[tp] = StorePartition(fetcher, end, end, history, promised)
        return partition

    def refusal(self, tp: TopicPartition) -> StoreLimitError | None:
        """Return and count the error that refuses a client's records, if any."""
        is_known = tp in self.by_name or self._lives_of(tp).end > 0
        return self.limits.check(tp, is_new=not is_known)

    def refuses(self, partition: StorePartition, end: int) -> bool:
        """Return True if records up to ``end`` are neither accepted nor fetched at present."""
        fetcher = partition.fetcher
        if end <= fetcher.next_offset:
            return False
        if not self._is_full and self.limits.check(fetcher.tp, is_new=False) is None:
            return False
        fetcher.raise_head(end)
        self._scheduler.forget(fetcher.tp)
        return True

    def on_taken(self, batch: RecordBatch) -> None:
        """Count records in the log's queue."""
        if self.limits.take(batch.tp, batch.values.size_bytes):
            self._change([self.limits.owner(batch.tp)])

    def on_stored(self, entries: Iterable[LogEntry]) -> None:
        """Count entries as written, or as dropped."""
        for entry in entries if self.limits.counts_bytes else ():
            batch = entry.batch if isinstance(entry, Stage) else entry
            if isinstance(batch, RecordBatch):
                self.limits.store(batch.tp, batch.values.size_bytes)

    def on_scan(self, held: Usage) -> None:
        """Apply a scan of the log: refused partitions continue if they have room again."""
        self._change(self.limits.apply(held))

    def on_room(self, *, is_full: bool) -> None:
        """Accept and fetch no records while the disk is full; continue when it has room."""
        self._is_full = is_full
        self._change(map(self.limits.owner, self.by_name))

    def _change(self, owners: Iterable[str]) -> None:
        changed = set(owners)
        for tp, partition in self.by_name.items() if changed else ():
            if self.limits.owner(tp) not in changed:
                continue
            if self._is_full or self.limits.why_no_records(tp) is not None:
                self._scheduler.forget(tp)
            elif partition.fetcher.next_offset < partition.fetcher.head:
                partition.fetcher.retry_unanswered()
                self._scheduler.visit_soon(partition.fetcher)
