"""Totals of a store's topics, at a limited cost.

A store may have a million partitions, and any number of topics: so a limited number of topics have
their own metrics, and summing them takes a limited share of the time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from dafka_core.model.names import escape
from dafka_core.nodes.store_loop import OTHER
from dafka_core.storage import Log

SHARE: Final = 0.01
"""Maximum share of the time for summing: the next sum is due after 100 times the last duration."""

PAGE: Final = 10_000  # partitions read per step


class Total(NamedTuple):
    """Totals of a topic."""

    partitions: int = 0
    records: int = 0


class TopicTotals:
    """The totals of a log's topics, updated now and then; safe in any thread."""

    def __init__(self, log: Log, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._clock = clock
        self._number = -1
        self._due = 0.0
        self._totals: dict[str, Total] = {}

    def current(self) -> dict[str, Total]:
        """Return the totals by topic; sum them anew if that is due."""
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
    """The topics with their own metrics: at first the largest, then new ones up to ``most``.

    A topic keeps its metrics while it exists, so that no line in a graph ends because another
    topic grew.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._shown: dict[str, str] = {}

    def choose(self, totals: dict[str, Total]) -> None:
        """Drop topics that no longer exist, and add new ones up to the maximum."""
        self._shown = {each: name for each, name in self._shown.items() if each in totals}
        room = self._most - len(self._shown)
        if room > 0 and len(totals) > len(self._shown):
            new = [each for each in totals if each not in self._shown]
            new.sort(key=lambda each: (-totals[each].records, each))
            self._shown.update((each, escape(each)) for each in new[:room])

    def label(self, topic: str) -> str:
        """Return the topic's escaped name, or ``OTHER``."""
        return self._shown.get(topic, OTHER)

    def summed(self, counts: Iterable[tuple[str, int]]) -> dict[str, int]:
        """Sum numbers of topics by label."""
        sums = dict.fromkeys(self._shown.values(), 0)
        for topic, count in counts:
            label = self.label(topic)
            sums[label] = sums.get(label, 0) + count
        return sums
