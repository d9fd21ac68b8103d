"""The registry of partition numbers, which all gateways of a cluster agree on.

The list is one Dafka partition (``registry_table.py`` says what its records are).  A gateway that
adds to it takes it over as any producer does (``protocol/producer_role.py``): of two that do so at
once, the older life is told that it is over, and tries again.  What a majority of the stores has
counts, and nothing else: so no number is ever given twice, also where stores are lost.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from operator import attrgetter
from typing import Final

from dafka_core.errors import DafkaError, NotAcknowledgedError, ProducerFencedError
from dafka_core.model.epochs import MAX_END
from dafka_core.model.records import PartitionInfo, TopicPartition
from dafka_core.nodes.addresses import new_address, options_beside
from dafka_core.nodes.producer import Producer
from dafka_core.nodes.store import Store
from dafka_kafka.errors import KafkaError, RefusedError
from dafka_kafka.gateways import Gateways, ranked
from dafka_kafka.registry_table import (
    LIST,
    MAX_NUMBERS,
    NumberedPartition,
    NumberList,
    NumbersRecord,
    NumberTable,
    deletion_records,
    is_numbered,
    number_records,
)

# A gateway's turns: it takes the list of partitions' numbers over, and adds to it.
#
# It ends a turn by saying how far a majority of the stores has the list.  To take it over costs a
# quarter of a second: a producer comes into the mesh, hears which stores there are, and asks them
# three times.  So a gateway keeps its producer for a while, and takes its next turn with it unless
# somebody else has taken the list over.  It need not be sure of that: what a life publishes that is
# over is acknowledged by no majority.


STORES_S: Final = 5.0
"""How long stores may take to answer, or to write a record, until it is said that they do not."""

TURN_S: Final = 2.0
"""How long another gateway's turn is waited for; it takes half a second.  One that has died in its
turn does not end it."""

KEPT_S: Final = 60.0
"""How long the producer is kept after a turn: topics mostly come together, or one with each job."""

Work = Callable[[NumberTable], Sequence[NumbersRecord]]
"""Says what is to be added to a table."""


class NumberTurns:
    """Takes turns, in one thread.

    Args:
        store: that of this gateway.
        numbers: the list, as it lies in the store's log.
        is_closing: whether the gateway ends, and nothing is waited for any more.
    """

    def __init__(self, store: Store, numbers: NumberList, is_closing: Callable[[], bool]) -> None:
        self._store = store
        self._list = numbers
        self._is_closing = is_closing
        self._kept: Producer | None = None
        self._acks = 0  # what the kept one asks for
        self._kept_until = 0.0

    @property
    def majority(self) -> int:
        """How many of the stores that are known are more than half of them."""
        return (1 + len(self._store.known.names)) // 2 + 1

    def take(self, work: Work) -> None:
        """Has what ``work`` says added to the list, and agreed on.

        Raises:
            RefusedError: too few stores are there, or the list has lost its beginning.
            DafkaError: the stores do not answer, or another gateway has begun its turn.
        """
        majority = self._wait_for_majority()
        self._let_others_end()
        producer = self._taken_over(majority)
        try:
            self._add(producer, work)
        except BaseException as error:
            self._end(error)
            raise
        self._kept_until = time.monotonic() + KEPT_S

    def look(self) -> None:
        """Ends a producer that was kept for long enough, or is one no more."""
        if self._kept is not None and (
            time.monotonic() >= self._kept_until or not self._is_ours(self._kept)
        ):
            self._end()

    def close(self) -> None:
        """Ends; in another thread only when this one does no more."""
        self._end()

    def _taken_over(self, majority: int) -> Producer:
        """A producer that goes on with the list: the one of the last turn, if it may be."""
        self.look()
        if self._acks != majority:
            self._end()
        if self._kept is None:
            self._kept, self._acks = self._producer(majority), majority
        return self._kept

    def _is_ours(self, producer: Producer) -> bool:
        role = producer.role
        return role.fenced_by is None and self._list.is_of(role.epoch.life)

    def _end(self, error: BaseException | None = None) -> None:
        kept, self._kept = self._kept, None
        if kept is not None:
            kept.__exit__(None, error, None)

    def _add(self, producer: Producer, work: Work) -> None:
        start = producer.next_offset
        begin = NumbersRecord(turn=secrets.token_hex(16)).packed()
        producer.publish(begin)
        producer.flush(STORES_S)
        # A majority has what comes before it, too; this store perhaps not yet.
        table = self._read_until(start, begin)
        if table.applied <= start:
            why = f"topic {LIST.topic!r} has been trimmed: its first records are missing"
            raise RefusedError(KafkaError.KAFKA_STORAGE_ERROR, why)
        records = work(table)
        if records:
            producer.publish_many([each.packed() for each in records])
            producer.flush(STORES_S)
        end = producer.next_offset
        close = NumbersRecord(agreed=end).packed()
        producer.publish(close)
        producer.flush(STORES_S)
        self._read_until(end, close)

    def _wait_for_majority(self) -> int:
        """How many stores have to take what is added; as many are there when this returns."""
        deadline = time.monotonic() + STORES_S
        while True:
            known, here = self._store.known.names, self._store.known.here
            majority = self.majority
            if 1 + len(here) >= majority:
                return majority
            if time.monotonic() >= deadline or self._is_closing():
                away = ", ".join(sorted(set(known) - here))
                why = (
                    f"{majority} of {1 + len(known)} stores have to agree on the partitions' "
                    f"numbers, and these are away: {away}; start them, or if they are gone for "
                    "ever, say so by 'dafka store forget'"
                )
                raise RefusedError(KafkaError.NOT_ENOUGH_REPLICAS, why)
            time.sleep(0.05)

    def _let_others_end(self) -> None:
        deadline = time.monotonic() + TURN_S
        while not self._is_closing():
            self._list.read()
            began = self._list.open_since
            if began is None or time.monotonic() >= min(deadline, began + TURN_S):
                return
            time.sleep(0.02)

    def _producer(self, acks: int) -> Producer:
        given = options_beside(self._store.options)
        return Producer(
            LIST.topic,
            address=LIST.partition,
            **given | {"wait_for_tower": False, "tower_timeout_s": STORES_S},
            acks=acks,
            resume_timeout_s=STORES_S,
            close_timeout_s=STORES_S,
        )

    def _read_until(self, offset: int, content: bytes) -> NumberTable:
        """Waits until this store has the record, and takes what comes before it."""
        deadline = time.monotonic() + STORES_S
        while True:
            self._store.append_queue.wait(LIST, offset + 1, max(deadline - time.monotonic(), 0))
            found = self._store.log.read(LIST, offset, offset + 1)
            # It may have had another one there, of an older life, which it sets aside then.
            if found and found[0].values[0] == content:
                return self._list.read(offset + 1)
            if time.monotonic() >= deadline or self._is_closing():
                raise NotAcknowledgedError(*LIST, 1, STORES_S)
            time.sleep(0.02)


Plan = Callable[["NumberDraft"], None]
"""Adds what is wanted; raises RefusedError where that cannot be."""


class Wish:
    """What is to be done in the next turn, and the future of who waits for it."""

    def __init__(self, plan: Plan, within_s: float) -> None:
        self.plan = plan
        self.future: Future[None] = Future()
        self.deadline = time.monotonic() + within_s

    def end(self, error: BaseException | None = None) -> None:
        """It is done, or there was an error."""
        with suppress(InvalidStateError):  # it has ended, or who waited has gone
            if error is None:
                self.future.set_result(None)
            else:
                self.future.set_exception(error)


class NumberDraft:
    """The list as it is, and what comes behind it."""

    def __init__(self, table: NumberTable) -> None:
        self._table = table
        self._added: dict[str, list[NumberedPartition]] = {}
        self._names: set[TopicPartition] = set()
        self._deleted: dict[str, Mapping[str, int]] = {}

    def partitions(self, topic: str) -> Sequence[NumberedPartition]:
        """A topic's partitions, those to come among them."""
        known = () if topic in self._deleted else self._table.partitions(topic)
        return (*known, *self._added.get(topic, ()))

    def delete(self, topic: str, held: Iterable[PartitionInfo]) -> None:
        """Takes a topic's numbers away; ``held`` are its partitions that have, or had, records."""
        known = {each.address: 0 for each in self.partitions(topic)}
        self._names.difference_update(each.tp for each in self._added.pop(topic, ()))
        self._deleted[topic] = known | {info.partition: info.end for info in held}

    def host(self, topic: str, count: int, gateways: Sequence[str]) -> list[str]:
        """Adds partitions that gateways host, each in its turn; returns their addresses."""
        known = len(self.partitions(topic))
        added = [new_address() for _ in range(count)]
        for number, address in enumerate(added, known):
            self._add(topic, number, address, gateways[number % len(gateways)], hosted=True)
        return added

    def adopt(self, found: Iterable[TopicPartition], hosts: Callable[[str], Sequence[str]]) -> None:
        """Adds partitions of Dafka's producers that have no number.

        Of ``hosts`` of each the first one takes what is written there that hosts some of its topic:
        another one has nowhere to write it.
        """
        counts: dict[str, int] = {}
        hosting: dict[str, set[str]] = {}
        for tp in found:
            is_known = tp in self._names or self._table.number(tp) is not None
            if is_known or self._table.ended(tp) == MAX_END:
                continue
            if tp.topic not in counts:
                known = self.partitions(tp.topic)
                counts[tp.topic] = len(known)
                hosting[tp.topic] = {each.gateway for each in known if each.hosted}
            number, nearest = counts[tp.topic], hosts(str(tp))
            gateway = next((each for each in nearest if each in hosting[tp.topic]), nearest[0])
            self._add(tp.topic, number, tp.partition, gateway, hosted=False)
            counts[tp.topic] += 1

    def records(self) -> list[NumbersRecord]:
        """What is to be written."""
        deleted = (deletion_records(*each) for each in self._deleted.items())
        added = (number_records(*each) for each in self._added.items())
        return [record for records in (*deleted, *added) for record in records]

    def _add(self, topic: str, number: int, address: str, gateway: str, *, hosted: bool) -> None:
        if len(self._table) + len(self._names) >= MAX_NUMBERS:
            why = f"{MAX_NUMBERS} partitions have a number for Kafka clients, as many as may"
            raise RefusedError(KafkaError.POLICY_VIOLATION, why)
        new = NumberedPartition(topic, number, address, gateway, hosted)
        self._added.setdefault(topic, []).append(new)
        self._names.add(new.tp)


AGREE_S: Final = 15.0
"""How long a client waits for the stores to agree: Kafka's clients give a request 30 s and more."""

LOOK_S: Final = 0.5
"""How often to look for new partitions of Dafka's producers."""

RANK_S: Final = 3.0
"""How much later each further gateway gives them their numbers, if none before it has."""

SAMPLE: Final = 100
"""Partitions of a topic that are looked at to see whether one of them has records."""

AGAIN_S: Final = 10.0
"""When to try again to do so after it has failed."""

ADDRESS: Final = attrgetter("address")

_log: Final = logging.getLogger("dafka.kafka")


class PartitionNumbers:
    """The partitions of all topics that have numbers, as this gateway knows them.  Thread-safe.

    What is asked here costs nothing; ``create``, ``extend`` and ``refresh`` ask the stores, and
    raise RefusedError where a topic cannot be so, or too few stores answer.

    Args:
        store: that of this gateway.
        gateways: who takes writes.
    """

    def __init__(self, store: Store, gateways: Gateways) -> None:
        self._store = store
        self._stored = store.log
        self._gateways = gateways
        self._list = NumberList(store.log)
        self._turns = NumberTurns(store, self._list, lambda: self._closing)
        self._looked = -1  # changes of the log that were looked at for new partitions
        self._new: dict[TopicPartition, None] = {}  # partitions without a number
        self._news_since: float | None = None
        self._failed_s = float("-inf")  # when a turn for news has failed last
        self._said = ""  # why
        self._changed = threading.Condition()
        self._wishes: list[Wish] = []
        self._closing = False
        self._woken = threading.Event()
        self._threads = [
            threading.Thread(target=run, name=f"dafka-kafka-{name}", daemon=True)
            for name, run in (("list", self._follow), ("turns", self._take_turns))
        ]

    def start(self) -> None:
        """Reads the list, and follows it from now on."""
        self._list.read()
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Ends; who waits is told."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._woken.set()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()
        self._turns.close()
        for wish in self._wishes:
            wish.end(RefusedError(KafkaError.NOT_CONTROLLER, "this gateway ends"))

    @property
    def cluster_id(self) -> str | None:
        """What was drawn when the list began; None before."""
        return self._list.table.cluster_id

    @property
    def skipped(self) -> int:
        """How many records of the list, or partitions in them, were none, and are passed over."""
        return self._list.table.skipped

    def topics(self) -> Collection[str]:
        """The topics that have numbers."""
        return self._list.table.topics

    def partitions(self, topic: str) -> Sequence[NumberedPartition]:
        """A topic's partitions by their numbers; none if it has no numbers."""
        return self._list.table.partitions(topic)

    def get(self, topic: str, number: int) -> NumberedPartition | None:
        """The partition of this number."""
        return self._list.table.get(topic, number)

    def number(self, tp: TopicPartition) -> int | None:
        """The number of a Dafka partition; None while it has none."""
        return self._list.table.number(tp)

    def ended(self, tp: TopicPartition) -> int:
        """Up to where a partition was of a topic that was deleted; 0 where it never was."""
        return self._list.table.ended(tp)

    def hosted(self, topic: str) -> set[TopicPartition]:
        """The partitions that gateways host of a topic, or did until its numbers were deleted."""
        found = {each.tp for each in self.partitions(topic) if each.hosted}
        return found or self._list.table.hosted_once(topic)

    def is_there(self, topic: str) -> bool:
        """Whether the topic has numbers, or records that can have some."""
        if self.get(topic, 0) is not None:
            return True
        found = self._stored.partitions_after(topic, None, SAMPLE) if is_numbered(topic) else ()
        return any(info.end > self._list.table.ended(info.tp) for info in found)

    async def create(
        self, topic: str, count: int, *, new: bool = False, gateways: Sequence[str] = ()
    ) -> None:
        """Has the topic have at least ``count`` partitions that gateways host.

        With ``new`` it must not be there yet.  ``gateways`` host them, in turns; without, all that
        are live do.
        """
        mine: set[str] = set()  # what was added in a turn that was cut short, and may be there

        def plan(draft: NumberDraft) -> None:
            known = draft.partitions(topic)
            if new and mine.isdisjoint(map(ADDRESS, known)) and (known or self.is_there(topic)):
                raise RefusedError(KafkaError.TOPIC_ALREADY_EXISTS, f"topic {topic!r} is there")
            self._adopt(draft, topic)
            hosted = sum(each.hosted for each in draft.partitions(topic))
            mine.update(draft.host(topic, count - hosted, gateways or self._hosts(topic)))

        await self._wish(plan)

    async def extend(self, topic: str, count: int, *, gateways: Sequence[str] = ()) -> None:
        """Has the topic have ``count`` partitions in all, which must be more than it has."""
        mine: set[str] = set()

        def plan(draft: NumberDraft) -> None:
            if not self.is_there(topic):
                raise RefusedError(KafkaError.UNKNOWN_TOPIC_OR_PARTITION, f"no topic {topic!r}")
            self._adopt(draft, topic)
            found = draft.partitions(topic)
            known = len(found)
            if count <= known and mine.isdisjoint(map(ADDRESS, found)):
                why = f"topic {topic!r} has {known} partitions, and {count} are not more"
                raise RefusedError(KafkaError.INVALID_PARTITIONS, why)
            mine.update(draft.host(topic, count - known, gateways or self._hosts(topic)))

        await self._wish(plan)

    async def delete(self, topic: str) -> None:
        """Takes a topic's numbers away; its partitions get others only when more comes."""
        held = self._stored.partitions
        await self._wish(lambda draft: draft.delete(topic, held(topic)))

    async def refresh(self) -> None:
        """Gives numbers to all partitions that this gateway's store has and that have none."""
        await asyncio.to_thread(self._look)
        if self._new:
            await self._wish(self._adopt_new)

    def _hosts(self, topic: str) -> list[str]:
        return ranked(topic, [each.address for each in self._gateways.live()])

    def _adopt(self, draft: NumberDraft, topic: str) -> None:
        infos, ended = self._stored.partitions(topic), self._list.table.ended
        found = [i.tp for i in infos if i.end > ended(i.tp) and is_numbered(topic)]
        draft.adopt(found, self._hosts)

    def _adopt_new(self, draft: NumberDraft) -> None:
        found = tuple(self._new)
        draft.adopt(found, self._hosts)

    async def _wish(self, plan: Plan) -> None:
        wish = Wish(plan, AGREE_S)
        with self._changed:
            if self._closing:
                raise RefusedError(KafkaError.NOT_CONTROLLER, "this gateway ends")
            self._wishes.append(wish)
            self._changed.notify_all()
        try:
            await asyncio.wait_for(asyncio.wrap_future(wish.future), AGREE_S)
        except TimeoutError:
            why = f"the stores have not agreed on the partitions' numbers within {AGREE_S:.0f} s"
            raise RefusedError(KafkaError.REQUEST_TIMED_OUT, why) from None

    # -- the thread that follows the list --------------------------------------------------------

    def _follow(self) -> None:
        topics = frozenset((LIST.topic,))
        while not self._closing:
            number = self._stored.changes.number
            try:
                self._list.read()
                self._look()
                with self._stored.changes.watching(number, topics) as self._woken:
                    self._woken.wait(LOOK_S)
            except DafkaError as error:  # the store has ended, or its disk fails
                if not self._closing:
                    _log.error("the list of Kafka's partitions cannot be read: %s", error)
                return

    def _look(self) -> None:
        number = self._stored.changes.number
        changed = self._stored.changes.since(self._looked, None)
        if changed is None:
            changed = [info.tp for info in self._stored.partitions()]
        self._looked = number
        table = self._list.table
        found = [tp for tp in changed if table.number(tp) is None and is_numbered(tp.topic)]
        with self._changed:
            for tp in [tp for tp in self._new if table.number(tp) is not None]:
                del self._new[tp]
            for tp in found:
                if self._stored.end(tp) > table.ended(tp):
                    self._new[tp] = None
            self._changed.notify_all()

    # -- the thread that adds to it --------------------------------------------------------------

    def _take_turns(self) -> None:
        while True:
            self._turns.look()
            with self._changed:
                if not (self._closing or self._wishes or self._is_due()):
                    self._changed.wait(LOOK_S)
                if self._closing:
                    return
                if not (self._wishes or self._is_due()):
                    continue
                wishes, self._wishes = self._wishes, []
            background = Wish(self._adopt_new, AGREE_S)
            self._agree([*wishes, background])
            failure = background.future.exception()
            self._news_since, why = None, ""
            if isinstance(failure, RefusedError) and not self._closing:
                self._failed_s, why = time.monotonic(), failure.why
                if why != self._said:
                    _log.warning("new partitions have no number for Kafka clients: %s", why)
            self._said = why
            with suppress(DafkaError):  # the thread that follows says it
                self._look()

    def _is_due(self) -> bool:
        """Whether it is this gateway's turn to see to what nobody has asked for.

        That is to add new partitions, to begin the list, and to have it agreed on by a majority of
        more or fewer stores than before: else the next turn would need all of them.
        """
        now = time.monotonic()
        is_begun = self.cluster_id is not None
        if not self._new and is_begun and self._list.is_agreed_by(self._turns.majority):
            self._news_since = None
            return False
        if self._news_since is None:
            self._news_since = now
        rank = self._gateways.ranked(LIST.topic).index(self._gateways.own)
        # Others may be about to do so, or this store about to hear of them.
        wait_s = rank * RANK_S + (0 if self._new and is_begun else TURN_S)
        return now >= max(self._news_since + wait_s, self._failed_s + AGAIN_S)

    def _agree(self, wishes: Sequence[Wish]) -> None:
        """Adds what is wished for, unless it is there already; tells who waits."""
        tries, failure = 0, RefusedError(KafkaError.NOT_CONTROLLER, "the gateway ends")
        while not self._closing:
            tries += 1
            try:
                self._turns.take(lambda table: self._planned(table, wishes))
            except RefusedError as error:
                failure = error
                break
            except DafkaError as error:
                why = f"stores do not agree on the partitions' numbers: {error}"
                failure = RefusedError(KafkaError.NOT_ENOUGH_REPLICAS, why)
                if isinstance(error, ProducerFencedError) and time.monotonic() < wishes[0].deadline:
                    # Another gateway has begun its turn; not both again at the same moment.
                    time.sleep(random.uniform(0.05, 0.3) * tries)
                    continue
                break
            for wish in wishes:
                wish.end()
            return
        for wish in wishes:
            wish.end(failure)

    def _planned(self, table: NumberTable, wishes: Sequence[Wish]) -> list[NumbersRecord]:
        draft = NumberDraft(table)
        for wish in wishes:
            try:
                wish.plan(draft)
            except RefusedError as error:
                wish.end(error)
        return draft.records()
