"""Records on their way from the loop to the application, and the application's one cursor."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from operator import length_hint

from dafka_core.errors import DataLossError, RecordTooLargeError
from dafka_core.opened_records import opened_lists
from dafka_core.records import Record, RecordBatch, TopicPartition, records

_Record = RecordBatch | RecordTooLargeError
_Item = _Record | DataLossError


class RecordQueue:
    """What a consumer has and the application does not.

    The loop's thread adds batches.  The application takes records or batches, in one thread or in
    several: each takes what comes next, however the one before it was taken.  Whenever a batch
    has left, the queue calls ``on_taken``.  Who comes upon an error, which stands in the place of a
    record or of those that are missing, raises it, once.
    """

    def __init__(self, on_taken: Callable[[], None], *, opens: bool = True) -> None:
        self._on_taken = on_taken
        self._opens = opens  # envelopes
        self._lock = threading.Lock()
        self._batches: deque[_Item] = deque()
        self._losses: set[TopicPartition] = set()
        # Records and bytes of values: those that the loop has added, and those that have left.
        self._added = (0, 0)
        self._left = (0, 0)
        self._open: RecordBatch | None = None
        # The values of the open batch that are left.  The records are made over this very iterator:
        # what one takes is gone for the other, and its length hint is exact.
        self._open_rest: Iterator[bytes | None] = iter(())
        self._open_records: Iterator[Record] = iter(())

    @property
    def size(self) -> tuple[int, int]:
        """How many records are queued, and the bytes of their values.

        Without the batch whose records are being taken one by one.
        """
        return self._added[0] - self._left[0], self._added[1] - self._left[1]

    @property
    def added(self) -> tuple[int, int]:
        """How many records were ever queued, and the bytes of their values."""
        return self._added

    def add(self, batches: Iterable[_Item]) -> None:
        """Queues batches and errors.

        Takes no lock: a thread that holds it may be in a signal's handler that waits for the
        loop's end.
        """
        for batch in batches:
            if not isinstance(batch, DataLossError):
                self._added = _sum(self._added, batch)
            self._batches.append(batch)

    def add_loss(self, tp: TopicPartition, loss: DataLossError) -> None:
        """Queues what is to be raised after a partition's records; one of each partition."""
        if tp not in self._losses:
            self._losses.add(tp)
            self._batches.append(loss)

    def next_record(self) -> Record | None:
        """The next record, if there is one."""
        # Without the lock: a call of C takes it from the batch.
        record = next(self._open_records, None)
        if record is None and self._batches:
            with self._lock:
                record = next(self._opened(), None)
        return record

    def next_records(self) -> Iterator[Record] | None:
        """The rest of the batch that is being taken, or else the next one, record by record.

        It is the queue's own iterator, not a copy: a record taken from it is taken, one that is
        not is the next one for whoever asks.
        """
        with self._lock:
            found = self._opened()
            return found if length_hint(self._open_rest) else None

    def next_batch(self) -> RecordBatch | None:
        """The same as a batch."""
        with self._lock:
            # One call of C: no other thread takes one of these.
            left = len(list(self._open_rest))
            if left and self._open is not None:
                return self._open.between(self._open.end - left, self._open.end)
            return self._pop()

    def positions(self) -> dict[TopicPartition, int]:
        """Which record the application gets next, of the partitions that have any here."""
        with self._lock:
            queued = (each for each in self._batches if not isinstance(each, DataLossError))
            found = {_tp(each): each.offset for each in reversed(tuple(queued))}
            left = length_hint(self._open_rest)
            if left and self._open is not None:
                found[self._open.tp] = self._open.end - left
        return found

    def drop(self, unwanted: Callable[[TopicPartition], bool]) -> None:
        """Drops the records of partitions."""
        with self._lock:
            if self._open is not None and unwanted(self._open.tp):
                _exhaust(self._open_rest)
            for _ in range(len(self._batches)):
                batch = self._batches.popleft()
                if not unwanted(_tp(batch)):
                    self._batches.append(batch)
                elif not isinstance(batch, DataLossError):
                    self._left = _sum(self._left, batch)
                else:
                    self._losses.discard(_tp(batch))

    def clear(self) -> None:
        """Drops all.  Takes no lock: a signal's handler may call it in a thread that holds it."""
        self._batches.clear()
        _exhaust(self._open_rest)

    def _opened(self) -> Iterator[Record]:
        """The records of the open batch; opens the next one if none is left."""
        if not length_hint(self._open_rest) and (batch := self._pop()) is not None:
            values, keys, headers = opened_lists(batch.values, opens=self._opens)
            self._open, self._open_rest = batch, iter(values)
            self._open_records = records(batch, self._open_rest, keys, headers)
        return self._open_records

    def _pop(self) -> RecordBatch | None:
        try:
            batch = self._batches.popleft()
        except IndexError:
            return None
        if isinstance(batch, DataLossError):
            self._losses.discard(_tp(batch))
            raise batch
        self._left = _sum(self._left, batch)
        self._on_taken()
        if isinstance(batch, RecordTooLargeError):
            raise batch
        return batch


def _tp(item: _Item) -> TopicPartition:
    return TopicPartition(item.topic, item.partition)


def _exhaust(values: Iterator[bytes | None]) -> None:
    deque(values, maxlen=0)


def _sum(size: tuple[int, int], batch: _Record) -> tuple[int, int]:
    if isinstance(batch, RecordTooLargeError):
        return size[0] + 1, size[1]
    return size[0] + batch.count, size[1] + batch.values.size_bytes
