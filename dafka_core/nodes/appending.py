"""Appending to a store's log beside its loop: while the disk syncs, the next records come in."""

from __future__ import annotations

import threading
from collections.abc import Callable

from dafka_core.records import Run
from dafka_core.storage import Log


class Appender:
    """A thread that appends one group of runs at a time.

    Args:
        log: nobody else appends to it.
        done: called in the thread after each group: with its runs and None when they are on
            disk, with the error when they are not.  No group is taken after an error.
    """

    def __init__(self, log: Log, done: Callable[[list[Run], BaseException | None], None]) -> None:
        self._log = log
        self._done = done
        self._changed = threading.Condition()
        self._group: list[Run] | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="dafka-appender", daemon=True)
        self._thread.start()

    @property
    def busy(self) -> bool:
        """Whether a group is on its way to the disk."""
        return self._group is not None

    def append(self, runs: list[Run]) -> None:
        """Takes a group; the appender must not be busy."""
        with self._changed:
            assert self._group is None
            self._group = runs
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
                runs = self._group
            if runs is None:
                return
            try:
                self._log.append(runs)
            except BaseException as error:  # noqa: BLE001 -- the store fails with it
                self._done(runs, error)
                return
            self._group = None
            self._done(runs, None)
