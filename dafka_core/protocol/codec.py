"""Messages to ZeroMQ frames and back, in both layouts, from one table.

C nodes put everything but the content into the first frame, so that a PUB socket can filter by it.
RFC 46 as written has a topic frame, then a command frame that begins with a signature:

    c          id topic 00 01 fields                 [content]
    rfc46      id topic          AA A5 id 01 fields  [content]

``docs/wire.md`` lists where the two differ and which we follow.  Both are always decoded.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final

from dafka_core.config.node_options import C_LAYOUT, RFC46
from dafka_core.errors import ProtocolError
from dafka_core.model.epochs import EPOCH_BYTES, Epoch
from dafka_core.model.names import octets_of, text_of
from dafka_core.model.records import TopicPartition, Transaction
from dafka_core.protocol import messages as m
from dafka_core.protocol.fields import (
    TRANSACTION_BYTES,
    FrameReader,
    epoch_of,
    pack_epoch,
    pack_text,
    pack_transaction,
    transaction_of,
)

SIGNATURE: Final = b"\xaa\xa5"  # as in RFC 46's grammar; its text has AA A0, which is refused
VERSION: Final = b"\x01"  # RFC 46 has %x01 in one place and %x30 in another; C nodes send 1
_BATCH_NUMBERS: Final = Struct(f">QI{TRANSACTION_BYTES}s{EPOCH_BYTES}sI")
BATCH_NUMBERS_BYTES: Final = _BATCH_NUMBERS.size


def subscription(message: type[m.Message], topic: str = "") -> bytes:
    """Return the prefix to subscribe to.  ZeroMQ compares prefixes: compare the topic later."""
    return message.command.id + octets_of(topic)


def parse_subscription(frame: bytes) -> tuple[bool, type[m.Message] | None, str]:
    """Parse a frame of an XPUB socket: (subscribed?, command or None, topic)."""
    message = m.COMMANDS.get(frame[1]) if len(frame) > 1 else None
    # Our subscriptions end with the topic, others may include the delimiter after it.
    topic = text_of(frame[2:].rstrip(b"\0"))
    return frame[:1] == b"\x01", message, topic


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
