"""A queue whose owners take turns: none delays the others, whatever number of entries it adds."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from itertools import chain
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class FairQueue(Generic[K, V]):
    """Values by owner and key.  The next one is the oldest of the owner after ``taken_from``."""

    def __init__(self) -> None:
        self.taken_from = ""
        # By owner, never empty.  A plain dict skips all removed keys before its first one.
        self._queues: OrderedDict[str, OrderedDict[K, V]] = OrderedDict()
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[V]:
        return chain.from_iterable(queue.values() for queue in self._queues.values())

    def put(self, owner: str, key: K, value: V) -> None:
        """Add a value behind the others of its owner, or replace the one with its key."""
        queue = self._queues.get(owner)
        if queue is None:
            queue = self._queues[owner] = OrderedDict()
        self._size += key not in queue
        queue[key] = value

    def take(self) -> V | None:
        """Remove the next value, if any; its owner's next one waits for the other owners."""
        if not self._queues:
            return None
        self.taken_from, queue = self._queues.popitem(last=False)
        _, value = queue.popitem(last=False)
        self._size -= 1
        if queue:
            self._queues[self.taken_from] = queue
        return value

    def remove(self, owner: str, key: K) -> V | None:
        """Remove and return a value, if it is there."""
        queue = self._queues.get(owner)
        if queue is None or key not in queue:
            return None
        self._size -= 1
        value = queue.pop(key)
        if not queue:
            del self._queues[owner]
        return value
