"""The retention thread of a store, and the queries whose unread records it protects."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from typing import Final

from dafka_core.config.topic_rules import RetentionRule, parse_rules
from dafka_core.errors import ClosedError, DafkaError, NodeFailedError
from dafka_core.model.names import QUERIES_TOPIC
from dafka_core.model.records import PartitionInfo, TopicPartition
from dafka_core.nodes.deletions import Deletions
from dafka_core.nodes.merge_thread import QUIET_S, RETRY_S
from dafka_core.nodes.threads import NodeThread
from dafka_core.nodes.usage_scan import HeldLook
from dafka_core.queries.query_progress import LAST_REPORTS, QueryProgress, of_runs, partition_of
from dafka_core.storage import Log
from dafka_core.storage.retention import Unread
from dafka_core.storage.retention_pass import Retention
from dafka_core.system.closing import ProcessBound

INTERVAL_S: Final = 10.0
"""How long the thread waits between two passes."""

BUSY_SHARE: Final = 0.1
"""The share of the time that it takes at most, while records keep coming in."""

_log = logging.getLogger("dafka.store")


class RetentionThread(ProcessBound):
    """A thread that has retention's steps done.

    It logs an error, of the disk or of archiving, and tries again later: until then nothing goes.

    Args:
        log: open for writing, until the thread is closed.
        retention: that of the log; nobody else has its steps done.
        deletions: those of the log, done first.
        look: at what is left then.
    """

    def __init__(
        self,
        log: Log,
        retention: Retention,
        deletions: Deletions | None = None,
        look: HeldLook | None = None,
    ) -> None:
        self._log = log
        self._retention = retention
        # Each whether the other can be done or not: a disk must not fill for a damaged deletion.
        self._works = [self._pass] if deletions is None else [deletions.apply, self._pass]
        if look is not None:
            self._works.append(lambda: self._do(look.steps()))
        self._started_with = retention.rules
        kept = log.retention.kept_rules()
        self.is_set = kept is not None
        """Whether rules were set while the store ran, in the place of those of its option."""
        if kept is not None:
            retention.rules = _parsed(kept)
        self._closed = threading.Event()
        self._woken = threading.Event()
        self._thread = NodeThread("dafka-retention", self._run)
        self._thread.start()

    @property
    def rules(self) -> tuple[RetentionRule, ...]:
        """Those that the store goes by."""
        return self._retention.rules

    @property
    def given_up(self) -> int:
        """How many records it has given up by rules."""
        return self._retention.counts.records

    def replace(self, rules: tuple[RetentionRule, ...] | None) -> None:
        """Goes by other rules from now on, kept in the log; None: by those it was started with."""
        text = None if rules is None else " ".join(map(str, rules))
        self._log.retention.keep_rules(text)
        self.is_set = rules is not None
        self._retention.rules = self._started_with if rules is None else rules
        facts = {"rules": " ".join(map(str, self.rules)) or "none"}
        extra = {"event": "retention_rules"}
        _log.info("retention goes by these rules from now on: %(rules)s", facts, extra=extra)
        self.wake()

    def wake(self) -> None:
        """Has it look at once: there are other rules, or a deletion."""
        self._woken.set()

    def close(self) -> None:
        """Ends, after the step under way: some ten milliseconds.  May be repeated."""
        self._closed.set()
        self._woken.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closed.is_set():
            self._woken.clear()
            pause_s = INTERVAL_S
            for work in self._works:
                try:
                    work()
                except (ClosedError, NodeFailedError):
                    return
                except DafkaError as error:
                    _log.error("retention: %s", error, extra={"event": "retention_failed"})
                    pause_s = max(RETRY_S, INTERVAL_S)
            if not self._closed.is_set():
                self._woken.wait(pause_s)

    def _pass(self) -> None:
        if not self._retention.rules:
            return
        counts = self._retention.counts
        records = counts.records
        self._do(self._retention.steps())
        if counts.records > records and not self._closed.is_set():
            _log.info(
                "retention: gave up %(records)d records",
                {"records": counts.records - records},
                extra={"event": "records_given_up"},
            )

    def _do(self, steps: Iterable[None]) -> None:
        started_s = time.monotonic()
        for _ in steps:
            if self._closed.is_set():
                return
            if self._log.quiet_s < QUIET_S:
                self._closed.wait((time.monotonic() - started_s) * (1 / BUSY_SHARE - 1))
            started_s = time.monotonic()


def _parsed(kept: str) -> tuple[RetentionRule, ...]:
    """Rules that were set while the store ran, before it was started."""
    try:
        rules = parse_rules(kept)
    except ValueError as error:  # a later version may know other ones
        _log.error(
            "retention: rules %r were set, and %s: nothing goes until others are", kept, error
        )
        return ()
    text = "retention goes by rules that were set by 'dafka retain': %(rules)s"
    facts, extra = {"rules": kept or "none"}, {"event": "retention_rules"}
    _log.info(text, facts, extra=extra)
    return rules


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
