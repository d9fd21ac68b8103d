"""Log entries: what a log is told to do, and what becomes of it.

A transaction is written in two steps.  *Staged* records lie in the log's table of blocks beyond
their partition's end, at the offsets they will have, where no reader looks.  *Committing* moves the
end behind them, of any number of partitions in one step, and makes the transaction the last one of
each of these partitions.

Staged records belong to an attempt.  An attempt that stages at a partition's end begins anew: what
was staged before is gone, and the attempt that staged it is fenced.

The outcome of an entry (``Log.write``) is None when it is done, or else:

    a batch without a       replaces what is staged if it begins at its partition's end; at the end
    transaction             of what another store's batches have staged, it shows that those are
                            whole, and they are committed; elsewhere ``Log.write`` itself raises
                            ``OffsetConflictError``, and nothing of all entries is done
    a batch of a            ``OffsetConflictError``: it begins neither at its partition's end, where
    transaction             the transaction begins anew, nor at the end of what is staged of this
                            very transaction
    ``Stage``               ``OffsetConflictError``: it begins neither at its partition's end nor at
                            the end of what its attempt has staged; ``FencedError``: another attempt
                            has staged there, or what this one has staged is gone;
                            ``TransactionExistsError``: the last transaction's version is as high
    ``Commit``              the first of these that holds for a transaction which is not what its
                            attempt has staged; to commit again what was committed is no error
    ``Discard``             is always done
    ``Promise``, ``Met``,   are always done
    ``Forget``, ``SetAside``,
    ``GoOn``
    ``SetTransaction``      ``OffsetConflictError``: the partition ends before the transaction does;
                            ``TransactionExistsError``: the transaction lies at other offsets
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from dafka_core.errors import PartitionError
from dafka_core.model.epochs import Epoch, EpochId, History
from dafka_core.model.names import DELETIONS_TOPIC
from dafka_core.model.records import (
    NO_VERSION,
    PartitionInfo,
    PartitionLives,
    RecordBatch,
    StagedTransaction,
    TopicPartition,
    Transaction,
)

STAGED_HOURS: Final = 24.0
"""After so long with nothing added, what is staged is discarded unless the store is told otherwise;
Spark tries tasks again before."""

ATTEMPT_BYTES: Final = 16
REPLICA: Final = bytes(ATTEMPT_BYTES)
"""The attempt of staged records that come from another store, where they are committed."""


MAX_NOTE_NAME_BYTES: Final = 480
"""A note's name is part of a key of LMDB, which has at most 511 octets."""

MAX_NOTE_BYTES: Final = 4_096
MAX_NOTES: Final = 10_000
"""What is noted with one batch: each note costs the log about a page."""

Notes = Mapping[str, bytes | None]
"""Octets by their names; None deletes a note."""


@dataclass(frozen=True, slots=True)
class NotedBatch(RecordBatch):
    """A batch without a transaction, and notes that the log keeps in the same step, or none of it.

    Notes stay in the log of the store that writes them; other stores are given the records alone.
    """

    notes: Notes = field(default_factory=dict, compare=False)

    @classmethod
    def with_notes(cls, batch: RecordBatch, notes: Notes) -> NotedBatch:
        """The batch with notes."""
        return cls(batch.tp, batch.offset, batch.values, None, batch.times, batch.epoch, notes)


class Stage(NamedTuple):
    """Stages records behind those of an attempt, or at the partition's end to begin anew.

    ``version`` is their transaction's, if it has one: the log refuses one that is not newer than
    the partition's last transaction, or that is older than the one being staged.
    """

    batch: RecordBatch
    attempt: str
    version: int = NO_VERSION


class Commit(NamedTuple):
    """Makes transactions visible together, or none of them."""

    transactions: tuple[StagedTransaction, ...]
    epochs: tuple[Epoch | None, ...] = ()
    """Of each of them, the life that its records are of; unknown without."""


class Discard(NamedTuple):
    """Discards what an attempt has staged; an empty one stands for what another store has sent."""

    tp: TopicPartition
    attempt: str


class Promise(NamedTuple):
    """Keeps that a life of a partition's producer is about to begin (``epochs.py``)."""

    tp: TopicPartition
    life: EpochId


class Met(NamedTuple):
    """Keeps that another store is there: where, and when it was heard (as ``KnownStore``)."""

    store: str
    endpoint: str = ""
    heard_us: int = 0


class Forget(NamedTuple):
    """Forgets another store, which is gone for ever, until it comes again."""

    store: str


class SetAside(NamedTuple):
    """Takes a partition's records from ``start`` on out of it: another history has won there.

    They are kept, for people to look at.  What is staged in the partition is discarded.
    """

    tp: TopicPartition
    start: int


class GoOn(NamedTuple):
    """Has a partition begin anew at ``start``: the records before it are to be had nowhere.

    What the log holds of it is set aside.  ``history`` is of the records before ``start``, and
    ``transaction`` the last one of them, as another store knows them: who writes it again is told
    that it is there.
    """

    tp: TopicPartition
    start: int
    history: History
    transaction: Transaction | None = None


class SetTransaction(NamedTuple):
    """Sets the last transaction of a partition that holds its records already, visible."""

    tp: TopicPartition
    transaction: Transaction


LogEntry = (
    RecordBatch
    | Stage
    | Commit
    | Discard
    | SetTransaction
    | Promise
    | Met
    | Forget
    | SetAside
    | GoOn
)


def attempt_octets(attempt: str) -> bytes:
    """An attempt's octets, as the log keeps them.

    Raises:
        ValueError: it is not 32 upper-case hex digits, or all of them are zero.
    """
    try:
        octets = bytes.fromhex(attempt)
    except ValueError:
        octets = REPLICA
    if len(octets) != ATTEMPT_BYTES or octets == REPLICA or octets.hex().upper() != attempt:
        raise ValueError(f"attempt {attempt!r} is not 32 upper-case hex digits, not all zero")
    return octets


def attempt_text(octets: bytes) -> str:
    """The attempt that ``attempt_octets`` was given; empty for ``REPLICA``."""
    return "" if octets == REPLICA else octets.hex().upper()


@dataclass(eq=False)
class TransactionExistsError(PartitionError):
    """A transaction that is not newer than the last one of its partition: it is committed."""

    sentence = (
        "transaction {transaction.version} is committed already, at offsets {transaction.start} "
        "to {transaction.end} (exclusive): only newer ones can be written, so go on after it"
    )
    transaction: Transaction


# Deletions of topics, as records of internal topic ``__dafka.deletions``.
#
# Each store that deletes a topic notes there how far it had the topic's partitions. Stores give
# each other these records as any others, so one that was away hears of the deletion when it is
# back.


VERSION: Final = 1

MAX_ROWS: Final = 1_000
"""Partitions in one record; fewer where stores take small records only."""

_ROW_BYTES: Final = 2_048
"""More than a row takes, or what is before it, whatever the names."""

_MAX_OFFSET: Final = 2**63


@dataclass(eq=False)
class TopicDeletedError(PartitionError):
    """A producer cannot resume: its topic was deleted, and nothing was written since.

    The records before ``end``, where it would go on, are gone.
    """

    sentence = (
        "the topic was deleted ({when}) with all records before offset {end}: publish them again "
        "from a new address (without option address), or set option resume_deleted to 'ignore' to "
        "go on behind them"
    )
    end: int
    when: str


class Deletion(NamedTuple):
    """The records of a partition before ``before`` were deleted, of ``life`` and older ones."""

    tp: TopicPartition
    before: int
    life: EpochId
    at_us: int
    """When, by the clock of the store that was told to."""

    def reaches(self, lives: PartitionLives) -> int:
        """Up to where a log's records are those that were deleted.

        Those of a newer life were written since, at offsets of which it did not know.
        """
        newer = (epoch.start for epoch in lives.history if epoch.life > self.life)
        return min(self.before, lives.end, *newer)

    def covers(self, other: Deletion) -> bool:
        """Whether the other one, of the same partition, deletes nothing that this one does not."""
        return self.before >= other.before and self.life >= other.life


def packed(infos: Sequence[PartitionInfo], at_us: int, limit_bytes: int) -> Iterator[bytes]:
    """The deletion of a topic's partitions up to where they are held, as records."""
    rows = min(max(limit_bytes // _ROW_BYTES - 1, 1), MAX_ROWS)
    for start in range(0, len(infos), rows):
        part = infos[start : start + rows]
        partitions = [(info.partition, info.end, *info.life) for info in part]
        facts = {"v": VERSION, "topic": part[0].topic, "at_us": at_us, "partitions": partitions}
        yield json.dumps(facts, separators=(",", ":")).encode()  # ASCII, whatever the names


def parsed(content: bytes) -> list[Deletion]:
    """The inverse of ``packed``, of one record.

    Raises:
        ValueError: it is none.
    """
    try:
        facts = json.loads(content)
        topic, at_us = facts["topic"], facts["at_us"]
        if facts["v"] != VERSION or topic == DELETIONS_TOPIC:
            raise ValueError("of another version, or of this topic")
        rows = [
            Deletion(TopicPartition(topic, partition), before, EpochId(*life), at_us)
            for partition, before, *life in facts["partitions"]
        ]
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"not a deletion: {error!r}") from None
    if not all(map(_is_right, rows)):
        raise ValueError("not a deletion: a name or a number cannot be one")
    return rows


def _is_right(deletion: Deletion) -> bool:
    numbers = (deletion.before, *deletion.life, deletion.at_us)
    return (
        all(isinstance(name, str) for name in deletion.tp)
        and all(type(number) is int and number >= 0 for number in numbers)
        and deletion.before <= _MAX_OFFSET
    )
