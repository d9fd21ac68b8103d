"""The list of partitions' numbers as it lies in a store's log."""

from __future__ import annotations

import threading
import time
from typing import Final

from dafka_core.epochs import NO_LIFE, EpochId, History, last_life, parting
from dafka_core.kafka.number_table import NumbersRecord, NumberTable, agreed, parsed
from dafka_core.names import INTERNAL
from dafka_core.permissions import SHARED_BY_STORES
from dafka_core.records import TopicPartition
from dafka_core.storage import Log

LIST: Final = TopicPartition(f"{INTERNAL}kafka.partitions", SHARED_BY_STORES)
"""The one partition with the list.  Its address says "dafka kafka list"."""


class NumberList:
    """Reads the list, as far as it has been agreed on.  Thread-safe.

    Attributes:
        table: what it says.
        open_since: when it was seen that somebody's turn had begun; None where it has ended.
    """

    def __init__(self, log: Log) -> None:
        self.table = NumberTable()
        self.open_since: float | None = None
        self._log = log
        self._lock = threading.Lock()
        self._scanned = self._agreed = 0
        self._history: History = ()
        self._promised = NO_LIFE

    def is_agreed_by(self, majority: int) -> bool:
        """Whether the last turn was acknowledged by so many stores, and no other has begun."""
        last = last_life(self._history)
        return last.acks == majority and self._promised[:2] <= last[:2]

    def is_of(self, life: EpochId) -> bool:
        """Whether a life has written to it last, and no other has begun."""
        return life[:2] == last_life(self._history)[:2] >= self._promised[:2]

    def read(self, agreed_end: int = 0) -> NumberTable:
        """Takes what has come; up to ``agreed_end`` it has been agreed on at least."""
        with self._lock:
            lives = self._log.lives(LIST)
            parted = parting(self._history, lives.history)
            if lives.end < self._scanned or (parted is not None and parted < self._scanned):
                # What was agreed on stays, unless somebody has had stores that lack it begin
                # without those that have it.  All of it is read again.
                self.table, self._scanned, self._agreed = NumberTable(), 0, 0
            self._history, self._promised = lives.history, lives.promised
            self._agreed = max(self._agreed, agreed_end)
            for offset, record in self._records(self._scanned, lives.end):
                self._scanned = offset + 1
                self._agreed = max(self._agreed, agreed(record, offset))
                has_ended = record is not None and record.agreed > 0
                self.open_since = None if has_ended else time.monotonic()
            table = self.table
            for offset, record in self._records(table.applied, min(self._agreed, self._scanned)):
                if offset == table.applied:  # else the list has lost its beginning
                    table.apply(record)
            return table

    def _records(self, start: int, end: int) -> list[tuple[int, NumbersRecord | None]]:
        found: list[tuple[int, NumbersRecord | None]] = []
        while start < end and (batches := self._log.read(LIST, start, end)):
            for batch in batches:
                found += enumerate(map(parsed, batch.values), batch.offset)
            start = batches[-1].end
        return found
