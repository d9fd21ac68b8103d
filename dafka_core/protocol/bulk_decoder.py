"""Many record messages at once, as runs: RECORD, DIRECT-RECORD and their packed extensions.

What follows the names in a header is the sequence (and count and unit, if packed); all before is
the same for all records of a partition: one look-up of it replaces decoding.  What comes out is
what decoding each message by itself would give; ``tests/core/protocol/test_bursts.py`` holds the
two against each other.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import compress
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from dafka_core.errors import ProtocolError
from dafka_core.protocol.codec import decode
from dafka_core.protocol.limits import MAX_SEQUENCE
from dafka_core.protocol.messages import (
    DirectRecord,
    DirectRecordBatch,
    RecordBatchMessage,
    RecordMessage,
)
from dafka_core.protocol.transactions import BATCH_TAIL, pack_batch_tail, unpack_batch_tail
from dafka_core.protocol.validation import check_batch, check_transaction, unpack_batch
from dafka_core.records import RecordBatch, TopicPartition, Transaction
from dafka_core.values import Values

MAX_KNOWN_PREFIXES: Final = 16_384
"""Prefixes remembered between bursts: a partition has one.  Peers choose them, so there is a
limit; at the limit all are forgotten and decoded again."""


PACKED_IDS: Final = b"RP"
"""Of the commands that carry many records."""

_ANY_TAIL: Final = pack_batch_tail(0, 1, None)


@dataclass(slots=True)
class PartitionRecords:
    """The records of one partition in a burst, in the order of their arrival."""

    requestor: str
    """Whom the records were sent to; empty for RECORD, which goes to all."""
    tp: TopicPartition
    packed: bool
    sequences: list[bytes] = field(default_factory=list)
    """What follows the names in each header."""
    values: list[Any] = field(default_factory=list)
    """Bytes, or for packed messages any buffer."""


class BulkDecoder:
    """Collects two-frame messages and hands them out as runs."""

    def __init__(self) -> None:
        self.buckets: dict[bytes, PartitionRecords] = {}
        """By header up to the names.  The receive loop looks for RECORDs here first."""
        self.invalid_count = 0
        """Messages that were no records; they were dropped."""

    def add(self, header: bytes, value: bytes | memoryview) -> None:
        """Takes one message: the general path, for a header not in ``buckets`` yet."""
        tail_bytes = BATCH_TAIL.size if header[:1] in PACKED_IDS else 8
        bucket = self.buckets.get(header[:-tail_bytes])
        if bucket is None:
            bucket = self._learn(header, b"" if header[:1] in PACKED_IDS else bytes(value))
        if bucket is not None:
            bucket.sequences.append(header[-tail_bytes:])
            bucket.values.append(value)

    def take(self) -> list[tuple[str, RecordBatch]]:
        """All records since the last call, as (requestor, run), grouped by partition."""
        batches: list[tuple[str, RecordBatch]] = []
        for bucket in self.buckets.values():
            if bucket.values:
                found = self._packed_runs(bucket) if bucket.packed else self._runs(bucket)
                batches.extend((bucket.requestor, batch) for batch in found)
                bucket.sequences = []
                bucket.values = []
        if len(self.buckets) > MAX_KNOWN_PREFIXES:
            self.buckets.clear()
        return batches

    def _learn(self, header: bytes, value: bytes) -> PartitionRecords | None:
        # What follows the names, and packed values, are checked when the runs are made; here only
        # the names.
        packed = header[:1] in PACKED_IDS
        names = header[: -BATCH_TAIL.size] if packed else header[:-8]
        try:
            if packed:
                message = decode((names + _ANY_TAIL, bytes(4)))
            else:
                message = decode((names + bytes(8), value))
        except ProtocolError:
            self.invalid_count += 1
            return None
        assert isinstance(
            message, RecordMessage | DirectRecord | RecordBatchMessage | DirectRecordBatch
        )
        requestor = (
            message.requestor if isinstance(message, DirectRecord | DirectRecordBatch) else ""
        )
        bucket = PartitionRecords(requestor, message.tp, packed)
        self.buckets[names] = bucket
        return bucket

    def _runs(self, bucket: PartitionRecords) -> list[RecordBatch]:
        sequences = np.frombuffer(b"".join(bucket.sequences), ">u8").astype(np.uint64)
        values = bucket.values
        # Dropped before the runs are looked for: in 64 bits 0 would follow 2**64 - 1.
        valid = sequences <= MAX_SEQUENCE
        if not valid.all():
            values = list(compress(values, valid.tolist()))
            self.invalid_count += len(sequences) - len(values)
            sequences = sequences[valid]
        if not values:
            return []
        starts = [0, *(np.flatnonzero(np.diff(sequences) != 1) + 1).tolist()]
        return [
            RecordBatch(
                bucket.tp,
                int(sequences[start]),
                Values.of(values[start:stop] if len(starts) > 1 else values),
            )
            for start, stop in zip(starts, [*starts[1:], len(values)], strict=True)
        ]

    def _packed_runs(self, bucket: PartitionRecords) -> list[RecordBatch]:
        batches: list[RecordBatch] = []
        pieces: list[tuple[npt.NDArray[np.uint32], memoryview]] = []
        first = end = 0
        of: Transaction | None = None

        def finish() -> None:
            if pieces:
                values = _joined(pieces)
                batches.append(RecordBatch(bucket.tp, first, values, of))
                pieces.clear()

        for tail, value in zip(bucket.sequences, bucket.values, strict=True):
            try:
                # The receive loop finds a bucket also for a header that lacks some of it.
                sequence, count, transaction = unpack_batch_tail(tail)
                check_batch(sequence, count)
                check_transaction(sequence, count, transaction)
                piece = unpack_batch(count, value)
            except ProtocolError:
                self.invalid_count += 1
                continue
            if not pieces or sequence != end or transaction != of:
                finish()
                first, of = sequence, transaction
            pieces.append(piece)
            end = sequence + count
        finish()
        return batches


def _joined(pieces: list[tuple[npt.NDArray[np.uint32], memoryview]]) -> Values:
    lengths = np.concatenate([lengths for lengths, _ in pieces])
    ends = np.zeros(len(lengths) + 1, np.int64)
    lengths.cumsum(out=ends[1:], dtype=np.int64)
    data = pieces[0][1] if len(pieces) == 1 else b"".join([records for _, records in pieces])
    return Values.from_columns(ends, data)
