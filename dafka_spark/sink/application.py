"""Numbered writes, each committed once: the micro-batches of a query, or ``txnVersion``.

Each partition's last transaction contains the version and the number of partitions that it was
written to.  So a store that received only some of them, before the store that committed all was
lost, shows that others are missing.
"""

from __future__ import annotations

import hashlib
import logging
import uuid
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Self

from dafka_core.errors import DafkaError
from dafka_core.flight.limits import MAX_TRANSACTIONS
from dafka_core.flight.store_client import StoreClient
from dafka_core.model.names import octets_of, quoted
from dafka_core.model.records import NO_VERSION, TopicPartition, Transaction
from dafka_core.security.permissions import EVERYBODY, Permissions
from dafka_spark.cluster import timing
from dafka_spark.cluster.timing import Deadline
from dafka_spark.errors import ApplicationError, OldCheckpointError, TransactionChangedError
from dafka_spark.options import COUNT_BITS, SinkOptions
from dafka_spark.sink.store_session import PickedStore, StoreSession

assert MAX_TRANSACTIONS < 1 << COUNT_BITS

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

_log = logging.getLogger("dafka_spark")

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


def check(options: SinkOptions, picked: PickedStore) -> None:
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
