"""A producer's life continues all acknowledged records, or reports the missing stores.

Its questions are in test_producer_role_resumed.py; these are its conclusions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from dafka_core.model.epochs import NO_LIFE, Epoch, EpochId, History, digest
from dafka_core.protocol import messages as m
from dafka_core.protocol import timing
from dafka_core.protocol.producer_role import (
    LEAST_NUMBER,
    MAX_EPOCH_ACKS,
    ROUNDS,
    Missing,
    Takeover,
    continued_history,
    missing,
    new_life,
    newest_life,
)
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
    assert new_life(2, 7, 1_000).acks == MAX_EPOCH_ACKS
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
