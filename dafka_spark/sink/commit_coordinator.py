"""What the driver does for all tasks: it picks a store, and commits what they stage there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from dafka_core.errors import ConfigError, DafkaError, StoreUnreachableError
from dafka_core.flight.limits import MAX_TRANSACTIONS, parts
from dafka_core.flight.store_client import StoreClient
from dafka_core.log_entries import Discard
from dafka_core.records import NO_VERSION, StagedTransaction, TopicPartition
from dafka_spark.cluster import timing
from dafka_spark.cluster.store_session import StoreSession, choose_host
from dafka_spark.cluster.timing import Deadline
from dafka_spark.options import AT_LEAST_ONCE, BATCH, TASK, SinkOptions
from dafka_spark.sink.commit_messages import PickedStore, WrittenRange
from dafka_spark.sink.task_writer import partition_address


def pick_store(options: SinkOptions) -> PickedStore:
    """The store that has most of the topic; the same one each time if several are equal.

    Raises:
        ConfigError: exactly-once cannot be had.
        StoreUnreachableError: no store answers, or one that may come back does not.
    """

    def size_at(client: StoreClient) -> int:
        if not options.topic:  # it comes from a column; the store must be there all the same
            client.describe(timeout_s=timing.ANSWER_S)
            return 0
        return sum(info.end for info in client.heads([options.topic], timeout_s=timing.ANSWER_S))

    deadline = Deadline(options.delivery_timeout_s)
    with StoreSession(options.mesh_address) as session:
        known = session.require(options.acks_needed, deadline)
        for sizes, lost in session.looks(known, size_at, deadline):
            if lost is None:
                best, _ = choose_host(sizes, partition_address("", options.topic))
                locations = tuple(client.location for client, _ in sizes)
                return PickedStore(best.location.store, locations)
        assert lost is not None  # there is one look at least
        raise lost


def commit(
    options: SinkOptions,
    picked: PickedStore,
    ranges: Sequence[WrittenRange],
    version: int = NO_VERSION,
) -> None:
    """Makes what tasks have staged at a store visible, all of it in one step, or nothing.

    Then waits until as many stores have it as must acknowledge, and what was visible before.

    Raises:
        ConfigError: there are too many partitions for one step.
        FencedError, OffsetConflictError: another writer was there; nothing is visible.
        StoreUnreachableError: the store does not answer; nothing may be visible, or all of it.
        NotAcknowledgedError: other stores do not have it in time; it is visible.
    """
    if not ranges:
        return
    written = [
        StagedTransaction(*each.tp, each.attempt, each.start, each.end, version) for each in ranges
    ]
    staged = [each for each in written if each.attempt]
    if len(staged) > MAX_TRANSACTIONS:
        what, name, other = "a job", "delivery", AT_LEAST_ONCE
        if options.commit == BATCH:
            what, name, other = "a micro-batch", "commit", TASK
        why = f"{what} that writes to {len(staged)} partitions cannot appear at once"
        cure = f"{MAX_TRANSACTIONS} can: write with fewer tasks, or set {name} = {other}"
        raise ConfigError(name, getattr(options, name), f"{why}; {cure}")
    deadline = Deadline(options.delivery_timeout_s)

    def commit_at(client: StoreClient) -> None:
        client.commit(staged, timeout_s=deadline.left_s)

    with StoreSession(options.mesh_address, picked.locations) as session:
        if staged:
            _at_store(session, picked.store, commit_at, deadline)
        if options.acks_needed == 1:
            return
        # Not those of when the job began: other stores may have come, or come back.
        session.wait_for_all_acks(
            [(each.tp, each.transaction) for each in written],
            session.current(),
            options.acks_needed,
            {picked.store},
            deadline,
        )


def discard(
    options: SinkOptions,
    picked: PickedStore,
    ranges: Sequence[WrittenRange],
    partitions: Sequence[TopicPartition],
) -> None:
    """Gives up what tasks have staged at a store, as far as it answers.

    ``partitions`` are those where tasks may have staged something that cannot say so any more.
    """
    deadline = Deadline(timing.DISCARD_S)
    discards = {Discard(each.tp, each.attempt) for each in ranges if each.attempt}

    def discard_at(client: StoreClient) -> None:
        states = client.transaction_states(partitions, timeout_s=deadline.left_s)
        for tp, state in zip(partitions, states, strict=True):
            if state.staged_end > state.end:
                discards.add(Discard(tp, state.attempt))
        for part in parts(sorted(discards), MAX_TRANSACTIONS):
            client.discard(part, timeout_s=deadline.left_s)

    with suppress(DafkaError), StoreSession(options.mesh_address, picked.locations) as session:
        _at_store(session, picked.store, discard_at, deadline)


def _at_store(
    session: StoreSession, store: str, work: Callable[[StoreClient], None], deadline: Deadline
) -> None:
    """Does some work at a store, wherever it is then, and tries again until the deadline."""
    lost = StoreUnreachableError(store, "it is not there")
    for attempt in deadline.attempts():
        known = session.refresh() if attempt else session.known()
        for client in (each for each in known if each.location.store == store):
            try:
                work(client)
            except StoreUnreachableError as error:
                lost = error
            else:
                return
    raise lost
