"""What a store's log writer sees of its disk: how much it writes, how long that takes, what fails.

It says so, too: people hear of a disk that is slow or nearly full while the store still runs.  A
disk that fails ends the store.
"""

from __future__ import annotations

import logging
import os
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from dafka_core.errors import DafkaError
from dafka_core.model.histograms import Durations
from dafka_core.model.log_entries import LogEntry, Promise, SetAside, Stage
from dafka_core.model.records import RecordBatch

SLOW_S: Final = 1.0
"""A group that takes longer is slow: a disk that is well takes some milliseconds, and every
producer waits for it."""

SAY_AGAIN_S: Final = 60.0
"""How often it is said again that a disk is slow, or nearly full."""

LOOK_S: Final = 10.0
"""How often the free space is looked at."""

LOW_SHARE: Final = 0.05
LOW_BYTES: Final = 1 << 30
"""A disk is nearly full when less than this share, and less than so many bytes, are free.  Both: a
share of a large disk is a lot, and a small disk never has so much."""

MAX_TOPICS: Final = 1_000
"""Topics that are counted apart; what is written to others is counted under ``OTHER``."""

OTHER: Final = "other"

_log = logging.getLogger("dafka.store")


class Disk(NamedTuple):
    """The file system below a directory."""

    size_bytes: int
    free_bytes: int

    @classmethod
    def of(cls, directory: Path) -> Disk:
        """As it is now; OSError if the directory cannot be reached."""
        found = os.statvfs(directory)
        return cls(found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize)

    @property
    def is_low(self) -> bool:
        """Whether it is nearly full."""
        return self.free_bytes < min(LOW_BYTES, LOW_SHARE * self.size_bytes)


class DiskWatch:
    """Counts in the log writer's thread; other threads read.

    Args:
        directory: the log's.

    Attributes:
        appends: how long groups took from the log writer to the disk, synced.
        records, bytes: that were appended or staged: records, and their contents.
        topics: the same by topic, as two-element lists.
        fences: how often records were set aside, since another history of their partition had won.
        promises: how often the store promised to acknowledge nothing more to earlier producers.
        refused: entries of which nothing was done, by the name of the error.
        slow_count: groups that took longer than ``SLOW_S``.
        slow_at: when the last of them ended (monotonic); None without any.
        begun_at: since when a group is on its way (monotonic); None while there is none.
        failure: what ended the writing.
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
        self._said_slow_at = self._said_low_at = -SAY_AGAIN_S
        self._said_slow_count = 0
        self._looked_at = -LOOK_S

    def begin(self) -> None:
        """A group is on its way to the disk."""
        self.begun_at = time.monotonic()

    def end(self, entries: Sequence[LogEntry], outcomes: Sequence[DafkaError | None]) -> None:
        """It is there."""
        now, begun_at = time.monotonic(), self.begun_at
        took_s = 0.0 if begun_at is None else now - begun_at
        self.begun_at = None
        self.appends.add(took_s)
        records = size_bytes = 0
        for entry, error in zip(entries, outcomes, strict=True):
            if error is not None:
                self.refused[type(error).__name__] += 1
            elif isinstance(entry, (RecordBatch, Stage)):
                batch = entry if isinstance(entry, RecordBatch) else entry.batch
                topic, count, size = batch.tp.topic, batch.count, batch.values.size_bytes
                counts = self.topics.get(topic) or self._counts_of(topic)
                counts[0] += count
                counts[1] += size
                records += count
                size_bytes += size
            elif isinstance(entry, SetAside):
                self.fences += 1
            elif isinstance(entry, Promise):
                self.promises += 1
        self.records += records
        self.bytes += size_bytes
        if took_s > SLOW_S:
            self.slow_count, self.slow_at = self.slow_count + 1, now
            self._say_slow(now, took_s)
        self.look(now)

    def fail(self, error: BaseException) -> None:
        """Nothing more is written."""
        self.begun_at, self.failure = None, error

    def look(self, now: float) -> None:
        """Says that the disk is nearly full, if it is time to look."""
        if now - self._looked_at < LOOK_S:
            return
        self._looked_at = now
        try:
            disk = Disk.of(self.directory)
        except OSError:
            return  # the log says so itself
        if disk.is_low and now - self._said_low_at >= SAY_AGAIN_S:
            self._said_low_at = now
            _log.warning(
                "the disk below %(directory)s is nearly full: %(free_bytes)d of %(size_bytes)d "
                "bytes are free. The store ends when it is full; make room, or set a retention",
                {
                    "directory": str(self.directory),
                    "free_bytes": disk.free_bytes,
                    "size_bytes": disk.size_bytes,
                },
                extra={"event": "disk_nearly_full"},
            )

    def _counts_of(self, topic: str) -> list[int]:
        name = topic if len(self.topics) < MAX_TOPICS else OTHER
        return self.topics.setdefault(name, [0, 0])

    def _say_slow(self, now: float, took_s: float) -> None:
        if now - self._said_slow_at < SAY_AGAIN_S:
            return
        count = self.slow_count - self._said_slow_count
        self._said_slow_at, self._said_slow_count = now, self.slow_count
        _log.warning(
            "the disk below %(directory)s is slow: it took %(took_s).1f s to write and sync what "
            "came in meanwhile, and was slower than %(limit_s)g s %(count)d times since this was "
            "said last. Producers wait for it",
            {
                "directory": str(self.directory),
                "took_s": took_s,
                "limit_s": SLOW_S,
                "count": count,
            },
            extra={"event": "disk_slow"},
        )
