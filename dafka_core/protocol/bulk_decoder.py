"""Decodes many record messages at once: RECORD, DIRECT-RECORD and their packed extensions.

A header ends with the sequence, or for packed records with ``pack_batch_numbers``.  The prefix
before it is equal for all records of a partition, so one dict lookup replaces decoding.
``tests/unit/protocol/test_bulk_decoder.py`` compares the result with decoding each message alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import compress, pairwise
from typing import Any, Final

import numpy as np

from dafka_core.errors import ProtocolError
from dafka_core.model.epochs import Epoch
from dafka_core.model.records import RecordBatch, TopicPartition, Transaction, joined_times
from dafka_core.model.values import Values
from dafka_core.protocol import codec
from dafka_core.protocol.fields import check_batch
from dafka_core.protocol.limits import MAX_SEQUENCE
from dafka_core.protocol.messages import AnyRecord, PackedRecords, unpack_batch

# Cached prefixes, one for each partition.  Peers choose them, so the number is limited; at the
# limit the decoder clears the cache.
MAX_KNOWN_PREFIXES: Final = 16_384
PACKED_IDS: Final = b"rp"  # ids of the commands with many records
_ANY_NUMBERS: Final = codec.pack_batch_numbers(0, 1, None, None, 0)


@dataclass(slots=True)
class PartitionRecords:
    """The records of one partition in the order of their arrival."""

    requestor: str  # the node that the records were sent to; empty for RECORD, which goes to all
    tp: TopicPartition
    packed: bool
    sequences: list[bytes] = field(default_factory=list)  # the header's bytes after the names
    values: list[Any] = field(default_factory=list)  # bytes, or for packed messages any buffer


class BulkDecoder:
    """Collects two-frame messages and returns their records as batches."""

    def __init__(self) -> None:
        self.buckets: dict[bytes, PartitionRecords] = {}
        """By header up to the names.  The receive loop looks RECORDs up here first."""
        self.invalid_count = 0  # dropped messages that were no valid records

    def add(self, header: bytes, value: bytes | memoryview) -> None:
        """Add one message with a header that is not in ``buckets`` yet."""
        packed = header[:1] in PACKED_IDS
        size_bytes = codec.BATCH_NUMBERS_BYTES if packed else 8
        prefix = header[:-size_bytes]
        bucket = self.buckets.get(prefix)
        if bucket is None:
            try:
                # For packed messages only the names are checked here, the rest in ``take``.
                numbers, content = (_ANY_NUMBERS, bytes(4)) if packed else (bytes(8), bytes(value))
                message = codec.decode((prefix + numbers, content))
                if not isinstance(message, AnyRecord):
                    raise ProtocolError("other messages come in another way")
            except ProtocolError:
                self.invalid_count += 1
                return
            bucket = PartitionRecords(message.requestor, message.tp, packed)
            self.buckets[prefix] = bucket
        bucket.sequences.append(header[-size_bytes:])
        bucket.values.append(value)

    def take(self) -> list[tuple[str, RecordBatch]]:
        """Return all records since the last call, as (requestor, batch), grouped by partition."""
        batches: list[tuple[str, RecordBatch]] = []
        for bucket in self.buckets.values():
            if bucket.values:
                found = self._packed(bucket) if bucket.packed else self._singles(bucket)
                batches.extend((bucket.requestor, batch) for batch in found)
                bucket.sequences = []
                bucket.values = []
        if len(self.buckets) > MAX_KNOWN_PREFIXES:
            self.buckets.clear()
        return batches

    def _singles(self, bucket: PartitionRecords) -> list[RecordBatch]:
        sequences = np.frombuffer(b"".join(bucket.sequences), ">u8").astype(np.uint64)
        values = bucket.values
        # Dropped before runs are detected: in 64 bits 0 would follow 2**64 - 1.
        valid = sequences <= MAX_SEQUENCE
        if not valid.all():
            values = list(compress(values, valid.tolist()))
            self.invalid_count += len(sequences) - len(values)
            sequences = sequences[valid]
        if not values:
            return []
        gaps = (np.flatnonzero(np.diff(sequences) != 1) + 1).tolist()
        return [
            RecordBatch(bucket.tp, int(sequences[start]), Values.of(values[start:stop]))
            for start, stop in pairwise([0, *gaps, len(values)])
        ]

    def _packed(self, bucket: PartitionRecords) -> list[RecordBatch]:
        parts: list[_Part] = []
        for header, value in zip(bucket.sequences, bucket.values, strict=True):
            try:
                # The receive loop also finds a bucket for a header that lacks some of its numbers.
                sequence, count, transaction, epoch, runs = codec.unpack_batch_numbers(header)
                check_batch(sequence, count, transaction, epoch)
                records = unpack_batch(count, value, runs)
            except ProtocolError:
                self.invalid_count += 1
                continue
            parts.append((sequence, sequence + count, (transaction, epoch), records))
        if not parts:
            return []
        gaps = [
            index
            for index, (one, other) in enumerate(pairwise(parts), 1)
            if one[1] != other[0] or one[2] != other[2]
        ]
        stretches = pairwise([0, *gaps, len(parts)])
        return [_joined(bucket.tp, parts[start:stop]) for start, stop in stretches]


_Part = tuple[int, int, tuple[Transaction | None, Epoch | None], PackedRecords]
"""The records of one packed message, from their first offset to their end (exclusive)."""


def _joined(tp: TopicPartition, parts: list[_Part]) -> RecordBatch:
    offset, _, (transaction, epoch), _ = parts[0]
    packed = [records for *_, records in parts]
    lengths = np.concatenate([each.lengths for each in packed])
    ends = np.zeros(len(lengths) + 1, np.int64)
    lengths.cumsum(out=ends[1:], dtype=np.int64)
    data = packed[0].records if len(packed) == 1 else b"".join([each.records for each in packed])
    times = joined_times([each.times for each in packed])
    return RecordBatch(tp, offset, Values.from_columns(ends, data), transaction, times, epoch)
