"""How far the queries are that retention waits for (option ``retain_until_read``)."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from typing import Final

from dafka_core.names import QUERIES_TOPIC
from dafka_core.queries.query_progress import (
    LAST_REPORTS,
    QueryProgress,
    of_runs,
    partition_of,
)
from dafka_core.records import PartitionInfo, TopicPartition
from dafka_core.storage import Log
from dafka_core.storage.retention import Unread

WILDCARDS: Final = frozenset("*?[")


class ProtectedQueries:
    """What they have not read, by their reports in the log.  For one thread.

    One that is named in full counts from the beginning on, as long as it has never reported.

    Args:
        names: of queries, or patterns of a shell.
    """

    def __init__(self, log: Log, names: Sequence[str]) -> None:
        self._log = log
        self._names = names
        self._ends: dict[TopicPartition, int] = {}
        self._runs: dict[TopicPartition, list[_Run]] = {}
        self._awaited: str | None = None

    def look(self) -> None:
        """Finds out anew how far they are; see ``Readers``."""
        for info in self._log.partitions(QUERIES_TOPIC):
            if self._ends.get(info.tp) != info.end:
                # The last of a partition that has shrunk is older, and says less.
                self._runs[info.tp] = self._read(info)
                self._ends[info.tp] = info.end
        named = (name for name in self._names if WILDCARDS.isdisjoint(name))
        self._awaited = next(
            (each for each in named if not self._runs.get(partition_of(each))), None
        )

    def unread(self, tp: TopicPartition) -> Unread | None:
        """What the one that is furthest behind has not read; see ``Readers``."""
        if self._awaited is not None:
            return Unread(0, self._awaited)
        found = (run.unread(tp) for runs in self._runs.values() for run in runs)
        return min((each for each in found if each is not None), default=None)

    def _read(self, info: PartitionInfo) -> list[_Run]:
        last: list[tuple[int, QueryProgress]] = []
        start = max(info.earliest, info.end - LAST_REPORTS)
        for batch in self._log.read(info.tp, start, info.end):
            for value in batch.values:
                with suppress(ValueError):  # it is none, or its positions are damaged
                    progress = QueryProgress.parse(bytes(value))
                    progress.offsets()
                    if partition_of(progress.query) == info.tp:
                        last.append((0, progress))
        runs = [_Run(each.progress) for each in of_runs(last, 0)]
        return [run for run in runs if any(fnmatchcase(run.query, name) for name in self._names)]


class _Run:
    """A run of a query by its last report."""

    def __init__(self, progress: QueryProgress) -> None:
        self.query = progress.query
        self._topics = frozenset(progress.topics)
        self._positions = progress.offsets()

    def unread(self, tp: TopicPartition) -> Unread | None:
        position = self._positions.get(tp, 0 if tp.topic in self._topics else None)
        return None if position is None else Unread(position, self.query)
