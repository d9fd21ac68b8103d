"""A model of leaders that move, with what production decides by: histories, journals, states.

Three stores, of which each may have a leader's gateway, copy from each other at random. Gateways
crash, pause and take over at random, and clients send again what is not acknowledged. One partition
is enough: leaders share nothing between partitions but the registry and their journals.
"""

from __future__ import annotations

import random
from concurrent.futures import Future
from dataclasses import dataclass, field

from dafka_core.model.epochs import (
    NO_LIFE,
    Epoch,
    EpochId,
    History,
    digest,
    divergence,
    known_until,
    last_life,
    prefix,
    with_epoch,
)
from dafka_core.model.records import TopicPartition
from dafka_kafka.errors import KafkaError
from dafka_kafka.leaders import JournalRecord, Known, Term, records_of, recovered, summaries
from dafka_kafka.producer_states import ProducerKey, ProducerStates, Sequenced, WrittenBatch
from dafka_kafka.registry_table import Lead

TP = TopicPartition("t", "A" * 32)
STORES = ("S0", "S1", "S2")
MAJORITY = 2
IN_FLIGHT = 3
PRODUCER = 7


@dataclass
class Disk:
    """A store's copy of everything."""

    registry: int = 0  # the number of leaders' records
    history: History = ()
    values: list[int] = field(default_factory=list)
    journals: dict[str, list[JournalRecord]] = field(
        default_factory=lambda: {each: [] for each in STORES}
    )

    def copied(self) -> Disk:
        """Return a snapshot."""
        journals = {name: [*each] for name, each in self.journals.items()}
        return Disk(self.registry, self.history, [*self.values], journals)

    def same(self, history: History) -> int:
        """Return the end of its records that are those of another history."""
        return min(len(self.values), known_until(history, last_life(self.history)) or 0)

    def receive(self, other: Disk, count: int) -> None:
        """Copy some records of another store, which wins with a newer life."""
        if last_life(other.history) < last_life(self.history):
            return
        parts = divergence(self.history, other.history)
        if parts is not None and parts < len(self.values):
            self.cut(parts)
        end = min(len(self.values) + count, len(other.values))
        self.values += other.values[len(self.values) : end]
        self.history = prefix(other.history, end)

    def cut(self, end: int) -> None:
        """Set records aside."""
        del self.values[end:]
        self.history = prefix(self.history, end)


class Gateway:
    """A gateway beside a store; its fields are lost in a crash."""

    def __init__(self, model: Model, name: str) -> None:
        self.model, self.name = model, name
        self.start()

    def start(self) -> None:
        self.known = 0  # leaders' records that it has read of its store's registry
        self.term: Term | None = None
        self.loading = NO_LIFE
        self.gathered: dict[str, Disk] = {}
        self.snapshot_end = -1  # of its journal, for which it waits
        self.taken: dict[TopicPartition, Known] = {}
        self.states = ProducerStates()
        self.reports: dict[str, Disk] = {}
        self.sent: list[tuple[int, int, int, EpochId]] = []  # number, end, journal's end, life

    @property
    def disk(self) -> Disk:
        return self.model.disks[self.name]

    def leads(self) -> bool:
        """Return whether it may write, as far as it knows."""
        term = self.term
        return term is not None and self.model.leads[self.known - 1].life == term.lead.life

    def confirms(self, lead: Lead, report: Disk) -> bool:
        newest = self.model.leads[self.disk.registry - 1]
        return newest.life == lead.life and report.registry <= self.disk.registry

    # -- becoming the leader -------------------------------------------------------------------

    def propose(self) -> None:
        """Write a leader's record, if it knows all others: the registry compares."""
        model = self.model
        if self.known == len(model.leads) and model.committed == len(model.leads):
            life = EpochId(1 + len(model.leads), model.random.getrandbits(32), MAJORITY)
            model.leads.append(Lead("S0", self.name, life, STORES, len(model.leads)))
            model.mine[self.name].add(life)
            self.disk.registry = len(model.leads)
            self.term = None

    def load(self) -> None:
        """Do the next step of a new term."""
        model = self.model
        last = model.leads[model.committed - 1] if model.committed else None
        if last is None or last.leader != self.name or self.term or self.known < model.committed:
            return
        if last.life not in model.mine[self.name]:  # of an earlier run
            return
        if self.loading != last.life:
            self.loading, self.gathered, self.snapshot_end = last.life, {}, -1
        position = model.leads.index(last)
        name = model.random.choice([each for each in STORES if each != self.name])
        if name not in self.gathered and model.disks[name].registry > position:
            self.gathered[name] = model.disks[name].copied()
        if len(self.gathered) + 1 < len(STORES) - MAJORITY + 1 or not all(
            map(self.has, self.gathered.values())
        ):
            return
        if self.snapshot_end < 0:
            self.write_snapshot(last, is_first=position == 0)
        ends = [
            len(report.journals[self.name])
            for report in self.reports.values()
            if self.confirms(last, report)
        ]
        if any(each >= self.snapshot_end for each in ends):
            self.term = Term(last, self.taken)
            self.sent.clear()

    def has(self, other: Disk) -> bool:
        own, disk = (last_life(self.disk.history), len(self.disk.values)), other
        journals = all(len(self.disk.journals[n]) >= len(j) for n, j in disk.journals.items())
        theirs = last_life(disk.history), len(disk.values)
        return journals and (own[0] > theirs[0] or (own[0] == theirs[0] and own[1] >= theirs[1]))

    def write_snapshot(self, lead: Lead, *, is_first: bool) -> None:
        disk = self.disk
        records = [each for journal in disk.journals.values() for each in journal]
        lives = summaries(records, lead.life).get(TP, {})
        known = recovered(lives, len(disk.values), last_life(disk.history))
        assert known is not None
        assert lives or is_first or not disk.values or last_life(disk.history).acks > 1
        self.taken = {TP: known}
        self.states = ProducerStates()
        self.states.restore(known.states)
        disk.journals[self.name] += records_of(TP, lead.life, *known)
        self.snapshot_end = len(disk.journals[self.name])

    # -- writing -------------------------------------------------------------------------------

    def write(self, number: int) -> None:
        """Write a client's record, unless it is written."""
        if not self.leads():
            return
        assert self.term is not None
        disk, life = self.disk, self.term.lead.life
        if last_life(disk.history) > life:
            return  # fenced
        if last_life(disk.history) != life:
            disk.cut(min(len(disk.values), self.term.start(TP)))
            epoch = Epoch(*life, len(disk.values), digest(disk.history))
            disk.history = with_epoch(disk.history, epoch)
        key, batch = ProducerKey(*TP, PRODUCER), Sequenced(0, number, 1)
        verdict = self.states.verdict(key, batch, 0)
        journal = disk.journals[self.name]
        if isinstance(verdict, WrittenBatch):
            self.sent.append((number, verdict.end, len(journal), life))
            return
        if isinstance(verdict, KafkaError):
            return
        start = len(disk.values)
        notes = self.states.append(key, batch, start, 0)
        disk.values.append(number)
        journal += [each.record for each in self.term.entries(TP, start + 1, notes, Future())]
        self.sent.append((number, start + 1, len(journal), life))

    def acknowledge(self) -> None:
        """Answer what a majority has."""
        for number, end, journal_end, life in self.sent:
            term = self.term
            if term is None or term.lead.life != life:
                continue
            confirmed = [each for each in self.reports.values() if self.confirms(term.lead, each)]
            if any(self.is_covered(each, end, journal_end) for each in confirmed):
                self.model.on_acknowledged(number, end)

    def is_covered(self, report: Disk, end: int, journal_end: int) -> bool:
        """Return whether a store has a record, and the journal's record of it."""
        has_journal = len(report.journals[self.name]) >= journal_end
        return has_journal and report.same(self.disk.history) >= end

    def read(self) -> None:
        """Let a consumer read up to the high watermark."""
        term = self.term
        if term is None:
            return
        confirmed = [each for each in self.reports.values() if self.confirms(term.lead, each)]
        if not confirmed:
            return
        found = max(each.same(self.disk.history) for each in confirmed)
        journal = max(len(each.journals[self.name]) for each in confirmed)
        told = self.disk.journals[self.name][:journal]
        covered = [each.end for each in told if each.life == term.lead.life]
        end = min(len(self.disk.values), found, max(covered, default=term.start(TP)))
        self.model.on_read(self.disk.values[:end])


class Model:
    """The cluster, its client and its consumer."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.disks = {each: Disk() for each in STORES}
        self.leads: list[Lead] = []
        self.mine: dict[str, set[EpochId]] = {each: set() for each in STORES}
        self.gateways = {each: Gateway(self, each) for each in STORES}
        self.paused: set[str] = set()
        self.acknowledged: dict[int, int] = {}
        self.seen: list[int] = []

    @property
    def committed(self) -> int:
        """The number of leaders' records that a majority has."""
        return sorted((each.registry for each in self.disks.values()), reverse=True)[MAJORITY - 1]

    def on_acknowledged(self, number: int, end: int) -> None:
        assert self.acknowledged.setdefault(number, end) == end, "acknowledged at two offsets"

    def on_read(self, values: list[int]) -> None:
        common = min(len(values), len(self.seen))
        assert values[:common] == self.seen[:common], "a record that was read has changed"
        self.seen = max(values, self.seen, key=len)

    def step(self, *, is_calm: bool = False) -> None:
        """Do something at random; while it is calm, nothing fails."""
        weights = {
            self.copy_registry: 12,
            self.copy_records: 12,
            self.copy_journals: 12,
            self.crash: 0 if is_calm else 0.2,
            self.pause: 0 if is_calm else 1,
            self.follow: 6,
            self.propose: 0.2 * (self.leader is None) if is_calm else 0.8,
            self.load: 20,
            self.report: 10,
            self.write: 14,
            self.acknowledge: 9,
            self.read: 5,
        }
        if is_calm:
            self.paused.clear()
        (action,) = self.random.choices([*weights], [*weights.values()])
        action(self.random.choice(STORES))

    @property
    def leader(self) -> Gateway | None:
        """The gateway that writes, and has the newest record of the registry."""
        gateways = self.gateways.values()
        return next((g for g in gateways if g.leads() and g.known == len(self.leads)), None)

    def any_disk(self) -> Disk:
        return self.disks[self.random.choice(STORES)]

    def copy_registry(self, name: str) -> None:
        disk = self.disks[name]
        disk.registry = max(disk.registry, self.any_disk().registry)

    def copy_records(self, name: str) -> None:
        self.disks[name].receive(self.any_disk(), self.random.randrange(6))

    def copy_journals(self, name: str) -> None:
        disk, other = self.disks[name], self.any_disk()
        for each, journal in disk.journals.items():
            have = len(journal)
            journal.extend(other.journals[each][have : have + self.random.randrange(6)])

    def crash(self, name: str) -> None:
        self.gateways[name].start()
        self.mine[name] = set()
        self.paused.discard(name)

    def pause(self, name: str) -> None:
        self.paused ^= {name}

    def follow(self, name: str) -> None:
        if name not in self.paused:
            self.gateways[name].known = min(self.disks[name].registry, self.committed)

    def propose(self, name: str) -> None:
        if name not in self.paused:
            self.gateways[name].propose()

    def load(self, name: str) -> None:
        if name not in self.paused:
            self.gateways[name].load()

    def report(self, name: str) -> None:
        """Let a gateway receive a store's report, also while it is paused."""
        other = self.random.choice([each for each in STORES if each != name])
        self.gateways[name].reports[other] = self.disks[other].copied()

    def write(self, name: str) -> None:
        """Send what is not acknowledged to a gateway, in order, and some of it again."""
        if name not in self.paused:
            first = min({*range(len(self.acknowledged) + 1)} - self.acknowledged.keys())
            for number in range(first, first + self.random.randint(1, IN_FLIGHT)):
                self.gateways[name].write(number)

    def acknowledge(self, name: str) -> None:
        if name not in self.paused:
            self.gateways[name].acknowledge()

    def read(self, name: str) -> None:
        if name not in self.paused:
            self.gateways[name].read()

    def check(self) -> None:
        """Check the records of the last leader, which has everything that was acknowledged."""
        leader = self.leader
        assert leader is not None
        assert leader.term is not None
        values = leader.disk.values
        if last_life(leader.disk.history) != leader.term.lead.life:
            values = values[: leader.term.start(TP)]  # what is behind will be set aside
        assert len({*values}) == len(values), "a record is written twice"
        assert values == sorted(values), "records are out of order"
        assert values[: len(self.seen)] == self.seen, "a record that was read is gone"
        for number, end in self.acknowledged.items():
            assert values[end - 1 : end] == [number], "an acknowledged record is lost"
