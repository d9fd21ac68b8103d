"""Writes that may be repeated: the version of an application that is committed, whole or in part.

An application is a streaming query, with its micro-batches as versions, or the one that option
``txnAppId`` names.  Each partition's last transaction contains the version and the number of
partitions that it was written to.  So a store that received only some of these partitions, before
the store that committed them was lost, shows that others are missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, Self

from dafka_core.errors import DafkaError
from dafka_core.flight.limits import MAX_TRANSACTIONS
from dafka_core.flight.store_client import StoreClient
from dafka_core.model.names import quoted
from dafka_core.model.records import NO_VERSION, TopicPartition, Transaction
from dafka_core.security.permissions import EVERYBODY, Permissions
from dafka_spark.cluster import timing
from dafka_spark.cluster.timing import Deadline
from dafka_spark.errors import ApplicationError, OldCheckpointError, TransactionChangedError
from dafka_spark.options import COUNT_BITS, SinkOptions
from dafka_spark.sink.commit_messages import PickedStore
from dafka_spark.sink.rows import partition_address
from dafka_spark.sink.store_session import StoreSession

assert MAX_TRANSACTIONS < 1 << COUNT_BITS

_PREFIX: Final = 16
"""Hexadecimal digits that all addresses of an application begin with: it finds them by these,
whatever the number of its tasks and, where the topic comes from a column, in every topic."""

_OWN_DIGITS: Final = 10
"""The digits of the prefix after those of a key: 10 are left for its topics and tasks."""


class Progress(NamedTuple):
    """The newest version of an application that any store has, and its partitions there."""

    version: int = NO_VERSION
    written: dict[TopicPartition, Transaction] = {}  # noqa: RUF012 -- never changed
    partitions: int = 0
    """The number of partitions that the version was written to."""
    holders: dict[TopicPartition, StoreClient] = {}  # noqa: RUF012 -- never changed
    """A store for each partition that has its transaction."""

    @property
    def is_whole(self) -> bool:
        """True if all partitions of the version are known."""
        return len(self.written) == self.partitions

    @property
    def found(self) -> str:
        """The number of known partitions, as part of a sentence."""
        return f"{len(self.written)} of {self.partitions} partitions"


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
        # A query finds its partitions also when its topic was a column before.
        return ("query", self.app_id) if self.is_query else ("txnAppId", self.app_id, self.topic)

    @property
    def _prefixes(self) -> tuple[str, str]:
        """The beginnings of its addresses: without a key, or from before it, and with it."""
        own = partition_address(*self._name)
        return own[:_PREFIX], self.owner.prefix + own[:_OWN_DIGITS]

    def progress(self, session: StoreSession, deadline: Deadline) -> Progress:
        """Return what stores have of it.

        Raises:
            StoreUnreachableError: a store that may have more does not answer.
        """
        prefixes = self._prefixes

        def ask(client: StoreClient) -> dict[TopicPartition, Transaction]:
            topics = [self.topic] if self.topic else None
            infos = client.heads(topics, timeout_s=timing.ANSWER_S)
            own = [info.tp for info in infos if info.partition.startswith(prefixes)]
            states = client.transaction_states(own, timeout_s=timing.ANSWER_S) if own else []
            last = {tp: state.transaction for tp, state in zip(own, states, strict=True)}
            return {tp: each for tp, each in last.items() if each is not None}

        for heard, lost in session.looks(session.current(), ask, deadline):
            if lost is None:
                return _newest(heard)
        assert lost is not None  # there is one look at least
        raise lost

    def refused(self, why: str) -> ApplicationError:
        """Return the error for a version that cannot be written."""
        return ApplicationError(self.app_id, self.version, why)

    def outdated(self, last: Progress) -> DafkaError:
        """Return the error for a version that is older than the last one."""
        if self.is_query:
            tp, transaction = max(last.written.items())
            return OldCheckpointError(*tp, self.version, transaction._replace(version=last.version))
        return self.refused(
            f"version {last.version} is written already, and whether the rows of an older one are "
            "there cannot be checked any more. If this version was written before, there is "
            "nothing to do; otherwise write it under a greater version, or another txnAppId"
        )

    def changed(self, last: Progress, rows: int, now: int) -> DafkaError:
        """Return the error for a repeated version that has ``now`` rows, and not the same."""
        topics = " and ".join(sorted({quoted(tp.topic) for tp in last.written}))
        shown = f"{now} others" if now == rows else now
        why = f"{rows} rows of it are committed to {last.found} of {topics}, and it has {shown} now"
        if not last.is_whole:
            why += (
                ". The store that committed the rest is away: start it again, or repeat the write "
                "with the same rows for each task, as with the same number of tasks, which "
                "adaptive execution changes (spark.sql.adaptive.streaming.stateless.enabled, "
                "spark.sql.adaptive.enabled)"
            )
        return (
            TransactionChangedError(self.version, why)
            if self.is_query
            else self.refused(f"{why}. {_CHANGED}")
        )


def _newest(heard: Sequence[tuple[StoreClient, dict[TopicPartition, Transaction]]]) -> Progress:
    last: dict[TopicPartition, Transaction] = {}
    holders: dict[TopicPartition, StoreClient] = {}
    for client, found in heard:
        for tp, transaction in found.items():
            if tp not in last or last[tp] < transaction:
                last[tp], holders[tp] = transaction, client
    if not last:
        return Progress()
    version = max(each.version for each in last.values())
    number = version >> COUNT_BITS
    written = {tp: each for tp, each in last.items() if each.version >> COUNT_BITS == number}
    return Progress(number, written, version & (1 << COUNT_BITS) - 1, holders)


def check(options: SinkOptions, picked: PickedStore) -> None:
    """Refuse a batch write early if its version can't be written.

    Raises:
        ApplicationError: a newer version is written, or the version before it in part only.
        StoreUnreachableError: a store that may have it does not answer.
    """
    application = Application.of(options)
    if not application.app_id:
        return
    with StoreSession(options.mesh_address, picked.locations) as session:
        last = application.progress(session, Deadline(options.delivery_timeout_s))
    if last.version > application.version:
        raise application.outdated(last)
    if last.version < application.version and not last.is_whole:
        why = f"version {last.version}, the one before, is written in part only, to {last.found}"
        cure = "run it again, or start the store that has the rest, or write under"
        raise application.refused(f"{why}: {cure} another txnAppId")


_CHANGED: Final = (
    "Nothing was written, as rows would be missing or doubled. Give each write of a version that "
    "has other rows a txnAppId or a txnVersion of its own; if this is a repetition, let the job "
    "have the same input as before"
)
