"""Merging a log's small blocks beside its store, while the disk has little else to do.

The same thread compresses cold blocks, makes links, and discards what was staged too long ago.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Final

from dafka_core.errors import ClosedError, StoreError
from dafka_core.model.log_entries import STAGED_HOURS
from dafka_core.nodes.threads import NodeThread
from dafka_core.storage import Log
from dafka_core.storage.block_compressor import BlockCompressor
from dafka_core.storage.linker import Linker
from dafka_core.system.closing import ProcessBound

QUIET_S: Final = 0.25
"""Merging waits until nothing has been appended for so long."""

PILED_UP: Final = 512
"""With so many small blocks it does not wait: reading them would cost more than merging does."""

BUSY_SHARE: Final = 0.25
"""The share of the time that merging then takes at most, while records keep coming in."""

IDLE_S: Final = 1.0
"""How often the thread looks for blocks to merge."""

DISCARD_S: Final = 600.0
"""How often at least the thread looks for what was staged too long ago."""

LATE_SHARE: Final = 0.1
"""By how much of its time something may be discarded later."""

RETRY_S: Final = 30.0
"""How long the thread leaves a disk alone that has failed."""

_log = logging.getLogger("dafka.store")


class MergeThread(ProcessBound):
    """A thread that merges while there is something to merge, and gives way to appends.

    The thread logs an error of the disk and tries again later: without merging all records can be
    read all the same.

    Args:
        log: open for writing, until the thread is closed.
        staged_hours: after so long with nothing added, staged records are discarded.
        compressor: what has cold blocks compressed, if any are.
        linker: what makes links, if any are made.

    Attributes:
        merged_count: how often it has merged some blocks.
        merged_s: how long that took, in all.
        failed_count: how often the disk failed.
    """

    def __init__(
        self,
        log: Log,
        staged_hours: float = STAGED_HOURS,
        compressor: BlockCompressor | None = None,
        linker: Linker | None = None,
    ) -> None:
        self._log = log
        self._others = [each.step for each in (compressor, linker) if each is not None]
        self._staged_s = staged_hours * 3600
        self.merged_count = self.failed_count = 0
        self.merged_s = 0.0
        self._closed = threading.Event()
        self._thread = NodeThread("dafka-merger", self._run)
        self._thread.start()

    def close(self) -> None:
        """Ends, after the step under way: some ten milliseconds.  May be repeated."""
        self._closed.set()
        self._thread.join()

    def _run(self) -> None:
        discarded_s = time.monotonic()
        pause_s = 0.0
        while not self._closed.wait(pause_s):
            try:
                if time.monotonic() - discarded_s >= min(DISCARD_S, self._staged_s * LATE_SHARE):
                    discarded_s = time.monotonic()
                    self._discard_stale()
                pause_s = self._step()
            except ClosedError:
                return
            except StoreError as error:
                self.failed_count += 1
                _log.error(
                    "merging, compressing or linking blocks: %s",
                    error,
                    extra={"event": "merge_failed"},
                )
                pause_s = RETRY_S

    def _discard_stale(self) -> None:
        if self._log.clock.doubt():
            return
        count = self._log.discard_stale(self._staged_s, replicas=False)
        if count:
            text = "discarded what was staged in %d partitions, with nothing added for %g h"
            _log.warning(text, count, self._staged_s / 3600)

    def _step(self) -> float:
        """Merges, compresses or makes links once; returns the seconds to wait afterwards.

        While appends keep coming it only merges if there is much to merge.
        """
        busy = self._log.quiet_s < QUIET_S
        started_s = time.monotonic()
        if (not busy or self._log.small_blocks >= PILED_UP) and self._log.merge_step():
            took_s = time.monotonic() - started_s
            self.merged_count, self.merged_s = self.merged_count + 1, self.merged_s + took_s
        elif not any(step() for step in self._others):
            return QUIET_S if busy else IDLE_S
        return (time.monotonic() - started_s) * (1 / BUSY_SHARE - 1) if busy else 0.0
