"""A producer's life continues all acknowledged records, or reports the missing stores.

Its questions are in test_producer_role.py; these are its conclusions.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest

from dafka_core.model.epochs import (
    MAX_ACKS,
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
from dafka_core.protocol.producer_role import (
    LEAST_NUMBER,
    ROUNDS,
    Missing,
    Takeover,
    continued_history,
    missing,
    new_life,
    newest_life,
)
from dafka_core.protocol.role import Outgoing, PeerNews
from dafka_core.protocol.store_directory import StoreDirectory
from tests.unit.protocol.model import PARTITION, TOPIC, TP

A = Epoch(1, 0xA, 2, 0, 0)
B = Epoch(2, 0xB, 2, 5, A.digest)
LIFE = EpochId(3, 0xC, 2)


def reply(
    store: str,
    end: int = 0,
    history: History = (),
    life: EpochId = LIFE,
    stores: Sequence[str] = (),
) -> m.HistoryReply:
    return m.HistoryReply(PARTITION, 1, store, TOPIC, PARTITION, end, life, history, tuple(stores))


# -- conclusions from answers ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prior", "acks", "known", "answered", "lacks"),
    [
        # One store may have a record that only it has acknowledged: none may be missing.
        (1, 1, "S1", "S1", None),
        (1, 1, "S1 S2", "S1", Missing(2, ("S2",))),
        (1, 1, "S1 S2 S3", "S1 S3", Missing(3, ("S2",))),
        (1, 3, "S1 S2 S3", "S1 S3", Missing(3, ("S2",))),
        # A partition without records here may exist elsewhere.
        (0, 1, "S1 S2", "S2", Missing(2, ("S1",))),
        # A record of two stores is in one of any two.
        (2, 2, "S1 S2 S3", "S1 S2", None),
        (2, 2, "S1 S2 S3", "S3", Missing(2, ("S1", "S2"))),
        (2, 2, "S1 S2 S3 S4", "S1 S4", Missing(3, ("S2", "S3"))),
        (2, 3, "S1 S2 S3", "S1 S3", None),
        # A record of all stores is in each; with fewer acks from now on, this many must know.
        (3, 3, "S1 S2 S3", "S2", None),
        (3, 2, "S1 S2 S3", "S2", Missing(3, ("S1", "S3"))),
        (3, 1, "S1 S2 S3", "S1 S2", Missing(3, ("S3",))),
        (2, 1, "S1 S2 S3", "S1 S2", Missing(3, ("S3",))),
        # As many as it once was do not exist any more: nothing can be as sure as it was.
        (3, 3, "S1 S2", "S1", None),
        (3, 1, "S1", "S1", Missing(3, ())),
    ],
)
def test_how_many_stores_may_be_missing(
    prior: int, acks: int, known: str, answered: str, lacks: Missing | None
) -> None:
    names, (first, *others) = known.split(), answered.split()
    mine = LIFE._replace(acks=acks)
    history = (A._replace(acks=prior),) if prior else ()
    has_some = reply(first, 5, history, mine, names)
    replies = {first: has_some, **{store: reply(store, life=mine) for store in others}}
    assert missing(replies, [], acks) == lacks
    # In whatever way the stores are known.
    replies[first] = replace(has_some, stores=())
    assert missing(replies, [], acks, names) == lacks
    # C stores count, too.
    assert missing({first: has_some}, others, acks) == lacks


def test_a_promised_life_counts_with_its_acks() -> None:
    known = ["S1", "S2", "S3"]
    history = (A._replace(acks=3),)
    mine = LIFE._replace(acks=3)
    assert missing({"S1": reply("S1", 5, history, mine)}, [], 3, known) is None
    # A life with fewer was promised something at this store: it may have written to the others.
    for acks, needed in ((2, 2), (1, 3)):
        one = reply("S1", 5, history, mine._replace(acks=acks))
        assert missing({"S1": one}, [], 3, known) == Missing(needed, ("S2", "S3"))


def test_a_takeover_needs_an_answer() -> None:
    assert missing({}, [], 1, ["S1"]) == Missing(1, ("S1",))
    assert newest_life({}) == NO_LIFE


def test_the_newest_life_known_to_stores() -> None:
    older = reply("S1", 7, (A, B), life=NO_LIFE)
    assert newest_life({"S1": older}) == B.life
    assert newest_life({"S1": older, "S2": reply("S2", 5, (A,))}) == LIFE


@pytest.mark.parametrize(
    ("replies", "least", "start", "parent"),
    [
        ([], 0, 0, 0),
        ([], 4, 4, 0),
        ([reply("S1")], 0, 0, 0),
        # The newest life counts, not the furthest end.
        ([reply("S1", 9, (A,)), reply("S2", 6, (A, B))], 0, 6, B.digest),
        ([reply("S1", 5, (A,)), reply("S2", 3, (A,))], 0, 5, A.digest),
        ([reply("S1", 8, (A, B)), reply("S2", 6, (A, B))], 0, 8, B.digest),
        # Records of C stores, or C nodes' in ours, must not be overwritten.
        ([reply("S1", 5, (A,))], 8, 8, A.digest),
        ([reply("S1", 5, (A,)), reply("S2", 8)], 0, 8, A.digest),
        ([reply("S1", 5), reply("S2", 8)], 0, 8, 0),
    ],
)
def test_a_life_continues_the_newest_history(
    replies: list[m.HistoryReply], least: int, start: int, parent: int
) -> None:
    answers = {each.store: each for each in replies}
    *history, epoch = continued_history(answers, LIFE, least)
    assert epoch == Epoch(*LIFE, start, parent)
    assert digest(history) == parent


def test_acks_of_a_life_are_limited() -> None:
    assert new_life(2, 7, 3) == EpochId(2, 7, 3)
    assert new_life(2, 7, 1_000).acks == MAX_ACKS
    assert len(Epoch.first(new_life(2, 7, 1_000)).packed()) == len(A.packed())


# -- asking ---------------------------------------------------------------------------------------


def takeover(*, acks: int = 2) -> tuple[StoreDirectory, Takeover]:
    directory = StoreDirectory(PARTITION)
    made = Takeover(
        directory=directory, tp=TP, life_id=LIFE.id, acks=acks, least_number=1, ignore_missing=False
    )
    return directory, made


def test_a_takeover_continues_at_the_end_reported_by_c_stores() -> None:
    directory, mine = takeover(acks=1)
    directory.on_message(0.0, m.StoreHello(PARTITION, "C1"))
    directory.on_subscribed(0.0, m.ConsumerHello, "C1")
    mine.on_tick(0.0)
    directory.on_message(0.1, m.DirectHead(PARTITION, TOPIC, PARTITION, 6))
    now = timing.SETTLE_S
    for _ in range(2 * ROUNDS):
        now += timing.C_STORE_SILENCE_S
        mine.on_tick(now)
    assert mine.history == (Epoch(LEAST_NUMBER, LIFE.id, 1, 7, 0),)


def test_a_takeover_asks_one_question_at_a_time() -> None:
    directory, mine = takeover()
    assert mine.deadline(0.0) == 0.0
    first = mine.on_tick(0.0)
    assert len(first) == 1
    assert mine.on_tick(0.0) == []
    assert mine.deadline(0.0) == directory.deadline(0.0)
    assert mine.history == ()


# -- any stores, any lives ------------------------------------------------------------------------


@dataclass
class Acceptor:
    """A store with the rules of ``Histories``; its records are named by their epoch and offset."""

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
                life.directory.on_peer(0.0, PeerNews(store.name, is_lost=True))
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
