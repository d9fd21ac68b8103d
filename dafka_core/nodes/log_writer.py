"""Writing a store's log beside its loop: while the disk syncs, the next records come in."""

from __future__ import annotations

import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Final

from dafka_core.closing import ProcessBound
from dafka_core.errors import DafkaError
from dafka_core.log_entries import LogEntry
from dafka_core.nodes.disk_watch import DiskWatch
from dafka_core.nodes.threads import NodeThread
from dafka_core.storage import Log

CHECK_INTERVAL_S: Final = 1.0
"""How often an idle writer looks whether the log is still there, and can be read.  A store has to
tell that soon: readers go on asking it."""

Outcomes = list[DafkaError | None]
"""What the log says of each entry: None when it is done."""


class LogWriter(ProcessBound):
    """A thread that has the log write one group of entries at a time.

    Args:
        log: no other thread writes to it.
        done: called in the thread after each group: with the entries and their outcomes when they
            are on disk, synced; with the error when none of them is.  After an error no group is
            written any more.  Also called, without entries, when the log's directory is gone, or
            nothing can be read any more.
    """

    def __init__(
        self, log: Log, done: Callable[[list[LogEntry], Outcomes | BaseException], None]
    ) -> None:
        self._log = log
        self._done = done
        self._groups: SimpleQueue[list[LogEntry] | None] = SimpleQueue()
        self.busy = False
        """Whether a group is on its way to the disk."""
        self.watch = DiskWatch(log.directory)
        """What it has seen of the disk."""
        self._thread = NodeThread("dafka-log-writer", self._run)
        self._thread.start()

    def write(self, entries: list[LogEntry]) -> None:
        """Has the thread write a group; only while it is not ``busy``."""
        assert not self.busy
        self.busy = True
        self._groups.put(entries)

    def close(self) -> None:
        """Ends, after the group on its way."""
        self._groups.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (entries := self._next_group()) is not None:
            try:
                if not entries:
                    self._log.check_in_place()
                    self.watch.look(time.monotonic())
                    continue
                self.watch.begin()
                outcomes = self._log.write(entries)
                self.watch.end(entries, outcomes)
            except BaseException as error:  # noqa: BLE001 -- the store fails with it
                self.watch.fail(error)
                self._done(entries, error)
                return
            self.busy = False
            self._done(entries, outcomes)
            del entries, outcomes  # the thread keeps no group while it waits for the next one

    def _next_group(self) -> list[LogEntry] | None:
        """Entries to write, none of them when it was idle for a while; None to end."""
        try:
            return self._groups.get(timeout=CHECK_INTERVAL_S)
        except Empty:
            return []
