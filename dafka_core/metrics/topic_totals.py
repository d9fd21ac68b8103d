"""How much a store has of each topic, and which topics have numbers of their own.

A store may have a million partitions, and anybody may make topics: so what is told is of a limited
number of topics, and looking costs a limited share of the time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

from dafka_core.names import escape
from dafka_core.nodes.disk_watch import OTHER
from dafka_core.storage import Log

SHARE: Final = 0.01
"""Of the time: it is looked again only after a hundred times as long as it took last."""

PAGE: Final = 10_000
"""Partitions that are looked at in one step."""


class Total(NamedTuple):
    """Of one topic."""

    partitions: int = 0
    records: int = 0


class TopicTotals:
    """The totals of a log, as they were when it was looked last.

    Args:
        log: any thread may read it.
    """

    def __init__(self, log: Log, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._clock = clock
        self._number = -1
        self._due = 0.0
        self._totals: dict[str, Total] = {}

    def look(self) -> dict[str, Total]:
        """The totals by topic."""
        now, number = self._clock(), self._log.changes.number
        if number != self._number and now >= self._due:
            self._totals, self._number = self._summed(), number
            took_s = self._clock() - now
            self._due = now + took_s / SHARE
        return self._totals

    def _summed(self) -> dict[str, Total]:
        totals: dict[str, Total] = {}
        found = self._log.partitions_after(None, None, PAGE)
        while found:
            for each in found:
                if each.end:
                    partitions, records = totals.get(each.topic, Total())
                    records += each.end - each.earliest
                    totals[each.topic] = Total(partitions + 1, records)
            found = self._log.partitions_after(None, found[-1].tp, PAGE)
        return totals


class ShownTopics:
    """The topics with numbers of their own: at first the largest ones, later ones as they come.

    A topic that has them keeps them as long as it is there, so that no line in a graph ends because
    another topic grew.

    Args:
        most: how many may have them.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._shown: dict[str, str] = {}

    def choose(self, totals: dict[str, Total]) -> None:
        """Forgets topics that are gone, and takes new ones while there is room."""
        self._shown = {each: name for each, name in self._shown.items() if each in totals}
        room = self._most - len(self._shown)
        if room > 0 and len(totals) > len(self._shown):
            new = [each for each in totals if each not in self._shown]
            new.sort(key=lambda each: (-totals[each].records, each))
            self._shown.update((each, escape(each)) for each in new[:room])

    def label(self, topic: str) -> str:
        """The topic's name for people, or ``OTHER``."""
        return self._shown.get(topic, OTHER)

    def summed(
        self, counts: Iterable[tuple[str, tuple[int, int]]]
    ) -> Iterator[tuple[str, int, int]]:
        """Pairs of numbers by topic, those of other topics summed up."""
        sums = dict.fromkeys(self._shown.values(), (0, 0))
        for topic, (one, two) in counts:
            label = self.label(topic)
            before = sums.get(label, (0, 0))
            sums[label] = before[0] + one, before[1] + two
        for label, (one, two) in sums.items():
            yield label, one, two
