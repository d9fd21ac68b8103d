"""Finds out which records a consumer waits for in vain: no store has them, and nobody sends them.

A FETCH that stays unanswered proves nothing: it may be lost, or a store may be away for a moment.
So the detector asks all stores what they hold (``StoreDirectory``), and takes records for lost when
each store that is there says that it does not have them, and some time has passed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import inf
from typing import Final, NamedTuple

from dafka_core.model.records import TopicPartition
from dafka_core.protocol.fetch_scheduler import FetchScheduler
from dafka_core.protocol.partition_fetcher import PartitionFetcher
from dafka_core.protocol.role import Outgoing
from dafka_core.protocol.store_directory import StoreDirectory, StoreQuery

TRIMMED_S: Final = 5.0
"""Stores are asked about records that nobody has sent for so long, and records before those that
they have are lost.  Longer than a FETCH and its first repetitions take, and than a peer that has
ended is still taken for alive (``peer_expiry_ms``): with that, who might have them is known."""

AWAY_S: Final = 60.0
"""The same where somebody who is away may have the records: a store that was there before, or
whoever has said that there are any.  A store that is started again is back within this time, also
one whose machine starts again with it."""

TRIMMED: Final = "the stores have trimmed them"
"""Why they are gone, where stores have later ones."""

LOOK_MAX_S: Final = 15.0
"""How rarely the stores are asked again; the answer may be long."""


class Loss(NamedTuple):
    """Records ``[start, end)`` of a partition that nobody has."""

    tp: TopicPartition
    start: int
    end: int
    available: int | None
    """The earliest record there is after them, if there is one."""
    why: str
    is_beginning: bool = False
    """Whether the reader began at the earliest record, which is the one after them: it lost none
    that it was to read."""


class LossDetector:
    """Watches the partitions of a scheduler that ask in vain."""

    def __init__(self, directory: StoreDirectory, scheduler: FetchScheduler) -> None:
        self._directory = directory
        self._scheduler = scheduler
        self._question: StoreQuery | None = None
        self._asked_at = self._look_due = -inf
        self._met = False
        self._look_s = TRIMMED_S

    def ask(self, now: float) -> list[Outgoing]:
        """Asks the stores about what is waited for in vain, at intervals."""
        if self._question is not None or now < self._look_due:
            return []
        wanted = {each.tp: each.next_offset for each in self._scheduler.unanswered(now, TRIMMED_S)}
        self._look_s = min(2 * self._look_s, LOOK_MAX_S) if wanted else TRIMMED_S
        self._look_due = now + self._look_s
        if not wanted:
            return []
        self._asked_at = now
        topics = {tp.topic for tp in wanted}
        self._question, asked = self._directory.ask_heads(now, topics, wanted=wanted)
        return asked

    def losses(self, now: float, fetchers: Mapping[TopicPartition, PartitionFetcher]) -> list[Loss]:
        """What is lost by what the stores have answered, or where there is no store.

        All gaps of a partition, in order: who waits at the first has no use for the others.  It is
        found again when its partition has waited as long again.
        """
        if bool(self._directory.stores) != self._met:
            # The last store has gone, or the first one is back: it has its time to answer.
            self._met, self._asked_at = not self._met, now
        question = self._question
        if question is None:
            return []
        # Without a tower, a store that does not answer is not known to be gone.
        if not question.answered and now < self._asked_at + AWAY_S:
            return []
        self._directory.forget(question)
        self._question = None
        found: list[Loss] = []
        for tp, start in question.wanted.items():
            fetcher, first = fetchers.get(tp), question.available.get(tp)
            # It may have gone on meanwhile, and what a store has will come.
            if fetcher is None or fetcher.next_offset != start or first == start:
                continue
            known = first is not None and question.answered and not self._directory.away
            if fetcher.unanswered_s(now) >= (TRIMMED_S if known else AWAY_S):
                found.extend(self._losses(fetcher, first))
        return found

    def _losses(self, fetcher: PartitionFetcher, first: int | None) -> Iterator[Loss]:
        """The gaps before what the stores have from ``first`` on, and before what is kept here.

        If there is nothing of either, all up to the head.
        """
        why = "no store has them, and whoever had them is gone"
        if first is not None:
            why = TRIMMED
        elif not self._directory.stores:
            why = "no store is there, and whoever had them is gone"
        there = [(batch.offset, batch.end) for batch in fetcher.kept]
        if first is not None:
            there = [*(each for each in there if each[0] < first), (first, first)]
        start = fetcher.next_offset
        if not there:
            yield Loss(fetcher.tp, start, fetcher.head, None, why)
        for begin, end in there:
            if begin > start:
                yield Loss(fetcher.tp, start, begin, begin, why)
            start = max(start, end)
