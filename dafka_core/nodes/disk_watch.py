"""A log writer's observations of its disk: amounts, durations and errors.

It logs a slow, full or nearly full disk while the store runs.  Other disk errors end the store.
"""

from __future__ import annotations

import logging
import os
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from dafka_core.errors import DafkaError, DiskFullError
from dafka_core.model.histograms import Durations
from dafka_core.model.log_entries import LogEntry, Promise, SetAside, Stage
from dafka_core.model.records import RecordBatch
from dafka_core.security.throttles import LogThrottle

SLOW_S: Final = 1.0
"""A group that takes longer is slow: a healthy disk takes some milliseconds, and every producer
waits for it."""

CHECK_S: Final = 10.0  # interval of checks of the free space

LOW_SHARE: Final = 0.05
LOW_BYTES: Final = 1 << 30
"""A disk is nearly full if less than this share, and less than this size, is free.  Both: a share
of a large disk is a lot, and a small disk never has this size."""

MAX_TOPICS: Final = 1_000  # topics counted separately; others are counted under ``OTHER``

OTHER: Final = "other"

_log = logging.getLogger("dafka.store")


class Disk(NamedTuple):
    """The file system of a directory."""

    size_bytes: int
    free_bytes: int

    @classmethod
    def of(cls, directory: Path) -> Disk:
        """Return its present state; OSError if the directory cannot be reached."""
        found = os.statvfs(directory)
        return cls(found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize)

    @property
    def is_low(self) -> bool:
        """Return True if it is nearly full."""
        return self.free_bytes < min(LOW_BYTES, LOW_SHARE * self.size_bytes)


class DiskWatch:
    """Counters of the log's writes, which the log writer's thread updates and other threads read.

    Attributes:
        appends: durations of groups from the log writer to the disk, synced.
        records, bytes: appended or staged records, and the bytes of their contents.
        topics: the same by topic, as two-element lists.
        fences: how often records were set aside, since another history of their partition had won.
        promises: how often the store promised to acknowledge nothing more to earlier producers.
        refused: refused entries, by the name of the error.
        slow_count: groups that took longer than ``SLOW_S``.
        slow_at: end of the last of them (monotonic); None without any.
        begun_at: start of the group that is being written (monotonic); None without any.
        failure: error that ended the writing.
        full: error of the group that waits for room on the disk; None if none waits.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.appends = Durations()
        self.records = self.bytes = 0
        self.topics: dict[str, list[int]] = {}
        self.fences = self.promises = 0
        self.refused = Counter[str]()
        self.slow_count = 0
        self.slow_at: float | None = None
        self.begun_at: float | None = None
        self.failure: BaseException | None = None
        self.full: DiskFullError | None = None
        self._throttle = LogThrottle()
        self._slow_logged_count = 0
        self._checked_at = -CHECK_S

    def begin(self) -> None:
        """Note that a group is being written."""
        self.begun_at = time.monotonic()

    def end(self, entries: Sequence[LogEntry], outcomes: Sequence[DafkaError | None]) -> None:
        """Note that it is on disk."""
        now = time.monotonic()
        took_s, self.begun_at = now - (self.begun_at or now), None
        if self.full is not None:
            self.full, took_s = None, 0.0  # it has waited for room
            text = "the disk below %s has room again: the store accepts records"
            _log.warning(text, self.directory, extra={"event": "disk_has_room"})
        self.appends.add(took_s)
        for entry, error in zip(entries, outcomes, strict=True):
            if error is not None:
                self.refused[type(error).__name__] += 1
            elif isinstance(entry, RecordBatch):
                self._count(entry)
            elif isinstance(entry, Stage):
                self._count(entry.batch)
            elif isinstance(entry, SetAside):
                self.fences += 1
            elif isinstance(entry, Promise):
                self.promises += 1
        if took_s > SLOW_S:
            self.slow_count, self.slow_at = self.slow_count + 1, now
            if self._throttle.is_new("slow"):
                text = (
                    "the disk below %(directory)s is slow: it took %(took_s).1f s to write and "
                    "sync what came in meanwhile, and was slower than %(limit_s)g s %(count)d "
                    "times since the last warning. Producers wait for it"
                )
                facts = {"directory": str(self.directory), "took_s": took_s, "limit_s": SLOW_S}
                facts["count"] = self.slow_count - self._slow_logged_count
                self._slow_logged_count = self.slow_count
                _log.warning(text, facts, extra={"event": "disk_slow"})
        self.check_space(now)

    def _count(self, batch: RecordBatch) -> None:
        count, size_bytes = batch.count, batch.values.size_bytes
        self.records += count
        self.bytes += size_bytes
        is_counted = batch.tp.topic in self.topics or len(self.topics) < MAX_TOPICS
        counts = self.topics.setdefault(batch.tp.topic if is_counted else OTHER, [0, 0])
        counts[0] += count
        counts[1] += size_bytes

    def wait_for_room(self, error: DiskFullError) -> None:
        """Note that the group waits until the disk has room."""
        self.full = error
        if self._throttle.is_new("full"):
            text = "%s. Until then the store accepts no records, and serves those that it has"
            _log.error(text, error, extra={"event": "disk_full"})

    def fail(self, error: BaseException) -> None:
        """Note that writing has failed for good."""
        self.begun_at, self.failure = None, error

    def check_space(self, now: float) -> None:
        """Log a nearly full disk, if a check is due."""
        if now - self._checked_at < CHECK_S:
            return
        self._checked_at = now
        try:
            disk = Disk.of(self.directory)
        except OSError:
            return  # the log reports that itself
        if disk.is_low and self._throttle.is_new("low"):
            text = (
                "the disk below %(directory)s is nearly full: %(free_bytes)d of %(size_bytes)d "
                "bytes are free. When it is full, the store accepts no records: free some space, "
                "or set a retention"
            )
            facts = {"directory": str(self.directory), **disk._asdict()}
            _log.warning(text, facts, extra={"event": "disk_nearly_full"})
