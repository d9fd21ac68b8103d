"""Detects lost records: a consumer waits for them, no store has them, and no peer sends them.

An unanswered FETCH proves nothing: it may be lost, or a store may be away for a moment.  So the
detector asks all stores for their partitions (``StoreDirectory``), and declares records lost if
each reachable store answers without them, and some time has passed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import inf
from typing import Final, NamedTuple

from dafka_core.model.records import TopicPartition
from dafka_core.protocol import timing
from dafka_core.protocol.fetch_scheduler import FetchScheduler
from dafka_core.protocol.partition_fetcher import PartitionFetcher
from dafka_core.protocol.role import Outgoing
from dafka_core.protocol.store_directory import StoreDirectory, StoreQuery

TRIMMED: Final = "the stores have trimmed them"  # reason of a loss if stores have later records


class Loss(NamedTuple):
    """Records ``[start, end)`` of a partition that no node has."""

    tp: TopicPartition
    start: int
    end: int
    available: int | None  # the earliest later record, if any
    why: str
    is_beginning: bool = False
    """The reader begins at the earliest record, so it has lost none that it was to read."""


class LossDetector:
    """Watches the partitions of a scheduler that wait in vain."""

    def __init__(self, directory: StoreDirectory, scheduler: FetchScheduler) -> None:
        self._directory = directory
        self._scheduler = scheduler
        self._question: StoreQuery | None = None
        self._asked_at = self._due = -inf
        self._had_stores = False
        self._interval_s = timing.LOSS_CHECK_S

    def ask(self, now: float) -> list[Outgoing]:
        """Ask the stores about missing records, at intervals."""
        if self._question is not None or now < self._due:
            return []
        waiting = self._scheduler.unanswered(now, timing.LOSS_CHECK_S)
        wanted = {each.tp: each.next_offset for each in waiting}
        longer_s = min(2 * self._interval_s, timing.MAX_LOSS_CHECK_S)
        self._interval_s = longer_s if wanted else timing.LOSS_CHECK_S
        self._due = now + self._interval_s
        if not wanted:
            return []
        self._asked_at = now
        topics = {tp.topic for tp in wanted}
        self._question, asked = self._directory.ask_heads(now, topics, wanted=wanted)
        return asked

    def losses(self, now: float, fetchers: Mapping[TopicPartition, PartitionFetcher]) -> list[Loss]:
        """Return losses proved by the stores' answers, or by the absence of stores.

        All gaps of a partition, in order: a reader that waits at the first has no use for the
        others.  A loss is returned again after its partition has waited as long again.
        """
        if bool(self._directory.stores) != self._had_stores:
            # The last store has gone, or the first one has returned: give it time to answer.
            self._had_stores, self._asked_at = not self._had_stores, now
        question = self._question
        # Without a tower, a store that does not answer may still exist.
        if question is None or not (
            question.answered or now >= self._asked_at + timing.ABSENT_STORE_S
        ):
            return []
        self._directory.forget(question)
        self._question = None
        found: list[Loss] = []
        for tp, start in question.wanted.items():
            fetcher, first = fetchers.get(tp), question.available.get(tp)
            if fetcher is None or fetcher.next_offset != start:
                continue  # the partition has advanced meanwhile
            is_sure = first is not None and question.answered and not self._directory.lost
            wait_s = timing.LOSS_CHECK_S if is_sure else timing.ABSENT_STORE_S
            if fetcher.unanswered_s(now) >= wait_s:
                found.extend(self._gaps(fetcher, first))
        return found

    def _gaps(self, fetcher: PartitionFetcher, first: int | None) -> Iterator[Loss]:
        """Yield the gaps before the kept records, and before a store's first record, ``first``.

        None if a store has the next record, which will arrive.  Without any of these, the gap
        lasts up to the head.
        """
        there = [(batch.offset, batch.end) for batch in fetcher.kept]
        why = "no store has them, and the node that had them is gone"
        if first is not None:
            why = TRIMMED
            there = [*(each for each in there if each[0] < first), (first, first)]
        elif not self._directory.stores:
            why = "no store is reachable, and the node that had them is gone"
        start = fetcher.next_offset
        if not there:
            yield Loss(fetcher.tp, start, fetcher.head, None, why)
        for begin, end in there:
            if begin > start:
                yield Loss(fetcher.tp, start, begin, begin, why)
            start = max(start, end)
