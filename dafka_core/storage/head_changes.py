"""Recently changed partitions, for watchers.

A watcher names the last change that it knows, and the writer wakes it.  So an idle log costs
nothing, and unchanged partitions are never examined.
"""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Collection, Iterator
from typing import Final, Protocol, TypeVar

from dafka_core.model.records import TopicPartition

MAX_KEPT: Final = 10_000
"""Number of partitions with a remembered change: as many as one answer names."""

Topics = frozenset[str] | None  # the topics of a watcher; None for all


class Woken(Protocol):
    """A ``threading.Event``, or another object to set."""

    def set(self) -> None:
        """Signal a change.  Called in the writer's thread, which must not be kept waiting."""


W = TypeVar("W", bound=Woken)


class HeadChanges:
    """The order in which partitions were last written, trimmed or cut.  Thread-safe."""

    def __init__(self) -> None:
        self.number = 0  # of the last change
        self._lock = threading.RLock()
        self._numbers = OrderedDict[TopicPartition, int]()  # the last change of each, in order
        self._forgotten = 0  # up to this number some changes are forgotten
        self._watchers: dict[Woken, Topics] = {}

    def add(self, changed: Collection[TopicPartition], *, wakes: bool = True) -> None:
        """Note partitions whose change is visible from now on, and wake their watchers.

        Partitions that change together are also noted shortly before they become visible, waking no
        watcher: otherwise a reader at that moment could learn of only one of them.
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
                for woken, watched in self._watchers.items():
                    if watched is None or not watched.isdisjoint(topics):
                        woken.set()

    def since(self, number: int, topics: Topics) -> list[TopicPartition] | None:
        """Return the partitions changed after a change; None if that is forgotten.

        Some may be unchanged for readers: with staged records, for instance.
        """
        found = []
        with self._lock:
            if not self._forgotten <= number <= self.number:
                return None
            for tp, changed in reversed(self._numbers.items()):
                if changed <= number:
                    break
                if topics is None or tp.topic in topics:
                    found.append(tp)
        return found

    @contextlib.contextmanager
    def waking(self, woken: W, number: int, topics: Topics) -> Iterator[W]:
        """Set the caller's object as soon as ``since`` has a result, and at each change after."""
        with self._lock:
            if self.since(number, topics) != []:
                woken.set()
            self._watchers[woken] = topics
        try:
            yield woken
        finally:
            with self._lock:
                del self._watchers[woken]
