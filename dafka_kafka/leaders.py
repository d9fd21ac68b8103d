"""The leaders of partitions: which gateway writes them, so that those of a dead gateway move.

A gateway owns partitions, and usually writes them itself. In a cluster of three or more stores the
registry names the *leader* of each owner's partitions. The owner becomes their leader when it
starts. After it has been away for 10 s another gateway does, and the owner again on its return:

1.  *Gather*: the gateway waits until its own store has what the previous leader's stores have.
2.  *Elect*: it proposes a leader record, with a new life for its records, and the stores that vote.
    The registry commits it unless another gateway was quicker.
3.  *Fence*: it gathers again, from voting stores that have the record, at least one of each
    majority.
4.  *Recover*: it reads the ends of the partitions and the states of idempotent producers from the
    journals, and writes them to its own journal.
5.  When a majority has that, its *term* begins: it writes. In each partition its life begins where
    the known records end; what is behind is set aside.

A leader answers ``acks=all`` when a majority of the stores has the records and their journal, and
knew no newer leader then. So of two majorities, that of an acknowledged record and that asked by
the next leader, a store in common has the record, or made its acknowledgement impossible. A leader
that was paused acknowledges nothing more, and the next one's life replaces what it writes.
Consumers read only what a majority has, up to the *high watermark*: no record that they have seen
is set aside.

A leader's *journal* is its store's partition of an internal topic. Each record says up to which
offset a partition is known, and which states of idempotent producers have changed on the way. It is
appended in the same turn of the store's loop as the batch that it describes, so the disk has both
or neither. The next leader sets aside the records that no journal describes: their producers'
states are unknown, so it could not recognize a batch that is sent again.

Two stores can't tell which of them is cut off, so there each gateway writes its own partitions.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import zip_longest
from types import MappingProxyType
from typing import ClassVar, Final, NamedTuple

from dafka_core.errors import DafkaError
from dafka_core.flight.limits import parts
from dafka_core.flight.requests import TrimRequest
from dafka_core.flight.store_client import StoreClient
from dafka_core.flight.store_location import StoreLocation
from dafka_core.model.epochs import (
    LIFE_ID_BITS,
    MAX_ACKS,
    NO_LIFE,
    Epoch,
    EpochId,
    last_life,
    number_at,
)
from dafka_core.model.json_message import JsonMessage, Natural
from dafka_core.model.log_entries import NotedBatch
from dafka_core.model.names import INTERNAL
from dafka_core.model.records import PartitionInfo, RecordBatch, TopicPartition
from dafka_core.model.values import Values
from dafka_core.nodes.append_queue import Addition
from dafka_core.nodes.store import Store
from dafka_core.ops.findings import Finding, ok, warning
from dafka_core.protocol.store_partition import HOSTING_ACKS
from dafka_core.storage import Log
from dafka_kafka.errors import KafkaError, RefusedError
from dafka_kafka.gateways import Gateways
from dafka_kafka.partition_registry import COMMIT_S, PartitionRegistry
from dafka_kafka.producer_states import ProducerState, notes_of
from dafka_kafka.registry_table import LEAST_STORES, REGISTRY, Lead
from dafka_kafka.replication import Heads, Replication

_log: Final = logging.getLogger("dafka.kafka")

# -- the journal -----------------------------------------------------------------------------------

JOURNAL_TOPIC: Final = f"{INTERNAL}kafka.journal"  # the topic of journals

NOTES_PER_RECORD: Final = 100
RECORDS_AT_ONCE: Final = 50
NOTES_AT_ONCE: Final = 5_000
"""States in a record, records in a batch, and notes with it; a store takes 10,000 of them."""

JOURNAL_WRITE_S: Final = 10.0  # time for the disk to write a batch
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
        self._store.append_queue.put_next([addition])[0].result(JOURNAL_WRITE_S)

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
            yield from filter(None, map(JournalRecord.parse_or_none, map(bytes, batch.values)))


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
    found = {name: ProducerState.unpack(note).until(end) for name, note in states.items()}
    return {name: state.packed() for name, state in found.items() if state}


def _rank(note: bytes) -> tuple[int, int]:
    """Return the sort key of a producer's states; the newest has the greatest."""
    state = ProducerState.unpack(note)
    return state.epoch, state.batches[-1].end


def has_failed(written: Future[int]) -> bool:
    """Return whether the store has refused a batch."""
    return written.done() and written.exception() is not None


# -- terms and leaders -----------------------------------------------------------------------------

MOVE_S: Final = 5.0
"""Time after which the partitions of a gateway that is away move. Its beacons have been missing for
4 s before (``peer_expiry_ms``)."""

STEP_S: Final = 0.1  # interval of the checks for gateways that have come or gone
RETRY_S: Final = 1.0  # pause after a failed attempt
GATHER_S: Final = 10.0  # time for this store to receive other stores' records
SPREAD_S: Final = 1.0  # time for other stores to receive a leader's latest records
WAIT_S: Final = 0.02  # interval of the checks for answers and records
ASK_S: Final = 2.0  # time for one store to trim a journal

LONGEST_JOURNAL: Final = 50_000
"""Records after which a journal is written anew, and its beginning trimmed."""

TOO_FEW_STORES: Final = "that takes three stores, of which a majority can vote"


@dataclass(slots=True, eq=False)
class Term:
    """The time in which this gateway writes an owner's partitions.

    Attributes:
        lead: its record in the registry.
        known: the partitions when it began; those made since begin at 0.
        marks: of a partition that is read its high watermark, the next one, and the journal's end
            that a majority must have for that.
    """

    lead: Lead
    known: Mapping[TopicPartition, Known]
    marks: dict[TopicPartition, tuple[int, int, int]] = field(default_factory=dict)

    def start(self, tp: TopicPartition) -> int:
        """Return where the leader's life begins."""
        return self.known[tp].start if tp in self.known else 0

    def epoch(self, offset: int) -> Epoch:
        """Return the epoch of records, with the offset at which it may begin."""
        return Epoch(*self.lead.life, offset, 0)

    def entries(
        self, tp: TopicPartition, end: int, notes: Mapping[str, bytes | None], written: Future[int]
    ) -> list[Entry]:
        """Return the journal's entries for a batch up to ``end``."""
        start, is_whole = self.start(tp), tp not in self.known
        found = records_of(tp, self.lead.life, start, end, notes, is_whole=is_whole)
        return [Entry(each, written) for each in found]

    def watermark(self, tp: TopicPartition, end: int, journal_end: int, agreed: int) -> int:
        """Return the high watermark as far as a majority has the journal, up to ``agreed``.

        The journal describes the partition up to ``end`` before ``journal_end``.
        """
        mark, following, needed = self.marks.get(tp, (self.start(tp), self.start(tp), 0))
        for _ in range(2):
            if needed <= agreed:
                mark, following, needed = following, max(end, following), journal_end
        self.marks[tp] = mark, following, needed
        return mark


class Leaders:
    """The leaders of all owners' partitions, and this gateway's terms; thread-safe.

    Args:
        store: this gateway's store.

    Attributes:
        journal: this gateway's.
    """

    def __init__(
        self,
        store: Store,
        registry: PartitionRegistry,
        gateways: Gateways,
        replication: Replication,
    ) -> None:
        self.journal = Journal(store)
        self._store = store
        self._registry = registry
        self._gateways = gateways
        self._replication = replication
        self._own = gateways.own.address
        # All by owner.
        self._terms: dict[str, Term] = {}
        self._elected: dict[str, EpochId] = {}  # lives in which this gateway has written nothing
        self._away_s: dict[str, float] = {}  # since when its leader is away
        self._failures: dict[str, str] = {}  # why the last attempt has failed
        self._retry_s: dict[str, float] = {}  # time of the next one
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="dafka-kafka-leaders", daemon=True)
        gateways.leader_of = lambda owner: lead.leader if (lead := self.lead(owner)) else None

    def start(self) -> None:
        """Lead this gateway's own partitions, and those of gateways that are away."""
        self._thread.start()

    def close(self) -> None:
        """Stop; other gateways follow."""
        self._closing.set()
        if self._thread.ident is not None:
            self._thread.join()

    # -- for the APIs ----------------------------------------------------------------------------

    def lead(self, owner: str) -> Lead | None:
        """Return the leader of an owner's partitions; None if only the owner can be."""
        lead = self._registry.table.leads.get(owner)
        return lead if lead is not None and lead.is_movable else None

    def term(self, owner: str) -> Term | None:
        """Return the term in which this gateway writes an owner's partitions.

        None if it is the owner, and no other gateway can be the leader.

        Raises:
            RefusedError: it does not write them.
        """
        lead, term = self.lead(owner), self._terms.get(owner)
        if lead is not None and term is not None and term.lead == lead:
            return term
        if lead is None and owner == self._own and self._is_settled(owner):
            return None
        why = f"gateway {lead.leader if lead else owner} takes what is written there"
        raise RefusedError(KafkaError.NOT_LEADER_OR_FOLLOWER, why)

    def _is_settled(self, owner: str) -> bool:
        """Return whether no leader record of an owner waits for its commit.

        It may be committed already at stores that this one does not reach.
        """
        lead, newest = self._registry.table.leads.get(owner), self._registry.log.life(owner)
        return newest == (lead.life if lead else NO_LIFE)

    def watermark(self, tp: TopicPartition, end: int, lead: Lead) -> int | None:
        """Return the high watermark of a leader's partition; None if it is unknown here."""
        term = self._terms.get(lead.owner)
        if term is None or term.lead != lead:
            return None
        if last_life(self._store.log.lives(tp).history) != lead.life:
            end = min(end, term.start(tp))  # the others will be set aside
        journal_end, of = self.journal.end, self._replication.watermark
        agreed = of(self.journal.tp, journal_end, lead.majority, lead)
        found = of(tp, end, lead.majority, lead)
        if agreed is None or found is None:
            return None
        return min(found, term.watermark(tp, end, journal_end, agreed))

    def readable(self, changed: Collection[TopicPartition]) -> Collection[TopicPartition]:
        """Return the partitions that may have a new high watermark when stores have changed."""
        if self.journal.tp not in changed:
            return changed
        marks = [each for term in [*self._terms.values()] for each in [*term.marks.items()]]
        return {*changed, *(tp for tp, (mark, following, _) in marks if mark < following)}

    def entries(self) -> list[Entry] | None:
        """Return a list for the journal's next entries; None if this gateway has no term."""
        return [] if self._terms else None

    def addition(self, entries: Sequence[Entry]) -> Addition:
        """Return the journal's records; all terms end if the disk has only a part."""
        return self.journal.addition(entries, self._terms.clear)

    def findings(self) -> Iterator[Finding]:
        """Yield which gateway writes this one's partitions."""
        if (lead := self.lead(self._own)) is None:
            yield ok("leader", f"its partitions do not move while it is away: {TOO_FEW_STORES}")
        elif self._own in self._terms:
            yield ok("leader", f"it writes its partitions, and {len(lead.stores)} stores vote")
        else:
            why = f"gateway {lead.leader} writes its partitions"
            remedy = self._failures.get(self._own, "wait until it has all records")
            yield warning("leader", why, remedy)

    # -- in a thread: which gateway is the next leader -------------------------------------------

    def _run(self) -> None:
        while not self._closing.wait(STEP_S):
            try:
                self._step(self._due(time.monotonic()))
            except DafkaError as error:  # the store has ended, or its disk fails
                if not self._closing.is_set():
                    _log.error("this gateway leads no partitions any more: %s", error)
                return

    def _step(self, due: Mapping[str, tuple[str, ...]]) -> None:
        for owner, stores in due.items():
            self._try(
                owner, "its partitions have no leader here", partial(self._lead, owner, stores)
            )
        if self._terms:  # so that the next request finds what other stores have
            self._replication.use()
        if self._terms and self.journal.count > LONGEST_JOURNAL:
            self._try(JOURNAL_TOPIC, "its beginning stays", self._shorten)

    def _try(self, of: str, consequence: str, work: Callable[[], None]) -> None:
        """Work for an owner or the journal, unless that has failed just now."""
        if time.monotonic() < self._retry_s.get(of, 0.0):
            return
        try:
            work()
        except Exception as error:  # noqa: BLE001 -- the next attempt follows
            why = error.why if isinstance(error, RefusedError) else repr(error)
            if why != self._failures.get(of) and not self._closing.is_set():
                _log.warning("leader of %s: %s: %s", of, consequence, why)
            self._failures[of], self._retry_s[of] = why, time.monotonic() + RETRY_S
        else:
            self._failures.pop(of, None)

    def _due(self, now: float) -> Mapping[str, tuple[str, ...]]:
        """Return the owners that this gateway should lead, with the stores that vote."""
        leads = self._registry.table.leads
        for owner, term in [*self._terms.items()]:
            if term.lead != leads.get(owner):  # another gateway has become the leader
                self._terms.pop(owner, None)
        mine = {self._own, *self._terms}
        found = {owner: self._voters(owner, leads.get(owner)) for owner in mine}
        live = {each.address for each in self._gateways.live()} if leads else set[str]()
        for owner in leads.keys() - mine:
            lead = leads[owner]
            if ({owner, lead.leader} - {self._own}) & live:  # the owner becomes the leader soon
                self._away_s.pop(owner, None)
            elif now >= self._away_s.setdefault(owner, now) + MOVE_S and lead.is_movable:
                is_next = self._gateways.chosen(owner).address == self._own
                found[owner] = lead.stores if is_next else ()
        return {owner: stores for owner, stores in found.items() if stores}

    def _voters(self, owner: str, lead: Lead | None) -> tuple[str, ...]:
        """Return the stores that vote if this gateway should begin a term, or the next one.

        It does as the owner, and as the leader when stores have come or are forgotten.
        """
        known = self._store.known
        stores = tuple(sorted((self._own, *known.names)))
        is_movable = lead is not None and lead.is_movable
        if lead is not None and is_movable and owner not in self._terms:
            is_possible = len({*stores} & {*lead.stores}) >= lead.majority
            return lead.stores if is_possible else stores
        is_changed = lead is None or {*lead.stores} != {*stores}
        is_majority_here = 1 + len(known.endpoints) > len(stores) // 2
        # Of fewer stores no other gateway becomes the leader: the owner must have all records.
        is_useful = len(stores) >= LEAST_STORES or (is_movable and owner == self._own)
        return stores if is_changed and is_majority_here and is_useful else ()

    # -- becoming the leader ---------------------------------------------------------------------

    def _lead(self, owner: str, stores: tuple[str, ...]) -> None:
        """Become the leader of an owner's partitions."""
        lead = self._registry.table.leads.get(owner)
        if lead is None or lead.life != self._elected.get(owner):  # else only the rest has failed
            if lead is not None and lead.is_movable and stores == lead.stores:
                self._gather(lead)  # no gateway writes while the new leader does that again
            elif lead is not None and owner in self._terms:
                self._spread(lead, stores)
            lead = self._elect(owner, stores, lead)
        if not lead.is_movable:
            return
        self.journal.append()  # whatever was written before is on disk now
        self._gather(lead, is_fenced=True)
        known = self._recover(lead)
        self._wait_for_copies([self._info(self.journal.tp)], lead.majority, lead)
        del self._elected[owner]
        self._away_s.pop(owner, None)
        self._terms[owner] = Term(lead, known)
        text = "this gateway writes the partitions of gateway %s"
        _log.info(text, owner, extra={"event": "kafka_leader", "owner": owner})

    def _gather(self, lead: Lead, *, is_fenced: bool = False) -> None:
        """Receive the records of voting stores, at least one of each majority.

        If it ``is_fenced``, they know this leader.
        """
        written = {*map(self._registry.written, self._registry.owned(lead.owner))}
        needed = len(lead.stores) - lead.majority + 1

        def is_received(heads: Heads) -> bool:
            if is_fenced and not self._registry.log.is_at(lead, heads.get(REGISTRY)):
                return False
            return all(
                self._has(info)
                for tp, info in heads.items()
                if tp in written or tp.topic == JOURNAL_TOPIC
            )

        def is_complete() -> bool:
            received = {each for each, heads in self._replication.reports() if is_received(heads)}
            return len({self._own, *received} & {*lead.stores}) >= needed

        self._store.mesh.call_soon(lambda now: self._store.role.sync())
        stores = ", ".join(lead.stores)
        self._wait(is_complete, f"this store lacks the records of {needed} of the stores {stores}")

    def _has(self, info: PartitionInfo) -> bool:
        own = self._info(info.tp)
        return own.life > info.life or (own.life == info.life and own.end >= info.end)

    def _spread(self, lead: Lead, stores: tuple[str, ...]) -> None:
        """End this gateway's term when a majority of other voting stores has all records."""
        majority = len(stores) // 2 + 1

        def spread() -> None:
            infos = [*self._infos(lead.owner), self._info(self.journal.tp)]
            self._wait_for_copies(infos, majority, most_s=SPREAD_S)

        spread()  # almost all: a new store may need hours
        self._terms.pop(lead.owner, None)
        self.journal.append()
        spread()
        if {self._own, *self._store.known.names} != {*stores}:
            raise RefusedError(KafkaError.NOT_ENOUGH_REPLICAS, "another store has come or gone")

    def _elect(self, owner: str, stores: tuple[str, ...], previous: Lead | None) -> Lead:
        """Have the registry name this gateway in place of the previous leader."""
        numbers = [each.life.number for each in self._registry.table.leads.values()]
        numbers += [info.life.number for info in self._infos(owner)]
        number = max(number_at(time.time()), *numbers, 0) + 1
        life = EpochId(number, secrets.randbits(LIFE_ID_BITS), min(len(stores) // 2 + 1, MAX_ACKS))
        self._elected[owner] = life
        agreed = self._registry.lead(Lead(owner, self._own, life, stores), previous)
        self._wait(agreed.done, "the registry does not answer", COMMIT_S)
        agreed.result()
        if owner == self._own and previous is not None and previous.leader != self._own:
            self._gateways.announce(again=True)  # others may believe that it is away
        lead = self._registry.table.leads.get(owner)
        if lead is None or lead.life != life:
            raise RefusedError(KafkaError.NOT_CONTROLLER, "another gateway has become the leader")
        return lead

    def _recover(self, lead: Lead) -> dict[TopicPartition, Known]:
        """Return an owner's partitions as the journals describe them; write it to the own one."""
        mine = self._own_states(lead.owner)
        told = summaries(read_journals(self._store.log), lead.life)
        known = {tp: self._known(lead, tp, told.get(tp, {}), mine[tp]) for tp in mine}
        self.journal.describe(lead.life, known, {name for each in mine.values() for name in each})
        return known

    def _known(
        self, lead: Lead, tp: TopicPartition, told: Summaries, mine: Mapping[str, bytes]
    ) -> Known:
        lives = self._store.log.lives(tp)
        if found := recovered(told, lives.end, last_life(lives.history)):
            return found
        if lead.owner != self._own:
            why = f"{tp}: gateway {lead.owner} has written it without a leader"
            raise RefusedError(KafkaError.KAFKA_STORAGE_ERROR, why)
        return Known(lives.end, lives.end, mine)

    def _own_states(self, owner: str) -> dict[TopicPartition, dict[str, bytes]]:
        """Return the states in this store, by the partition to which they belong."""
        found: dict[TopicPartition, dict[str, bytes]] = {}
        for each in self._registry.owned(owner):
            if (tp := self._registry.written(each)) is not None:
                prefix = notes_of(each.topic, self._registry.state_name(each))
                found.setdefault(tp, {}).update(self._store.log.notes(prefix))
        return found

    # -- the journal's length --------------------------------------------------------------------

    def _shorten(self) -> None:
        """Write the journal anew, and trim what is before."""
        begin = self.journal.end
        for owner, term in [*self._terms.items()]:
            ends = {each.tp: each.end for each in self._infos(owner)}
            states = self._own_states(owner)  # at these ends or later
            known = {tp: Known(term.start(tp), ends[tp], states.get(tp, {})) for tp in ends}
            self.journal.describe(term.lead.life, known)
            infos = [self._info(self.journal.tp)]
            self._wait_for_copies(infos, term.lead.majority, term.lead)
        self._store.log.trim(self.journal.tp, begin)
        for store in self._store.known.endpoints.items():
            place, keys = StoreLocation(*store), self._store.options.keys
            with suppress(DafkaError), StoreClient(place, keys) as client:
                client.ask(ASK_S, TrimRequest(((*self.journal.tp, begin),)))

    # -- stores and their records ----------------------------------------------------------------

    def _infos(self, owner: str) -> list[PartitionInfo]:
        return [self._info(each.tp) for each in self._registry.owned(owner) if each.hosted]

    def _info(self, tp: TopicPartition) -> PartitionInfo:
        return self._store.log.info(tp) or PartitionInfo(*tp, 0, 0)

    def _wait_for_copies(
        self,
        infos: Sequence[PartitionInfo],
        copies: int,
        lead: Lead | None = None,
        most_s: float = GATHER_S,
    ) -> None:
        """Wait until ``copies`` stores, of a leader voting ones, have these records."""
        of, why = self._replication.watermark, "too few stores have all records in time"
        self._wait(
            lambda: all(of(each.tp, each.end, copies, lead) == each.end for each in infos),
            why,
            most_s,
        )

    def _wait(self, is_done: Callable[[], bool], why: str, most_s: float = GATHER_S) -> None:
        deadline = time.monotonic() + most_s
        while not is_done():
            if time.monotonic() >= deadline or self._closing.wait(WAIT_S):
                raise RefusedError(KafkaError.NOT_ENOUGH_REPLICAS, why)
