"""Limits of a store: topics, partitions, and bytes per owner.

A partition's owner follows from its address, which begins with digits of the owner's key
(docs/security.md).  A partition on the disk is always continued, within its owner's byte limit. A
partition without records, after retention or a deletion, does not count.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from dafka_core.config.node_options import StoreLimitError
from dafka_core.model.log_entries import LogEntry, records_of
from dafka_core.model.names import INTERNAL
from dafka_core.model.records import TopicPartition
from dafka_core.security.permissions import PREFIX_DIGITS

PARTITIONS: Final = "max_partitions"
TOPICS: Final = "max_topics"
OF_TOPIC: Final = "max_partitions_per_topic"
OF_KEY: Final = "max_partitions_per_key"
KEY_BYTES: Final = "max_key_bytes"
# The options' names, in the order of ``StoreLimitOptions``.
LIMITS: Final = (PARTITIONS, TOPICS, OF_TOPIC, OF_KEY, KEY_BYTES)
# Interval of log messages about one limit: any peer may cause thousands in a second.
LOG_INTERVAL_S: Final = 60.0

_log = logging.getLogger("dafka.store")


@dataclass(slots=True)
class Usage:
    """The contents of a store's log."""

    topics: Counter[str] = field(default_factory=Counter)  # partitions with records, by topic
    owners: Counter[str] = field(default_factory=Counter)  # the same, by owner
    size_bytes: Counter[str] = field(default_factory=Counter)  # by owner
    # Partitions that were new at the start of the scan and are in the log.
    seen: set[TopicPartition] = field(default_factory=set)


class StoreLimits:
    """Counts a store's stored and pending partitions and bytes, and compares them with its limits.

    Args:
        most: the limits by the options' names; 0 or missing: unlimited.
        by_key: addresses begin with digits of keys; else each address is an owner.
    """

    def __init__(
        self, most: Mapping[str, int] = MappingProxyType({}), *, by_key: bool = False
    ) -> None:
        self._most = {name: most.get(name, 0) for name in LIMITS}
        self._digits = PREFIX_DIGITS if by_key else None
        self.counts_bytes = self._most[KEY_BYTES] > 0  # bytes are limited
        # Accepted partitions that may not be in the log yet; other threads may copy it.
        self.new: dict[TopicPartition, None] = {}
        self.over: set[str] = set()  # owners that have reached their byte limit
        self.refused = Counter(dict.fromkeys(LIMITS, 0))  # the number of refusals by limit
        # Stored and new partitions, by limit and by the name for which it counts them.
        self._counts = Counter[tuple[str, str]]()
        # Bytes by owner: found by the last scan, in the log's queue, and written since that scan
        # began; ``_scanned`` of the written ones are found by the scan that runs now.
        self._found = Counter[str]()
        self._queued = Counter[str]()
        self._written = Counter[str]()
        self._scanned = Counter[str]()
        self._last: dict[str, StoreLimitError] = {}  # the last refusal by limit
        self._logged: dict[str, tuple[float, int]] = {}  # time and number of logged refusals

    def owner(self, tp: TopicPartition) -> str:
        """Return a partition's owner."""
        return tp.partition[: self._digits]

    def check(self, tp: TopicPartition, *, is_new: bool) -> StoreLimitError | None:
        """Return the error that refuses records, if any, and count it for the next log message."""
        if not is_new and not self.over:
            return None
        owner, counted = self.owner(tp), self._counted_for(tp) if is_new else ()
        reached = [each[0] for each in counted if 0 < self._most[each[0]] <= self._counts[each]]
        if owner in self.over:
            reached.append(KEY_BYTES)
        if not reached:
            return None
        option = reached[0]
        self.refused[option] += 1
        error = self._last[option] = StoreLimitError(*tp, owner, option, self._most[option])
        return error

    def add(self, tp: TopicPartition) -> None:
        """Count an accepted new partition."""
        self.new[tp] = None
        self._counts.update(self._counted_for(tp))

    def on_queued(self, entry: LogEntry) -> set[str]:
        """Count an entry in the log's queue; return its owner if that has reached its limit."""
        return self._new_over(self._add(self._queued, entry, 1))

    def on_written(self, entry: LogEntry) -> None:
        """Count a queued entry as written."""
        self._add(self._queued, entry, -1)
        self._add(self._written, entry, 1)

    def begin_scan(self) -> None:
        """Note the start of a scan of the log."""
        self._scanned = self._written.copy()

    def apply(self, usage: Usage) -> set[str]:
        """Apply the result of a scan; return owners that crossed their limit either way."""
        self._counts = Counter({(OF_TOPIC, topic): n for topic, n in usage.topics.items()})
        self._counts.update({(OF_KEY, owner): n for owner, n in usage.owners.items()})
        self._counts[PARTITIONS, ""] = usage.topics.total()
        self._counts[TOPICS, ""] = sum(not name.startswith(INTERNAL) for name in usage.topics)
        self.new = {tp: None for tp in self.new if tp not in usage.seen}
        for tp in self.new:
            self._counts.update(self._counted_for(tp))
        self._found, self._written = usage.size_bytes, self._written - self._scanned
        self._scanned = Counter()
        before, self.over = self.over, set()
        self._queued = +self._queued  # without owners whose records are all written
        self._new_over(*self._found, *self._queued, *self._written)
        return before ^ self.over

    def report(self, now: float) -> None:
        """Log the refusals since the last message, by limit."""
        for option, error in self._last.items():
            count = self.refused[option]
            logged_at, logged = self._logged.get(option, (-LOG_INTERVAL_S, 0))
            if count > logged and now - logged_at >= LOG_INTERVAL_S:
                self._logged[option] = now, count
                text = "refused %(count)d times by limit %(option)s; the last one: %(why)s"
                facts = {"count": count - logged, "option": option, "why": str(error)}
                _log.error(text, facts, extra={"event": "limit_reached"})

    def _counted_for(self, tp: TopicPartition) -> Iterator[tuple[str, str]]:
        """Yield the limits that a new partition counts for, and the names that it counts under.

        ``Counter.update`` counts each as it is yielded, so the test for a new topic precedes the
        topic's count.
        """
        yield PARTITIONS, ""
        if not (self._counts[OF_TOPIC, tp.topic] or tp.topic.startswith(INTERNAL)):
            yield TOPICS, ""
        yield OF_TOPIC, tp.topic
        yield OF_KEY, self.owner(tp)

    def _add(self, sizes: Counter[str], entry: LogEntry, sign: int) -> str:
        """Count the bytes of an entry's records, if it has any; return their owner."""
        batch = records_of(entry)
        if batch is None:
            return ""
        owner = self.owner(batch.tp)
        sizes[owner] += sign * batch.values.size_bytes
        return owner

    def _new_over(self, *owners: str) -> set[str]:
        """Add those owners to ``over`` that have reached their limit; return the new ones."""
        limit, sizes = self._most[KEY_BYTES], (self._found, self._queued, self._written)
        reached = {each for each in owners if 0 < limit <= sum(size[each] for size in sizes)}
        reached -= self.over
        self.over |= reached
        return reached
