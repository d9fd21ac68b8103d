"""What one Fetch gets of the log: looks until there is enough, then reads, within its limits."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from dafka_core.errors import StoreError
from dafka_core.kafka.beyond_end import BeyondEnd
from dafka_core.kafka.fetch_limits import (
    LEAST_RECORD_BYTES,
    MAX_FETCH_BYTES,
    FetchLimits,
    most_records,
)
from dafka_core.kafka.kafka_errors import KafkaError
from dafka_core.kafka.readable import say_damaged
from dafka_core.records import PartitionInfo, RecordBatch, TopicPartition, coalesce
from dafka_core.storage import Log

MAX_BATCH_RECORDS: Final = 8_192
MAX_BATCH_BYTES: Final = 1 << 20
"""Of contents in one record batch, unless it is one record.  Clients hold a batch whole, to see
that its checksum is right; and what is made of so many stays in the processor's cache."""

Encode = Callable[[RecordBatch], bytes]


@dataclass(slots=True)
class WantedRecords:
    """The records that a client wants of one partition, from ``offset`` on, and what it gets.

    ``tp`` is None where it gets an error alone.  ``earliest`` and ``end`` are the partition's.
    ``counted`` is about how many octets there are up to offset ``counted_end``.
    """

    tp: TopicPartition | None
    number: int
    offset: int
    max_bytes: int
    error: KafkaError = KafkaError.NONE
    earliest: int = -1
    end: int = -1
    records: bytes = b""
    counted: int = 0
    counted_end: int = 0

    @property
    def is_waiting(self) -> bool:
        """Whether there is something to read."""
        return not self.error and self.offset < self.end

    def fail(self, error: KafkaError) -> None:
        """It gets this in place of records."""
        self.error, self.earliest, self.end = error, -1, -1


class LogReading:
    """Reads what one Fetch wants; for one thread at a time."""

    def __init__(
        self,
        log: Log,
        beyond_end: BeyondEnd,
        wanted: Sequence[WantedRecords],
        *,
        min_bytes: int,
        max_bytes: int,
    ) -> None:
        self._log = log
        self._beyond_end = beyond_end
        self._max_bytes = min(max_bytes, MAX_FETCH_BYTES)
        self._min_bytes = min(min_bytes, self._max_bytes)
        self._wanted = wanted
        self._by_tp: dict[TopicPartition, list[WantedRecords]] = {}
        for each in wanted:
            if each.tp is not None:
                self._by_tp.setdefault(each.tp, []).append(each)

    @property
    def partitions(self) -> Collection[TopicPartition]:
        """Those of the log that it is about."""
        return self._by_tp.keys()

    def look(self, changed: Iterable[TopicPartition] | None = None) -> bool:
        """Whether it is time to answer: there are ``min_bytes``, or there is an error.

        Looks at the partitions that have ``changed``, or at all of them.
        """
        with self._log.snapshot() as snapshot:
            for tp in self._by_tp if changed is None else changed:
                held = snapshot.info(tp) or PartitionInfo(*tp, 0, 0)
                for each in self._by_tp[tp]:
                    self._place(each, held)
        if self._min_bytes <= 0 or any(each.error for each in self._wanted):
            return True
        if self._min_bytes == 1:
            return any(each.is_waiting for each in self._wanted)
        return sum(map(self._waiting_bytes, self._wanted)) >= self._min_bytes

    @property
    def most_bytes(self) -> int:
        """What is read at most, unless it is a single record."""
        return min(self._max_bytes, sum(each.max_bytes for each in self._wanted if each.is_waiting))

    def read(self, encode: Encode, most_bytes: int) -> None:
        """Reads and encodes what there is of each, in their order, as far as the limits go.

        ``most_bytes`` is one of them.
        """
        limits = FetchLimits(min(self._max_bytes, most_bytes))
        for each in self._wanted:
            if each.is_waiting and (room := limits.room(each.max_bytes)):
                try:
                    each.records = b"".join(self._read(each, room, encode, limits))
                except StoreError as damage:
                    each.fail(say_damaged(damage))

    def _place(self, wanted: WantedRecords, held: PartitionInfo) -> None:
        if wanted.error:
            return
        wanted.earliest, wanted.end = held.earliest, held.end
        if wanted.offset < held.earliest or (
            wanted.offset > held.end and not self._beyond_end.may_come(held.tp, wanted.offset)
        ):
            wanted.fail(KafkaError.OFFSET_OUT_OF_RANGE)

    def _waiting_bytes(self, wanted: WantedRecords) -> int:
        start, room = max(wanted.offset, wanted.counted_end), wanted.max_bytes - wanted.counted
        if wanted.tp is not None and wanted.is_waiting and start < wanted.end and room > 0:
            room = min(room, self._min_bytes)
            try:
                for batch in self._batches(wanted.tp, start, wanted.end, room):
                    wanted.counted += batch.values.size_bytes + batch.count * LEAST_RECORD_BYTES
                    wanted.counted_end = batch.end
            except StoreError as damage:
                wanted.fail(say_damaged(damage))
                return self._min_bytes
        return wanted.counted

    def _read(
        self, wanted: WantedRecords, room: int, encode: Encode, limits: FetchLimits
    ) -> Iterator[bytes]:
        assert wanted.tp is not None
        offset = wanted.offset
        batches = self._batches(wanted.tp, offset, wanted.end, room)
        for batch in coalesce(batches, MAX_BATCH_RECORDS, MAX_BATCH_BYTES):
            for part in batch.split(MAX_BATCH_RECORDS, MAX_BATCH_BYTES):
                if part.offset != offset:  # trimmed meanwhile
                    wanted.fail(KafkaError.OFFSET_OUT_OF_RANGE)
                    return
                count = limits.fitting(part.values, room)
                if not count:
                    return
                octets = encode(part.between(offset, offset + count))
                limits.take(len(octets))
                room -= len(octets)
                yield octets
                if count < part.count:
                    return
                offset = part.end

    def _batches(self, tp: TopicPartition, start: int, end: int, room: int) -> list[RecordBatch]:
        most = most_records(room)
        return self._log.read(tp, start, end, max_records=most, max_bytes=room)
