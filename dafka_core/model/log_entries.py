"""Log entries: operations on a log, and their outcomes.

A transaction is written in two steps.  *Staged* records are in the log's table of blocks beyond
their partition's end, at their final offsets, invisible to readers.  *Committing* moves the ends of
any number of partitions behind them in one step, and makes the transaction the last one of each of
these partitions.

Staged records belong to an attempt.  An attempt that stages at a partition's end starts over:
earlier staged records are deleted, and their attempt is fenced.

The outcome of an entry (``Log.write``) is None for success, or else:

    a batch without a       replaces staged records if it begins at its partition's end; at the end
    transaction             of records staged from another store's batches it proves that these are
                            complete, and they are committed; elsewhere ``Log.write`` itself raises
                            ``OffsetConflictError``, and no entry is executed
    a batch of a            ``OffsetConflictError``: it begins neither at its partition's end, where
    transaction             the transaction starts over, nor at the end of the staged records of the
                            same transaction
    ``Stage``               ``OffsetConflictError``: it begins neither at its partition's end nor at
                            the end of its attempt's staged records; ``FencedError``: another
                            attempt has staged there, or this attempt's records are deleted;
                            ``TransactionExistsError``: the last transaction's version is as high
    ``Commit``              the first of these that applies to a transaction other than the one its
                            attempt has staged; a repeated commit succeeds
    ``SetTransaction``      ``OffsetConflictError``: the partition ends before the transaction does;
                            ``TransactionExistsError``: the transaction has other offsets
    any other entry         always succeeds
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Final, NamedTuple

from msgspec import Meta

from dafka_core.errors import InvalidRequestError, PartitionError, ProtocolError
from dafka_core.model.epochs import MAX_END, Epoch, EpochId, History
from dafka_core.model.json_message import JsonMessage
from dafka_core.model.name_limits import check_address, check_topic
from dafka_core.model.names import DELETIONS_TOPIC, octets_of
from dafka_core.model.records import (
    NO_VERSION,
    PartitionInfo,
    PartitionLives,
    RecordBatch,
    StagedTransaction,
    TopicPartition,
    Transaction,
)

ATTEMPT_BYTES: Final = 16
REPLICA: Final = bytes(ATTEMPT_BYTES)
"""The attempt of staged records copied from another store, where they are committed."""

MAX_NOTE_NAME_BYTES: Final = 480  # part of a key of LMDB, which has at most 511 bytes
MAX_NOTE_BYTES: Final = 4_096
MAX_NOTES: Final = 10_000  # in one batch: each costs the log about a page

Notes = Mapping[str, bytes | None]  # contents by name; None deletes a note


@dataclass(frozen=True, slots=True)
class NotedBatch(RecordBatch):
    """A batch without a transaction, and notes that the log writes in the same step.

    Notes stay in the log of the store that writes them; other stores receive only the records.
    """

    notes: Notes = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        """Raise ValueError if a note is too large or they are too many."""
        for name, octets in self.notes.items():
            if len(octets_of(name)) > MAX_NOTE_NAME_BYTES or len(octets or b"") > MAX_NOTE_BYTES:
                raise ValueError(f"note {name[:64]!r} is too large, or has too long a name")
        if len(self.notes) > MAX_NOTES:
            raise ValueError(f"a batch has at most {MAX_NOTES} notes, not {len(self.notes)}")


class Stage(NamedTuple):
    """Stage records after those of the attempt, or at the partition's end to start over.

    ``version`` is their transaction's, if it has one: the log refuses one that is not newer than
    the partition's last transaction, or that is older than the one being staged.
    """

    batch: RecordBatch
    attempt: str
    version: int = NO_VERSION


class Commit(NamedTuple):
    """Make transactions visible, all or none; ``epochs`` has the life of each, or is empty."""

    transactions: tuple[StagedTransaction, ...]
    epochs: tuple[Epoch | None, ...] = ()


class Discard(NamedTuple):
    """Discard an attempt's staged records; an empty attempt means those from another store."""

    tp: TopicPartition
    attempt: str


class Promise(NamedTuple):
    """Record that a life of a partition's producer is about to begin (``epochs.py``)."""

    tp: TopicPartition
    life: EpochId


class NameClient(NamedTuple):
    """Keep the name of the client that writes a partition with records."""

    tp: TopicPartition
    client: str


class StoreSeen(NamedTuple):
    """Record another store's endpoint and when it was last seen (as ``KnownStore``)."""

    store: str
    endpoint: str = ""
    seen_us: int = 0


class Forget(NamedTuple):
    """Forget another store until it appears again."""

    store: str


class SetAside(NamedTuple):
    """Move a partition's records from ``start`` on out of it: another history has replaced them.

    They stay readable by commands.  Staged records of the partition are discarded.
    """

    tp: TopicPartition
    start: int


class RestartPartition(NamedTuple):
    """Restart a partition at ``start``: no store has the records before it.

    The log's records of the partition are set aside.  ``history`` covers the records before
    ``start``, and ``transaction`` is their last one, as another store knows them, so a repeated
    write is recognised.
    """

    tp: TopicPartition
    start: int
    history: History
    transaction: Transaction | None = None


class SetTransaction(NamedTuple):
    """Set the last transaction of a partition, with records that are visible already."""

    tp: TopicPartition
    transaction: Transaction


_TransactionEntry = Stage | Commit | Discard | SetTransaction
LogEntry = (
    RecordBatch
    | _TransactionEntry
    | Promise
    | NameClient
    | StoreSeen
    | Forget
    | SetAside
    | RestartPartition
)


def records_of(entry: LogEntry) -> RecordBatch | None:
    """Return the records that an entry writes or stages, if any."""
    batch = entry.batch if isinstance(entry, Stage) else entry
    return batch if isinstance(batch, RecordBatch) else None


def attempt_octets(attempt: str) -> bytes:
    """Encode an attempt for the log; raise ValueError if it is invalid."""
    try:
        octets = bytes.fromhex(attempt)
    except ValueError:
        octets = REPLICA
    if len(octets) != ATTEMPT_BYTES or octets == REPLICA or octets.hex().upper() != attempt:
        raise ValueError(f"attempt {attempt!r} is not 32 upper-case hex digits, not all zero")
    return octets


def attempt_text(octets: bytes) -> str:
    """Decode an attempt; empty for ``REPLICA``."""
    return "" if octets == REPLICA else octets.hex().upper()


@dataclass(eq=False)
class TransactionExistsError(PartitionError):
    """A transaction that is not newer than the last one of its partition: it is committed."""

    sentence = (
        "transaction {transaction.version} is committed already, at offsets {transaction.start} "
        "to {transaction.end} (exclusive): write newer ones only"
    )
    transaction: Transaction


# Deletions of topics, as records of internal topic ``__dafka.deletions``.
#
# Each store that deletes a topic records the ends of the topic's partitions there. Stores exchange
# these records as any others, so a store that was away learns of the deletion when it returns.

MAX_ROWS: Final = 1_000  # partitions in one record; fewer if stores accept small records only
_ROW_BYTES: Final = 2_048  # an upper bound for a row, and for the fields before the rows
_Count = Annotated[int, Meta(ge=0)]


class _DeletionRecord(JsonMessage, frozen=True):
    what: ClassVar[str] = "deletion"
    topic: str
    at_us: _Count
    partitions: tuple[tuple[str, _Count, _Count, _Count, _Count], ...]
    """Name, end, and the three numbers of the life of each."""


class Deletion(NamedTuple):
    """A deletion of a partition's records before ``before``, by ``life`` and older ones.

    ``at_us`` is its time by the clock of the store that received the command.
    """

    tp: TopicPartition
    before: int
    life: EpochId
    at_us: int

    def reaches(self, lives: PartitionLives) -> int:
        """Return the offset up to which a log's records are the deleted ones.

        Records of a newer life were written since, at offsets that the deletion doesn't know.
        """
        newer = (epoch.start for epoch in lives.history if epoch.life > self.life)
        return min(self.before, lives.end, *newer)

    def covers(self, other: Deletion) -> bool:
        """Return True if another deletion of the partition deletes nothing more."""
        return self.before >= other.before and self.life >= other.life


def packed_deletions(
    infos: Sequence[PartitionInfo], at_us: int, limit_bytes: int
) -> Iterator[bytes]:
    """Encode the deletion of a topic's partitions, up to their present ends, as records."""
    rows = min(max(limit_bytes // _ROW_BYTES - 1, 1), MAX_ROWS)
    for start in range(0, len(infos), rows):
        part = infos[start : start + rows]
        partitions = tuple((info.partition, info.end, *info.life) for info in part)
        yield _DeletionRecord(part[0].topic, at_us, partitions).packed()


def parsed_deletions(content: bytes) -> list[Deletion]:
    """Decode one record, the inverse of ``packed_deletions``; raise ValueError if it is invalid."""
    try:
        record = _DeletionRecord.parse(content)
        check_topic(record.topic)
        for row in record.partitions:
            check_address(row[0])
    except (InvalidRequestError, ProtocolError) as error:
        raise ValueError(f"not a deletion: {error}") from None
    if record.topic == DELETIONS_TOPIC or any(row[1] > MAX_END for row in record.partitions):
        raise ValueError("not a deletion: its topic cannot be deleted, or an offset is too large")
    return [
        Deletion(TopicPartition(record.topic, partition), before, EpochId(*life), record.at_us)
        for partition, before, *life in record.partitions
    ]
