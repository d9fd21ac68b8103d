"""ZeroMQ sockets of nodes: creation, bursts of messages, record batches, and counters of these.

In the layout of C nodes each record is a message of its own.  The two loops over such messages are
the only ones here that cost Python time per record, so they do nothing else.
"""

from __future__ import annotations

import contextlib
import logging
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from math import inf
from struct import Struct
from types import TracebackType
from typing import Final, cast

import numpy as np
import zmq
from zmq import SyncContext as Context
from zmq import SyncSocket as Socket
from zmq.backend import (
    Socket as BareSocket,  # without the convenience code of zmq.Socket before each call
)

from dafka_core.config.node_options import C_LAYOUT, LIVE_BATCH_BYTES
from dafka_core.errors import ProtocolError
from dafka_core.model.records import RecordBatch
from dafka_core.nodes.connection_quotas import (
    Connection,
    ConnectionQuotas,
    descriptor_of,
    monitored,
)
from dafka_core.nodes.security import Security
from dafka_core.protocol import messages as m
from dafka_core.protocol.authorization import records_refusal, refusal
from dafka_core.protocol.beacons import MAX_PEERS
from dafka_core.protocol.codec import (
    PACKED_IDS,
    BulkDecoder,
    decode,
    encode,
    encode_batch_prefix,
    pack_batch_numbers,
    parse_subscription,
    subscription,
)
from dafka_core.protocol.limits import DIRECT_BATCH_BYTES, MAX_BATCH_COUNT, RUN_BYTES
from dafka_core.protocol.messages import DirectRecordBatches, Message
from dafka_core.protocol.role import OutgoingBatch
from dafka_core.security.permissions import EVERYBODY, Permissions
from dafka_core.security.throttles import LogThrottle
from dafka_core.system.hosts import address_of, parse_endpoint

_log = logging.getLogger("dafka.mesh")

# -- sockets and bursts ----------------------------------------------------------------------------

FAMILY_S: Final = 0.5  # for connecting to a name by one family: some attempts, 0.1 s apart
ExitFunction = Callable[[object, object, TracebackType | None], None]

HANDSHAKE_MS: Final = 10_000  # until ZeroMQ closes an unfinished connection: it takes an open file
IDLE_S: Final = 5  # without data before TCP probes the connection; also the probes' interval

# A connection on which no data leaves for this time is closed, and the messages for it are freed,
# as large ones take too much memory below the high-water mark.  The peer reconnects.
STALLED_MS: Final = 10_000

# Timeout of one attempt to connect.  A peer without room for more drops attempts, and TCP alone
# would retry at growing intervals, up to a minute.
CONNECT_TIMEOUT_MS: Final = 5_000

# Limits on messages received in a round: their count from one socket, and their bytes from all,
# which share them.  The allocator returns larger buffers to the system each time, and the system's
# zeroing of new ones would cost more than all else here.
BURST_COUNT: Final = 65_536
BURST_BYTES: Final = 16 << 20
MIN_BURST_BYTES: Final = 64 << 10  # of one socket: two packed messages, however many sockets share
CONTROL_COUNT: Final = 1_000  # other messages received in a turn, each some 50 us of work

# A peer with its own socket needs three, as two monitor it; some 300 peers would reach ZeroMQ's own
# limit of 1,023 in all.
MOST_SOCKETS: Final = 3 * MAX_PEERS + 100

# Of the requestors that accept packed answers, and of subscribed topics: peers choose the names.
# Further names are not counted, and such requestors are answered one by one.
MAX_NAMES: Final = 100_000

# Subscribers to the packed form of a record receive no single ones.
_PACKED_FORMS: Final[dict[object, type[m.Message]]] = {
    m.RecordBatchMessage: m.RecordMessage,
    m.DirectRecordBatch: m.DirectRecord,
}

_SEQUENCE = Struct(">Q")
_RECORD_IDS = b"MD"

# Events of a connection that has ended before its handshake was complete.
HANDSHAKE_FAILED: Final = (
    zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
)


def destroyed_at_end(context: Context, linger_ms: int | None = None) -> ExitFunction:
    """Return what destroys a context at the end of an ``ExitStack``, with its sockets.

    Ctrl-C may come before pyzmq has registered a new socket.  Only the frames of the error have it
    then, and the context would wait for it for ever.
    """

    def destroy(kind: object, error: object, frames: TracebackType | None) -> None:
        traceback.clear_frames(frames)
        context.destroy(linger_ms)

    return destroy


def new_socket(context: Context, kind: int, max_bytes: int, high_water_mark: int = 1_000) -> Socket:
    """Return a socket that refuses frames above ``max_bytes``, and drops unsent ones when closed.

    TCP's keep-alive finds connections that the peer has closed while packets were lost: a socket
    that only receives would wait on them forever.
    """
    socket = context.socket(kind)
    socket.set_hwm(high_water_mark)
    if kind == zmq.SUB:
        # It sends only its own subscriptions: ZeroMQ silently drops those above the limit, also
        # when it reconnects (libzmq's issues 2942 and 4064).
        socket.set(zmq.SNDHWM, 0)
    socket.set(zmq.LINGER, 0)
    socket.set(zmq.MAXMSGSIZE, max_bytes)
    socket.set(zmq.CONNECT_TIMEOUT, CONNECT_TIMEOUT_MS)
    socket.set(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
    socket.set(zmq.TCP_KEEPALIVE, 1)
    socket.set(zmq.TCP_KEEPALIVE_IDLE, IDLE_S)
    socket.set(zmq.TCP_KEEPALIVE_INTVL, IDLE_S)
    return socket


def watched(context: Context, socket: Socket) -> Socket:
    """Return a monitor of a socket's connections; without an open file, close the socket."""
    made = zmq.EVENT_CONNECTED | zmq.EVENT_HANDSHAKE_SUCCEEDED
    events = made | zmq.EVENT_DISCONNECTED | zmq.EVENT_CONNECT_RETRIED | HANDSHAKE_FAILED
    try:
        return monitored(context, socket, events)
    except zmq.ZMQError:
        socket.disable_monitor()
        socket.close()
        raise


def connect(socket: Socket, endpoint: str, *, is_ipv6: bool = False) -> None:
    """Connect to an endpoint; to a name by one family of its addresses, as ZeroMQ does."""
    socket.set(zmq.IPV6, is_ipv6 or "[" in endpoint)
    socket.connect(endpoint)


@dataclass(slots=True)
class AddressFamily:
    """IPv4 and IPv6 take turns for connecting to a name; IPv4 first, as C nodes have no other."""

    is_ipv6: bool = False
    _tried_at: float = -inf

    def retry(self, now: float, *sockets: tuple[Socket, str]) -> None:
        """After a failed attempt, let sockets connect to their endpoints by the other family."""
        is_name = address_of(parse_endpoint(sockets[0][1]).host) is None
        if is_name and now >= self._tried_at + FAMILY_S:
            self.is_ipv6, self._tried_at = not self.is_ipv6, now
            for socket, endpoint in sockets:
                socket.disconnect(endpoint)
                connect(socket, endpoint, is_ipv6=self.is_ipv6)


def close_watched(socket: Socket, monitor: Socket) -> None:
    """Close a socket and its monitor.

    Until a socket is closed its connections are retried, and ZeroMQ's own thread would wait forever
    to report that to a closed monitor (libzmq's issue 3575): the node could not make, receive from
    or end any connection again.
    """
    socket.disable_monitor()
    for each in (socket, monitor):
        each.close()


def received(socket: Socket) -> Iterator[list[bytes]]:
    """Yield the waiting messages, at most ``CONTROL_COUNT``; each is received when requested."""
    with contextlib.suppress(zmq.Again):
        for _ in range(CONTROL_COUNT):
            yield socket.recv_multipart(zmq.NOBLOCK)


def received_frames(
    socket: Socket, quotas: ConnectionQuotas, max_frames: int
) -> Iterator[list[zmq.Frame]]:
    """Yield waiting messages of a bound socket; one of too many frames ends its connection."""
    with contextlib.suppress(zmq.Again):
        quotas.skip(socket)
        for _ in range(CONTROL_COUNT):
            frames = [socket.recv(zmq.NOBLOCK, copy=False)]
            while frames[-1].more and len(frames) < max_frames:
                frames.append(socket.recv(copy=False))
            if frames[-1].more:
                quotas.refuse_message(socket, frames[-1])
                continue
            quotas.note(descriptor_of(frames[0]))
            yield frames


def received_subscriptions(
    socket: Socket, security: Security, quotas: ConnectionQuotas
) -> Iterator[tuple[bytes, str, Connection | None]]:
    """Yield waiting subscriptions with the keys of their senders, which are allowed to connect.

    Without a connection: ZeroMQ itself removes the subscriptions of a peer that has gone.
    """
    for (frame,) in received_frames(socket, quotas, 1):
        subscription, connection = frame.bytes, quotas.sender(frame)
        if connection is not None:
            quotas.subscribe(connection, subscription)
        if (key := security.owner(frame, connection)) is not None:
            yield subscription, key, connection


class Subscribers:
    """The subscriptions that an XPUB socket in manual mode reports, and how each is served.

    Our nodes subscribe to both forms of a record, RECORD and its packed extension, because a
    producer may be ours or a C node.  Our producers must not send both: the XPUB socket's manual
    mode (ZeroMQ's XPUB_MANUAL) lets a node decide what each peer's subscription means, and a peer
    that subscribes to the packed form receives no single records.
    """

    def __init__(self, pub: Socket) -> None:
        self._pub = pub
        kinds = (m.RecordMessage, m.EpochAck, *_PACKED_FORMS)
        # Subscriptions of the counted kinds, by topic or address.
        self._counts: dict[object, Counter[str]] = {kind: Counter() for kind in kinds}
        self._forms: dict[str, list[bool]] = {}  # of one topic, until a subscription changes them

    def apply(self, frame: bytes) -> tuple[bool, type[m.Message] | None, str]:
        """Apply and return a subscription, at once: ZeroMQ applies it to its sender."""
        subscribed, kind, topic = parsed = parse_subscription(frame)
        prefix = frame[1:]
        if not subscribed:
            if frame[:1] == b"\x00":
                self._pub.set(zmq.UNSUBSCRIBE, prefix)
                if kind in (m.DirectRecordBatch, m.EpochAck):
                    names = self._counts[kind]
                    names[topic] -= 1
                    if names[topic] <= 0:
                        del names[topic]
            return parsed
        self._pub.set(zmq.SUBSCRIBE, prefix)
        is_counted = self._count(kind, topic)
        # A SUB socket sends its subscriptions in the order of their bytes, and the packed forms
        # come after the single ones.
        if is_counted and kind in _PACKED_FORMS:
            self._pub.set(zmq.UNSUBSCRIBE, subscription(_PACKED_FORMS[kind]) + prefix[1:])
        elif kind is m.Ack and topic in self._counts[m.EpochAck]:
            # The peer's earlier subscription, to EpochAck, contains more.
            self._pub.set(zmq.UNSUBSCRIBE, prefix)
        return parsed

    def forms(self, topic: str, requestor: str) -> list[bool]:
        """Return the forms to send records in: packed (True), one by one (False), both or none."""
        if requestor:
            return [requestor in self._counts[m.DirectRecordBatch]]
        forms = self._forms.get(topic)
        if forms is None:
            packed = self._matching(m.RecordBatchMessage, topic)
            # ZeroMQ does not report the end of every subscription, so the counts may be too high:
            # records are then sent in an unneeded form as well, which costs only time.
            single = self._matching(m.RecordMessage, topic) - packed
            forms = [form for form, count in ((True, packed), (False, single)) if count > 0]
            self._forms = {topic: forms}
        return forms

    def _count(self, kind: type[m.Message] | None, name: str) -> bool:
        """Count a subscription; return False if its kind is not counted, or without room."""
        names = self._counts.get(kind)
        if names is None or (name not in names and len(names) >= MAX_NAMES):
            return False
        names[name] += 1
        self._forms = {}
        return True

    def _matching(self, kind: type[m.Message], topic: str) -> int:
        counts = self._counts[kind].items()
        return sum(count for prefix, count in counts if topic.startswith(prefix))


def share_bytes(senders: int) -> int:
    """Return the bytes that each of the sockets with messages may deliver in a round."""
    return max(BURST_BYTES // max(senders, 1), MIN_BURST_BYTES)


def receive_burst(
    socket: Socket, decoder: BulkDecoder, quotas: ConnectionQuotas, max_bytes: int
) -> list[list[bytes]]:
    """Receive the waiting messages, until they suffice for one turn.

    Records in two frames go to ``decoder``; the frames of all other messages are returned.  A
    message is received whole, however many frames it has: none of its frames is ever taken for the
    beginning of another message.
    """
    others: list[list[bytes]] = []
    buckets = decoder.buckets
    # A Frame knows whether more follow; asking the socket costs more than making a Frame.
    receive = cast("Callable[[int], zmq.Frame]", partial(BareSocket.recv, socket, copy=False))

    def receive_noted(flags: int) -> zmq.Frame:
        frame = receive(flags)
        quotas.note(descriptor_of(frame))
        return frame

    recv = receive_noted if quotas.observed else receive
    nowait, size_bytes = int(zmq.NOBLOCK), 0
    with contextlib.suppress(zmq.Again):
        quotas.skip(socket)
        for _ in range(BURST_COUNT):
            if size_bytes > max_bytes or len(others) >= CONTROL_COUNT:
                break
            frame = recv(nowait)
            header = frame.bytes
            if not frame.more:
                others.append([header])
                continue
            frame = recv(nowait)
            if frame.more:
                # RFC 46's RECORD has the most: topic frame, command frame, content.
                last = recv(nowait)
                if last.more:
                    quotas.refuse_message(socket, last)
                else:
                    others.append([header, frame.bytes, last.bytes])
                continue
            if header[:1] in PACKED_IDS:
                # Not copied here: the decoder copies it when it joins the burst's messages.
                size_bytes += len(frame)
                decoder.add(header, frame.buffer)
                continue
            value = frame.bytes
            size_bytes += len(value)
            bucket = buckets.get(header[:-8])
            if bucket is not None:
                bucket.sequences.append(header[-8:])
                bucket.values.append(value)
            elif header[:1] in _RECORD_IDS:
                decoder.add(header, value)
            else:
                others.append([header, value])
    return others


def send_one_by_one(socket: Socket, message: OutgoingBatch, layout: str) -> None:
    """Send a message for each record of the batch."""
    batch, requestor = message.batch, message.requestor
    if layout != C_LAYOUT:
        for offset, content in enumerate(batch.values, batch.offset):
            record = (*batch.tp, offset, content)
            single = m.DirectRecord(requestor, *record) if requestor else m.RecordMessage(*record)
            socket.send_multipart(encode(single, layout))
        return
    prefix = encode_batch_prefix(requestor, batch.tp, packed=False)
    send, pack, more = partial(BareSocket.send, socket), _SEQUENCE.pack, int(zmq.SNDMORE)
    for sequence, value in enumerate(batch.values, batch.offset):
        send(prefix + pack(sequence), more)
        send(value)


def send_packed(socket: Socket, message: OutgoingBatch) -> None:
    """Send the batch in as few messages as the limits allow, without processing single records."""
    batch = message.batch
    prefix = encode_batch_prefix(message.requestor, batch.tp, packed=True)
    limit_bytes = DIRECT_BATCH_BYTES if message.requestor else LIVE_BATCH_BYTES
    ends, data = batch.values.columns()
    lengths = memoryview(np.diff(ends).astype("<u4").tobytes())
    start = 0
    # Not by RecordBatch.split, which is several times slower for the smallest messages.
    while start < batch.count:
        stop = int(ends.searchsorted(ends[start] + limit_bytes, side="right")) - 1
        stop = min(max(stop, start + 1), start + MAX_BATCH_COUNT, batch.count)
        records = data[int(ends[start]) : int(ends[stop])]
        times = m.pack_times(batch.times, start, stop)
        offset, runs = batch.offset + start, len(times) // RUN_BYTES
        numbers = offset, stop - start, batch.transaction, batch.epoch, runs
        socket.send(prefix + pack_batch_numbers(*numbers), zmq.SNDMORE)
        socket.send(b"".join((times, lengths[4 * start : 4 * stop], records)))
        start = stop


# -- counters --------------------------------------------------------------------------------------

INVALID_MESSAGE, INVALID_RECORDS, INVALID_BEACON = "message", "records", "beacon"
FORBIDDEN: Final = "forbidden"

REFUSAL_REASONS: Final = (INVALID_MESSAGE, INVALID_RECORDS, INVALID_BEACON, FORBIDDEN)
"""Reasons for refusing frames: invalid message, invalid records, invalid beacon, not allowed by the
sender's key."""

_CAUSES: Final = {FORBIDDEN: "the file of a key names its permissions (docs/security.md)"}
_NO_PROTOCOL: Final = "the sender speaks another protocol, or a version unknown to this node"


class MeshTraffic:
    """Counters of messages and records, and the log of refused ones.

    Not by topic, because peers could create too many.  The loop's thread counts, others read.
    """

    def __init__(self, node: str) -> None:
        self.refused = Counter[str]()  # frames, by reason
        # As received, including duplicates and records that the node did not want.
        self.records_received = self.bytes_received = 0
        # Published to the followers of a topic; each counts once, for any number of followers.
        self.live_records = self.live_bytes = 0
        self.direct_records = self.direct_bytes = 0  # sent again to a peer that requested them
        # Messages by the name of their type, except those that consist of records only.
        self.received, self.sent = Counter[str](), Counter[str]()
        self._node = node  # its name in the log
        self._throttle = LogThrottle()

    def add_received(self, batch: RecordBatch) -> None:
        """Count received records."""
        self.records_received += batch.count
        self.bytes_received += batch.values.size_bytes

    def add_sent(self, message: OutgoingBatch) -> None:
        """Count sent records."""
        count, size_bytes = message.batch.count, message.batch.values.size_bytes
        if message.requestor:
            self.direct_records += count
            self.direct_bytes += size_bytes
        else:
            self.live_records += count
            self.live_bytes += size_bytes

    def add_sent_message(self, message: Message) -> None:
        """Count another message; the answer to a FETCH-BATCH contains records, too."""
        self.sent[type(message).__name__] += 1
        if isinstance(message, DirectRecordBatches):
            self.direct_records += sum(each.end - each.earliest for each in message.entries)
            self.direct_bytes += len(message.value)

    def admits_records(self, sender: Permissions, batch: RecordBatch) -> bool:
        """Count received records; return True if their sender may write them."""
        if why := records_refusal(sender, batch.tp):
            self.refuse(FORBIDDEN, why)
            return False
        self.add_received(batch)
        return True

    def admitted(self, sender: Permissions, frames: list[bytes]) -> Message | None:
        """Return the decoded message; None if it is invalid or the sender may not send it."""
        try:
            message = decode(frames)
        except ProtocolError as error:
            self.refuse(INVALID_MESSAGE, str(error))
            return None
        if sender is not EVERYBODY and (why := refusal(sender, message)):
            self.refuse(FORBIDDEN, why)
            return None
        return message

    def refuse(self, reason: str, why: str = "", count: int = 1) -> None:
        """Count refused frames, and log the first ones of each minute, by reason."""
        self.refused[reason] += count
        if self._throttle.is_new(reason):
            facts = {"node": self._node, "count": self.refused[reason], "reason": reason}
            facts["last"] = why and f" (the last one: {why})"
            facts["cause"] = _CAUSES.get(reason, _NO_PROTOCOL)
            text = "%(node)s: %(count)d frames refused so far, reason %(reason)s%(last)s; %(cause)s"
            _log.warning(text, facts, extra={"event": "frames_refused"})
