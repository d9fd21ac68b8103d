"""A task's units: opened, staged, and committed by the task itself or by the driver for all tasks.

A micro-batch's tasks commit their own units, each with the batch's number.  A batch write's tasks
only stage, all at one store that the driver has picked, and the driver commits in one step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from typing import Final, NamedTuple

from dafka_core.errors import ConfigError, DafkaError, StoreUnreachableError
from dafka_core.flight.limits import MAX_TRANSACTIONS
from dafka_core.flight.store_client import StoreClient
from dafka_core.flight.store_location import StoreLocation
from dafka_core.log_entries import Discard
from dafka_core.records import NO_VERSION, StagedTransaction, TopicPartition
from dafka_spark.cluster.acknowledgements import LOOK_AGAIN_S, AckGoal, remaining_s, wait_for_acks
from dafka_spark.cluster.store_registry import StoreRegistry, ask_all_stores, enough
from dafka_spark.options import SinkOptions
from dafka_spark.sink.commit_messages import WrittenRange
from dafka_spark.sink.fencing import DISCARD_S
from dafka_spark.sink.hosted_writer import HostCandidate, furthest
from dafka_spark.sink.stream_limit import StreamLimit
from dafka_spark.sink.task_writer import address
from dafka_spark.sink.transactional_writer import ASK_S, TransactionalWriter


class PickedStore(NamedTuple):
    """What the driver has found, for its tasks: they need not look for themselves.

    ``store`` is the one where all of them stage their rows, ``places`` are all there were.
    """

    store: str
    places: tuple[StoreLocation, ...]


NO_PICK: Final = PickedStore("", ())
"""Each task looks for itself, for a store of its own."""


class TransactionalWriterFactory:
    """Opens the publishers of one task's units; to be closed.

    Args:
        number: the units'; ``NO_VERSION`` for those that the driver commits.
        pick: the store that the driver has picked for these.
        goes_on: whether other stores may have more of their partitions than that one.
    """

    def __init__(
        self,
        options: SinkOptions,
        version: int,
        *,
        pick: PickedStore = NO_PICK,
        goes_on: bool = False,
    ) -> None:
        self._options = options
        self._version = version
        self._store = pick.store
        self._goes_on = goes_on
        self._hosts = StoreRegistry(options.via, pick.places)
        self._streams = StreamLimit()
        self.close = self._hosts.close

    def __call__(self, tp: TopicPartition) -> TransactionalWriter:
        """A publisher of one unit.

        Raises:
            ConfigError: exactly-once cannot be had.
            StoreUnreachableError: the store that was picked is not there.
        """
        options = self._options
        known = enough(self._hosts, options.acks, options.delivery_timeout_s)
        if self._store:
            if self._goes_on:
                known = self._catch_up(known, tp)
            known = [host for host in known if host.location.store == self._store]
        return TransactionalWriter(
            tp,
            self._version,
            self._hosts,
            known,
            self._streams,
            store=self._store,
            acks=options.acks,
            timeout_s=options.delivery_timeout_s,
        )

    def _catch_up(self, known: Sequence[StoreClient], tp: TopicPartition) -> list[StoreClient]:
        """Waits until the picked store has what any other has of the partition; the stores then."""

        def end_at(host: StoreClient) -> int:
            return host.transaction_states([tp], timeout_s=ASK_S)[0].end

        deadline = time.monotonic() + self._options.delivery_timeout_s
        while True:
            heard = ask_all_stores(self._hosts, known, end_at, deadline)
            end = max(found for _, found in heard)
            why = "it is not there"
            for picked in (host for host, _ in heard if host.location.store == self._store):
                with suppress(StoreUnreachableError):
                    has = picked.wait(tp, end, timeout_s=remaining_s(deadline))
                    if has >= end:
                        return [host for host, _ in heard]
                    why = f"it has the partition up to {has}, another store up to {end}"
            if time.monotonic() >= deadline:
                raise StoreUnreachableError(self._store, why)
            time.sleep(LOOK_AGAIN_S)
            known = self._hosts.anew()


def pick_store(options: SinkOptions) -> PickedStore:
    """The store that has most of the topic; the same one each time if they are equal.

    Raises:
        ConfigError: exactly-once cannot be had.
        StoreUnreachableError: no store answers.
    """
    timeout_s = options.delivery_timeout_s
    with closing(StoreRegistry(options.via)) as hosts:
        known = enough(hosts, options.acks, timeout_s)
        deadline = time.monotonic() + timeout_s
        heard = ask_all_stores(hosts, known, lambda host: _size_of(host, options.topic), deadline)
        sizes = [HostCandidate(host, size) for host, size in heard]
        store = furthest(sizes, address("", options.topic)).host.location.store
        return PickedStore(store, tuple(host.location for host, _ in heard))


def commit(options: SinkOptions, pick: PickedStore, ranges: Sequence[WrittenRange]) -> None:
    """Makes what tasks have staged at a store visible, all of it in one step, or nothing.

    Then waits until as many stores have it as must acknowledge.

    Raises:
        ConfigError: there are too many partitions for one step.
        FencedError, OffsetConflictError: another writer was there; nothing is visible.
        StoreUnreachableError: the store does not answer; nothing may be visible, or all of it.
        NotAcknowledgedError: others have not got it in time; it is visible.
    """
    if not ranges:
        return
    transactions = [
        StagedTransaction(*each.tp, each.attempt, each.start, each.end, NO_VERSION)
        for each in ranges
    ]
    if len(transactions) > MAX_TRANSACTIONS:
        count = len(transactions)
        why = (
            f"a job that writes to {count} partitions cannot appear at once; {MAX_TRANSACTIONS} can"
        )
        raise ConfigError("delivery", options.delivery, f"{why}: write with fewer tasks")
    deadline = time.monotonic() + options.delivery_timeout_s
    with closing(StoreRegistry(options.via, pick.places)) as hosts:
        _at(hosts, pick.store, deadline, lambda host: _commit(host, transactions, deadline))
        if options.acks == 1:
            return
        # Not those of when the job began: others may have come, or come back.
        known = hosts.current()
        for transaction in transactions:
            wait_for_acks(
                AckGoal(transaction.tp, transaction.start, transaction.end),
                hosts,
                known,
                acks=options.acks,
                have={pick.store},
                deadline=deadline,
            )


def discard(
    options: SinkOptions,
    pick: PickedStore,
    ranges: Sequence[WrittenRange],
    partitions: Sequence[TopicPartition],
) -> None:
    """Gives up what tasks have staged at a store, as far as it answers.

    ``partitions`` (topic, address) are those where tasks may have staged something that cannot
    say so any more.
    """
    deadline = time.monotonic() + DISCARD_S
    stages = {Discard(each.tp, each.attempt) for each in ranges}

    def give_up(host: StoreClient) -> None:
        infos = (
            host.transaction_states(partitions, timeout_s=remaining_s(deadline))
            if partitions
            else []
        )
        for tp, info in zip(partitions, infos, strict=True):
            if info.staged_end > info.end:
                stages.add(Discard(tp, info.attempt))
        found = sorted(stages)
        for start in range(0, len(found), MAX_TRANSACTIONS):
            host.discard(found[start : start + MAX_TRANSACTIONS], timeout_s=remaining_s(deadline))

    with suppress(DafkaError), closing(StoreRegistry(options.via, pick.places)) as hosts:
        _at(hosts, pick.store, deadline, give_up)


def _at(
    hosts: StoreRegistry, store: str, deadline: float, work: Callable[[StoreClient], None]
) -> None:
    """Does some work at a store, wherever it is then."""
    known = hosts.known()
    while True:
        lost = StoreUnreachableError(store, "it is not there")
        for host in known:
            if host.location.store != store:
                continue
            try:
                work(host)
            except StoreUnreachableError as error:
                lost = error
            else:
                return
        if time.monotonic() >= deadline:
            raise lost
        time.sleep(LOOK_AGAIN_S)
        known = hosts.anew()


def _commit(host: StoreClient, transactions: Sequence[StagedTransaction], deadline: float) -> None:
    host.commit(transactions, timeout_s=remaining_s(deadline))


def _size_of(host: StoreClient, topic: str) -> int:
    """How many records of the topic the store has; 0 where the topic comes from a column."""
    if not topic:
        host.describe(timeout_s=ASK_S)  # it must be there all the same
        return 0
    return sum(info.end for info in host.heads([topic], timeout_s=ASK_S))
