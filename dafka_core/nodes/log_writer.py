"""Writing a store's log beside its loop: while the disk syncs, the next records come in."""

from __future__ import annotations

import threading
from collections.abc import Callable

from dafka_core.errors import DafkaError
from dafka_core.nodes.threads import NodeThread
from dafka_core.storage import Log, LogEntry

Outcomes = list[DafkaError | None]
"""What the log says of each entry: None when it is done."""


class LogWriter:
    """A thread that has the log write one group of entries at a time.

    Args:
        log: nobody else writes to it.
        done: called in the thread after each group: with its entries and their outcomes when
            they are on disk, with the error when none is.  No group is taken after an error.
    """

    def __init__(
        self, log: Log, done: Callable[[list[LogEntry], Outcomes | BaseException], None]
    ) -> None:
        self._log = log
        self._done = done
        self._changed = threading.Condition()
        self._group: list[LogEntry] | None = None
        self._closed = False
        self._thread = NodeThread("dafka-appender", self._run)
        self._thread.start()

    @property
    def busy(self) -> bool:
        """Whether a group is on its way to the disk."""
        return self._group is not None

    def append(self, entries: list[LogEntry]) -> None:
        """Takes a group; the appender must not be busy."""
        with self._changed:
            assert self._group is None
            self._group = entries
            self._changed.notify()

    def close(self) -> None:
        """Ends, after the group under way."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._group is not None or self._closed)
                entries = self._group
            if entries is None:
                return
            try:
                outcomes = self._log.write(entries)
            except BaseException as error:  # noqa: BLE001 -- the store fails with it
                self._done(entries, error)
                return
            self._group = None
            self._done(entries, outcomes)
