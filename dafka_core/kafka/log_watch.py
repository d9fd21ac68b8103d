"""Who waits for a log's changes in an event loop: one watcher for all, which looks at no table."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Iterator

from dafka_core.records import TopicPartition
from dafka_core.storage.head_changes import HeadChanges


class Wait:
    """One who waits; ``changed`` are the partitions that have changed since it looked last."""

    def __init__(self) -> None:
        self.changed: set[TopicPartition] = set()
        self.woken = asyncio.Event()

    def take(self) -> set[TopicPartition]:
        """What has changed; from now on it is about what changes then."""
        taken, self.changed = self.changed, set()
        self.woken.clear()
        return taken


class LogWatch:
    """Wakes those who wait for some partitions, as soon as one of them was written or trimmed.

    All of it happens in the event loop in which it was made, but for ``set``, which the log's
    writer calls.
    """

    def __init__(self, changes: HeadChanges) -> None:
        self._loop = asyncio.get_running_loop()
        self._changes = changes
        self._number = changes.number
        self._is_due = False
        self._waits: dict[TopicPartition, set[Wait]] = {}
        self._watching = contextlib.ExitStack()
        self._watching.enter_context(changes.waking(self, self._number, None))

    @contextlib.contextmanager
    def waiting(self, partitions: Collection[TopicPartition]) -> Iterator[Wait]:
        """Who waits for changes of partitions, from now on: look at them after this, not before."""
        wait = Wait()
        for tp in partitions:
            self._waits.setdefault(tp, set()).add(wait)
        try:
            yield wait
        finally:
            for tp in partitions:
                # A partition may be named twice.
                waits = self._waits.get(tp, set())
                waits.discard(wait)
                if not waits:
                    self._waits.pop(tp, None)

    def set(self) -> None:
        """Something has changed (in the thread of who writes, which must not be kept waiting)."""
        if not self._is_due:
            self._is_due = True
            with contextlib.suppress(RuntimeError):  # the loop has ended before the log
                self._loop.call_soon_threadsafe(self._look)

    def close(self) -> None:
        """Hears of no change any more."""
        self._watching.close()

    def _look(self) -> None:
        self._is_due = False  # first: what changes while it looks is looked at again
        since, self._number = self._number, self._changes.number
        changed = self._changes.since(since, None)
        for tp in self._waits if changed is None else changed:
            for wait in self._waits.get(tp, ()):
                wait.changed.add(tp)
                wait.woken.set()
