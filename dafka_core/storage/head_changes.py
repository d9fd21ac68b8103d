"""Which partitions have changed lately, for those who wait for that.

A watcher names the change that it has heard of last, and is woken by the writer.  So nobody looks
at the tables while nothing happens, and nobody at partitions in which nothing has happened.
"""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Collection, Iterator
from typing import Final, Protocol

from dafka_core.model.records import TopicPartition

MAX_KEPT: Final = 10_000
"""Partitions whose last change is remembered: as many as one answer names."""

Topics = frozenset[str] | None
"""Those that a watcher asks about; None for all."""


class Woken(Protocol):
    """What a watcher is woken by: a ``threading.Event``, or whatever else is set."""

    def set(self) -> None:
        """There is a change.  Called in the writer's thread, which must not be kept waiting."""


class HeadChanges:
    """The order in which partitions were written, trimmed or cut last.  Thread-safe.

    Attributes:
        number: of the last change; 0 when the log was opened.
    """

    def __init__(self) -> None:
        self.number = 0
        self._lock = threading.Lock()
        self._numbers = OrderedDict[TopicPartition, int]()  # the last change of each, in order
        self._forgotten = 0  # of changes up to this one not all are remembered
        self._watchers: dict[Woken, Topics] = {}

    def add(self, changed: Collection[TopicPartition], *, wakes: bool = True) -> None:
        """Notes partitions whose change readers see from now on, and wakes who waits for one.

        Partitions that change together are noted before, too, when readers are about to see it, and
        wake nobody: else who sees it just then could be told of one of them alone.
        """
        if not changed:
            return
        with self._lock:
            self.number += 1
            for tp in changed:
                self._numbers[tp] = self.number
                self._numbers.move_to_end(tp)
            while len(self._numbers) > MAX_KEPT:
                _, self._forgotten = self._numbers.popitem(last=False)
            if wakes and self._watchers:
                topics = {tp.topic for tp in changed}
                for woken, asked in self._watchers.items():
                    if asked is None or not asked.isdisjoint(topics):
                        woken.set()

    def since(self, number: int, topics: Topics) -> list[TopicPartition] | None:
        """The partitions that have changed after a change; None where that is not known any more.

        Some may be as they were: with records that are staged, for instance.
        """
        with self._lock:
            return self._since(number, topics)

    @contextlib.contextmanager
    def watching(self, number: int, topics: Topics) -> Iterator[threading.Event]:
        """What is set as soon as ``since`` has something to say."""
        woken = threading.Event()
        with self.waking(woken, number, topics):
            yield woken

    @contextlib.contextmanager
    def waking(self, woken: Woken, number: int, topics: Topics) -> Iterator[None]:
        """The same, of what the caller has: it is set at each change, until this ends."""
        with self._lock:
            if self._since(number, topics) != []:
                woken.set()
            self._watchers[woken] = topics
        try:
            yield
        finally:
            with self._lock:
                del self._watchers[woken]

    def _since(self, number: int, topics: Topics) -> list[TopicPartition] | None:
        if not self._forgotten <= number <= self.number:
            return None
        found = []
        for tp, changed in reversed(self._numbers.items()):
            if changed <= number:
                break
            if topics is None or tp.topic in topics:
                found.append(tp)
        return found
