"""Messages <-> ZeroMQ frames, in both layouts, from one table.

C nodes put everything but the content into the first frame, so that a PUB socket can
filter by it; RFC 46 as written has a topic frame, then a command frame that begins with a
signature:

    c          id topic 00 01 fields                 [content]
    rfc46      id topic          AA A5 id 01 fields  [content]

``docs/wire.md`` lists where the two differ and which we follow.  Both are decoded always.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Final

from dafka_core.errors import ProtocolError
from dafka_core.protocol import messages as m
from dafka_core.protocol.fields import FrameReader, kinds_of, octets_of, text_of
from dafka_core.protocol.limits import (
    MAX_FRAMES,
    MAX_HEADER_BYTES,
    MAX_HELLO_BYTES,
    MAX_REPLY_ENTRIES,
)
from dafka_core.protocol.transactions import BATCH_TAIL
from dafka_core.records import TopicPartition

C_LAYOUT: Final = "c"
RFC46: Final = "rfc46"
LAYOUTS: Final = (C_LAYOUT, RFC46)

SIGNATURE: Final = b"\xaa\xa5"
VERSION: Final = b"\x01"
"RFC 46 says %x01 in one place and %x30 in another; C nodes send 1."


@dataclass(frozen=True, slots=True)
class _Command:
    """One row of the wire table: which attribute is the topic, which fields follow in order."""

    id: bytes
    message: type[m.Message]
    topic: str
    fields: str
    _: KW_ONLY
    rfc46: str = ""
    """The fields where RFC 46 has others than C nodes."""
    content: bool = False
    max_bytes: int = MAX_HEADER_BYTES

    def names(self, layout: str) -> list[str]:
        """The fields of the command frame, in order."""
        return (self.rfc46 or self.fields if layout == RFC46 else self.fields).split()


_RECORD: Final = "partition topic sequence"
_BATCH: Final = _RECORD + " count transaction"
_REPLY: Final = "query store part parts entries"
_COMMANDS: Final[dict[type, _Command]] = {
    command.message: command
    for command in (
        _Command(b"M", m.RecordMessage, "topic", _RECORD, content=True),
        _Command(b"D", m.DirectRecord, "requestor", _RECORD, content=True),
        _Command(b"F", m.Fetch, "partition", "requestor topic sequence count"),
        # RFC 46 gives ACK an address, C nodes send none.  There it can say which store.
        _Command(b"K", m.Ack, "partition", "topic sequence", rfc46="store topic sequence"),
        _Command(b"H", m.Head, "topic", _RECORD),
        _Command(b"E", m.DirectHead, "requestor", _RECORD),
        _Command(b"G", m.GetHeads, "topic", "requestor"),
        _Command(b"W", m.ConsumerHello, "store", "consumer topics", max_bytes=MAX_HELLO_BYTES),
        _Command(b"L", m.StoreHello, "consumer", "store"),
        # Extensions.  C nodes never subscribe to these identifiers, so never see them.
        _Command(b"R", m.RecordBatchMessage, "topic", _BATCH, content=True),
        _Command(b"P", m.DirectRecordBatch, "requestor", _BATCH, content=True),
        _Command(b"Q", m.HeadsQuery, "", "requestor query topics", max_bytes=MAX_HELLO_BYTES),
        _Command(b"T", m.TimesQuery, "", "requestor query topic partition sequence end"),
        _Command(b"S", m.HeadsReply, "requestor", _REPLY, max_bytes=MAX_REPLY_ENTRIES * 530),
        _Command(b"U", m.TimesReply, "requestor", _REPLY, max_bytes=MAX_REPLY_ENTRIES * 17),
        _Command(b"N", m.StoreEndpoints, "requestor", "store locations"),
    )
}

_BY_ID: Final = {command.id[0]: command for command in _COMMANDS.values()}


def command_id(message: type[m.Message]) -> bytes:
    """The identifier of a command: what subscriptions to it begin with."""
    return _COMMANDS[message].id


def subscription(message: type[m.Message], topic: str = "") -> bytes:
    """The prefix a SUB socket subscribes to.  ZeroMQ compares prefixes: compare the whole later."""
    return _COMMANDS[message].id + octets_of(topic)


def parse_subscription(frame: bytes) -> tuple[bool, type[m.Message] | None, str]:
    """What an XPUB socket tells of a subscriber: (subscribed?, command or None, topic)."""
    command = _BY_ID.get(frame[1]) if len(frame) > 1 else None
    kind = next((k for k, c in _COMMANDS.items() if c is command), None)
    # Our subscriptions end with the topic, others may include the delimiter after it.
    return frame[:1] == b"\x01", kind, text_of(frame[2:].rstrip(b"\0"))


def encode(message: m.Message, layout: str = C_LAYOUT) -> list[bytes]:
    """The message's frames."""
    command = _COMMANDS[type(message)]
    topic = octets_of(getattr(message, command.topic)) if command.topic else b""
    names = command.names(layout)
    kinds = kinds_of(type(message))
    fields = b"".join(kinds[name].put(getattr(message, name)) for name in names)
    if layout == RFC46:
        frames = [command.id + topic, SIGNATURE + command.id + VERSION + fields]
    else:
        frames = [command.id + topic + b"\0" + VERSION + fields]
    if isinstance(
        message, m.RecordMessage | m.DirectRecord | m.RecordBatchMessage | m.DirectRecordBatch
    ):
        frames.append(message.value)
    return frames


def encode_batch_prefix(requestor: str, tp: TopicPartition, *, packed: bool) -> bytes:
    """The first frame of records in the C layout, but for what follows the names.

    That is the sequence (8 octets), or ``pack_batch_tail`` if they are ``packed``.  All before is
    the same for all records of a partition.
    """
    message: m.Message
    match packed, requestor:
        case False, "":
            message = m.RecordMessage(*tp, 0, b"")
        case False, _:
            message = m.DirectRecord(requestor, *tp, 0, b"")
        case True, "":
            message = m.RecordBatchMessage(*tp, 0, 1, bytes(4))
        case _:
            message = m.DirectRecordBatch(requestor, *tp, 0, 1, bytes(4))
    return encode(message)[0][: -BATCH_TAIL.size if packed else -8]


def decode(frames: Sequence[bytes]) -> m.Message:
    """The message that the frames are, in whichever layout.

    Raises:
        ProtocolError: they are none.  No other exception is raised, whatever the octets.
    """
    if not frames or not frames[0] or len(frames) > MAX_FRAMES:
        raise ProtocolError("a message has one to three frames, and the first is not empty")
    command = _BY_ID.get(frames[0][0])
    if command is None:
        raise ProtocolError(f"there is no command with identifier {frames[0][:1]!r}")
    header_count = len(frames) - command.content
    if header_count not in (1, 2):
        raise ProtocolError("the message has too few or too many frames for its command")
    if max(len(frame) for frame in frames[:header_count]) > command.max_bytes:
        raise ProtocolError(f"a header frame has at most {command.max_bytes} bytes")
    if header_count == 1:
        return _decode_c(command, frames)
    return _decode_rfc46(command, frames)


def _decode_c(command: _Command, frames: Sequence[bytes]) -> m.Message:
    header = frames[0]
    delimiter = header.find(b"\0", 1)
    if delimiter < 0:
        raise ProtocolError("the topic is not terminated")
    fields = FrameReader(header, delimiter + 1)
    if fields.take(1) != VERSION:
        raise ProtocolError("the version is not 1")
    return _message(command, text_of(header[1:delimiter]), C_LAYOUT, fields, frames)


def _decode_rfc46(command: _Command, frames: Sequence[bytes]) -> m.Message:
    # RFC 46: "A node SHALL silently discard any message received that does not start with these
    # two octets", and "messages that do not contain a valid version number".
    fields = FrameReader(frames[1], 0)
    if fields.take(2) != SIGNATURE:
        raise ProtocolError("the signature is not AA A5")
    if fields.take(1) != command.id:
        raise ProtocolError("topic frame and command frame name different commands")
    if fields.take(1) != VERSION:
        raise ProtocolError("the version is not 1")
    return _message(command, text_of(frames[0][1:]), RFC46, fields, frames)


def _message(
    command: _Command,
    topic: str,
    layout: str,
    fields: FrameReader,
    frames: Sequence[bytes],
) -> m.Message:
    kinds = kinds_of(command.message)
    values = {name: kinds[name].get(fields) for name in command.names(layout)}
    fields.finish()
    if command.content:
        values["value"] = frames[-1]
    if not command.topic:
        if topic:
            raise ProtocolError("this command has no topic")
    # Two names for one topic would let a record reach those who did not subscribe to it.
    elif values.setdefault(command.topic, topic) != topic:
        raise ProtocolError("the topic and the subject differ")
    return command.message(**values)
