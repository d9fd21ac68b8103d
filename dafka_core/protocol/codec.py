"""Messages to ZeroMQ frames and back, in both layouts, from one table.

C nodes put everything but the content into the first frame, so that a PUB socket can filter by it.
RFC 46 as written has a topic frame, then a command frame that begins with a signature:

    c          id topic 00 01 fields                 [content]
    rfc46      id topic          AA A5 id 01 fields  [content]

``docs/wire.md`` lists where the two differ and which we follow.  Both are always decoded.

``BulkDecoder`` decodes many record messages at once: RECORD, DIRECT-RECORD and their packed
extensions.  A header ends with the sequence, or for packed records with ``pack_batch_numbers``.
The prefix before it is equal for all records of a partition, so one dict lookup replaces decoding.
``tests/unit/protocol/test_bulk_decoder.py`` compares the result with decoding each message alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import compress, pairwise
from struct import Struct
from typing import Any, Final

import numpy as np

from dafka_core.config.node_options import C_LAYOUT, RFC46
from dafka_core.errors import ProtocolError
from dafka_core.model.epochs import EPOCH_BYTES, Epoch
from dafka_core.model.name_limits import MAX_TOPIC_BYTES
from dafka_core.model.names import octets_of, text_of
from dafka_core.model.records import RecordBatch, TopicPartition, Transaction, joined_times
from dafka_core.model.values import Values
from dafka_core.protocol import messages as m
from dafka_core.protocol.fields import (
    TRANSACTION_BYTES,
    FrameReader,
    check_batch,
    epoch_of,
    pack_epoch,
    pack_text,
    pack_transaction,
    transaction_of,
)
from dafka_core.protocol.limits import MAX_SEQUENCE

SIGNATURE: Final = b"\xaa\xa5"  # as in RFC 46's grammar; its text has AA A0, which is refused
VERSION: Final = b"\x01"  # RFC 46 has %x01 in one place and %x30 in another; C nodes send 1
_BATCH_NUMBERS: Final = Struct(f">QI{TRANSACTION_BYTES}s{EPOCH_BYTES}sI")
BATCH_NUMBERS_BYTES: Final = _BATCH_NUMBERS.size


def subscription(message: type[m.Message], topic: str = "") -> bytes:
    """Return the prefix to subscribe to.  ZeroMQ compares prefixes: compare the topic later."""
    return message.command.id + octets_of(topic)


def parse_subscription(frame: bytes) -> tuple[bool, type[m.Message] | None, str]:
    """Parse a frame of an XPUB socket: (subscribed?, command or None, topic).

    The topic is empty, or one that a message may have; otherwise there is no command.
    """
    message = m.COMMANDS.get(frame[1]) if len(frame) > 1 else None
    # Our subscriptions end with the topic, others may include the delimiter after it.
    octets = frame[2:].rstrip(b"\0")
    is_name = len(octets) <= MAX_TOPIC_BYTES and b"\0" not in octets
    return frame[:1] == b"\x01", message if is_name else None, text_of(octets) if is_name else ""


def encode(message: m.Message, layout: str = C_LAYOUT) -> list[bytes]:
    """Return the message's frames."""
    command = message.command
    topic = octets_of(getattr(message, command.topic)) if command.topic else b""
    packed = [kind.pack(getattr(message, name)) for name, kind in command.fields[layout]]
    fields = b"".join(packed)
    if layout == RFC46:
        # RFC 46: "Each command MUST contain as first frame the name of the ZeroMQ topic".
        frames = [command.id + topic, SIGNATURE + command.id + VERSION + fields]
    else:
        frames = [command.id + topic + b"\0" + VERSION + fields]
    if command.content:
        frames.append(getattr(message, command.content))
    return frames


def encode_batch_prefix(requestor: str, tp: TopicPartition, *, packed: bool) -> bytes:
    """Return the first frame of records in the C layout, up to the names.

    The sequence (8 bytes) follows, or ``pack_batch_numbers`` if they are ``packed``.  The prefix is
    equal for all records of a partition.
    """
    live, direct = (
        (m.RecordBatchMessage, m.DirectRecordBatch) if packed else (m.RecordMessage, m.DirectRecord)
    )
    topic = subscription(direct, requestor) if requestor else subscription(live, tp.topic)
    return topic + b"\0" + VERSION + pack_text(tp.partition) + pack_text(tp.topic)


def pack_batch_numbers(
    sequence: int, records: int, transaction: Transaction | None, epoch: Epoch | None, runs: int
) -> bytes:
    """Encode the numbers after the names in the header of packed records."""
    origin = pack_transaction(transaction), pack_epoch(epoch)
    return _BATCH_NUMBERS.pack(sequence, records, *origin, runs)


def unpack_batch_numbers(
    octets: bytes,
) -> tuple[int, int, Transaction | None, Epoch | None, int]:
    """Decode ``pack_batch_numbers``; only the length is checked."""
    if len(octets) != BATCH_NUMBERS_BYTES:
        raise ProtocolError("a batch's header ends within a field")
    sequence, records, transaction, epoch, runs = _BATCH_NUMBERS.unpack_from(octets)
    return sequence, records, transaction_of(transaction), epoch_of(epoch), runs


def decode(frames: Sequence[bytes]) -> m.Message:
    """Decode frames in either layout; raise ProtocolError, and nothing else, if invalid."""
    if not frames or not frames[0]:
        raise ProtocolError("a message begins with a frame that is not empty")
    kind = m.COMMANDS.get(frames[0][0])
    if kind is None:
        raise ProtocolError(f"unknown command identifier {frames[0][:1]!r}")
    command = kind.command
    headers = frames[: len(frames) - bool(command.content)]
    if len(headers) not in (1, 2):
        raise ProtocolError("the message has too few or too many frames for its command")
    if max(map(len, headers)) > command.max_bytes:
        raise ProtocolError(f"a header frame has at most {command.max_bytes} bytes")
    layout = C_LAYOUT if len(headers) == 1 else RFC46
    topic, fields = (_open_c if layout == C_LAYOUT else _open_rfc46)(headers)
    # RFC 46: "A node SHALL discard messages that do not contain a valid version number".
    if fields.take(1) != VERSION:
        raise ProtocolError("the version is not 1")
    values = {name: each.unpack(fields) for name, each in command.fields[layout]}
    fields.finish()
    if command.content:
        values[command.content] = frames[-1]
    if not command.topic:
        if topic:
            raise ProtocolError("this command has no topic")
    # Two names for one topic would let a record reach nodes that did not subscribe to it.
    elif values.setdefault(command.topic, topic) != topic:
        raise ProtocolError("the topic and the subject differ")
    return kind(**values)


def _open_c(headers: Sequence[bytes]) -> tuple[str, FrameReader]:
    delimiter = headers[0].find(b"\0", 1)
    if delimiter < 0:
        raise ProtocolError("the topic is not terminated")
    return text_of(headers[0][1:delimiter]), FrameReader(headers[0][delimiter + 1 :])


def _open_rfc46(headers: Sequence[bytes]) -> tuple[str, FrameReader]:
    fields = FrameReader(headers[1])
    # RFC 46: "A node SHALL silently discard any message received that does not start with these
    # two octets."
    if fields.take(2) != SIGNATURE:
        raise ProtocolError("the signature is not AA A5")
    if fields.take(1) != headers[0][:1]:
        raise ProtocolError("topic frame and command frame name different commands")
    return text_of(headers[0][1:]), fields


# -- many records at once --------------------------------------------------------------------------

# Cached prefixes, one for each partition.  Peers choose them, so the number is limited; at the
# limit the decoder clears the cache.
MAX_KNOWN_PREFIXES: Final = 16_384
PACKED_IDS: Final = b"rp"  # ids of the commands with many records
_ANY_NUMBERS: Final = pack_batch_numbers(0, 1, None, None, 0)


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
        size_bytes = BATCH_NUMBERS_BYTES if packed else 8
        prefix = header[:-size_bytes]
        bucket = self.buckets.get(prefix)
        if bucket is None:
            try:
                # For packed messages only the names are checked here, the rest in ``take``.
                numbers, content = (_ANY_NUMBERS, bytes(4)) if packed else (bytes(8), bytes(value))
                message = decode((prefix + numbers, content))
                if not isinstance(message, m.AnyRecord):
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
                sequence, count, transaction, epoch, runs = unpack_batch_numbers(header)
                check_batch(sequence, count, transaction, epoch)
                records = m.unpack_batch(count, value, runs)
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


_Part = tuple[int, int, tuple[Transaction | None, Epoch | None], m.PackedRecords]
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
