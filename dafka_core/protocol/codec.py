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
from typing import Final, NamedTuple

from dafka_core.config.node_options import C_LAYOUT, RFC46
from dafka_core.errors import ProtocolError
from dafka_core.model.epochs import EPOCH_BYTES, Epoch
from dafka_core.model.names import octets_of, text_of
from dafka_core.model.records import TopicPartition, Transaction
from dafka_core.protocol import messages as m
from dafka_core.protocol.fields import (
    NO_TRANSACTION,
    FrameReader,
    epoch_of,
    pack_epoch,
    pack_text,
    transaction_of,
)
from dafka_core.protocol.limits import (
    MAX_FETCH_PARTITIONS,
    MAX_HEADER_BYTES,
    MAX_HELLO_BYTES,
    MAX_REPLY_BYTES,
)

SIGNATURE: Final = b"\xaa\xa5"  # as in RFC 46's grammar; its text has AA A0, which is refused
VERSION: Final = b"\x01"  # RFC 46 has %x01 in one place and %x30 in another; C nodes send 1
_BATCH_NUMBERS: Final = Struct(f">QIqQQ{EPOCH_BYTES}sI")
BATCH_NUMBERS_BYTES: Final = _BATCH_NUMBERS.size


class _Command(NamedTuple):
    """One row of the table: the attribute that is the topic, and the fields in order."""

    id: bytes
    message: type[m.Message]
    topic: str
    fields: str
    rfc46: str = ""  # the fields in the RFC 46 layout, if they differ from C nodes'
    content: bool = False
    max_bytes: int = MAX_HEADER_BYTES


_RECORD: Final = "partition topic sequence"
_BATCH: Final = _RECORD + " count transaction epoch runs"
_REPLY: Final = "query store part parts entries"
_MAX_RANGES_BYTES: Final = MAX_HEADER_BYTES + MAX_FETCH_PARTITIONS * 560
_COMMANDS: Final[dict[type, _Command]] = {
    command.message: command
    for command in (
        _Command(b"M", m.RecordMessage, "topic", _RECORD, content=True),
        _Command(b"D", m.DirectRecord, "requestor", _RECORD, content=True),
        _Command(b"F", m.Fetch, "partition", "requestor topic sequence count"),
        # RFC 46 gives ACK an address, C nodes send none.  There it can name the store.
        _Command(b"K", m.Ack, "partition", "topic sequence", rfc46="store topic sequence"),
        _Command(b"H", m.Head, "topic", _RECORD),
        _Command(b"E", m.DirectHead, "requestor", _RECORD),
        _Command(b"G", m.GetHeads, "topic", "requestor"),
        _Command(b"W", m.ConsumerHello, "store", "consumer topics", max_bytes=MAX_HELLO_BYTES),
        _Command(b"L", m.StoreHello, "consumer", "store"),
        # Extensions.  C nodes never subscribe to these identifiers, so they never receive them.
        _Command(b"r", m.RecordBatchMessage, "topic", _BATCH, content=True),
        _Command(b"p", m.DirectRecordBatch, "requestor", _BATCH, content=True),
        _Command(b"B", m.FetchBatch, "store", "requestor entries", max_bytes=_MAX_RANGES_BYTES),
        _Command(
            b"C",
            m.DirectRecordBatches,
            "requestor",
            "entries epochs runs",
            content=True,
            max_bytes=_MAX_RANGES_BYTES,
        ),
        _Command(b"Q", m.HeadsQuery, "", "requestor query topics", max_bytes=MAX_HELLO_BYTES),
        _Command(b"I", m.EpochAck, "partition", "topic sequence store life"),
        _Command(b"V", m.HistoryQuery, "", "requestor query topic partition life"),
        _Command(
            b"J",
            m.HistoryReply,
            "requestor",
            "query store topic partition end promised history stores transaction",
            max_bytes=MAX_HELLO_BYTES,
        ),
        _Command(b"T", m.TimesQuery, "", "requestor query topic partition sequence end"),
        _Command(b"s", m.HeadsReply, "requestor", _REPLY, max_bytes=MAX_REPLY_BYTES),
        _Command(b"u", m.TimesReply, "requestor", _REPLY, max_bytes=MAX_REPLY_BYTES),
        _Command(b"O", m.RecordTooLarge, "requestor", _RECORD + " size_bytes"),
        _Command(b"N", m.StoreEndpoints, "requestor", "store locations"),
        _Command(b"X", m.StoresKnown, "requestor", "store entries", max_bytes=MAX_HELLO_BYTES),
    )
}
_BY_ID: Final = {command.id[0]: command for command in _COMMANDS.values()}
_FIELDS: Final = {
    (command.message, layout): [(name, command.message.kinds[name]) for name in fields.split()]
    for command in _COMMANDS.values()
    for layout, fields in ((C_LAYOUT, command.fields), (RFC46, command.rfc46 or command.fields))
}


def subscription(message: type[m.Message], topic: str = "") -> bytes:
    """Return the prefix to subscribe to.

    ZeroMQ compares prefixes: compare the whole topic later.
    """
    return _COMMANDS[message].id + octets_of(topic)


def parse_subscription(frame: bytes) -> tuple[bool, type[m.Message] | None, str]:
    """Parse a frame of an XPUB socket: (subscribed?, command or None, topic)."""
    command = _BY_ID.get(frame[1]) if len(frame) > 1 else None
    # Our subscriptions end with the topic, others may include the delimiter after it.
    topic = text_of(frame[2:].rstrip(b"\0"))
    return frame[:1] == b"\x01", command and command.message, topic


def encode(message: m.Message, layout: str = C_LAYOUT) -> list[bytes]:
    """Return the message's frames."""
    command = _COMMANDS[type(message)]
    topic = octets_of(getattr(message, command.topic)) if command.topic else b""
    fields = b"".join(
        [kind.pack(getattr(message, name)) for name, kind in _FIELDS[type(message), layout]]
    )
    if layout == RFC46:
        # RFC 46: "Each command MUST contain as first frame the name of the ZeroMQ topic".
        frames = [command.id + topic, SIGNATURE + command.id + VERSION + fields]
    else:
        frames = [command.id + topic + b"\0" + VERSION + fields]
    if isinstance(message, m.AnyRecord | m.DirectRecordBatches):
        frames.append(message.value)
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


class BatchNumbers(NamedTuple):
    """The numbers after the names in the header of packed records."""

    sequence: int
    records: int
    transaction: Transaction | None
    epoch: Epoch | None
    runs: int


def pack_batch_numbers(numbers: BatchNumbers) -> bytes:
    """Encode the numbers."""
    sequence, records, transaction, epoch, runs = numbers
    of = transaction or NO_TRANSACTION
    return _BATCH_NUMBERS.pack(sequence, records, *of, pack_epoch(epoch), runs)


def unpack_batch_numbers(octets: bytes) -> BatchNumbers:
    """Decode ``pack_batch_numbers``; only the length is checked."""
    if len(octets) != BATCH_NUMBERS_BYTES:
        raise ProtocolError("a batch's header ends within a field")
    sequence, records, *of, epoch, runs = _BATCH_NUMBERS.unpack_from(octets)
    return BatchNumbers(sequence, records, transaction_of(tuple(of)), epoch_of(epoch), runs)


def decode(frames: Sequence[bytes]) -> m.Message:
    """Decode frames in either layout; raise ProtocolError, and nothing else, if invalid."""
    if not frames or not frames[0]:
        raise ProtocolError("a message begins with a frame that is not empty")
    command = _BY_ID.get(frames[0][0])
    if command is None:
        raise ProtocolError(f"unknown command identifier {frames[0][:1]!r}")
    headers = frames[: len(frames) - command.content]
    if len(headers) not in (1, 2):
        raise ProtocolError("the message has too few or too many frames for its command")
    if max(map(len, headers)) > command.max_bytes:
        raise ProtocolError(f"a header frame has at most {command.max_bytes} bytes")
    layout = C_LAYOUT if len(headers) == 1 else RFC46
    topic, fields = (_open_c if layout == C_LAYOUT else _open_rfc46)(headers)
    # RFC 46: "A node SHALL discard messages that do not contain a valid version number".
    if fields.take(1) != VERSION:
        raise ProtocolError("the version is not 1")
    values = {name: kind.unpack(fields) for name, kind in _FIELDS[command.message, layout]}
    fields.finish()
    if command.content:
        values["value"] = frames[-1]
    if not command.topic:
        if topic:
            raise ProtocolError("this command has no topic")
    # Two names for one topic would let a record reach nodes that did not subscribe to it.
    elif values.setdefault(command.topic, topic) != topic:
        raise ProtocolError("the topic and the subject differ")
    return command.message(**values)


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
