"""Keys and rows of the log's tables, as bytes."""

from __future__ import annotations

import struct
from typing import NamedTuple, Self

import xxhash

from dafka_core.model.epochs import EPOCH_BYTES, NO_LIFE, Epoch
from dafka_core.model.names import octets_of, quoted, text_of
from dafka_core.model.records import NO_VERSION, PartitionInfo, TopicPartition, Transaction

MAX_KEY_BYTES = 511
"""LMDB's limit: two names of 255 octets, the most that RFC 46's frames carry, and one between."""

BLOCK_KEY = struct.Struct(">QQ")
"""A block's key: partition id, first offset.  Big endian, so that keys sort as offsets do."""

LAST_OFFSET = 2**64 - 1
NEVER_US = -(2**63)

_CHECKSUM = struct.Struct("<Q")
"""The end of a row: xxh3, 64 bits, of its key and of what precedes.  A row that is damaged, or has
come under another name, would have other records served, or have some written over."""

CHECKSUM_BYTES = _CHECKSUM.size

_ROW = struct.Struct("<QQQq")
"""What each row has; of a partition whose producer is known by an epoch, that one follows."""

_TRANSACTIONS = struct.Struct("<Qq16sqQQ16sQQqQQ")
"""What comes last in the row of a partition that transactions are written to.  Each of the
three that can be missing (what is staged, the committed attempt, the last transaction) has an end
of 0 then."""


LEAST_BYTES = _ROW.size + CHECKSUM_BYTES
"""Of a row without epoch and transactions, as it lies on disk."""

_REST_BYTES = {e + t for e in (0, EPOCH_BYTES) for t in (0, _TRANSACTIONS.size)}


class StagedRecords(NamedTuple):
    """What is staged beyond a partition's end, up to ``end`` (exclusive).

    Of ``transaction``, the version is always known, the end only when another store has sent it:
    that of an attempt is 0.
    """

    end: int
    last_timestamp_us: int
    attempt: bytes
    transaction: Transaction


class CommittedAttempt(NamedTuple):
    """What was committed last: what an attempt staged from ``start`` to ``end`` (exclusive)."""

    attempt: bytes
    start: int
    end: int


_NOT_STAGED = StagedRecords(0, 0, bytes(16), Transaction(0, 0, 0))
_NOT_COMMITTED = CommittedAttempt(bytes(16), 0, 0)
_NO_TRANSACTION = Transaction(NO_VERSION, 0, 0)


class PartitionRow(NamedTuple):
    """What the log knows of a partition: offsets ``earliest`` to ``end`` (exclusive) are held.

    ``last_transaction`` is the one that was committed last, here or at another store.
    """

    id: int
    earliest: int
    end: int
    last_timestamp_us: int
    staged: StagedRecords | None = None
    committed: CommittedAttempt | None = None
    last_transaction: Transaction | None = None
    epoch: Epoch | None = None
    """The newest one."""

    def info(self, tp: TopicPartition) -> PartitionInfo:
        """What is held of the partition, as it is told to others."""
        life = self.epoch.life if self.epoch else NO_LIFE
        return PartitionInfo(*tp, self.earliest, self.end, life)

    @classmethod
    def parse(cls, key: bytes, value: memoryview) -> Self:
        """The row that ``packed`` made.

        Raises:
            ValueError: it is damaged, or of no form that there is.
        """
        row = bytes(value[:-CHECKSUM_BYTES])
        at = _ROW.size
        if len(row) - at not in _REST_BYTES:
            raise ValueError(f"a partition's row cannot have {len(value)} octets")
        if value[-CHECKSUM_BYTES:] != checksum(key, row):
            raise ValueError("its row does not match its checksum")
        facts = _ROW.unpack_from(row)
        epoch = None
        if (len(row) - at) % _TRANSACTIONS.size == EPOCH_BYTES:
            at += EPOCH_BYTES
            epoch = Epoch.unpack(row[at - EPOCH_BYTES : at])
        if len(row) == at:
            return cls._make((*facts, None, None, None, epoch))
        end, time_us, attempt, *rest = _TRANSACTIONS.unpack_from(row, at)
        staged = StagedRecords(end, time_us, attempt, Transaction._make(rest[:3]))
        committed, last = CommittedAttempt._make(rest[3:6]), Transaction._make(rest[6:])
        found = [each if each.end else None for each in (staged, committed, last)]
        return cls._make((*facts, *found, epoch))

    def packed(self, key: bytes) -> bytes:
        """The row as it lies in the table under its key."""
        row = _ROW.pack(*self[:4]) + (b"" if self.epoch is None else self.epoch.packed())
        if any((self.staged, self.committed, self.last_transaction)):
            *staged, transaction = self.staged or _NOT_STAGED
            row += _TRANSACTIONS.pack(
                *staged,
                *transaction,
                *(self.committed or _NOT_COMMITTED),
                *(self.last_transaction or _NO_TRANSACTION),
            )
        return row + checksum(key, row)

    def with_staged_visible(self) -> Self:
        """The row when readers see what is staged; it must have some."""
        assert self.staged is not None
        end, time_us, *_ = self.staged
        return self._replace(end=end, last_timestamp_us=time_us, staged=None)

    def with_transaction(self, transaction: Transaction) -> Self:
        """The row when it has a transaction's records: its last one is the newer of both."""
        last = self.last_transaction
        if transaction.version == NO_VERSION or (last and last.version >= transaction.version):
            return self
        return self._replace(last_transaction=transaction)


def partition_key(tp: TopicPartition) -> bytes:
    """The key of a partition's row.

    Raises:
        ValueError: the names are too long, or contain what separates them.
    """
    key = topic_prefix(tp.topic) + _encoded(tp.partition)
    if len(key) > MAX_KEY_BYTES:
        raise ValueError(
            f"{tp}: the names have {len(key) - 1} octets together, "
            f"a store takes {MAX_KEY_BYTES - 1}"
        )
    return key


def topic_prefix(topic: str) -> bytes:
    """What the keys of a topic's partitions begin with."""
    return _encoded(topic) + b"\0"


def tp_of_key(key: bytes) -> TopicPartition:
    """The partition whose row has a key."""
    topic, _, partition = text_of(key).partition("\0")
    return TopicPartition(topic, partition)


def checksum(key: bytes, row: bytes) -> bytes:
    """The end of a row; also of other values that must be found damaged."""
    return _CHECKSUM.pack(xxhash.xxh3_64_intdigest(key + row))


def _encoded(name: str) -> bytes:
    encoded = octets_of(name)
    if b"\0" in encoded:
        raise ValueError(f"the name {quoted(name)} contains a zero octet")
    return encoded
