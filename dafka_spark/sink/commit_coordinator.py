"""The driver's part of a write: it picks a store, and commits the rows that tasks stage there.

With option ``audit`` it writes a record of each micro-batch, for ``dafka checkpoint verify``.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

import pyarrow as pa

from dafka_core.audit.audit_record import (
    AuditedRange,
    AuditRecord,
    chained,
    partition_of,
    read_contents,
    split,
)
from dafka_core.errors import ConfigError, DafkaError, DataLossError
from dafka_core.flight.limits import MAX_TRANSACTIONS, parts
from dafka_core.flight.store_client import StoreClient
from dafka_core.model.log_entries import Discard
from dafka_core.model.names import AUDIT_TOPIC
from dafka_core.model.records import StagedTransaction, TopicPartition
from dafka_core.model.row_digest import RowDigest
from dafka_core.queries.checkpoint import Checkpoint
from dafka_spark.cluster import timing
from dafka_spark.cluster.timing import Deadline
from dafka_spark.options import SinkOptions
from dafka_spark.sink.application import Application, partition_address
from dafka_spark.sink.staging import WriterFactory, WrittenRange
from dafka_spark.sink.store_session import PickedStore, StoreSession

_Digests = dict[TopicPartition, RowDigest]

_log = logging.getLogger("dafka_spark")


def pick_store(options: SinkOptions) -> PickedStore:
    """Return the store that has most of the topic; of several, the topic's name chooses one."""

    def size_at(client: StoreClient) -> int:
        if not options.topic:  # column topic names it; the store must answer all the same
            client.describe(timeout_s=timing.REQUEST_TIMEOUT_S)
            return 0
        return sum(
            info.end for info in client.heads([options.topic], timeout_s=timing.REQUEST_TIMEOUT_S)
        )

    deadline = Deadline(options.delivery_timeout_s)
    with StoreSession(options.mesh_address) as session:
        session.require(options.acks_needed, deadline)
        sizes = {client.location: size for client, size in session.ask(size_at, deadline)}
    ranked = sorted(sizes, key=lambda location: location.store)
    first = int(partition_address("", options.topic)[:8], 16) % len(ranked)
    best = max(ranked[first:] + ranked[:first], key=sizes.__getitem__)
    return PickedStore(best.store, tuple(sizes))


def commit(
    options: SinkOptions,
    picked: PickedStore,
    ranges: Sequence[WrittenRange],
    application: Application,
) -> list[WrittenRange]:
    """Make all rows that tasks have staged visible in one step, and wait for ``acks``.

    Rows of an application's version that are committed already are compared and not written
    again.  Returns the ranges of the version, with the digests of those that were compared; trimmed
    rows have none.

    Raises:
        FencedError, OffsetConflictError: another writer took a partition; nothing is visible.
        StoreUnreachableError: the store does not answer; nothing may be visible, or everything.
        NotAcknowledgedError: other stores do not have it in time; it is visible.
    """
    if len(ranges) > MAX_TRANSACTIONS:
        why = f"cannot appear at once; {MAX_TRANSACTIONS} can: write with fewer tasks"
        raise ConfigError("topic", options.topic, f"a write to {len(ranges)} partitions {why}")
    deadline = Deadline(options.delivery_timeout_s)
    with StoreSession(options.mesh_address, picked.locations) as session:
        committed, rest = _compared(session, picked, ranges, application, deadline)
        version = application.transaction_version(len(committed) + len(rest))
        written = [
            StagedTransaction(*each.tp, each.attempt, each.start, each.end, version)
            for each in (*committed, *rest)
        ]

        if rest:
            staged = written[len(committed) :]
            session.do_at(
                picked.store,
                lambda client: client.commit(staged, timeout_s=deadline.left_s),
                deadline,
            )
        if written and options.acks_needed != 1:
            session.wait_for_acks(
                [(each.tp, each.transaction) for each in written],
                options.acks_needed,
                None if committed else picked.store,
                deadline,
            )
    if committed:
        discard(options, picked, ranges, ())
    return [*committed, *rest]


def _compared(
    session: StoreSession,
    picked: PickedStore,
    ranges: Sequence[WrittenRange],
    application: Application,
    deadline: Deadline,
) -> tuple[list[WrittenRange], list[WrittenRange]]:
    """Return the ranges of a version that are committed already, and those left to commit.

    A version is committed in one step at one store, so it is known as a whole, unless that store
    is away and others received a part.  The rows are compared as a whole, as Spark may cut the same
    rows into other tasks.  Of a part, each partition must have the rows that are staged for it.
    If some of the committed rows are trimmed, they are only counted.
    """
    if not application.app_id:
        return [], [*ranges]
    last = application.progress(session, deadline)
    if application.is_query and application.topic and ranges and not last.written:
        application.warn_of_other_topics(session, deadline)
    if last.version < application.version:
        return [], [*ranges]
    if last.version > application.version:
        raise application.outdated(last)

    def digests_at(client: StoreClient, some: Sequence[WrittenRange]) -> _Digests:
        asked = [(*each.tp, each.attempt, each.start, each.end) for each in some]
        digests = client.digests(asked, timeout_s=deadline.left_s)
        return {each.tp: digest for each, digest in zip(some, digests, strict=True)}

    written = [WrittenRange(tp, each.start, each.end) for tp, each in last.written.items()]
    committed: _Digests = {}
    try:
        for client in set(last.holders.values()):
            held = [each for each in written if last.holders[each.tp] is client]
            committed |= digests_at(client, held)
        staged = session.do_at(picked.store, lambda client: digests_at(client, ranges), deadline)
        texts = {tp: str(digest) for tp, digest in committed.items()}
    except DataLossError as error:
        _log.warning("rows of a write that is repeated are only counted: %s", error)
        committed, staged = (
            {each.tp: RowDigest(each.end - each.start) for each in some}
            for some in (written, ranges)
        )
        texts = {}
    if last.is_whole and _by_topic(committed) == _by_topic(staged):
        rest = []
    elif len(ranges) == last.partitions and committed.items() <= staged.items():
        rest = [each for each in ranges if each.tp not in committed]
    else:
        rows, now = (sum(each.count for each in some.values()) for some in (committed, staged))
        raise application.changed(last, rows, now)
    text = (
        "version %d of application %r is committed already, to %s: %d partitions are left to write"
    )
    _log.warning(text, application.version, application.app_id, last.found, len(rest))
    return [replace(each, digest=texts.get(each.tp, "")) for each in written], rest


def _by_topic(digests: _Digests) -> dict[str, RowDigest]:
    found: dict[str, RowDigest] = {}
    for tp, digest in digests.items():
        found[tp.topic] = found.get(tp.topic, RowDigest()) + digest
    return found


def discard(
    options: SinkOptions,
    picked: PickedStore,
    ranges: Sequence[WrittenRange],
    partitions: Sequence[TopicPartition],
) -> None:
    """Discard what tasks have staged, if the store answers.

    Killed tasks may have staged rows in ``partitions`` without a report.
    """
    deadline = Deadline(timing.DISCARD_TIMEOUT_S)
    discards = {Discard(each.tp, each.attempt) for each in ranges if each.attempt}

    def discard_at(client: StoreClient) -> None:
        states = client.transaction_states(partitions, timeout_s=deadline.left_s)
        for tp, state in zip(partitions, states, strict=True):
            if state.staged_end > state.end:
                discards.add(Discard(tp, state.attempt))
        for part in parts(sorted(discards), MAX_TRANSACTIONS):
            client.discard(part, timeout_s=deadline.left_s)

    with suppress(DafkaError), StoreSession(options.mesh_address, picked.locations) as session:
        session.do_at(picked.store, discard_at, deadline)


_LAST: Final = 2  # records to read: that of the batch, if it is repeated, and the one before


class _AuditTrail(Application):
    """The records of a query: versions of one partition."""

    @property
    def _prefixes(self) -> tuple[str, str]:
        partition = partition_of(self.app_id, self.owner).partition
        return partition, partition


def write_audit_record(
    options: SinkOptions,
    picked: PickedStore,
    query: Application,
    written: Sequence[WrittenRange],
    checkpoint: str,
) -> None:
    """Write the audit record of a committed batch, exactly once like its rows."""
    query_id, batch = query.app_id, query.version
    tp = partition_of(query_id, query.owner)
    deadline = Deadline(options.delivery_timeout_s)

    def last_at(client: StoreClient) -> tuple[int, list[bytes]]:
        ((end, *_),) = client.transaction_states([tp], timeout_s=timing.REQUEST_TIMEOUT_S)
        start = max(0, end - _LAST)
        return end, [*read_contents(client, tp, start, end, timeout_s=timing.REQUEST_TIMEOUT_S)]

    with WriterFactory(options, picked) as factory, factory.open(tp) as writer:
        _, last = max(answer for _, answer in factory.session.ask(last_at, deadline))
        before, own = split(last, batch)
        source = ""  # if the checkpoint's path or its files are unknown here
        with suppress(ConfigError):
            source = Checkpoint.read(checkpoint).source_digest(batch) if checkpoint else ""
        if own and not (own.source and source):  # only one of the runs may know the checkpoint
            source = own.source
        # Trimmed rows of a repeated batch have no digest now.
        recorded = {each[:4]: each.digest for each in own.ranges} if own else {}
        ranges = []
        for each in written:
            place, count = (*each.tp, each.start, each.end), each.end - each.start
            digest = each.digest or recorded.get(place) or str(RowDigest(count))
            ranges.append(AuditedRange(*place, digest))
        rows = sum(each.end - each.start for each in written)
        record = AuditRecord(query_id, batch, rows, tuple(sorted(ranges)), source, chained(before))
        writer.write(pa.array([record.packed()], pa.binary()))
        staged = writer.finish(deadline)
    trail = _AuditTrail(query_id, batch, AUDIT_TOPIC, query.owner, is_query=True)
    commit(options, picked, [staged], trail)
