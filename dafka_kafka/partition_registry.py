"""The registry of partition numbers, on which all gateways of a cluster agree.

Kafka numbers a topic's partitions.  The registry maps each number to a partition of Dafka and to
its *owner*, the gateway that takes its writes.  It is itself a Dafka partition of which every store
keeps a copy (``registry_table`` has its records), and one gateway at a time is its producer.  A
*proposal* to create, extend or delete a topic passes these steps:

1.  The gateway becomes the registry's producer: stores promise to acknowledge nothing more of
    earlier producers, at least one store of each majority (``protocol/store_partition.py``).
2.  *Lease*: it writes a lease record.  When a majority of all known stores and its own store have
    it, its table has everything that was ever committed: two majorities have a store in common.
3.  It chooses the numbers after those in its table, and writes them.
4.  *Commit*: when a majority has them, no later producer can miss them.  It writes a commit record,
    and every gateway applies what is before.

For further proposals the lease stays valid until another gateway becomes the producer.

Example: gateways A and B create topic ``t`` with one partition at once.  A becomes the producer,
then B, before a majority has A's records.  No majority acknowledges A's records any more: A drops
them, and waits for B's commit.  The registry then has::

    offset 7   lease       by B
    offset 8   t, first 0  an address that B has chosen
    offset 9   committed 9 (exclusive)

A applies it, becomes the producer again, and plans its proposal on a table that has ``t``: it
succeeds if the client wants the topic to exist, and fails with TOPIC_ALREADY_EXISTS if the client
wants to create it.

So a number is never assigned twice.  A minority of the stores assigns nothing, as it commits no
record.  A gateway that returns with an old copy has no lease.  One that sleeps while it has the
lease plans on an old table afterwards, but no majority acknowledges its records.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from enum import Enum
from math import inf
from operator import attrgetter
from types import MappingProxyType
from typing import Final, Protocol

from dafka_core.errors import ClosedError, DafkaError, ProducerFencedError
from dafka_core.model.epochs import MAX_END
from dafka_core.model.records import PartitionInfo, TopicPartition
from dafka_core.nodes.addresses import new_address, options_beside
from dafka_core.nodes.producer import Producer
from dafka_core.nodes.store import Store
from dafka_core.protocol.producer_role import ProducerRole
from dafka_core.protocol.store_directory import KnownStores
from dafka_kafka.errors import KafkaError, RefusedError
from dafka_kafka.gateways import Gateways, ranked
from dafka_kafka.registry_table import (
    MAX_PARTITIONS,
    REGISTRY,
    Lead,
    NumberedPartition,
    RegistryLog,
    RegistryRecord,
    RegistryTable,
    assignment_records,
    deletion_records,
    is_numbered,
)

Change = Callable[["PendingChanges"], None]
"""Applies a change; raises RefusedError if it is invalid."""


class Proposal:
    """A requested registry change and the future of its caller.

    Args:
        now: the time at which it is proposed.
    """

    def __init__(self, change: Change, now: float) -> None:
        self.change = change
        self.future: Future[None] = Future()
        self.since = now

    def complete(self, error: BaseException | None = None) -> None:
        """Complete the future with a result or an error."""
        with suppress(InvalidStateError):  # already completed or cancelled
            if error is None:
                self.future.set_result(None)
            else:
                self.future.set_exception(error)


# The states of a gateway's lease, and its actions.  ``RegistryLease`` implements this table.


PROPOSED: Final = "a change is proposed, and a majority of the stores is here"
TOO_FEW: Final = "a change is proposed, and a majority is away for 5 s"
UNCHANGED: Final = "the changes need no record, and everything is committed"
ELECTED: Final = "enough stores have promised"
ACKNOWLEDGED: Final = "a majority and its own store have its records"
FENCED: Final = "another gateway becomes the producer"
OVERDUE: Final = "the stores do not answer for 5 s, or refuse"
IDLE: Final = "nothing is proposed for 60 s, or a store comes or is forgotten"

ELECT: Final = "asks the stores for their promise"
LEASE: Final = "writes a lease record"
PLAN: Final = "may choose numbers"
ASSIGN: Final = "writes the proposed changes"
COMMIT: Final = "writes a commit record"
COMPLETE: Final = "reports success"
RETRY: Final = "keeps its proposals, and retries"
REFUSE: Final = "refuses its proposals"
GIVE_UP: Final = "gives up the lease"


class LeaseState(Enum):
    """A state of a gateway, with its meaning."""

    FOLLOWING = "it applies what other gateways commit"
    ELECTING = "it asks the stores for the promise that it is the registry's only producer"
    LEASING = "its lease record is on its way to a majority"
    LEASED = "its table has everything that was ever committed"
    WRITING = "its changes are on their way to a majority"
    COMMITTING = "a majority has its changes, and the commit record is on its way"


_LOST: Final = {FENCED: (LeaseState.FOLLOWING, RETRY), OVERDUE: (LeaseState.FOLLOWING, REFUSE)}

LEASE_TABLE: Final[Mapping[LeaseState, Mapping[str, tuple[LeaseState, str]]]] = {
    LeaseState.FOLLOWING: {
        PROPOSED: (LeaseState.ELECTING, ELECT),
        TOO_FEW: (LeaseState.FOLLOWING, REFUSE),
    },
    LeaseState.ELECTING: {ELECTED: (LeaseState.LEASING, LEASE), **_LOST},
    LeaseState.LEASING: {ACKNOWLEDGED: (LeaseState.LEASED, PLAN), **_LOST},
    LeaseState.LEASED: {
        PROPOSED: (LeaseState.WRITING, ASSIGN),
        TOO_FEW: (LeaseState.FOLLOWING, REFUSE),
        FENCED: (LeaseState.FOLLOWING, RETRY),
        IDLE: (LeaseState.FOLLOWING, GIVE_UP),
    },
    LeaseState.WRITING: {
        UNCHANGED: (LeaseState.LEASED, COMPLETE),
        ACKNOWLEDGED: (LeaseState.COMMITTING, COMMIT),
        **_LOST,
    },
    LeaseState.COMMITTING: {ACKNOWLEDGED: (LeaseState.LEASED, COMPLETE), **_LOST},
}
"""The next state and the action, by state and event; any other event refuses the proposals and
gives up the lease."""

STORES_S: Final = 5.0  # time for stores to answer, or to write a record

COMMIT_S: Final = 15.0
"""Time a client waits for a commit; Kafka's clients allow 30 s or more for a request."""

OTHERS_COMMIT_S: Final = 2.0
"""Time to wait for another gateway's commit, which takes half a second; a gateway that died never
commits."""

IDLE_S: Final = 60.0
"""Time for which a lease is kept without proposals: topics are often created one after the other,
and becoming the producer takes a quarter of a second."""

BACKOFF_S: Final = 0.25
MAX_BACKOFF_S: Final = 5.0
"""Random pause after another gateway has become the producer: at most this at first, and twice as
long after each retry. It is as long as an election: of two gateways one ends before the other
begins."""


class RegistryProducer(Protocol):
    """The registry's producer in one life, as ``Producer`` has it."""

    role: ProducerRole

    @property
    def next_offset(self) -> int:
        """The offset of the next record."""

    def publish_many(self, values: Sequence[bytes], /) -> object:
        """Append records to the registry."""

    def end(self, *, started_s: float) -> None:
        """End this life; raise DafkaError if records are not acknowledged."""


class RegistryLease:
    """A gateway's part in the agreement, without threads and sockets; ``step`` does what is due.

    ``propose`` may be called by any thread, everything else by one.

    Args:
        log: the registry in the store's log.
        known: returns the stores that the gateway's store knows.
        elect: becomes the registry's producer; its argument is the number of stores that must
            acknowledge each record.
    """

    def __init__(
        self,
        log: RegistryLog,
        known: Callable[[], KnownStores],
        elect: Callable[[int], RegistryProducer],
    ) -> None:
        self.state = LeaseState.FOLLOWING
        self.producer: RegistryProducer | None = None
        self._log = log
        self._known = known
        self._elect = elect
        self._acks = 0  # of the producer
        self._proposals: deque[Proposal] = deque()
        self._written: list[Proposal] = []  # proposals whose records are not committed yet
        self._is_unchanged = False  # these need no records
        self._now = self._since = self._backoff_s = 0.0
        self._lost_at = -inf  # time at which another gateway has become the producer
        self._tries = 0
        self._failure: RefusedError | None = None
        self._actions: Mapping[str, Callable[[], None]] = {
            ELECT: self._become_producer,
            LEASE: self._write_lease,
            PLAN: lambda: None,
            ASSIGN: self._assign,
            COMMIT: self._commit,
            COMPLETE: self._complete,
            RETRY: self._retry,
            REFUSE: self._refuse,
            GIVE_UP: self._end,
        }

    @property
    def majority(self) -> int:
        """The number of stores that is a majority of the known ones."""
        return (1 + len(self._known().names)) // 2 + 1

    @property
    def has_proposals(self) -> bool:
        """True while any proposal is not completed."""
        return bool(self._proposals or self._written)

    def propose(self, proposal: Proposal) -> None:
        """Queue a change; its future completes when it is committed or refused."""
        self._proposals.append(proposal)

    def step(self, now: float) -> None:
        """Process all events until now."""
        self._now = now
        while True:
            self._failure = None
            try:
                event = self._event()
                if event is None:
                    return
                self._on(event)
            except ProducerFencedError:
                self._on(FENCED)
            except RefusedError as error:
                self._failure = error
                self._on(OVERDUE)
            except DafkaError as error:
                self._failure = _disagreement(str(error))
                self._on(OVERDUE)

    def close(self, refusal: RefusedError) -> None:
        """Give up the lease, and refuse all proposals."""
        self._failure = refusal
        self._refuse()

    def _on(self, event: str) -> None:
        then, action = LEASE_TABLE[self.state].get(event, (LeaseState.FOLLOWING, REFUSE))
        self._since = self._now
        self._actions[action]()
        self.state = then

    def _event(self) -> str | None:
        state, producer = self.state, self.producer
        if producer is None:
            return self._beginning()
        role, end = producer.role, producer.next_offset
        if state is LeaseState.ELECTING:
            if role.takeover is None:
                return ELECTED
        elif role.fenced_by is not None or self._log.is_fenced(role.epoch.life):
            return FENCED
        elif state is LeaseState.LEASED:
            is_idle = not self._proposals and self._now >= self._since + IDLE_S
            return IDLE if is_idle or self._acks != self.majority else self._beginning()
        elif state is LeaseState.WRITING and self._is_unchanged:
            return UNCHANGED
        elif role.acknowledged >= end and self._log.has(role.epoch.life, end):
            return ACKNOWLEDGED
        return OVERDUE if self._now >= self._since + STORES_S else None

    def _beginning(self) -> str | None:
        """Return the event of waiting proposals."""
        if not self._proposals:
            return None
        if 1 + len(self._known().here) < self.majority:
            return TOO_FEW if self._now >= self._proposals[0].since + STORES_S else None
        if self.state is LeaseState.FOLLOWING:
            self._log.read()
            seen = self._log.unsettled_since
            others_until = -inf if seen is None else seen + OTHERS_COMMIT_S
            if self._now < max(self._lost_at, others_until) + self._backoff_s:
                return None
        return PROPOSED

    # -- actions ---------------------------------------------------------------------------------

    def _become_producer(self) -> None:
        self._acks = self.majority
        self.producer = self._elect(self._acks)

    def _write_lease(self) -> None:
        self._publish([RegistryRecord(lease=secrets.token_hex(16))])

    def _assign(self) -> None:
        assert self.producer is not None
        end = self.producer.role.acknowledged
        table = self._log.read(end)
        if table.applied < end:
            why = f"topic {REGISTRY.topic!r} has been trimmed: its first records are missing"
            raise RefusedError(KafkaError.KAFKA_STORAGE_ERROR, why)
        while self._proposals:
            self._written.append(self._proposals.popleft())
        pending = PendingChanges(table)
        for proposal in self._written:
            try:
                proposal.change(pending)
            except RefusedError as error:
                proposal.complete(error)
        self._is_unchanged = not pending.records and self._log.unsettled_since is None
        if pending.records:
            self._publish(pending.records)

    def _commit(self) -> None:
        assert self.producer is not None
        self._publish([RegistryRecord(committed=self.producer.next_offset)])

    def _complete(self) -> None:
        assert self.producer is not None
        self._log.read(self.producer.role.acknowledged)
        written, self._written = self._written, []
        self._tries = 0
        for proposal in written:
            proposal.complete()

    def _retry(self) -> None:
        self._end()
        self._lost_at = self._now
        self._backoff_s = random.uniform(0, min(BACKOFF_S * 2**self._tries, MAX_BACKOFF_S))
        self._tries += 1
        self._proposals.extendleft(reversed(self._written))
        self._written = []
        while self._proposals and self._proposals[0].since + COMMIT_S <= self._now:
            why = "other gateways have changed the registry meanwhile"
            self._proposals.popleft().complete(_disagreement(why))

    def _refuse(self) -> None:
        known = self._known()
        away = sorted(set(known.names) - known.here)
        if self._failure is None and away:
            why = (
                f"{self.majority} of {1 + len(known.names)} stores have to agree on the "
                f"partitions' numbers, and these are away: {', '.join(away)}; start them, or if "
                "they are gone for ever, say so by 'dafka store forget'"
            )
            self._failure = RefusedError(KafkaError.NOT_ENOUGH_REPLICAS, why)
        self._end()
        refused, self._written = self._written, []
        while self._proposals:
            refused.append(self._proposals.popleft())
        for proposal in refused:
            proposal.complete(self._failure or _disagreement("they do not answer"))

    def _end(self) -> None:
        producer, self.producer = self.producer, None
        if producer is not None:
            with suppress(DafkaError):  # its records may not be acknowledged
                producer.end(started_s=-inf)

    def _publish(self, records: Sequence[RegistryRecord]) -> None:
        assert self.producer is not None
        self.producer.publish_many([each.packed() for each in records])


def check_more(topic: str, known: int, count: int) -> None:
    """Raise RefusedError unless a topic with ``known`` partitions can be extended to ``count``."""
    if count <= known:
        why = f"topic {topic!r} has {known} partitions, and {count} are not more"
        raise RefusedError(KafkaError.INVALID_PARTITIONS, why)


def _disagreement(why: str) -> RefusedError:
    why = f"stores do not agree on the partitions' numbers: {why}"
    return RefusedError(KafkaError.NOT_ENOUGH_REPLICAS, why)


class PendingChanges:
    """The records of the proposed changes, and the registry as it will be with them."""

    def __init__(self, table: RegistryTable) -> None:
        self.table = table.copy()
        self.records: list[RegistryRecord] = []

    def lead(self, lead: Lead, previous: Lead | None) -> None:
        """Replace the previous leader of a gateway's partitions; refuse if that is another one."""
        known = self.table.leads.get(lead.owner)
        if known is not None and known.life == lead.life:  # proposed by an interrupted lease
            return
        if known != previous:
            why = f"the partitions of gateway {lead.owner} have a new leader"
            raise RefusedError(KafkaError.NOT_CONTROLLER, why)
        owner, leader, life, stores, _ = lead
        self._add([RegistryRecord(owner=owner, leader=leader, life=life, stores=stores)])

    def delete(self, topic: str, held: Iterable[PartitionInfo]) -> None:
        """Delete a topic's numbers; ``held`` are its partitions that have, or had, records."""
        ends = {each.address: 0 for each in self.table.partitions(topic)}
        self._add(deletion_records(topic, ends | {info.partition: info.end for info in held}))

    def configure(self, topic: str, changes: Mapping[str, int | None]) -> None:
        """Set configs of a topic; None removes one."""
        merged = {**self.table.configs(topic), **changes}
        configs = {name: value for name, value in merged.items() if value is not None}
        self._add([RegistryRecord(topic=topic, configs=configs)])

    def host(self, topic: str, count: int, gateways: Sequence[str]) -> list[str]:
        """Add partitions hosted by the gateways in turn; return their addresses."""
        known = len(self.table.partitions(topic))
        added = [
            NumberedPartition(topic, number, new_address(), gateways[number % len(gateways)])
            for number in range(known, known + count)
        ]
        self._assign(topic, added)
        return [each.address for each in added]

    def adopt(self, found: Iterable[TopicPartition], hosts: Callable[[str], Sequence[str]]) -> None:
        """Add partitions of Dafka producers that have no number.

        ``hosts`` ranks the gateways for a partition. Its owner is the first that hosts another
        partition of the topic, since any other has nowhere to write.
        """
        new: dict[str, dict[TopicPartition, None]] = {}
        for tp in found:
            if self.table.number(tp) is None and self.table.deleted_end(tp) != MAX_END:
                new.setdefault(tp.topic, {})[tp] = None
        for topic, tps in new.items():
            known = self.table.partitions(topic)
            hosting = {each.gateway for each in known if each.hosted}
            added = []
            for number, tp in enumerate(tps, len(known)):
                nearest = hosts(str(tp))
                gateway = next((each for each in nearest if each in hosting), nearest[0])
                added.append(NumberedPartition(topic, number, tp.partition, gateway, hosted=False))
            self._assign(topic, added)

    def _assign(self, topic: str, added: Sequence[NumberedPartition]) -> None:
        if len(self.table) + len(added) > MAX_PARTITIONS:
            why = f"{MAX_PARTITIONS} partitions have a number for Kafka clients, as many as may"
            raise RefusedError(KafkaError.POLICY_VIOLATION, why)
        self._add(assignment_records(topic, added))

    def _add(self, records: Iterable[RegistryRecord]) -> None:
        for each in records:
            self.records.append(each)
            self.table.apply(each)


POLL_S: Final = 0.5  # interval of the search for new partitions of Dafka producers
STEP_S: Final = 0.02  # interval of the steps of a change; an acknowledgement comes earlier

RANK_S: Final = 3.0
"""Delay by which each further gateway, by rank, assigns numbers if none before it has."""

SAMPLE: Final = 100  # partitions of a topic that are checked for records
RETRY_S: Final = 10.0  # pause after a failed attempt

ADDRESS: Final = attrgetter("address")
CLOSING: Final = RefusedError(KafkaError.NOT_CONTROLLER, "this gateway is closing")

_log: Final = logging.getLogger("dafka.kafka")


class PartitionRegistry:
    """The numbered partitions of all topics; thread-safe.

    Lookups read the local table. ``create``, ``extend``, ``configure``, ``delete`` and
    ``refresh`` propose changes; they raise RefusedError if a change is invalid or too few stores
    answer.

    Args:
        store: this gateway's store.
        gateways: the known gateways.

    Attributes:
        log: the registry in the store.
    """

    def __init__(self, store: Store, gateways: Gateways) -> None:
        self.log = RegistryLog(store.log)
        self._store = store
        self._stored = store.log
        self._gateways = gateways
        self._lease = RegistryLease(self.log, lambda: store.known, self._elect)
        self._scanned = -1  # the log's change number up to which new partitions were searched
        self._new: dict[TopicPartition, None] = {}  # partitions without a number
        self._background: Proposal | None = None
        self._due_since: float | None = None  # time since when it is due
        self._failed_s = -inf  # time of its last failure
        self._reported = ""  # the reason
        self._unread = ""  # why the store cannot be read
        self._changed = threading.Condition()
        self._closing = False
        self._woken = threading.Event()
        self._threads = [
            threading.Thread(target=run, name=f"dafka-kafka-{name}", daemon=True)
            for name, run in (("registry", self._follow), ("lease", self._run_lease))
        ]

    def start(self) -> None:
        """Read the registry, and follow it."""
        self.log.read()
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Close; pending proposals fail."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._woken.set()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()
        self._lease.close(CLOSING)

    @property
    def table(self) -> RegistryTable:
        """The table, as far as this gateway's store has it."""
        return self.log.table

    def owned(self, gateway: str) -> list[NumberedPartition]:
        """Return all partitions of an owner."""
        found = (each for topic in self.table.topics for each in self.table.partitions(topic))
        return [each for each in found if each.gateway == gateway]

    def written(self, partition: NumberedPartition) -> TopicPartition | None:
        """Return the partition that stores what Kafka's clients send to this number.

        Only its own producer writes to a Dafka producer's partition: other records go to a
        partition that the owner hosts, always the same one.
        """
        if partition.hosted:
            return partition.tp
        hosted = [
            each
            for each in self.table.partitions(partition.topic)
            if each.hosted and each.gateway == partition.gateway
        ]
        return hosted[partition.number % len(hosted)].tp if hosted else None

    def state_name(self, partition: NumberedPartition) -> str:
        """Return the name under which the states of a number's idempotent producers are kept."""
        if partition.hosted:
            return partition.address
        # A Dafka producer may resume its partition, which then has a number again.
        return f"{partition.number}.{self.table.deleted_end(partition.tp)}"

    def lead(self, lead: Lead, previous: Lead | None) -> Future[None]:
        """Propose a leader in place of the previous one."""
        return self._queue(lambda pending: pending.lead(lead, previous))

    def hosted(self, topic: str) -> set[TopicPartition]:
        """Return the partitions that gateways host of a topic, or hosted before it was deleted."""
        found = {each.tp for each in self.table.partitions(topic) if each.hosted}
        return found or self.table.hosted_once(topic)

    def exists(self, topic: str) -> bool:
        """Return whether the topic has numbers, or records that can get some."""
        if self.table.get(topic, 0) is not None:
            return True
        found = self._stored.partitions_after(topic, None, SAMPLE) if is_numbered(topic) else ()
        return any(info.end > self.table.deleted_end(info.tp) for info in found)

    def check_exists(self, topic: str) -> None:
        """Raise RefusedError unless the topic exists."""
        if not self.exists(topic):
            why = f"topic {topic!r} does not exist"
            raise RefusedError(KafkaError.UNKNOWN_TOPIC_OR_PARTITION, why)

    async def create(
        self,
        topic: str,
        count: int,
        *,
        new: bool = False,
        gateways: Sequence[str] = (),
        configs: Mapping[str, int | None] = MappingProxyType({}),
    ) -> None:
        """Ensure that a topic has at least ``count`` hosted partitions.

        With ``new``, it must not exist. ``gateways`` host them in turn; by default all live ones.
        ``configs`` are set.
        """
        mine: set[str] = set()  # added under an interrupted lease, and perhaps committed

        def change(pending: PendingChanges) -> None:
            known = pending.table.partitions(topic)
            if new and mine.isdisjoint(map(ADDRESS, known)) and (known or self.exists(topic)):
                raise RefusedError(KafkaError.TOPIC_ALREADY_EXISTS, f"topic {topic!r} exists")
            self._adopt(pending, topic)
            hosted = sum(each.hosted for each in pending.table.partitions(topic))
            mine.update(pending.host(topic, count - hosted, gateways or self._hosts(topic)))
            if configs:
                pending.configure(topic, configs)

        await self._propose(change)

    async def configure(self, topic: str, changes: Mapping[str, int | None]) -> None:
        """Set configs of a topic; None removes one."""

        def change(pending: PendingChanges) -> None:
            self._adopt(pending, topic)
            if not pending.table.partitions(topic):
                raise RefusedError(KafkaError.UNKNOWN_TOPIC_OR_PARTITION, f"no topic {topic!r}")
            pending.configure(topic, changes)

        await self._propose(change)

    async def extend(self, topic: str, count: int, *, gateways: Sequence[str] = ()) -> None:
        """Extend a topic to ``count`` partitions, which must be more than it has.

        ``gateways`` host the new ones in turn.
        """
        mine: set[str] = set()

        def change(pending: PendingChanges) -> None:
            self.check_exists(topic)
            self._adopt(pending, topic)
            found = pending.table.partitions(topic)
            known = len(found)
            if mine.isdisjoint(map(ADDRESS, found)):
                check_more(topic, known, count)
            hosts = gateways or self._hosts(topic)
            if gateways:  # the first of them hosts the first of the new partitions
                turn = -known % len(gateways)
                hosts = [*gateways[turn:], *gateways[:turn]]
            mine.update(pending.host(topic, count - known, hosts))

        await self._propose(change)

    async def delete(self, topic: str) -> None:
        """Delete a topic's numbers; its partitions get new ones only for new records."""
        held = self._stored.partitions
        await self._propose(lambda pending: pending.delete(topic, held(topic)))

    async def refresh(self) -> None:
        """Assign numbers to all partitions in this gateway's store that have none."""
        await asyncio.to_thread(self._scan)
        if self._new:
            await self._propose(self._adopt_new)

    def _hosts(self, topic: str) -> list[str]:
        return ranked(topic, [each.address for each in self._gateways.live()])

    def _adopt(self, pending: PendingChanges, topic: str) -> None:
        infos, ended = self._stored.partitions(topic), self.table.deleted_end
        found = [i.tp for i in infos if i.end > ended(i.tp) and is_numbered(topic)]
        pending.adopt(found, self._hosts)

    def _adopt_new(self, pending: PendingChanges) -> None:
        pending.adopt(tuple(self._new), self._hosts)

    async def _propose(self, change: Change) -> None:
        try:
            await asyncio.wait_for(asyncio.wrap_future(self._queue(change)), COMMIT_S)
        except TimeoutError:
            why = f"the stores have not agreed on the partitions' numbers within {COMMIT_S:.0f} s"
            raise RefusedError(KafkaError.REQUEST_TIMED_OUT, why) from None

    def _queue(self, change: Change) -> Future[None]:
        proposal = Proposal(change, time.monotonic())
        with self._changed:
            if self._closing:
                raise CLOSING
            self._lease.propose(proposal)
            self._changed.notify_all()
        return proposal.future

    # -- the thread that follows the registry ----------------------------------------------------

    def _follow(self) -> None:
        topics = frozenset((REGISTRY.topic,))
        while not self._closing:
            number = self._stored.changes.number
            try:
                self.log.read()
                self._scan()
                self._unread = ""
                with self._stored.changes.waking(threading.Event(), number, topics) as self._woken:
                    self._woken.wait(POLL_S)
            except DafkaError as error:
                self._log_unread(error)
                if isinstance(error, ClosedError):
                    return
                with self._changed:
                    if not self._closing:
                        self._changed.wait(RETRY_S)

    def _log_unread(self, error: DafkaError) -> None:
        """Log once why the store cannot be read; another one may replace its damaged records."""
        if str(error) != self._unread and not self._closing:
            _log.error("the partition registry cannot be read: %s", error)
        self._unread = str(error)

    def _scan(self) -> None:
        number = self._stored.changes.number
        changed = self._stored.changes.since(self._scanned, None)
        if changed is None:
            changed = [info.tp for info in self._stored.partitions()]
        table = self.log.table
        found = [tp for tp in changed if table.number(tp) is None and is_numbered(tp.topic)]
        with self._changed:
            for tp in [tp for tp in self._new if table.number(tp) is not None]:
                del self._new[tp]
            for tp in found:
                if self._stored.end(tp) > table.deleted_end(tp):
                    self._new[tp] = None
            self._scanned = number
            self._changed.notify_all()

    # -- the thread that has the lease -----------------------------------------------------------

    def _run_lease(self) -> None:
        while not self._closing:
            try:
                self._propose_new(time.monotonic())
            except DafkaError as error:
                self._log_unread(error)
            self._lease.step(time.monotonic())
            producer = self._lease.producer
            if isinstance(producer, Producer) and producer.acknowledged < producer.next_offset:
                with suppress(DafkaError):  # the next step has the reason
                    producer.flush(STEP_S)
                    continue
            with self._changed:
                if not self._closing:
                    self._changed.wait(STEP_S if self._lease.has_proposals else POLL_S)

    def _elect(self, acks: int) -> Producer:
        given = options_beside(self._store.options)
        return Producer(
            REGISTRY.topic,
            address=REGISTRY.partition,
            **given | {"wait_for_tower": False, "tower_timeout_s": STORES_S},
            acks=acks,
            resume_timeout_s=STORES_S,
            close_timeout_s=STORES_S,
        )

    def _propose_new(self, now: float) -> None:
        """Propose numbers for new partitions, when it is this gateway's turn."""
        proposal = self._background
        if proposal is None:
            if self._is_due(now):
                self._background = Proposal(self._adopt_new, now)
                self._lease.propose(self._background)
        elif proposal.future.done():
            self._background = self._due_since = None
            failure, why = proposal.future.exception(), ""
            if isinstance(failure, RefusedError):
                self._failed_s, why = now, failure.why
                if why != self._reported:
                    _log.warning("new partitions have no number for Kafka clients: %s", why)
            self._reported = why
            with suppress(DafkaError):  # reported by the following thread
                self._scan()

    def _is_due(self, now: float) -> bool:
        """Return whether this gateway should write without a client's request.

        It does so to number new partitions, to begin the registry, to commit what a gateway that
        died has written, and to have the registry acknowledged by the majority of another number of
        stores: otherwise the next lease would need all of the old ones.
        """
        is_begun = self.table.cluster_id is not None
        is_committed = self.log.is_committed_by(self._lease.majority)
        if not self._new and is_begun and is_committed:
            self._due_since = None
            return False
        if self._due_since is None:
            self._due_since = now
        rank = self._gateways.ranked(REGISTRY.topic).index(self._gateways.own)
        # Another gateway may be about to do so, or this store about to receive its records.
        wait_s = rank * RANK_S + (0 if self._new and is_begun else OTHERS_COMMIT_S)
        return now >= max(self._due_since + wait_s, self._failed_s + RETRY_S)
