"""In any sequence of events, a life that begins has all acknowledged records."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from dafka_core.model.epochs import (
    NO_LIFE,
    Epoch,
    EpochId,
    History,
    digest,
    divergence,
    epoch_at,
    follows,
    last_life,
    prefix,
    with_epoch,
)
from dafka_core.protocol import messages as m
from dafka_core.protocol import timing
from dafka_core.protocol.producer_role import LEAST_NUMBER, Takeover
from dafka_core.protocol.role import Outgoing
from dafka_core.protocol.store_directory import StoreDirectory
from tests.unit.protocol.model import PARTITION, TOPIC, TP

# -- any stores, any lives ------------------------------------------------------------------------


@dataclass
class Acceptor:
    """A store, as histories.py has its rules; its records are named by their epoch and offset."""

    name: str
    met: tuple[str, ...]
    is_up: bool = True
    history: History = ()
    end: int = 0
    promised: EpochId = NO_LIFE

    def answer(self, query: m.HistoryQuery) -> m.HistoryReply:
        last, life = last_life(self.history), query.life
        if life[:2] > max(last, self.promised)[:2]:
            acks = min(life.acks, self.promised.acks) if self.promised > last else life.acks
            self.promised = life._replace(acks=acks)
        held = self.end, self.promised, self.history, self.met
        return m.HistoryReply(query.requestor, query.query, self.name, TOPIC, PARTITION, *held)

    def take(self, epoch: Epoch, offset: int) -> EpochId | None:
        """Takes a record if it may; the life that it acknowledges what it has to."""
        parts = epoch.life > last_life(self.history) and epoch.start < self.end
        if parts and digest(prefix(self.history, epoch.start)) == epoch.parent:
            self.cut(epoch.start)
        if offset == self.end and follows(self.history, epoch, offset):
            if epoch not in self.history[-1:]:
                self.history = with_epoch(self.history, epoch)
            self.end += 1
        last = last_life(self.history)
        return last if self.end and last >= self.promised else None

    def copy(self, other: Acceptor) -> None:
        """Takes what another store has, as far as it can."""
        if last_life(other.history) > last_life(self.history):
            start = divergence(self.history, other.history)
            if start is not None and start < self.end:
                self.cut(start)
        for offset in range(self.end, other.end):
            epoch = epoch_at(other.history, offset)
            assert epoch is not None
            self.take(epoch, offset)

    def cut(self, start: int) -> None:
        self.history, self.end = prefix(self.history, start), start


@dataclass
class Life:
    """A producer that begins, writes, and may not learn of its end."""

    directory: StoreDirectory
    takeover: Takeover
    acks: int
    asked: list[Outgoing] = field(default_factory=list)
    end: int = 0
    heard: dict[str, int] = field(default_factory=dict)


Step = tuple[str, int, int]
WALKS = 300


class Cluster:
    """Stores that know each other, one producer's lives, and the acknowledgements to each."""

    def __init__(self, count: int) -> None:
        names = [f"S{number}" for number in range(count)]
        self.stores = [Acceptor(name, tuple({*names} - {name})) for name in names]
        self.lives: list[Life] = []
        self.acknowledged: set[tuple[EpochId, int]] = set()
        self.bases: list[tuple[Epoch, History]] = []
        self.now = 0.0

    def do(self, step: Step) -> None:
        what, which, mask = step
        self.now += timing.SETTLE_S + timing.TAKEOVER_RETRY_S
        match what:
            case "up" | "down":
                self.stores[which % len(self.stores)].is_up = what == "up"
            case "copy":
                one = self.stores[which % len(self.stores)]
                other = self.stores[mask % len(self.stores)]
                if one.is_up and other.is_up:
                    one.copy(other)
            case "begin":
                self.begin(1 + which % len(self.stores))
            case "ask" if self.lives:
                self.ask(self.lives[which % len(self.lives)], mask)
            case "write" if self.lives:
                self.write(self.lives[which % len(self.lives)], mask)

    def reached(self, mask: int) -> list[Acceptor]:
        return [s for number, s in enumerate(self.stores) if s.is_up and mask >> number & 1]

    def begin(self, acks: int) -> None:
        directory, number = StoreDirectory(PARTITION), len(self.lives)
        made = Takeover(
            directory=directory,
            tp=TP,
            life_id=number,
            acks=acks,
            least_number=1,
            ignore_missing=False,
        )
        self.lives.append(Life(directory, made, acks))

    def ask(self, life: Life, mask: int) -> None:
        """The reached stores receive its question and answer; the others are lost to it."""
        if life.takeover.history:
            return
        reached = self.reached(mask)
        for store in self.stores:
            if store in reached:
                hello = m.HeadsReply(PARTITION, m.UNSOLICITED, store.name, 0, 1, ())
                life.asked += life.directory.on_message(self.now, hello)
            else:
                life.directory.on_peer_lost(store.name)
        for query in life.asked:
            for store in reached:
                if isinstance(query, m.HistoryQuery):
                    life.directory.on_message(self.now, store.answer(query))
                else:
                    answer = m.HeadsReply(PARTITION, query.query, store.name, 0, 1, ())  # type: ignore[union-attr]
                    life.directory.on_message(self.now, answer)
        life.asked = life.takeover.on_tick(self.now)
        self.go_on(life, life.takeover)

    def go_on(self, life: Life, takeover: Takeover) -> None:
        for epoch in takeover.history[-1:]:
            life.end = epoch.start
            self.bases.append((epoch, self.history_up_to(epoch)))
            self.check()

    def history_up_to(self, epoch: Epoch) -> History:
        """Return the history that a life continues."""
        for store in self.stores:
            history = prefix(store.history, epoch.start)
            if digest(history) == epoch.parent and store.end >= epoch.start:
                return history
        raise AssertionError("it goes on from what no store has")

    def write(self, life: Life, mask: int) -> None:
        """Write a record, send all records to some stores, and process the acknowledgements."""
        if not life.takeover.history:
            return
        epoch = life.takeover.history[-1]
        life.end += 1
        for store in self.reached(mask):
            for offset in range(epoch.start, life.end):
                acknowledged = store.take(epoch, offset)
            if acknowledged == epoch.life:
                life.heard[store.name] = store.end
        ends = sorted(life.heard.values(), reverse=True)
        if len(ends) >= life.acks:
            durable = min(ends[life.acks - 1], life.end)
            self.acknowledged |= {(epoch.life, offset) for offset in range(epoch.start, durable)}
            self.check()

    def check(self) -> None:
        """Each life continues all records acknowledged to earlier ones."""
        for epoch, base in self.bases:
            for life, offset in self.acknowledged:
                if life < epoch.life:
                    known = epoch_at(base, offset)
                    assert offset < epoch.start, (epoch, life, offset)
                    assert known is not None
                    assert known.life == life, (epoch, life, offset)


ALL = 0b11111


def begun(acks: int, number: int) -> list[Step]:
    """A life begins, and repeats its questions until all required stores are present."""
    return [("begin", acks - 1, 0), *[("ask", number, ALL)] * 4]


@pytest.mark.parametrize("again", [[("ask", 1, ALL)], begun(2, 2)], ids=["the same", "another"])
def test_a_promise_is_not_enough_to_forget_a_life_with_fewer_acks(again: list[Step]) -> None:
    """A record acknowledged by one store alone is awaited by every life."""
    cluster = Cluster(2)
    for step in [*begun(1, 0), ("write", 0, 0b1), ("down", 0, 0), *begun(2, 1), *again]:
        cluster.do(step)
    assert cluster.acknowledged == {(EpochId(LEAST_NUMBER, 0, 1), 0)}
    assert len(cluster.lives) > 1
    assert all(not life.takeover.history for life in cluster.lives[1:])


def any_step(chance: random.Random, count: int, lives: int) -> Step:
    """Newer lives do more than older ones, and all stores are reached more often than some."""
    number = max(lives - 1 - int(chance.expovariate(0.7)), 0)
    stores = chance.choice([ALL, chance.randrange(1, 1 << count)])
    one, other = chance.randrange(count), chance.randrange(count)
    steps: list[Step] = [
        ("begin", one, 0),
        ("ask", number, stores),
        ("write", number, stores),
        (chance.choice(["up", "up", "down"]), one, 0),
        ("copy", one, other),
    ]
    return chance.choices(steps, [8, 42, 25, 15, 10])[0]


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
def test_the_next_life_continues_all_acknowledged_records(count: int) -> None:
    """``Cluster.check`` compares at each step."""
    begun_count = acknowledged_count = 0
    for seed in range(WALKS):
        chance = random.Random(seed)
        cluster = Cluster(count)
        for _ in range(chance.choice([30, 80, 200])):
            cluster.do(any_step(chance, count, len(cluster.lives)))
        # At the end all stores are present: a life begins.
        for number in range(count):
            cluster.do(("up", number, 0))
        for step in [*begun(1, len(cluster.lives)), *[("ask", len(cluster.lives), ALL)] * 4]:
            cluster.do(step)
        assert cluster.lives[-1].takeover.history
        begun_count += len(cluster.bases)
        acknowledged_count += len(cluster.acknowledged)
    # It is not that nothing happens.
    assert begun_count > WALKS
    assert acknowledged_count > WALKS
