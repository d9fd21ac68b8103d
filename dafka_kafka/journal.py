"""The journals of leaders: which records of a partition are known, and their producers' states.

A leader's *journal* is its store's partition of an internal topic. Each record says up to which
offset a partition is known, and which states of idempotent producers have changed on the way. It is
appended in the same turn of the store's loop as the batch that it describes, so the disk has both
or neither. The next leader sets aside the records that no journal describes: their producers'
states are unknown, so it could not recognize a batch that is sent again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import zip_longest
from types import MappingProxyType
from typing import ClassVar, Final, NamedTuple

from dafka_core.errors import InvalidRequestError
from dafka_core.flight.limits import parts
from dafka_core.model.epochs import NO_LIFE, EpochId
from dafka_core.model.json_message import JsonMessage, Natural
from dafka_core.model.log_entries import NotedBatch
from dafka_core.model.names import INTERNAL
from dafka_core.model.records import RecordBatch, TopicPartition
from dafka_core.model.values import Values
from dafka_core.nodes.append_queue import Addition
from dafka_core.nodes.store import Store
from dafka_core.protocol.store_partition import HOSTING_ACKS
from dafka_core.storage import Log
from dafka_kafka.producer_states import ProducerState

JOURNAL_TOPIC: Final = f"{INTERNAL}kafka.journal"  # the topic of journals

NOTES_PER_RECORD: Final = 100
RECORDS_AT_ONCE: Final = 50
NOTES_AT_ONCE: Final = 5_000
"""States in a record, records in a batch, and notes with it; a store takes 10,000 of them."""

WRITE_S: Final = 10.0  # time for the disk to write a batch
States = Mapping[str, bytes]  # states of idempotent producers: the notes' contents by name


class JournalRecord(JsonMessage, frozen=True, omit_defaults=True):
    """A leader's knowledge of a partition, which it writes in ``life`` from ``start`` on.

    ``notes`` are the states of idempotent producers at ``end`` that have changed since the previous
    record, or the last part of all of them if they are ``whole``.
    """

    what: ClassVar[str] = "record of a leader's journal"

    topic: str
    partition: str
    life: EpochId
    start: Natural
    end: Natural
    notes: dict[str, bytes | None] = {}  # noqa: RUF012 -- a Struct copies it
    whole: bool = False


class Entry(NamedTuple):
    """A journal's next record, and the future of the batch that it describes."""

    record: JournalRecord
    written: Future[int]


class Known(NamedTuple):
    """A partition as its leader knows it: where its life begins, the end, and the states there."""

    start: int
    end: int
    states: States


def records_of(
    tp: TopicPartition,
    life: EpochId,
    start: int,
    end: int,
    notes: Mapping[str, bytes | None],
    *,
    is_whole: bool = True,
) -> Iterator[JournalRecord]:
    """Yield the records that describe a partition; at least one."""
    items = [*notes.items()]
    for at in range(0, max(len(items), 1), NOTES_PER_RECORD):
        part, is_last = dict(items[at : at + NOTES_PER_RECORD]), at + NOTES_PER_RECORD >= len(items)
        yield JournalRecord(*tp, life, start, end, part, whole=is_whole and is_last)


class Journal:
    """This gateway's journal; thread-safe."""

    def __init__(self, store: Store) -> None:
        self.tp = TopicPartition(JOURNAL_TOPIC, store.address)
        self._store = store

    @property
    def end(self) -> int:
        """Its end on disk."""
        return self._store.log.end(self.tp)

    @property
    def count(self) -> int:
        """The number of its records on disk."""
        return info.end - info.earliest if (info := self._store.log.info(self.tp)) else 0

    def addition(self, entries: Sequence[Entry], on_failure: Callable[[], object]) -> Addition:
        """Return the records to append behind the batches that they describe.

        ``on_failure`` is called if the disk has only one of both.
        """

        def place(start: int, losses: int, written: Future[int]) -> RecordBatch | Future[int]:
            placed = [each for each in entries if not has_failed(each.written)]
            if not placed:
                written.set_result(start)
                return written
            of = [each.written for each in placed]  # they complete before it
            written.add_done_callback(
                lambda done: any(map(has_failed, [done, *of])) and on_failure()
            )
            return RecordBatch.of(self.tp, start, [each.record.packed() for each in placed])

        return Addition(self.tp, 0, place)

    def append(
        self,
        records: Sequence[JournalRecord] = (),
        notes: Mapping[str, bytes | None] = MappingProxyType({}),
    ) -> None:
        """Append records, with notes; return when they, and all earlier writes, are on disk."""
        contents = [each.packed() for each in records or [JournalRecord(*self.tp, NO_LIFE, 0, 0)]]

        def place(start: int, losses: int, written: Future[int]) -> RecordBatch:
            return NotedBatch(self.tp, start, Values.of(contents), notes=notes)

        addition = Addition(self.tp, sum(map(len, contents)), place)
        self._store.append_queue.put_next([addition])[0].result(WRITE_S)

    def describe(
        self,
        life: EpochId,
        known: Mapping[TopicPartition, Known],
        stale: Collection[str] | None = None,
    ) -> None:
        """Append what is known of partitions.

        With the ``stale`` notes of this store, it replaces them by the known states.
        """
        records = [each for tp, one in known.items() for each in records_of(tp, life, *one)]
        notes: list[tuple[str, bytes | None]] = []
        if stale is not None:
            states = {name: note for one in known.values() for name, note in one.states.items()}
            notes = [*{**dict.fromkeys(stale), **states}.items()]
        parts_of_both = parts(records, RECORDS_AT_ONCE), parts(notes, NOTES_AT_ONCE)
        for some, changed in zip_longest(*parts_of_both, fillvalue=()):
            self.append(some, dict(changed))


@dataclass(slots=True)
class LifeSummary:
    """The journals' records of a partition in one leader's life."""

    start: int = 0
    end: int = 0
    is_whole: bool = False
    states: dict[str, bytes] = field(default_factory=dict)

    def add(self, record: JournalRecord) -> None:
        """Add the journal's next record."""
        self.start, self.end = record.start, max(self.end, record.end)
        self.is_whole |= record.whole
        for name, note in record.notes.items():
            if note is None:
                self.states.pop(name, None)
            elif name not in self.states or _rank(note) >= _rank(self.states[name]):
                self.states[name] = note


Summaries = Mapping[EpochId, LifeSummary]  # the summaries of a partition by life


def summaries(
    records: Iterable[JournalRecord], before: EpochId
) -> dict[TopicPartition, dict[EpochId, LifeSummary]]:
    """Return the summaries of all partitions, of lives older than ``before``."""
    found: dict[TopicPartition, dict[EpochId, LifeSummary]] = {}
    for each in records:
        if each.life < before:
            lives = found.setdefault(TopicPartition(each.topic, each.partition), {})
            lives.setdefault(each.life, LifeSummary()).add(each)
    return found


def read_journals(log: Log) -> Iterator[JournalRecord]:
    """Yield the records of all journals in a store, one journal after the other."""
    for info in log.partitions(JOURNAL_TOPIC):
        for batch in log.batches(info.tp, info.earliest, info.end):
            for value in batch.values:
                with suppress(InvalidRequestError):  # of a later version
                    yield JournalRecord.parse(bytes(value))


def recovered(lives: Summaries, end: int, last: EpochId) -> Known | None:
    """Return the next leader's knowledge of a partition that ends at ``end`` in its store.

    A leader writes after a majority has its whole state, so the newest life with one counts. If the
    store's last records are of an older life, ``last``, they are valid up to where the newest
    begins. None if the owner has written since without a leader: only its store has the states.
    """
    newest = max((life for life, each in lives.items() if each.is_whole), default=NO_LIFE)
    if end and newest <= last and last.acks <= HOSTING_ACKS:
        return None
    known = lives.get(newest, LifeSummary())
    end = min(end, known.start if last < newest else known.end)
    return Known(end, end, states_until(end, known.states))


def states_until(end: int, states: States) -> dict[str, bytes]:
    """Return the states without batches beyond an offset."""
    found = {}
    for name, note in states.items():
        state = ProducerState.unpack(note)
        if batches := tuple(each for each in state.batches if each.end <= end):
            found[name] = state._replace(batches=batches).packed()
    return found


def _rank(note: bytes) -> tuple[int, int]:
    """Return the sort key of a producer's states; the newest has the greatest."""
    state = ProducerState.unpack(note)
    return state.epoch, state.batches[-1].end


def has_failed(written: Future[int]) -> bool:
    """Return whether the store has refused a batch."""
    return written.done() and written.exception() is not None
