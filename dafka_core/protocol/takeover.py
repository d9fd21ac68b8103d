"""How a producer goes on with a partition that an earlier one has written.

It asks the stores for their histories, draws a life newer than all it hears of, and has them
promise that they acknowledge nothing more to older ones (``histories.py``).  Then it goes on from
the newest history among their answers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Mapping
from functools import partial
from typing import Final, NamedTuple

from dafka_core.model.epochs import NO_LIFE, Epoch, EpochId, History, digest, last_life, with_epoch
from dafka_core.model.names import DELETIONS_TOPIC
from dafka_core.model.records import PartitionLives, TopicPartition
from dafka_core.protocol.messages import HistoryReply
from dafka_core.protocol.role import Outgoing
from dafka_core.protocol.store_directory import StoreDirectory, StoreQuery

ROUNDS: Final = 3
"""How often C stores are asked how far the partition goes.  If a lost answer were taken for "no
such partition", the producer would begin it anew, over the records that it has."""

ASK_AGAIN_S: Final = 0.5
"""How long a producer waits for stores that are missing before it asks again."""

LEAST_NUMBER: Final = 2
"""1 is that of a partition's first life, for which no store has promised anything."""

MAX_EPOCH_ACKS: Final = 255
"""What an epoch has room for.  A life that asked for more counts as one that asked for so many."""

Replies = Mapping[str, HistoryReply]
"""Stores' answers by their addresses."""


_Ask = Callable[[float], tuple[StoreQuery, list[Outgoing]]]


class Missing(NamedTuple):
    """Too few stores have answered: ``needed``, and of those known ``stores`` are missing."""

    needed: int
    stores: tuple[str, ...]


def new_life(number: int, life_id: int, acks: int) -> EpochId:
    """A life with what it asks of stores."""
    return EpochId(number, life_id, min(acks, MAX_EPOCH_ACKS))


def newest_life(replies: Replies) -> EpochId:
    """The newest that the stores know of."""
    lives = (PartitionLives(0, each.history, each.promised).newest for each in replies.values())
    return max(lives, default=NO_LIFE)


def missing(
    replies: Replies, others: Iterable[str], acks: int, known: Collection[str] = ()
) -> Missing | None:
    """Whether too few of the stores there are have answered, with a promise.

    ``others`` are C stores that have told how far the partition goes.  Any record that a life has
    acknowledged lies on as many stores as its acks: so many less one may be missing.  The records
    may be of the newest life that has some at these stores, or of any that they have promised
    something since.  A life with fewer acks must be known to as many stores as those of before,
    too, so that a later one that counts on the old number hears of it.
    """
    answered = {*replies, *others}
    stores = {*known, *answered}
    for reply in replies.values():
        stores.update(reply.stores)
    newest = max((last_life(each.history) for each in replies.values()), default=NO_LIFE)
    before = max(newest.acks, 1)
    least = min([before, *(each.promised.acks for each in replies.values())])
    needed = max(len(stores) - max(least, 1) + 1, 1)  # also where all have gone meanwhile
    if acks < before:
        needed = max(needed, before)
    if len(answered) >= needed:
        return None
    return Missing(needed, tuple(sorted(stores - answered)))


def promised(replies: Replies, life: EpochId) -> dict[str, HistoryReply]:
    """The answers of the stores that have promised it to this life."""
    return {store: each for store, each in replies.items() if each.promised[:2] == life[:2]}


def goes_on(replies: Replies, life: EpochId, least: int) -> History:
    """The newest history, going on with an epoch of ``life``; that begins at ``least`` there.

    ``least`` is how far C stores have the partition.  Nobody can tell whose their records are, nor
    those of a store that has them from C nodes.
    """
    unnamed = (each.end for each in replies.values() if not each.history)
    least = max(least, *unnamed, 0)
    best = max(replies.values(), key=_newness, default=None)
    if best is None:
        return (Epoch(*life, least, 0),)
    start = max(best.end, least)
    return with_epoch(best.history, Epoch(*life, start, digest(best.history)))


def _newness(reply: HistoryReply) -> tuple[EpochId, int]:
    return last_life(reply.history), reply.end


class Takeover:
    """Asks until there is a ``history``, whose last epoch is the producer's.

    ``has_deletions`` says whether topics were ever deleted here, of which stores have notes.
    ``lack`` says which stores it still waits for, if that is what it does; with
    ``ignore_missing`` it goes on without them.  A life's number is ``least_number`` at least, the
    time in seconds: stores that have forgotten the lives of before, consumers have not.
    """

    def __init__(
        self,
        directory: StoreDirectory,
        tp: TopicPartition,
        *,
        life_id: int,
        acks: int,
        least_number: int,
        ignore_missing: bool,
    ) -> None:
        self.history: History = ()
        self.lack: Missing | None = None
        self.has_deletions = False
        self._directory = directory
        self._tp = tp
        self._life_id = life_id
        self._acks = acks
        self._least_number = least_number
        self._ignore_missing = ignore_missing
        self._question: StoreQuery | None = None
        self._due = 0.0
        self._steps = self._run()
        self._next: _Ask | None = next(self._steps)

    @property
    def epoch(self) -> Epoch | None:
        """The producer's, when it is known."""
        return self.history[-1] if self.history else None

    @property
    def missing(self) -> Missing | None:
        """The stores that it waits for, if it knows of any, whatever becomes of them."""
        waited = self._directory.expected.stores
        met = len(self._directory.stores)
        return self.lack or (Missing(met + len(waited), waited) if waited else None)

    def on_tick(self, now: float) -> list[Outgoing]:
        """Asks the next question when the last one is answered."""
        messages = self._directory.on_tick(now)
        question = self._question
        if question is not None and question.answered:
            self._directory.forget(question)
            self._question = None
            try:
                self._next = self._steps.send(question)
            except StopIteration:
                return messages
            if self.lack is not None:
                self._due = now + ASK_AGAIN_S
        if self._question is None and self._next is not None and now >= self._due:
            self._question, asked = self._next(now)
            messages += asked
        return messages

    def deadline(self, now: float) -> float | None:
        """When to look again."""
        return self._due if self._question is None else self._directory.deadline(now)

    def _run(self) -> Generator[_Ask, StoreQuery, None]:
        directory, tp = self._directory, self._tp
        topics = [tp.topic, DELETIONS_TOPIC]
        heads = yield lambda now: directory.ask_heads(now, topics, rounds=ROUNDS)
        self.has_deletions = any(each.topic == DELETIONS_TOPIC for each in heads.heads)
        prior = newest_life((yield lambda now: directory.ask_history(now, tp)).histories)
        while True:
            number = max(prior.number + 1, self._least_number, LEAST_NUMBER)
            life = new_life(number, self._life_id, self._acks)
            answer = yield partial(directory.ask_history, tp=tp, life=life)
            replies = promised(answer.histories, life)
            c_stores = directory.c_stores
            self.lack = missing(replies, c_stores, self._acks, directory.stores)
            if self.lack is None or self._ignore_missing:
                # C stores do not know lives: nobody can tell whose their records are.
                held = heads.heads.get(tp)
                least = held.end if held and c_stores else 0
                self.history = goes_on(replies, life, least)
                return
            # Stores that come may know a newer life.
            prior = max(prior, newest_life(answer.histories))
