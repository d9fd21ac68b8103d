"""Units of records that become visible as a whole: what a log is told to do with them.

A unit is written in two steps.  *Staged* records lie in the log's table of blocks beyond their
partition's end, at the offsets they will have; they are its tail, and no reader looks there.
*Committing* moves the end over the tail, of any number of partitions in one transaction, which
also sets their markers.

A tail belongs to an attempt.  Whoever stages at a partition's end begins it anew: what was staged
before is gone, and the attempt that staged it is fenced.

What comes of an entry (``Log.write``), beside None for what is done:

    run without a unit   begins at its partition's end, where it replaces what is staged, or at the
                         end of another store's tail, which it shows to be whole: that is committed
    run with a unit      ``OffsetConflictError``: it begins neither at its partition's end, where
                         its unit begins anew, nor at the end of what is staged of this very unit
    ``Stage``           ``OffsetConflictError``: it begins neither at its partition's end nor at
                         that of its attempt's tail; ``FencedError``: the tail is another's, or is
                         no more; ``TransactionExistsError``: the marker's number is as high
    ``Commit``           the first of these that holds for a unit which is not what its attempt has
                         staged; to commit once more what was committed is no error
    ``Discard``          always done
    ``SetTransaction``             ``OffsetConflictError``: the partition ends before the unit does;
                         ``TransactionExistsError``: the unit lies at other offsets
"""

from __future__ import annotations

from typing import Final, NamedTuple

from dafka_core.records import (
    NO_VERSION,
    RecordBatch,
    StagedTransaction,
    TopicPartition,
    Transaction,
)

STAGED_HOURS: Final = 24
"""A tail that nobody went on with for so long is nobody's; a task is tried again long before."""

ATTEMPT_BYTES: Final = 16
REPLICA: Final = bytes(ATTEMPT_BYTES)
"""The attempt of a tail that comes from another store, where it is committed."""


class Stage(NamedTuple):
    """Records for an attempt's tail: at its end, or at the partition's to begin it anew.

    ``version`` is that of their unit, if it has one: a unit that is not newer than the marker is
    refused, and so is one that is older than what is being staged.
    """

    batch: RecordBatch
    attempt: str
    version: int = NO_VERSION


class Commit(NamedTuple):
    """Units that become visible together, or none of them."""

    transactions: tuple[StagedTransaction, ...]


class Discard(NamedTuple):
    """Gives up an attempt's tail; another's is left alone.  No attempt: one of another store."""

    tp: TopicPartition
    attempt: str


class SetTransaction(NamedTuple):
    """Sets the marker of a partition that has the unit's records already, visible."""

    tp: TopicPartition
    transaction: Transaction


LogEntry = RecordBatch | Stage | Commit | Discard | SetTransaction


def attempt_octets(attempt: str) -> bytes:
    """An attempt as the log keeps it.

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
    """What ``attempt_octets`` was given; empty for what comes from another store."""
    return "" if octets == REPLICA else octets.hex().upper()
