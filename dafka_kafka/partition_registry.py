"""The registry of partition numbers, on which all gateways of a cluster agree.

The registry is one Dafka partition; ``registry_table`` has its records. A gateway that changes it
becomes the partition's producer (``protocol/producer_role.py``): of two that do so at once, the one
with the older life is fenced, and retries. A change counts once a majority of the stores has it, so
a number is never assigned twice, even when stores are lost.

A change passes these states::

    proposed   a request waits for the writer thread
    leased     the gateway is the registry's producer, and has written a ``lease`` record
    written    its records are at a majority of the stores
    committed  so is the record that says it: all gateways apply the change
    refused    the request is invalid, or too few stores answer

Numbers are chosen only once the ``lease`` record is at a majority; a gateway that is fenced later
plans again, on the winner's table.
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
    MAX_PARTITIONS,
    REGISTRY,
    NumberedPartition,
    RegistryLog,
    RegistryRecord,
    RegistryTable,
    assignment_records,
    deletion_records,
    is_numbered,
)

STORES_S: Final = 5.0
"""Time for stores to answer, or to write a record."""

LEASE_S: Final = 2.0
"""Time to wait for another gateway's lease to be committed, which takes half a second; a gateway
that died never commits."""

IDLE_S: Final = 60.0
"""Time for which an idle producer is kept: topics are often created together, or one by each
job."""

Planner = Callable[[RegistryTable], Sequence[RegistryRecord]]
"""Returns the records to add to the table."""


class RegistryWriter:
    """Writes to the registry, in one thread.

    Becoming the producer takes a quarter of a second: it joins the mesh, discovers the stores, and
    asks them three times. So it is kept, and reused unless another gateway has taken the registry
    over. It need not check that it still is the producer: no majority acknowledges the records of a
    fenced life.

    Args:
        store: this gateway's store.
        records: the registry in the store's log.
        is_closing: returns whether the gateway is closing, which ends all waits.
    """

    def __init__(self, store: Store, records: RegistryLog, is_closing: Callable[[], bool]) -> None:
        self._store = store
        self._records = records
        self._is_closing = is_closing
        self._producer: Producer | None = None
        self._acks = 0  # of the kept producer
        self._idle_at = 0.0

    @property
    def majority(self) -> int:
        """The number of stores that is a majority of the known ones."""
        return (1 + len(self._store.known.names)) // 2 + 1

    def commit(self, planner: Planner) -> None:
        """Write the records of ``planner``, and commit them.

        Raises:
            RefusedError: too few stores are reachable, or the registry has lost its beginning.
            DafkaError: the stores do not answer, or another gateway has begun a lease.
        """
        majority = self._wait_for_majority()
        self._wait_for_lease()
        producer = self._current_producer(majority)
        try:
            self._write(producer, planner)
        except BaseException as error:
            self._end(error)
            raise
        self._idle_at = time.monotonic() + IDLE_S

    def close_idle(self) -> None:
        """Close a producer that is idle for ``IDLE_S``, or fenced."""
        if self._producer is not None and (
            time.monotonic() >= self._idle_at or not self._is_current(self._producer)
        ):
            self._end()

    def close(self) -> None:
        """Close; call it in the writer's thread, or after that has ended."""
        self._end()

    def _current_producer(self, majority: int) -> Producer:
        """Return the registry's producer: the last one if it is not fenced."""
        self.close_idle()
        if self._acks != majority:
            self._end()
        if self._producer is None:
            self._producer, self._acks = self._new_producer(majority), majority
        return self._producer

    def _is_current(self, producer: Producer) -> bool:
        role = producer.role
        return role.fenced_by is None and self._records.is_written_by(role.epoch.life)

    def _end(self, error: BaseException | None = None) -> None:
        kept, self._producer = self._producer, None
        if kept is not None:
            kept.__exit__(None, error, None)

    def _write(self, producer: Producer, planner: Planner) -> None:
        start = producer.next_offset
        begin = RegistryRecord(lease=secrets.token_hex(16)).packed()
        producer.publish(begin)
        producer.flush(STORES_S)
        # A majority has the previous records, too; this store may not have them yet.
        table = self._read_until(start, begin)
        if table.applied <= start:
            why = f"topic {REGISTRY.topic!r} has been trimmed: its first records are missing"
            raise RefusedError(KafkaError.KAFKA_STORAGE_ERROR, why)
        records = planner(table)
        if records:
            producer.publish_many([each.packed() for each in records])
            producer.flush(STORES_S)
        end = producer.next_offset
        close = RegistryRecord(committed=end).packed()
        producer.publish(close)
        producer.flush(STORES_S)
        self._read_until(end, close)

    def _wait_for_majority(self) -> int:
        """Wait until a majority of the known stores is reachable; return its size."""
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

    def _wait_for_lease(self) -> None:
        deadline = time.monotonic() + LEASE_S
        while not self._is_closing():
            self._records.read()
            began = self._records.lease_since
            if began is None or time.monotonic() >= min(deadline, began + LEASE_S):
                return
            time.sleep(0.02)

    def _new_producer(self, acks: int) -> Producer:
        given = options_beside(self._store.options)
        return Producer(
            REGISTRY.topic,
            address=REGISTRY.partition,
            **given | {"wait_for_tower": False, "tower_timeout_s": STORES_S},
            acks=acks,
            resume_timeout_s=STORES_S,
            close_timeout_s=STORES_S,
        )

    def _read_until(self, offset: int, content: bytes) -> RegistryTable:
        """Wait until this store has the record, then read the registry up to it."""
        deadline = time.monotonic() + STORES_S
        while True:
            self._store.append_queue.wait(REGISTRY, offset + 1, max(deadline - time.monotonic(), 0))
            found = self._store.log.read(REGISTRY, offset, offset + 1)
            # The offset may hold a record of an older life, which the store will set aside.
            if found and found[0].values[0] == content:
                return self._records.read(offset + 1)
            if time.monotonic() >= deadline or self._is_closing():
                raise NotAcknowledgedError(*REGISTRY, 1, STORES_S)
            time.sleep(0.02)


Change = Callable[["PendingChanges"], None]
"""Applies a change; raises RefusedError if it is invalid."""


class Proposal:
    """A requested registry change and the future of its caller."""

    def __init__(self, change: Change, within_s: float) -> None:
        self.change = change
        self.future: Future[None] = Future()
        self.deadline = time.monotonic() + within_s

    def complete(self, error: BaseException | None = None) -> None:
        """Complete the future with a result or an error."""
        with suppress(InvalidStateError):  # already completed or cancelled
            if error is None:
                self.future.set_result(None)
            else:
                self.future.set_exception(error)


class PendingChanges:
    """The current registry plus the changes proposed to it."""

    def __init__(self, table: RegistryTable) -> None:
        self._table = table
        self._added: dict[str, list[NumberedPartition]] = {}
        self._names: set[TopicPartition] = set()
        self._deleted: dict[str, Mapping[str, int]] = {}

    def partitions(self, topic: str) -> Sequence[NumberedPartition]:
        """Return a topic's partitions, with pending ones."""
        known = () if topic in self._deleted else self._table.partitions(topic)
        return (*known, *self._added.get(topic, ()))

    def delete(self, topic: str, held: Iterable[PartitionInfo]) -> None:
        """Delete a topic's numbers; ``held`` are its partitions that have, or had, records."""
        known = {each.address: 0 for each in self.partitions(topic)}
        self._names.difference_update(each.tp for each in self._added.pop(topic, ()))
        self._deleted[topic] = known | {info.partition: info.end for info in held}

    def host(self, topic: str, count: int, gateways: Sequence[str]) -> list[str]:
        """Add partitions hosted by the gateways in turn; return their addresses."""
        known = len(self.partitions(topic))
        added = [new_address() for _ in range(count)]
        for number, address in enumerate(added, known):
            self._add(topic, number, address, gateways[number % len(gateways)], hosted=True)
        return added

    def adopt(self, found: Iterable[TopicPartition], hosts: Callable[[str], Sequence[str]]) -> None:
        """Add partitions of Dafka producers that have no number.

        ``hosts`` ranks the gateways for a partition. Its owner is the first that hosts another
        partition of the topic, since any other has nowhere to write.
        """
        counts: dict[str, int] = {}
        hosting: dict[str, set[str]] = {}
        for tp in found:
            is_known = tp in self._names or self._table.number(tp) is not None
            if is_known or self._table.deleted_end(tp) == MAX_END:
                continue
            if tp.topic not in counts:
                known = self.partitions(tp.topic)
                counts[tp.topic] = len(known)
                hosting[tp.topic] = {each.gateway for each in known if each.hosted}
            number, nearest = counts[tp.topic], hosts(str(tp))
            gateway = next((each for each in nearest if each in hosting[tp.topic]), nearest[0])
            self._add(tp.topic, number, tp.partition, gateway, hosted=False)
            counts[tp.topic] += 1

    def records(self) -> list[RegistryRecord]:
        """Return the records to write."""
        deleted = (deletion_records(*each) for each in self._deleted.items())
        added = (assignment_records(*each) for each in self._added.items())
        return [record for records in (*deleted, *added) for record in records]

    def _add(self, topic: str, number: int, address: str, gateway: str, *, hosted: bool) -> None:
        if len(self._table) + len(self._names) >= MAX_PARTITIONS:
            why = f"{MAX_PARTITIONS} partitions have a number for Kafka clients, as many as may"
            raise RefusedError(KafkaError.POLICY_VIOLATION, why)
        new = NumberedPartition(topic, number, address, gateway, hosted)
        self._added.setdefault(topic, []).append(new)
        self._names.add(new.tp)


COMMIT_S: Final = 15.0
"""Time a client waits for a commit; Kafka's clients allow 30 s or more for a request."""

POLL_S: Final = 0.5
"""Interval of the search for new partitions of Dafka producers."""

RANK_S: Final = 3.0
"""Delay by which each further gateway, by rank, assigns numbers if none before it has."""

SAMPLE: Final = 100
"""Partitions of a topic that are checked for records."""

RETRY_S: Final = 10.0
"""Pause after a failed attempt."""

ADDRESS: Final = attrgetter("address")

_log: Final = logging.getLogger("dafka.kafka")


class PartitionRegistry:
    """The numbered partitions of all topics; thread-safe.

    Lookups read the local table. ``create``, ``extend``, ``delete`` and ``refresh`` propose
    changes; they raise RefusedError if a change is invalid or too few stores answer.

    Args:
        store: this gateway's store.
        gateways: the known gateways.
    """

    def __init__(self, store: Store, gateways: Gateways) -> None:
        self._store = store
        self._stored = store.log
        self._gateways = gateways
        self._records = RegistryLog(store.log)
        self._writer = RegistryWriter(store, self._records, lambda: self._closing)
        self._scanned = -1  # the log's change number up to which new partitions were searched
        self._new: dict[TopicPartition, None] = {}  # partitions without a number
        self._pending_since: float | None = None
        self._failed_s = float("-inf")  # time of the last failed background change
        self._reported = ""  # its reason
        self._changed = threading.Condition()
        self._proposals: list[Proposal] = []
        self._closing = False
        self._woken = threading.Event()
        self._threads = [
            threading.Thread(target=run, name=f"dafka-kafka-{name}", daemon=True)
            for name, run in (("registry", self._follow), ("writer", self._run_writer))
        ]

    def start(self) -> None:
        """Read the registry, and follow it."""
        self._records.read()
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
        self._writer.close()
        for proposal in self._proposals:
            proposal.complete(RefusedError(KafkaError.NOT_CONTROLLER, "this gateway is closing"))

    @property
    def cluster_id(self) -> str | None:
        """The cluster's random id; None until the registry has begun."""
        return self._records.table.cluster_id

    @property
    def skipped(self) -> int:
        """The number of skipped records and partitions."""
        return self._records.table.skipped

    def topics(self) -> Collection[str]:
        """Return the topics with numbers."""
        return self._records.table.topics

    def partitions(self, topic: str) -> Sequence[NumberedPartition]:
        """Return a topic's partitions by number; empty for an unknown topic."""
        return self._records.table.partitions(topic)

    def get(self, topic: str, number: int) -> NumberedPartition | None:
        """Return the partition with this number."""
        return self._records.table.get(topic, number)

    def number(self, tp: TopicPartition) -> int | None:
        """Return the number of a Dafka partition, or None."""
        return self._records.table.number(tp)

    def deleted_end(self, tp: TopicPartition) -> int:
        """Return the end of a partition in a deleted topic of this name, or 0."""
        return self._records.table.deleted_end(tp)

    def hosted(self, topic: str) -> set[TopicPartition]:
        """Return the partitions that gateways host of a topic, or hosted before it was deleted."""
        found = {each.tp for each in self.partitions(topic) if each.hosted}
        return found or self._records.table.hosted_once(topic)

    def exists(self, topic: str) -> bool:
        """Return whether the topic has numbers, or records that can get some."""
        if self.get(topic, 0) is not None:
            return True
        found = self._stored.partitions_after(topic, None, SAMPLE) if is_numbered(topic) else ()
        return any(info.end > self._records.table.deleted_end(info.tp) for info in found)

    async def create(
        self, topic: str, count: int, *, new: bool = False, gateways: Sequence[str] = ()
    ) -> None:
        """Ensure that a topic has at least ``count`` hosted partitions.

        With ``new``, it must not exist. ``gateways`` host them in turn; by default all live ones.
        """
        mine: set[str] = set()  # added under an interrupted lease, and perhaps committed

        def change(pending: PendingChanges) -> None:
            known = pending.partitions(topic)
            if new and mine.isdisjoint(map(ADDRESS, known)) and (known or self.exists(topic)):
                raise RefusedError(KafkaError.TOPIC_ALREADY_EXISTS, f"topic {topic!r} exists")
            self._adopt(pending, topic)
            hosted = sum(each.hosted for each in pending.partitions(topic))
            mine.update(pending.host(topic, count - hosted, gateways or self._hosts(topic)))

        await self._propose(change)

    async def extend(self, topic: str, count: int, *, gateways: Sequence[str] = ()) -> None:
        """Extend a topic to ``count`` partitions, which must be more than it has."""
        mine: set[str] = set()

        def change(pending: PendingChanges) -> None:
            if not self.exists(topic):
                raise RefusedError(KafkaError.UNKNOWN_TOPIC_OR_PARTITION, f"no topic {topic!r}")
            self._adopt(pending, topic)
            found = pending.partitions(topic)
            known = len(found)
            if count <= known and mine.isdisjoint(map(ADDRESS, found)):
                why = f"topic {topic!r} has {known} partitions, and {count} are not more"
                raise RefusedError(KafkaError.INVALID_PARTITIONS, why)
            mine.update(pending.host(topic, count - known, gateways or self._hosts(topic)))

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
        infos, ended = self._stored.partitions(topic), self._records.table.deleted_end
        found = [i.tp for i in infos if i.end > ended(i.tp) and is_numbered(topic)]
        pending.adopt(found, self._hosts)

    def _adopt_new(self, pending: PendingChanges) -> None:
        found = tuple(self._new)
        pending.adopt(found, self._hosts)

    async def _propose(self, change: Change) -> None:
        proposal = Proposal(change, COMMIT_S)
        with self._changed:
            if self._closing:
                raise RefusedError(KafkaError.NOT_CONTROLLER, "this gateway is closing")
            self._proposals.append(proposal)
            self._changed.notify_all()
        try:
            await asyncio.wait_for(asyncio.wrap_future(proposal.future), COMMIT_S)
        except TimeoutError:
            why = f"the stores have not agreed on the partitions' numbers within {COMMIT_S:.0f} s"
            raise RefusedError(KafkaError.REQUEST_TIMED_OUT, why) from None

    # -- the thread that follows the registry ----------------------------------------------------

    def _follow(self) -> None:
        topics = frozenset((REGISTRY.topic,))
        while not self._closing:
            number = self._stored.changes.number
            try:
                self._records.read()
                self._scan()
                with self._stored.changes.watching(number, topics) as self._woken:
                    self._woken.wait(POLL_S)
            except DafkaError as error:  # the store has ended, or its disk fails
                if not self._closing:
                    _log.error("the partition registry cannot be read: %s", error)
                return

    def _scan(self) -> None:
        number = self._stored.changes.number
        changed = self._stored.changes.since(self._scanned, None)
        if changed is None:
            changed = [info.tp for info in self._stored.partitions()]
        self._scanned = number
        table = self._records.table
        found = [tp for tp in changed if table.number(tp) is None and is_numbered(tp.topic)]
        with self._changed:
            for tp in [tp for tp in self._new if table.number(tp) is not None]:
                del self._new[tp]
            for tp in found:
                if self._stored.end(tp) > table.deleted_end(tp):
                    self._new[tp] = None
            self._changed.notify_all()

    # -- the thread that writes to it ------------------------------------------------------------

    def _run_writer(self) -> None:
        while True:
            self._writer.close_idle()
            with self._changed:
                if not (self._closing or self._proposals or self._is_due()):
                    self._changed.wait(POLL_S)
                if self._closing:
                    return
                if not (self._proposals or self._is_due()):
                    continue
                proposals, self._proposals = self._proposals, []
            background = Proposal(self._adopt_new, COMMIT_S)
            self._commit([*proposals, background])
            failure = background.future.exception()
            self._pending_since, why = None, ""
            if isinstance(failure, RefusedError) and not self._closing:
                self._failed_s, why = time.monotonic(), failure.why
                if why != self._reported:
                    _log.warning("new partitions have no number for Kafka clients: %s", why)
            self._reported = why
            with suppress(DafkaError):  # reported by the following thread
                self._scan()

    def _is_due(self) -> bool:
        """Return whether this gateway should write without a proposal.

        It does so to number new partitions, to begin the registry, and to have it acknowledged by
        the majority of another number of stores: otherwise the next lease would need all of the old
        ones.
        """
        now = time.monotonic()
        is_begun = self.cluster_id is not None
        if not self._new and is_begun and self._records.is_committed_by(self._writer.majority):
            self._pending_since = None
            return False
        if self._pending_since is None:
            self._pending_since = now
        rank = self._gateways.ranked(REGISTRY.topic).index(self._gateways.own)
        # Another gateway may be about to do so, or this store about to receive its records.
        wait_s = rank * RANK_S + (0 if self._new and is_begun else LEASE_S)
        return now >= max(self._pending_since + wait_s, self._failed_s + RETRY_S)

    def _commit(self, proposals: Sequence[Proposal]) -> None:
        """Commit the changes of all proposals, with retries, and complete their futures."""
        tries, failure = 0, RefusedError(KafkaError.NOT_CONTROLLER, "the gateway is closing")
        while not self._closing:
            tries += 1
            try:
                self._writer.commit(lambda table: self._planned(table, proposals))
            except RefusedError as error:
                failure = error
                break
            except DafkaError as error:
                why = f"stores do not agree on the partitions' numbers: {error}"
                failure = RefusedError(KafkaError.NOT_ENOUGH_REPLICAS, why)
                if (
                    isinstance(error, ProducerFencedError)
                    and time.monotonic() < proposals[0].deadline
                ):
                    # Another gateway has begun a lease: back off for a random time.
                    time.sleep(random.uniform(0.05, 0.3) * tries)
                    continue
                break
            for proposal in proposals:
                proposal.complete()
            return
        for proposal in proposals:
            proposal.complete(failure)

    def _planned(self, table: RegistryTable, proposals: Sequence[Proposal]) -> list[RegistryRecord]:
        pending = PendingChanges(table)
        for proposal in proposals:
            try:
                proposal.change(pending)
            except RefusedError as error:
                proposal.complete(error)
        return pending.records()
