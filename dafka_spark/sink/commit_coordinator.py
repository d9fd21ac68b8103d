"""The driver's part of a write: it picks a store, and commits the rows that tasks stage there.

Numbered writes, the micro-batches of a query or ``txnVersion``, are each committed once.  Each
partition's last transaction contains the version and the number of partitions that it was written
to.  So a store that received only some of them, before the store that committed all was lost, shows
that others are missing.

With option ``audit`` it writes a record of each micro-batch, for ``dafka checkpoint verify``.
"""

from __future__ import annotations

import hashlib
import logging
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple, Self

import pyarrow as pa

from dafka_core.audit import (
    AuditedRange,
    AuditRecord,
    chained,
    partition_of,
    previous_and_own,
    read_contents,
)
from dafka_core.errors import ConfigError, DafkaError, DataLossError
from dafka_core.flight.limits import MAX_TRANSACTIONS, parts
from dafka_core.flight.store_client import StoreClient
from dafka_core.model.log_entries import Discard
from dafka_core.model.names import AUDIT_TOPIC, octets_of, quoted
from dafka_core.model.records import NO_VERSION, StagedTransaction, TopicPartition, Transaction
from dafka_core.model.values import RowDigest
from dafka_core.queries.checkpoint import Checkpoint
from dafka_core.security.permissions import EVERYBODY, Permissions
from dafka_spark.cluster import timing
from dafka_spark.cluster.timing import Deadline
from dafka_spark.errors import ApplicationError, OldCheckpointError, TransactionChangedError
from dafka_spark.options import COUNT_BITS, SinkOptions
from dafka_spark.sink.staging import WriterFactory, WrittenRange
from dafka_spark.sink.store_session import PickedStore, StoreSession

_log = logging.getLogger("dafka_spark")

assert MAX_TRANSACTIONS < 1 << COUNT_BITS

# -- applications and their versions ---------------------------------------------------------------

ADDRESSES: Final = uuid.UUID("6f0c2c5e-5d0b-5c0e-9a55-0d6b1c7f3a46")
"""The namespace of the sink's partition addresses.  Never change it: queries find their partitions
by it."""

# Hexadecimal digits with which all addresses of an application begin.  They find its partitions
# in any topic, for any number of tasks.  Those that follow a key leave 10 for topics and tasks.
_PREFIX: Final = 16
_OWN_DIGITS: Final = 10

_OTHER_TOPICS: Final = (
    "this query has written to topic %s up to batch %d, and writes batch %d to topic %s. If option "
    "topic was changed by mistake, stop the query and change it back; the rows that are written "
    "already stay where they are"
)

_OUTDATED: Final = (
    "version {} is written already, and whether the rows of an older one are there cannot be "
    "checked any more. If this version was written before, there is nothing to do; otherwise write "
    "it under a greater version, or another txnAppId"
)
_IN_PART: Final = (
    ". The store that committed the rest is away: start it again, or repeat the write with the "
    "same rows for each task, as with the same number of tasks, which adaptive execution changes "
    "(spark.sql.adaptive.streaming.stateless.enabled, spark.sql.adaptive.enabled)"
)
_CHANGED: Final = (
    ". Nothing was written, as rows would be missing or doubled. Give each write of a version that "
    "has other rows a txnAppId or a txnVersion of its own; if this is a repetition, let the job "
    "have the same input as before"
)

Transactions = dict[TopicPartition, Transaction]


def partition_address(*parts: object) -> str:
    """Return the partition address derived from these parts: 32 upper-case hexadecimal digits."""
    name = octets_of("\0".join(map(str, parts)))  # uuid5 takes bytes from Python 3.12 on
    digest = hashlib.sha1(ADDRESSES.bytes + name, usedforsecurity=False).digest()
    return uuid.UUID(bytes=digest[:16], version=5).hex.upper()


def own_address(owner: Permissions, *parts: object) -> str:
    """Return the derived address, changed to one that the owner's key may write."""
    return owner.made_own(partition_address(*parts))


@dataclass(frozen=True)
class Progress:
    """The newest version of an application at any store.

    It was written to ``partitions`` partitions; ``written`` has those that are known, and
    ``holders`` a store for each of them.
    """

    version: int = NO_VERSION
    partitions: int = 0
    written: Transactions = field(default_factory=dict)
    holders: dict[TopicPartition, StoreClient] = field(default_factory=dict)

    @property
    def is_whole(self) -> bool:
        """True if all partitions of the version are known."""
        return len(self.written) == self.partitions

    @property
    def found(self) -> str:
        """The number of known partitions, as part of a sentence."""
        return f"{len(self.written)} of {self.partitions} partitions"

    @property
    def topics(self) -> str:
        """The topics of the version, as part of a sentence."""
        return " and ".join(sorted({quoted(tp.topic) for tp in self.written}))


class Application(NamedTuple):
    """A series of numbered writes, each of which is committed once.

    ``app_id`` is the id of a streaming query, or option ``txnAppId``; if it is empty, writes have
    no numbers.  As in Delta, where an application is of one table, it is of one topic.  An empty
    ``topic`` means all topics that column ``topic`` names, together.
    """

    app_id: str
    version: int
    topic: str
    owner: Permissions = EVERYBODY
    is_query: bool = False

    @classmethod
    def of(cls, options: SinkOptions) -> Self:
        """Return the application that a batch write names."""
        version = NO_VERSION if options.txn_version is None else options.txn_version
        return cls(options.txn_app_id, version, options.topic, options.mesh_address.owner)

    @classmethod
    def of_query(cls, options: SinkOptions, query_id: str, batch: int) -> Self:
        """Return the application of a streaming query at one of its micro-batches."""
        return cls(query_id, batch, options.topic, options.mesh_address.owner, is_query=True)

    def transaction_version(self, partitions: int) -> int:
        """Return the version of transactions that are written to this number of partitions."""
        return self.version << COUNT_BITS | partitions if self.app_id else NO_VERSION

    def address(self, topic: str, task_number: int) -> str:
        """Return the address of the partition that a task writes in a topic."""
        own = partition_address(*self._name, topic, task_number)
        plain, locked = (prefix + own[len(prefix) :] for prefix in self._prefixes)
        return plain if self.owner.is_own(plain) else locked

    @property
    def _name(self) -> tuple[str, ...]:
        # Without the topic: a query finds its partitions after its topic was a column.
        return ("query", self.app_id) if self.is_query else ("txnAppId", self.app_id, self.topic)

    @property
    def _prefixes(self) -> tuple[str, str]:
        """The prefix of its addresses without a key, and with it."""
        own = partition_address(*self._name)
        return own[:_PREFIX], self.owner.prefix + own[:_OWN_DIGITS]

    def progress(self, session: StoreSession, deadline: Deadline) -> Progress:
        """Return the newest version that stores have."""
        prefixes = self._prefixes

        def transactions_at(client: StoreClient) -> Transactions:
            topics = [self.topic] if self.topic else None
            infos = client.heads(topics, timeout_s=timing.REQUEST_TIMEOUT_S)
            own = [info.tp for info in infos if info.partition.startswith(prefixes)]
            states = client.transaction_states(own, timeout_s=timing.REQUEST_TIMEOUT_S)
            pairs = zip(own, states, strict=True)
            return {tp: state.transaction for tp, state in pairs if state.transaction}

        last: Transactions = {}
        holders: dict[TopicPartition, StoreClient] = {}
        for client, found in session.ask(transactions_at, deadline):
            for tp, transaction in found.items():
                if tp not in last or last[tp] < transaction:
                    last[tp], holders[tp] = transaction, client
        if not last:
            return Progress()
        version, partitions = divmod(max(each.version for each in last.values()), 1 << COUNT_BITS)
        written = {tp: each for tp, each in last.items() if each.version >> COUNT_BITS == version}
        return Progress(version, partitions, written, holders)

    def warn_of_other_topics(self, session: StoreSession, deadline: Deadline) -> None:
        """Log a warning if the query has written to other topics before, and never to its topic."""
        last = self._replace(topic="").progress(session, deadline)
        if last.written:
            topic = quoted(self.topic)
            _log.warning(_OTHER_TOPICS, last.topics, last.version, self.version, topic)

    def outdated(self, last: Progress) -> DafkaError:
        """Return the error for a version that is older than the last one."""
        if self.is_query:
            return OldCheckpointError(self.version, last.version)
        why = _OUTDATED.format(last.version)
        return ApplicationError(self.app_id, self.version, why)

    def changed(self, last: Progress, rows: int, now: int) -> DafkaError:
        """Return the error for a repeated version with other rows: ``now`` of them."""
        shown = f"{now} others" if now == rows else now
        where = f"{last.found} of {last.topics}"
        why = f"{rows} rows of it are committed to {where}, and it has {shown} now"
        if not last.is_whole:
            why += _IN_PART
        if self.is_query:
            return TransactionChangedError(self.version, why)
        return ApplicationError(self.app_id, self.version, why + _CHANGED)


# -- commits ---------------------------------------------------------------------------------------

_Digests = dict[TopicPartition, RowDigest]


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


def check_version(options: SinkOptions, picked: PickedStore) -> None:
    """Refuse a batch write before its first task if its version can't be written."""
    application = Application.of(options)
    if not application.app_id:
        return
    with StoreSession(options.mesh_address, picked.locations) as session:
        last = application.progress(session, Deadline(options.delivery_timeout_s))
    if last.version > application.version:
        raise application.outdated(last)
    if last.version < application.version and not last.is_whole:
        why = f"version {last.version}, the one before, is written in part only, to {last.found}"
        cure = "run it again, or start the store that has the rest, or use another txnAppId"
        raise ApplicationError(application.app_id, application.version, f"{why}: {cure}")


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


# -- audit records ---------------------------------------------------------------------------------

_LAST_RECORDS: Final = 2  # to read: that of the batch, if it is repeated, and the one before


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
        start = max(0, end - _LAST_RECORDS)
        return end, [*read_contents(client, tp, start, end, timeout_s=timing.REQUEST_TIMEOUT_S)]

    with WriterFactory(options, picked) as factory, factory.open(tp) as writer:
        _, last = max(answer for _, answer in factory.session.ask(last_at, deadline))
        before, own = previous_and_own(last, batch)
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
