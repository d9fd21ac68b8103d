"""Deletions of topics at a store, by its own command or by other stores'.

Each deletion is a record of topic ``__dafka.deletions`` (``model/log_entries.py``), which all
stores replicate.  A store deletes the records named there whenever it has or receives them, also
if it was away, or is new.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Iterator
from typing import Final

from dafka_core.errors import StoreError
from dafka_core.model.epochs import MAX_END, MAX_LIFE
from dafka_core.model.log_entries import Deletion, packed, parsed
from dafka_core.model.names import DELETIONS_TOPIC, quoted
from dafka_core.model.records import PartitionInfo, TopicPartition
from dafka_core.model.timestamps import shown_time
from dafka_core.nodes.append_queue import AppendQueue
from dafka_core.storage.log import TRIM_PARTITIONS, Log

WRITE_S: Final = 30.0  # time for the disk to write the record of a deletion

_log = logging.getLogger("dafka.store")


class Deletions:
    """Executes the deletions in a store's log.  Thread-safe."""

    def __init__(self, log: Log, address: str, append_queue: AppendQueue) -> None:
        self._log = log
        self._append_queue = append_queue
        self._own = TopicPartition(DELETIONS_TOPIC, address)
        self._lock = threading.Lock()
        self._known: dict[TopicPartition, list[Deletion]] = {}
        self._read: dict[TopicPartition, int] = {}  # ends of the read records of deletions
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
            contents = packed(named, self._log.now_us(), self._append_queue.limit[0])
            self._append_queue.append(self._own, [*contents], timeout_s=WRITE_S)
            self.apply()
        left = {info.tp: info.earliest for info in self._log.partitions(topic)}
        gone = [left.get(info.tp, 0) - info.earliest for info in infos]
        return sum(each > 0 for each in gone), sum(each for each in gone if each > 0)

    def apply(self) -> None:
        """Delete records named by deletions of any store; raise StoreError if some are damaged."""
        with self._lock:
            number = self._log.changes.number
            failed = list(self._read_new())
            known = frozenset(tp.topic for tp in self._known)
            changed = self._log.changes.since(self._applied, known)
            self._due |= known if changed is None else {tp.topic for tp in changed}
            for topic in self._due:
                self._trim(topic)
            self._applied = number
            self._due.clear()
        for error in failed:
            raise error

    def _read_new(self) -> Iterator[StoreError]:
        """Read new records of deletions; yield the error of each damaged partition of them."""
        for info in self._log.partitions(DELETIONS_TOPIC):
            start = self._read.get(info.tp, info.earliest)
            start = start if start <= info.end else info.earliest
            try:
                for batch in self._log.batches(info.tp, start, info.end):
                    for offset, content in enumerate(batch.values, batch.offset):
                        for each in _parsed(info.tp, offset, content):
                            self._add(each)
                self._read[info.tp] = info.end
            except StoreError as error:
                yield error

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


def _parsed(tp: TopicPartition, offset: int, content: bytes) -> list[Deletion]:
    try:
        return parsed(bytes(content))
    except ValueError as error:
        _log.warning("%s, offset %d: %s; it is passed over", tp, offset, error)
        return []
