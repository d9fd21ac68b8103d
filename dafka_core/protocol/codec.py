"""Messages <-> ZeroMQ frames, in both layouts, from one table.

Deployed nodes put everything but the content into the first frame, so that a PUB socket can
filter by it; RFC 46 as written has a topic frame, then a command frame that begins with a
signature:

    deployed   id topic 00 01 fields                 [content]
    rfc46      id topic          AA A5 id 01 fields  [content]

``docs/wire.md`` lists where the two differ and which we follow.  Both are decoded always.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from dafka_core.errors import ProtocolError
from dafka_core.protocol import messages as m
from dafka_core.protocol.limits import (
    MAX_FETCH_COUNT,
    MAX_FRAMES,
    MAX_HEADER_BYTES,
    MAX_HELLO_BYTES,
    MAX_REPLY_ENTRIES,
)
from dafka_core.protocol.transactions import BATCH_TAIL, NO_TRANSACTION, TRANSACTION, transaction_of

C_LAYOUT: Final = "deployed"
RFC46: Final = "rfc46"
LAYOUTS: Final = (C_LAYOUT, RFC46)

SIGNATURE: Final = b"\xaa\xa5"
VERSION: Final = b"\x01"
"RFC 46 says %x01 in one place and %x30 in another; deployed nodes send 1."


class _Fields:
    """Reads fields off a frame; anything short of what it claims is a ProtocolError."""

    __slots__ = ("_data", "_position")

    def __init__(self, data: bytes, position: int) -> None:
        self._data = data
        self._position = position

    def take(self, size_bytes: int) -> bytes:
        """The next octets."""
        start = self._position
        self._position = start + size_bytes
        if self._position > len(self._data):
            raise ProtocolError("the frame ends within a field")
        return self._data[start : self._position]

    def number(self, size_bytes: int) -> int:
        """The next unsigned integer, "in network byte order"."""
        return int.from_bytes(self.take(size_bytes), "big")

    def text(self, length_size_bytes: int) -> str:
        """The next string: "Strings are always length + text contents"."""
        return _text(self.take(self.number(length_size_bytes)))

    def finish(self) -> None:
        """Raises ProtocolError unless every octet has been read."""
        if self._position != len(self._data):
            raise ProtocolError("the frame goes on after its last field")


def _text(octets: bytes) -> str:
    # RFC 46: a topic "can be any byte sequence", so octets that are no UTF-8 must survive, too.
    return octets.decode("utf-8", "surrogateescape")


def _octets(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _put_string(text: str) -> bytes:
    octets = _octets(text)
    return len(octets).to_bytes(1, "big") + octets


def _put_strings(texts: Sequence[str]) -> bytes:
    all_octets = [_octets(text) for text in texts]
    parts = [len(octets).to_bytes(4, "big") + octets for octets in all_octets]
    return len(texts).to_bytes(4, "big") + b"".join(parts)


def _get_strings(fields: _Fields) -> tuple[str, ...]:
    count = fields.number(4)
    # A string takes four octets at least: a count beyond that is a lie, not a reason to loop.
    if count > MAX_HELLO_BYTES // 4:
        raise ProtocolError("more strings are announced than a frame can hold")
    return tuple(fields.text(4) for _ in range(count))


def _put_heads(entries: Sequence[m.HeadEntry]) -> bytes:
    parts = [
        _put_string(e.topic) + _put_string(e.partition) + _number8(e.earliest) + _number8(e.end)
        for e in entries
    ]
    return len(entries).to_bytes(4, "big") + b"".join(parts)


def _get_heads(fields: _Fields) -> tuple[m.HeadEntry, ...]:
    return tuple(
        m.HeadEntry(fields.text(1), fields.text(1), fields.number(8), fields.number(8))
        for _ in range(_entry_count(fields))
    )


def _put_times(entries: Sequence[m.TimeEntry]) -> bytes:
    parts = [_number8(e.offset) + _number8(e.timestamp_us) for e in entries]
    return len(entries).to_bytes(4, "big") + b"".join(parts)


def _get_times(fields: _Fields) -> tuple[m.TimeEntry, ...]:
    count = _entry_count(fields)
    return tuple(m.TimeEntry(fields.number(8), fields.number(8)) for _ in range(count))


def _entry_count(fields: _Fields) -> int:
    count = fields.number(4)
    if count > MAX_REPLY_ENTRIES:
        raise ProtocolError(f"a reply has at most {MAX_REPLY_ENTRIES} entries")
    return count


def _number8(number: int) -> bytes:
    return number.to_bytes(8, "big")


@dataclass(frozen=True, slots=True)
class _Kind:
    put: Callable[[Any], bytes]
    get: Callable[[_Fields], Any]


_KINDS: Final = {
    "string": _Kind(_put_string, lambda fields: fields.text(1)),
    "strings": _Kind(_put_strings, _get_strings),
    "number4": _Kind(lambda n: int(n).to_bytes(4, "big"), lambda fields: fields.number(4)),
    "number8": _Kind(_number8, lambda fields: fields.number(8)),
    # A count beyond the limit is clamped rather than refused: deployed nodes serve any.
    "count4": _Kind(
        lambda n: int(n).to_bytes(4, "big"), lambda fields: min(fields.number(4), MAX_FETCH_COUNT)
    ),
    "unit": _Kind(
        lambda transaction: TRANSACTION.pack(*(transaction or NO_TRANSACTION)),
        lambda fields: transaction_of(TRANSACTION.unpack(fields.take(TRANSACTION.size))),
    ),
    "heads": _Kind(_put_heads, _get_heads),
    "times": _Kind(_put_times, _get_times),
}


@dataclass(frozen=True, slots=True)
class _Command:
    """One row of the wire table: which attribute is the topic, which fields follow in order."""

    id: bytes
    message: Callable[..., m.Message]
    topic: str
    fields: tuple[tuple[str, str], ...]
    rfc46_fields: tuple[tuple[str, str], ...]
    has_content: bool
    max_bytes: int


_ADDRESS_SUBJECT_SEQUENCE: Final = "partition:string topic:string sequence:number8"
_COUNT_UNIT: Final = " count:number4 unit:unit"


def _command(
    id_: bytes,
    message: Callable[..., m.Message],
    topic: str,
    fields: str,
    *,
    rfc46: str = "",
    content: bool = False,
    max_bytes: int = MAX_HEADER_BYTES,
) -> _Command:
    def rows(text: str) -> tuple[tuple[str, str], ...]:
        pairs = (field.split(":") for field in text.split())
        return tuple((name, kind) for name, kind in pairs)

    return _Command(id_, message, topic, rows(fields), rows(rfc46 or fields), content, max_bytes)


_COMMANDS: Final[dict[type, _Command]] = {
    m.RecordMessage: _command(
        b"M", m.RecordMessage, "topic", _ADDRESS_SUBJECT_SEQUENCE, content=True
    ),
    m.DirectRecord: _command(
        b"D", m.DirectRecord, "requestor", _ADDRESS_SUBJECT_SEQUENCE, content=True
    ),
    m.Fetch: _command(
        b"F", m.Fetch, "partition", "requestor:string topic:string sequence:number8 count:count4"
    ),
    # RFC 46 gives ACK an address, deployed nodes send none.  There it can say which store.
    m.Ack: _command(
        b"K",
        m.Ack,
        "partition",
        "topic:string sequence:number8",
        rfc46="store:string topic:string sequence:number8",
    ),
    m.Head: _command(b"H", m.Head, "topic", _ADDRESS_SUBJECT_SEQUENCE),
    m.DirectHead: _command(b"E", m.DirectHead, "requestor", _ADDRESS_SUBJECT_SEQUENCE),
    m.GetHeads: _command(b"G", m.GetHeads, "topic", "requestor:string"),
    m.ConsumerHello: _command(
        b"W",
        m.ConsumerHello,
        "store",
        "consumer:string topics:strings",
        max_bytes=MAX_HELLO_BYTES,
    ),
    m.StoreHello: _command(b"L", m.StoreHello, "consumer", "store:string"),
    # Extensions.  Deployed nodes never subscribe to these identifiers, so never see them.
    m.RecordBatchMessage: _command(
        b"R", m.RecordBatchMessage, "topic", _ADDRESS_SUBJECT_SEQUENCE + _COUNT_UNIT, content=True
    ),
    m.DirectRecordBatch: _command(
        b"P", m.DirectRecordBatch, "requestor", _ADDRESS_SUBJECT_SEQUENCE + _COUNT_UNIT, content=True
    ),
    m.HeadsQuery: _command(
        b"Q", m.HeadsQuery, "", "requestor:string query:number8 topics:strings",
        max_bytes=MAX_HELLO_BYTES,
    ),
    m.TimesQuery: _command(
        b"T",
        m.TimesQuery,
        "",
        "requestor:string query:number8 topic:string partition:string sequence:number8 end:number8",
    ),
    m.HeadsReply: _command(
        b"S",
        m.HeadsReply,
        "requestor",
        "query:number8 store:string part:number4 parts:number4 entries:heads",
        max_bytes=MAX_REPLY_ENTRIES * 530,
    ),
    m.TimesReply: _command(
        b"U",
        m.TimesReply,
        "requestor",
        "query:number8 store:string part:number4 parts:number4 entries:times",
        max_bytes=MAX_REPLY_ENTRIES * 17,
    ),
    m.StoreEndpoints: _command(
        b"N", m.StoreEndpoints, "requestor", "store:string locations:strings"
    ),
}  # fmt: skip

_BY_ID: Final = {command.id[0]: command for command in _COMMANDS.values()}


def command_id(message: type[m.Message]) -> bytes:
    """The identifier of a command: what subscriptions to it begin with."""
    return _COMMANDS[message].id


def subscription(message: type[m.Message], topic: str = "") -> bytes:
    """The prefix a SUB socket subscribes to.  ZeroMQ compares prefixes: compare the whole later."""
    return _COMMANDS[message].id + _octets(topic)


def parse_subscription(frame: bytes) -> tuple[bool, type[m.Message] | None, str]:
    """What an XPUB socket tells of a subscriber: (subscribed?, command or None, topic)."""
    command = _BY_ID.get(frame[1]) if len(frame) > 1 else None
    kind = next((k for k, c in _COMMANDS.items() if c is command), None)
    # Our subscriptions end with the topic, others may include the delimiter after it.
    return frame[:1] == b"\x01", kind, _text(frame[2:].rstrip(b"\0"))


def encode(message: m.Message, layout: str = C_LAYOUT) -> list[bytes]:
    """The message's frames."""
    command = _COMMANDS[type(message)]
    topic = _octets(getattr(message, command.topic)) if command.topic else b""
    rows = command.rfc46_fields if layout == RFC46 else command.fields
    fields = b"".join(_KINDS[kind].put(getattr(message, name)) for name, kind in rows)
    if layout == RFC46:
        frames = [command.id + topic, SIGNATURE + command.id + VERSION + fields]
    else:
        frames = [command.id + topic + b"\0" + VERSION + fields]
    if isinstance(
        message, m.RecordMessage | m.DirectRecord | m.RecordBatchMessage | m.DirectRecordBatch
    ):
        frames.append(message.value)
    return frames


def encode_batch_prefix(requestor: str, topic: str, partition: str, *, packed: bool) -> bytes:
    """The deployed first frame of records but for what follows the names.

    That is the sequence (8 octets), or ``pack_batch_tail`` if they are ``packed``.  All before is
    the same for all records of a partition.
    """
    message: m.Message
    match packed, requestor:
        case False, "":
            message = m.RecordMessage(topic, partition, 0, b"")
        case False, _:
            message = m.DirectRecord(requestor, topic, partition, 0, b"")
        case True, "":
            message = m.RecordBatchMessage(topic, partition, 0, 1, bytes(4))
        case _:
            message = m.DirectRecordBatch(requestor, topic, partition, 0, 1, bytes(4))
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
    header_count = len(frames) - command.has_content
    if header_count not in (1, 2):
        raise ProtocolError("the message has too few or too many frames for its command")
    if max(len(frame) for frame in frames[:header_count]) > command.max_bytes:
        raise ProtocolError(f"a header frame has at most {command.max_bytes} bytes")
    if header_count == 1:
        return _decode_deployed(command, frames)
    return _decode_rfc46(command, frames)


def _decode_deployed(command: _Command, frames: Sequence[bytes]) -> m.Message:
    header = frames[0]
    delimiter = header.find(b"\0", 1)
    if delimiter < 0:
        raise ProtocolError("the topic is not terminated")
    fields = _Fields(header, delimiter + 1)
    if fields.take(1) != VERSION:
        raise ProtocolError("the version is not 1")
    return _message(command, _text(header[1:delimiter]), command.fields, fields, frames)


def _decode_rfc46(command: _Command, frames: Sequence[bytes]) -> m.Message:
    # RFC 46: "A node SHALL silently discard any message received that does not start with these
    # two octets", and "messages that do not contain a valid version number".
    fields = _Fields(frames[1], 0)
    if fields.take(2) != SIGNATURE:
        raise ProtocolError("the signature is not AA A5")
    if fields.take(1) != command.id:
        raise ProtocolError("topic frame and command frame name different commands")
    if fields.take(1) != VERSION:
        raise ProtocolError("the version is not 1")
    return _message(command, _text(frames[0][1:]), command.rfc46_fields, fields, frames)


def _message(
    command: _Command,
    topic: str,
    rows: tuple[tuple[str, str], ...],
    fields: _Fields,
    frames: Sequence[bytes],
) -> m.Message:
    values = {name: _KINDS[kind].get(fields) for name, kind in rows}
    fields.finish()
    if command.has_content:
        values["value"] = frames[-1]
    if not command.topic:
        if topic:
            raise ProtocolError("this command has no topic")
    # Two names for one topic would let a record reach those who did not subscribe to it.
    elif values.setdefault(command.topic, topic) != topic:
        raise ProtocolError("the topic and the subject differ")
    return command.message(**values)
