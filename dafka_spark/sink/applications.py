"""Batch writes that may be repeated: which version of an application is written, and if all of it.

Each partition's last transaction says it, as far as any store has it: the version, and to how many
partitions that was written.  So a store that got some of these partitions only, before the one that
committed them was lost, shows that others are missing.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final, NamedTuple, Self

from dafka_core.flight.limits import MAX_TRANSACTIONS
from dafka_core.flight.store_client import StoreClient
from dafka_core.permissions import EVERYBODY, Permissions
from dafka_core.records import NO_VERSION, TopicPartition, Transaction
from dafka_spark.cluster import timing
from dafka_spark.cluster.store_session import StoreSession
from dafka_spark.cluster.timing import Deadline
from dafka_spark.errors import ApplicationError
from dafka_spark.options import COUNT_BITS, SinkOptions
from dafka_spark.sink.commit_messages import PickedStore, WrittenRange
from dafka_spark.sink.task_writer import partition_address

assert MAX_TRANSACTIONS < 1 << COUNT_BITS

_PREFIX: Final = 16
"""Hexadecimal digits that all addresses of an application begin with: it finds them by these,
whatever the number of its tasks and, where the topic comes from a column, in every topic."""

_OWN_DIGITS: Final = 10
"""The same behind the digits of a key: as many are left for its topics and tasks."""

_log = logging.getLogger("dafka_spark")


class Progress(NamedTuple):
    """The newest version of an application that any store has, and its partitions there."""

    version: int = NO_VERSION
    written: dict[TopicPartition, Transaction] = {}  # noqa: RUF012 -- never changed
    partitions: int = 0
    """How many there must be."""

    @property
    def is_whole(self) -> bool:
        """Whether all of them are there."""
        return len(self.written) == self.partitions


class Application(NamedTuple):
    """What options ``txnAppId`` and ``txnVersion`` name; without an ``app_id`` nothing.

    As in Delta, where it is of one table, it is of one topic.  An empty ``topic`` stands for all
    that its column ``topic`` names, together.
    """

    app_id: str
    version: int
    topic: str
    owner: Permissions = EVERYBODY

    @classmethod
    def of(cls, options: SinkOptions) -> Self:
        """The one that writes."""
        version = NO_VERSION if options.txn_version is None else options.txn_version
        return cls(options.txn_app_id, version, options.topic, options.mesh_address.owner)

    @property
    def first_version(self) -> int:
        """The version of its transactions while it is not known how many there are.

        It is less than the one they have in the end, so that a store refuses to stage them again.
        """
        return self.version << COUNT_BITS if self.app_id else NO_VERSION

    def last_version(self, partitions: int) -> int:
        """The version of its transactions when there are so many."""
        return self.first_version | partitions if self.app_id else NO_VERSION

    def number_of(self, version: int) -> int:
        """``txnVersion`` of a transaction that has this version."""
        return version >> COUNT_BITS if self.app_id else version

    def address(self, topic: str, task_number: int) -> str:
        """That of the partition which a task writes in a topic."""
        own = partition_address(*self._name, topic, task_number)
        plain, locked = (prefix + own[len(prefix) :] for prefix in self._prefixes)
        return plain if self.owner.is_own(plain) else locked

    @property
    def _name(self) -> tuple[str, str, str]:
        return "txnAppId", self.app_id, self.topic

    @property
    def _prefixes(self) -> tuple[str, str]:
        """What its addresses begin with: without a key, or from before it, and with it."""
        own = partition_address(*self._name)
        return own[:_PREFIX], self.owner.prefix + own[:_OWN_DIGITS]

    def refused(self, why: str) -> ApplicationError:
        """The error for a version that cannot be written."""
        return ApplicationError(self.app_id, self.version, why)

    def progress(self, session: StoreSession, deadline: Deadline) -> Progress:
        """What stores have of it.

        Raises:
            StoreUnreachableError: one that may have more does not answer.
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
                return self._newest([found for _, found in heard])
        assert lost is not None  # there is one look at least
        raise lost

    def _newest(self, found: Sequence[dict[TopicPartition, Transaction]]) -> Progress:
        last: dict[TopicPartition, Transaction] = {}
        for tp, transaction in (each for some in found for each in some.items()):
            last[tp] = max(last.get(tp, transaction), transaction)
        if not last:
            return Progress()
        version = max(each.version for each in last.values())
        number = version >> COUNT_BITS
        written = {tp: each for tp, each in last.items() if each.version >> COUNT_BITS == number}
        return Progress(number, written, version & (1 << COUNT_BITS) - 1)


def is_written(options: SinkOptions, picked: PickedStore) -> bool:
    """Whether a job has nothing to write: its version, or a newer one, is there as a whole.

    Then waits until as many stores have it as must acknowledge, in case that the job which has
    written it did not live to see that.

    Raises:
        ApplicationError: the version before it is there in part only.
        NotAcknowledgedError: other stores do not have it in time.
        StoreUnreachableError: a store that may have it does not answer.
    """
    application, deadline = Application.of(options), Deadline(options.delivery_timeout_s)
    if not application.app_id:
        return False
    name, version = application.app_id, application.version
    with StoreSession(options.mesh_address, picked.locations) as session:
        last = application.progress(session, deadline)
        there = f"to {len(last.written)} of {last.partitions} partitions"
        if last.version < version:
            if not last.is_whole:
                why = f"version {last.version}, the one before, is written in part only, {there}"
                cure = "run that one again, or start the store that has the rest, or go on under"
                raise application.refused(f"{why}: {cure} another txnAppId")
            return False
        if last.version == version:
            if not last.is_whole:
                text = "version %d of application %r was written in part, %s: writing the rest"
                _log.warning(text, version, name, there)
                return False
            known, acks = session.current(), options.acks_needed
            session.wait_for_all_acks([*last.written.items()], known, acks, (), deadline)
    text = "version %d of application %r is not written again: the last one is %d"
    _log.warning(text, version, name, last.version)
    return True


def version_of(options: SinkOptions, picked: PickedStore, ranges: Sequence[WrittenRange]) -> int:
    """The version under which a job's transactions are to be committed.

    Raises:
        ApplicationError: what a job before has left of the same version goes to other partitions,
            or another job has written a newer one.
        StoreUnreachableError: a store that may have it does not answer.
    """
    application, deadline = Application.of(options), Deadline(options.delivery_timeout_s)
    if application.app_id:
        with StoreSession(options.mesh_address, picked.locations) as session:
            last = application.progress(session, deadline)
        if last.version > application.version:
            raise application.refused(f"another job has written version {last.version} meanwhile")
        goes_to = {each.tp for each in ranges}
        same = last.partitions == len(goes_to) and goes_to.issuperset(last.written)
        if last.version == application.version and not same:
            raise application.refused(
                f"it was written to {last.partitions} partitions before, and goes to "
                f"{len(goes_to)} {'others ' * (last.partitions == len(goes_to))}now. {CHANGED}"
            )
    return application.last_version(len(ranges))


CHANGED: Final = (
    "Which rows would be missing or doubled cannot be known. If another job writes under this "
    "txnAppId, let each have its own. If the job has other input now, or cuts it into other tasks, "
    "let both be as before"
)
