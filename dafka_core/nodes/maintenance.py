"""Background work of a store: merging, healing, deletions, retention, archiving and usage scans.

Each kind has a section with its thread, or the part of one that does it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Final, NamedTuple

from dafka_core.archive.archive import ArchiveWriter, Wanted
from dafka_core.archive.manifest import DAY_US, ArchiveError, Manifest, make_archive
from dafka_core.config.node_options import NO_KEYS, STAGED_HOURS, KeyFiles
from dafka_core.config.topic_rules import RetentionRule, parse_rules
from dafka_core.errors import (
    CHANGED,
    ClosedError,
    DafkaError,
    DataLossError,
    HistoryChangedError,
    NodeFailedError,
    StoreError,
    StoreUnreachableError,
)
from dafka_core.flight.store_client import StoreClient
from dafka_core.flight.store_location import StoreLocation
from dafka_core.model.epochs import MAX_END, MAX_EPOCHS, MAX_LIFE, EpochId, History, known_until
from dafka_core.model.log_entries import Deletion, packed_deletions, parsed_deletions
from dafka_core.model.names import DELETIONS_TOPIC, QUERIES_TOPIC, octets_of, quoted, text_of
from dafka_core.model.records import PartitionInfo, RecordBatch, TopicPartition
from dafka_core.model.timestamps import shown_time
from dafka_core.nodes.append_queue import AppendQueue
from dafka_core.nodes.node import NodeThread
from dafka_core.protocol.store_limits import StoreLimits, Usage
from dafka_core.protocol.store_role import StoreRole
from dafka_core.queries.query_progress import LAST_REPORTS, QueryProgress, is_partition_of, of_runs
from dafka_core.storage import Log
from dafka_core.storage.block import MAX_BLOCK_BYTES, MAX_BLOCK_RECORDS
from dafka_core.storage.block_rewriter import BlockCompressor, DamagedRange
from dafka_core.storage.log import TRIM_PARTITIONS
from dafka_core.storage.retention import HeldBlocks, Pause, Retention, Unread
from dafka_core.system.closing import ProcessBound

QUIET_S: Final = 0.25  # the log is busy until nothing has been appended for this time
RETRY_S: Final = 30.0  # pause after an error

_log = logging.getLogger("dafka.store")


class LogThread(ProcessBound):
    """A thread that works on a log beside its store, in small steps, until the log is closed.

    It calls each function of ``jobs`` in turn, then pauses for the longest time that one of them
    has returned.  It logs an error, counts it, and retries after ``RETRY_S``.
    """

    def __init__(
        self, log: Log, name: str, *jobs: Callable[[], float | None], task: str, event: str
    ) -> None:
        self._log = log
        self._jobs = jobs
        self._task, self._event = task, event
        self.failed_count = 0
        self._closed, self._woken = threading.Event(), threading.Event()
        self._thread = NodeThread(name, self._run)
        self._thread.start()

    def wake(self) -> None:
        """Work at once."""
        self._woken.set()

    def close(self) -> None:
        """End after the current step, within some ten milliseconds.  Idempotent."""
        self._closed.set()
        self._woken.set()
        self._thread.join()

    def _run(self) -> None:
        with suppress(ClosedError, NodeFailedError):
            while not self._closed.is_set():
                self._woken.clear()
                # Each one independently: a damaged deletion must not stop retention.
                pause_s = max([self._attempt(job) for job in self._jobs])
                if not self._closed.is_set():
                    self._woken.wait(pause_s)

    def _attempt(self, job: Callable[[], float | None]) -> float:
        try:
            return job() or 0.0
        except (ClosedError, NodeFailedError):
            raise
        except Exception as error:  # noqa: BLE001 -- such as of memory: the disk would become full
            self.failed_count += 1
            unexpected = None if isinstance(error, DafkaError) else error
            extra = {"event": self._event}
            _log.error("%s: %s", self._task, error, exc_info=unexpected, extra=extra)
            return RETRY_S

    def _is_busy(self) -> bool:
        return self._log.quiet_s < QUIET_S


# -- merging, and staged records -------------------------------------------------------------------

PILED_UP: Final = 512
"""With this number of small blocks merging does not wait: reading them would cost more."""

MERGE_BUSY_SHARE: Final = 0.25
"""The largest share of the time for merging then, while records keep arriving."""

IDLE_S: Final = 1.0  # interval of the search for blocks to merge
DISCARD_S: Final = 600.0  # the longest interval of the search for records staged too long ago
LATE_SHARE: Final = 0.1  # tolerated delay of discarding, as a share of its time


class MergeThread(LogThread):
    """Merges small blocks, and discards old staged records.

    When there is nothing to merge, it takes ``steps``, which compress cold blocks and make links.
    """

    def __init__(
        self, log: Log, staged_hours: float = STAGED_HOURS, *steps: Callable[[], bool]
    ) -> None:
        self._steps = steps
        self._staged_s = staged_hours * 3600
        self._discarded_s = time.monotonic()
        self.merged_count = 0
        self.merged_s = 0.0
        super().__init__(
            log,
            "dafka-merger",
            self._discard,
            self._step,
            task="merging, compressing or linking blocks",
            event="merge_failed",
        )

    def _discard(self) -> None:
        now = time.monotonic()
        if now - self._discarded_s < min(DISCARD_S, self._staged_s * LATE_SHARE):
            return
        self._discarded_s = now
        if self._log.clock.doubt():
            return
        if count := self._log.discard_stale(self._staged_s, replicas=False):
            text = "discarded what was staged in %d partitions, with nothing added for %g h"
            _log.warning(text, count, self._staged_s / 3600)

    def _step(self) -> float:
        """Merge, compress or link once; while appends arrive, merge only many small blocks."""
        busy = self._is_busy()
        started_s = time.monotonic()
        if (not busy or self._log.small_blocks >= PILED_UP) and self._log.merge_step():
            self.merged_count += 1
            self.merged_s += time.monotonic() - started_s
        elif not any(step() for step in self._steps):
            return QUIET_S if busy else IDLE_S
        return (time.monotonic() - started_s) * (1 / MERGE_BUSY_SHARE - 1) if busy else 0.0


# -- damaged records -------------------------------------------------------------------------------

HEAL_S: Final = 10.0  # the longest wait for another store's next records


class HealThread(LogThread):
    """Replaces damaged records by those of other stores (``storage/block_rewriter.py``).

    After ``RETRY_S``, or when another store appears, it retries those that no store has had.
    ``others`` returns the other present stores.
    """

    def __init__(
        self, log: Log, others: Callable[[], list[StoreLocation]], keys: KeyFiles = NO_KEYS
    ) -> None:
        self.healed_count = 0
        self._healer = log.healer
        self._others, self._keys = others, keys
        self._client: StoreClient | None = None
        self._waiting: dict[TopicPartition, list[DamagedRange]] = {}
        self._healed: set[TopicPartition] = set()
        self._asked: list[StoreLocation] = []  # they could not replace these
        self._retry_at = 0.0
        task = "replacing damaged records"
        super().__init__(log, "dafka-healer", self._heal, task=task, event="heal_failed")

    def close(self) -> None:
        """End soon, even while another store is silent.  Idempotent."""
        self._closed.set()
        if (client := self._client) is not None:
            client.close()
        super().close()

    def _heal(self) -> float:
        if not self._healer.damaged:
            return IDLE_S
        others, now, retried = self._others(), time.monotonic(), self._waiting
        if now >= self._retry_at or any(each not in self._asked for each in others):
            self._asked, self._retry_at, self._waiting = [*others], now + RETRY_S, {}
        for tp in sorted(self._healer.damaged - self._waiting.keys()):
            self._waiting[tp] = []  # also after an error
            self._attempt(partial(self._heal_partition, tp, retried.get(tp, []), others))
            if self._closed.is_set():
                return 0.0
        while self._healed and not self._healer.damaged - self._waiting.keys():
            self._healer.rewrite_groups(self._healed.pop())
        return IDLE_S

    def _heal_partition(
        self, tp: TopicPartition, known: list[DamagedRange], others: list[StoreLocation]
    ) -> None:
        left: list[DamagedRange] = []
        is_held = known and all(map(self._is_held, known))
        for each in known if is_held else self._healer.damaged_ranges(tp):
            if self._closed.is_set():
                return
            rest = each and self._rest_of(each, others, is_known=each in known)
            left += [rest] if rest else []
        if left:
            self._waiting[tp] = left
            return
        del self._waiting[tp]
        self._healer.damaged.discard(tp)
        self._healed.add(tp)

    def _is_held(self, damaged: DamagedRange) -> bool:
        info = self._log.info(damaged.tp)
        return info is not None and info.earliest <= damaged.start < damaged.end <= info.end

    def _rest_of(
        self, damaged: DamagedRange, others: list[StoreLocation], *, is_known: bool
    ) -> DamagedRange | None:
        """Replace a range by other stores' records; return the rest, empty if it has changed."""
        facts = {"partition": str(damaged.tp), "start": damaged.start, "end": damaged.end - 1}
        extra = {"event": "records_healed"}
        whys: list[str] = []
        for other in [*others]:
            try:
                with StoreClient(other, self._keys) as self._client:
                    if self._closed.is_set():  # before ``close`` could find the client
                        return damaged
                    for batch in self._client.read(
                        *damaged[:3],
                        life=damaged.life,
                        times=True,
                        max_records=MAX_BLOCK_RECORDS,
                        max_bytes=MAX_BLOCK_BYTES,
                        timeout_s=HEAL_S,
                    ):
                        if not self._healer.replace(damaged, batch):
                            return damaged._replace(end=damaged.start)
                        self.healed_count += batch.count
                        damaged = damaged._replace(start=batch.end)
            except StoreError as error:  # of this store
                whys.append(error.why)
                break
            except DafkaError as error:
                whys.append(str(error))
                if isinstance(error, StoreUnreachableError):
                    others.remove(other)
            if damaged.start == damaged.end:
                text = (
                    "%(partition)s: records %(start)d to %(end)d were damaged, and are replaced by "
                    "those of store %(store)s"
                )
                _log.warning(text, facts | {"store": other.store}, extra=extra)
                return None
        if not is_known:
            why = "; ".join(whys) or "no other store with Arrow Flight is present"
            text = (
                "%(partition)s: damaged records %(start)d to %(end)d are not replaced yet: %(why)s"
            )
            _log.error(text, facts | {"why": why}, extra={"event": "log_damaged"})
        return damaged


# -- deletions of topics ---------------------------------------------------------------------------

DELETION_WRITE_S: Final = 30.0  # time for the disk to write the record of a deletion


class Deletions:
    """Executes deletions of topics, by the store's own command or by other stores'.  Thread-safe.

    Each deletion is a record of topic ``__dafka.deletions`` (``model/log_entries.py``), which all
    stores replicate.  A store deletes the records named there whenever it has or receives them,
    also if it was away, or is new.
    """

    def __init__(self, log: Log, address: str, append_queue: AppendQueue) -> None:
        self._log = log
        self._append_queue = append_queue
        self._own = TopicPartition(DELETIONS_TOPIC, address)
        self._lock = threading.Lock()
        self._known: dict[TopicPartition, list[Deletion]] = {}
        self._read: dict[TopicPartition, PartitionInfo] = {}  # the read records of deletions
        self._applied = -1  # the log's change up to which deleted topics were checked
        self._due: set[str] = set()  # topics to check again

    def delete(self, topic: str, ended: Collection[TopicPartition] = ()) -> tuple[int, int]:
        """Delete a topic; return the numbers of its partitions and records here.

        For partitions that have ``ended``, later records are deleted, too, here or elsewhere.

        Raises:
            TimeoutError: the disk takes too long.
            DafkaError: it fails, or the store ends.
        """
        infos = self._log.partitions(topic)
        named = [each for each in infos if each.tp not in ended]
        named += [PartitionInfo(*tp, 0, MAX_END, MAX_LIFE) for tp in sorted(ended)]
        if named:
            contents = packed_deletions(named, self._log.now_us(), self._append_queue.limit[0])
            self._append_queue.append(self._own, [*contents], timeout_s=DELETION_WRITE_S)
            failed = self._failures()
            for each in failed.keys() & {topic, self._own}:
                raise failed[each]
        left = {info.tp: info.earliest for info in self._log.partitions(topic)}
        gone = [left.get(info.tp, 0) - info.earliest for info in infos]
        return sum(each > 0 for each in gone), sum(each for each in gone if each > 0)

    def apply(self) -> None:
        """Delete records named by deletions of any store; raise StoreError if some are damaged."""
        for error in self._failures().values():
            raise error

    def _failures(self) -> dict[str | TopicPartition, StoreError]:
        """Delete the named records; return the errors of topics, and of deletions' partitions."""
        failed: dict[str | TopicPartition, StoreError] = {}
        with self._lock:
            number = self._log.changes.number
            for info in self._log.partitions(DELETIONS_TOPIC):
                try:
                    self._read_new(info)
                except StoreError as error:
                    failed[info.tp] = error
            known = frozenset(tp.topic for tp in self._known)
            changed = self._log.changes.since(self._applied, known)
            self._due |= known if changed is None else {tp.topic for tp in changed}
            for topic in [*self._due]:
                try:
                    self._trim(topic)
                    self._due.discard(topic)
                except StoreError as error:
                    failed[topic] = error
            self._applied = number
        return failed

    def _read_new(self, info: PartitionInfo) -> None:
        """Read the new deletions of a partition; all if others have replaced some."""
        read, start = self._read.get(info.tp), info.earliest
        if read is not None and read.life == info.life and read.end <= info.end:
            start = read.end
        for batch in self._log.batches(info.tp, start, info.end):
            for offset, content in enumerate(batch.values, batch.offset):
                try:
                    for each in parsed_deletions(bytes(content)):
                        self._add(each)
                except ValueError as error:
                    _log.warning("%s, offset %d: %s; it is passed over", info.tp, offset, error)
        self._read[info.tp] = info

    def _add(self, deletion: Deletion) -> None:
        known = self._known.setdefault(deletion.tp, [])
        if not any(each.covers(deletion) for each in known):
            known[:] = [each for each in known if not deletion.covers(each)]
            known.append(deletion)
        self._due.add(deletion.tp.topic)

    def _trim(self, topic: str) -> None:
        """Delete the deleted records of a topic, and log that."""
        wanted = []
        for info in self._log.partitions(topic):
            known = self._known.get(info.tp)
            if known and info.earliest < info.end:
                lives = self._log.lives(info.tp)
                reach, last = max((each.reaches(lives), each) for each in known)
                if info.earliest < reach:
                    wanted.append((info, last))
        count = 0
        for start in range(0, len(wanted), TRIM_PARTITIONS):
            part = wanted[start : start + TRIM_PARTITIONS]
            now = self._log.trim_deleted([each for _, each in part])
            reached = zip(part, now, strict=True)
            count += sum(max(earliest - info.earliest, 0) for (info, _), earliest in reached)
        if count:
            found = (each for tp, all_ in self._known.items() if tp.topic == topic for each in all_)
            at = shown_time(max(each.at_us for each in found))
            text = "topic %(topic)s was deleted (%(at)s): gave up %(records)d records"
            facts = {"topic": quoted(topic), "at": at, "records": count}
            _log.info(text, facts, extra={"event": "topic_deleted"})


# -- retention -------------------------------------------------------------------------------------

RULES_NOTE: Final = "retention"  # the name of the note with rules set while the store ran
RETENTION_INTERVAL_S: Final = 10.0  # interval of retention passes
COMPARE_CLOCKS_S: Final = 300.0  # interval of comparisons of the clock with those of other stores
MEET_S: Final = 60.0  # wait for a clock of the stores that it knows, before it deletes by age

RETENTION_BUSY_SHARE: Final = 0.1
"""The largest share of the time for a pass, while records keep arriving."""


class RetentionThread(LogThread):
    """Executes deletions, then retention, then the scan of the remaining records.

    ``clocks_us`` returns the clocks of other stores, before records are deleted by age.
    """

    def __init__(
        self,
        log: Log,
        retention: Retention,
        deletions: Deletions,
        scan: UsageScan,
        clocks_us: Callable[[], Mapping[str, int]],
    ) -> None:
        self._retention = retention
        self._clocks_us = clocks_us
        self._compare_at = 0.0
        self._meet_until = time.monotonic() + MEET_S if log.met() else 0.0
        self._option_rules = retention.rules
        self._replacing = threading.Lock()
        kept = log.notes(RULES_NOTE).get(RULES_NOTE)
        self.is_set = kept is not None  # while the store ran, instead of its option's
        if kept is not None:
            retention.rules = _parsed_rules(text_of(kept))
        jobs = deletions.apply, self._pass, lambda: self._in_steps(scan.run)
        event = "retention_failed"
        super().__init__(log, "dafka-retention", *jobs, task="retention", event=event)

    @property
    def rules(self) -> tuple[RetentionRule, ...]:
        """Return the current rules."""
        return self._retention.rules

    @property
    def given_up(self) -> int:
        """Return the number of records deleted by rules."""
        return self._retention.counts.records

    def replace(
        self, rules: tuple[RetentionRule, ...] | None, previous: tuple[str, ...] | None = None
    ) -> None:
        """Replace the rules, also in the log; None restores those of its option.

        With ``previous``, only if these are in force.
        """
        with self._replacing:
            if previous is not None and previous != tuple(map(str, self.rules)):
                return
            text = None if rules is None else octets_of(" ".join(map(str, rules)))
            self._log.put_notes({RULES_NOTE: text})
            self.is_set = rules is not None
            self._retention.rules = self._option_rules if rules is None else rules
        _log_rules("retention goes by these rules from now on: %(rules)s", self.rules)
        self.wake()

    def _pass(self) -> float:
        before, now = self.given_up, time.monotonic()
        limits = (*self.rules, *self._retention.until_read)
        has_ages = any(limit.age_s is not None for limit in limits)
        if now >= self._compare_at or not has_ages:
            clocks_us = self._clocks_us() if has_ages else {}
            if has_ages and not clocks_us and now < self._meet_until:
                return IDLE_S
            self._log.clock.compare_stores(clocks_us)
            self._compare_at = now + COMPARE_CLOCKS_S if clocks_us else 0.0
        try:
            if self._retention.rules:
                self._in_steps(self._retention.run)
        finally:
            count = self.given_up - before
            if count and not self._closed.is_set():
                text = "retention: gave up %(records)d records"
                _log.info(text, {"records": count}, extra={"event": "records_given_up"})
        return RETENTION_INTERVAL_S

    def _in_steps(self, task: Callable[[Pause], None]) -> None:
        """Do a task that pauses while records arrive, and ends with ClosedError when it must."""
        began_s = time.monotonic()

        def pause() -> None:
            nonlocal began_s
            if self._closed.is_set():
                raise ClosedError("retention")
            if self._is_busy():
                self._closed.wait((time.monotonic() - began_s) * (1 / RETENTION_BUSY_SHARE - 1))
            began_s = time.monotonic()

        task(pause)


def _parsed_rules(kept: str) -> tuple[RetentionRule, ...]:
    """Parse rules that were set while the store ran, before its restart."""
    try:
        rules = parse_rules(kept)
    except ValueError as error:  # a later version may know other ones
        _log.error(
            "retention: rules %r were set, and %s: nothing goes until others are", kept, error
        )
        return ()
    _log_rules("retention goes by rules that were set by 'dafka retain': %(rules)s", rules)
    return rules


def _log_rules(text: str, rules: Iterable[RetentionRule]) -> None:
    facts = {"rules": " ".join(map(str, rules)) or "none"}
    _log.info(text, facts, extra={"event": "retention_rules"})


# -- usage, for limits -----------------------------------------------------------------------------

SCAN_PARTITIONS: Final = 10_000  # partitions scanned in one step

SCAN_SHARE: Final = 0.02
"""Share of the time for scans: the next one starts after fifty times the last one's duration."""


class UsageScan:
    """A scan that counts partitions by topic and owner, and their sizes if a limit needs them.

    The role receives the result in the store's loop, by ``call_soon``.
    """

    def __init__(
        self,
        log: Log,
        role: StoreRole,
        compressor: BlockCompressor,
        call_soon: Callable[[Callable[[float], object]], object],
    ) -> None:
        self._log = log
        self._role = role
        self._limits = role.limits
        self._compressor = compressor
        self._call_soon = call_soon
        self._blocks = HeldBlocks(log)
        # Changes of the log, and compressed blocks, at the last scan: it is repeated after either.
        self._scanned = (-1, 0)
        self._due = 0.0
        self._damaged: set[TopicPartition] = set()  # partitions reported already

    def run(self, pause: Pause) -> None:
        """Scan once, if the log has changed since the last scan, in small steps."""
        began, state = time.monotonic(), (self._log.changes.number, self._compressor.blocks)
        if state == self._scanned or began < self._due:
            return
        self._call_soon(lambda now: self._limits.begin_scan())
        usage = Usage()
        new = set(self._limits.new.copy())
        infos: list[PartitionInfo] = []
        for found in _counted(self._log, self._limits, usage):
            usage.seen.update(info.tp for info in found if info.tp in new)
            infos += found if self._limits.counts_bytes else ()
            pause()
        if self._limits.counts_bytes:
            self._measure(infos, usage, pause)
        self._scanned = state
        self._due = time.monotonic() + (time.monotonic() - began) / SCAN_SHARE
        self._call_soon(lambda now: self._role.on_scan(usage))

    def _measure(self, infos: list[PartitionInfo], usage: Usage, pause: Pause) -> None:
        self._blocks.keep_only({info.tp for info in infos})
        with_records = [info for info in infos if info.earliest < info.end]
        damaged: dict[TopicPartition, StoreError] = {}
        sizes = self._blocks.look_at(with_records, damaged, pause)
        for tp, blocks in sizes.items():
            usage.size_bytes[self._limits.owner(tp)] += sum(each.size_bytes for each in blocks)
        for staged in self._log.staged():
            usage.size_bytes[self._limits.owner(staged.tp)] += staged.size_bytes
        # Each damaged partition is reported once, all new ones in one line.
        new, self._damaged = damaged.keys() - self._damaged, set(damaged)
        if new:
            text = (
                "%(count)d partitions are damaged, and count for limit max_key_bytes as they did "
                "before; one of them: %(why)s"
            )
            facts = {"count": len(new), "why": damaged[min(new)].why}
            _log.error(text, facts, extra={"event": "log_damaged"})


def usage_at_start(log: Log, limits: StoreLimits) -> Usage:
    """Return the contents of a log without sizes, before its store has a loop."""
    usage = Usage()
    for _ in _counted(log, limits, usage):
        pass
    return usage


def _counted(log: Log, limits: StoreLimits, usage: Usage) -> Iterator[list[PartitionInfo]]:
    after = None
    while found := log.partitions_after(None, after, SCAN_PARTITIONS):
        for info in found:
            if info.earliest < info.end:
                usage.topics[info.topic] += 1
                usage.owners[limits.owner(info.tp)] += 1
        yield found
        after = found[-1].tp


# -- archiving -------------------------------------------------------------------------------------

ARCHIVED_BYTES: Final = 64 << 20
"""Waiting records of a partition are archived at about this size, or when their day is over."""


class LogArchiver:
    """Archives records before the log deletes them, in a directory that stores may share.

    Records go to the archive in few files: a day of a partition at a time, or ``ARCHIVED_BYTES`` if
    that is less. Until then the store keeps records that its rules would delete.  For one thread.

    Raises ArchiveError if the directory cannot hold an archive.
    """

    def __init__(self, log: Log, directory: str | Path) -> None:
        make_archive(Path(directory))
        self.files = self.records = self.size_bytes = 0  # added since the store's start
        self.failed: dict[TopicPartition, str] = {}  # why partitions cannot be archived
        self._log = log
        self._directory = directory
        self._writers: dict[str, ArchiveWriter] = {}
        self._stopped = threading.Event()

    def stop(self) -> None:
        """End work in another thread soon, with ``ClosedError``."""
        self._stopped.set()

    def archive(self, tp: TopicPartition, before: int) -> int:
        """See ``Archive``; a partition that fails is reported once, and kept.

        Raises ArchiveError if the archive cannot be written to, and ClosedError after ``stop``.
        """
        info = self._log.info(tp)
        if info is None:
            return before
        try:
            writer = self._writers.get(tp.topic)
            if writer is None:
                writer = self._writers[tp.topic] = ArchiveWriter(self._directory, tp.topic)
            return self._archived(writer, info, before)
        except ArchiveError:
            # The topic's directories may have been moved away: create a new writer next time.
            self._writers.pop(tp.topic, None)
            raise

    def _archived(self, writer: ArchiveWriter, info: PartitionInfo, before: int) -> int:
        tp, (first, error) = info.tp, self._state(writer.manifest, info, before)
        if error is None and first < before and (due := self._due(info, first, before)) > first:
            added = writer.archive([Wanted(tp, info.earliest, due, info.life)], self._read)
            self.files += len(added.files)
            self.records += sum(file.end - file.start for file in added.files)
            self.size_bytes += sum(file.size_bytes for file in added.files)
            # Another store may have been first.
            first, error = self._state(writer.manifest, info, before)
            error = added.failed.get(tp, error)
        if isinstance(error, ClosedError):
            raise error
        if error is None:
            self.failed.pop(tp, None)
            return first
        if self.failed.get(tp) != (why := str(error)):
            self.failed[tp] = why
            text = "%(tp)s: it is not archived, and nothing of it is given up: %(why)s"
            _log.error(text, {"tp": str(tp), "why": why}, extra={"event": "archive_failed"})
        return info.earliest

    def _state(
        self, manifest: Manifest, info: PartitionInfo, before: int
    ) -> tuple[int, DafkaError | None]:
        """Return the first missing offset, and why archived records may differ from the log's."""
        first = next(manifest.missing(info.partition, info.earliest, before), (before, before))[0]
        history = self._log.lives(info.tp).history
        for file in manifest.between(info.partition, info.earliest, before):
            try:
                _check_history(info.tp, history, file.life, min(file.end, info.end))
            except HistoryChangedError as error:
                return first, manifest.other_records(info.tp, error.wanted)
            except DafkaError as error:
                return first, error
        return first, None

    def _due(self, info: PartitionInfo, first: int, before: int) -> int:
        """Return the end of the records to archive now; ``first`` if none."""
        with self._log.snapshot() as snapshot:
            sizes = snapshot.record_sizes(info.tp, first, before) or [0]
            last_us = snapshot.newest_us(info.tp, before)
        if (before - first) * sum(sizes) / len(sizes) >= ARCHIVED_BYTES:
            return before
        last_day_us = last_us // DAY_US * DAY_US
        next_day = self._log.offset_for_time(info.tp, last_day_us + DAY_US)
        # Without newer records, the clock shows that the day is over.
        is_over = before >= info.end and self._log.now_us() >= last_day_us + DAY_US
        if next_day == before or (next_day is None and is_over):
            return before
        return min(self._log.offset_for_time(info.tp, last_day_us) or 0, before)

    def _read(self, wanted: Wanted) -> Iterator[RecordBatch]:
        """Read from the log's history, which must be the one archived before, and stay it."""
        history = self._log.lives(wanted.tp).history
        _check_history(wanted.tp, history, wanted.after, wanted.start)
        at, why = wanted.start, "they were given up meanwhile"
        for batch in self._log.batches(wanted.tp, at, wanted.end):
            if self._stopped.is_set():
                raise ClosedError("archiver")
            if batch.offset != at:
                raise DataLossError(*wanted.tp, at, batch.offset, why)
            yield batch
            at = batch.end
        if at < wanted.end:
            raise DataLossError(*wanted.tp, at, None, why)
        _check_history(wanted.tp, self._log.lives(wanted.tp).history, wanted.life, wanted.end)


def _check_history(tp: TopicPartition, history: History, life: EpochId, end: int) -> None:
    """Check that records before ``end``, archived when ``life`` was known, are the log's.

    Raises HistoryChangedError if they differ, from its ``wanted`` on, and DafkaError if the log
    does not know that life yet.
    """
    if len(history) >= MAX_EPOCHS and life < history[0].life:
        return  # the log has forgotten it
    known = known_until(history, life)
    if known is None:
        raise DafkaError(f"{tp}: the archive has records of a newer producer than the store")
    if known < end:
        raise HistoryChangedError(*tp, known, None, CHANGED, end)


# -- queries that retention waits for --------------------------------------------------------------

WILDCARDS: Final = frozenset("*?[")


class _Run(NamedTuple):
    """A query's run by its last report."""

    query: str
    topics: frozenset[str]
    positions: dict[TopicPartition, int]


class ProtectedQueries:
    """The unread records of queries, by their reports in the log.  For one thread.

    All records count as unread by a query named in full which has never reported.  Keys that
    report of the same query count each, so none can release records that another one still needs.
    ``names`` may be shell patterns.
    """

    def __init__(self, log: Log, names: Sequence[str]) -> None:
        self._log = log
        self._names = names
        # By partition of reports: its offsets, and the last report of each run.
        self._reports: dict[TopicPartition, tuple[PartitionInfo, list[_Run]]] = {}
        self._runs: list[_Run] = []
        self._awaited: str | None = None

    def look(self) -> list[StoreError]:
        """Read the reports again; see ``Readers``."""
        before, self._reports, failed = self._reports, {}, dict[str, StoreError]()
        for info in self._log.partitions(QUERIES_TOPIC):
            try:
                found = before.get(info.tp)
                runs = found[1] if found and found[0] == info else self._read(info)
                self._reports[info.tp] = info, runs
            except StoreError as error:
                failed[info.partition] = error
        self._runs = [run for _, runs in self._reports.values() for run in runs]
        known = {run.query for run in self._runs}
        named = (name for name in self._names if WILDCARDS.isdisjoint(name) and name not in known)
        self._awaited = next(chain(failed, named), None)  # damaged reports may be any query's
        return [*failed.values()]

    def unread(self, tp: TopicPartition) -> Unread | None:
        """Return the unread records of the slowest query; see ``Readers``."""
        if self._awaited is not None:
            return Unread(0, self._awaited)
        found = (
            Unread(run.positions.get(tp, 0), run.query)
            for run in self._runs
            if tp in run.positions or tp.topic in run.topics
        )
        return min(found, default=None)

    def _read(self, info: PartitionInfo) -> list[_Run]:
        last: list[tuple[int, QueryProgress]] = []
        start = max(info.earliest, info.end - LAST_REPORTS)
        for batch in self._log.read(info.tp, start, info.end):
            for value in batch.values:
                with suppress(ValueError):  # invalid, or its positions are damaged
                    progress = QueryProgress.parse(bytes(value))
                    progress.offsets()
                    if is_partition_of(progress.query, info.partition):
                        last.append((0, progress))
        return [
            _Run(run.query, frozenset(run.topics), run.offsets())
            for run, _ in of_runs(last, 0)
            if any(fnmatchcase(run.query, name) for name in self._names)
        ]
