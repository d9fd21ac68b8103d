"""ZeroMQ sockets of nodes: opening, bursts of messages, record batches, rates of peers.

In the layout of C nodes each record is a message of its own.  The two loops over such messages
are the only ones here that cost Python time per record, so they do nothing but their work.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import count
from math import inf
from struct import Struct
from typing import Final, cast

import numpy as np
import zmq
from zmq.backend import Socket  # without the conveniences that zmq.Socket puts before each call

from dafka_core.config.node_options import C_LAYOUT, LIVE_BATCH_BYTES
from dafka_core.nodes.connection_quotas import ConnectionQuotas, descriptor_of
from dafka_core.nodes.security import Security
from dafka_core.protocol.beacons import MAX_PEERS
from dafka_core.protocol.bulk_decoder import PACKED_IDS, BulkDecoder
from dafka_core.protocol.codec import BatchNumbers, encode, encode_batch_prefix, pack_batch_numbers
from dafka_core.protocol.limits import DIRECT_BATCH_BYTES, MAX_BATCH_COUNT, RUN_BYTES
from dafka_core.protocol.messages import DirectRecord, RecordMessage, pack_times
from dafka_core.protocol.role import OutgoingBatch
from dafka_core.system.hosts import address_of, parse_endpoint

# How fast each peer sends: one that is too fast is left alone for a while (docs/security.md).
#
# Nothing is thrown away here.  What comes meanwhile waits in ZeroMQ's queue, then in TCP's windows
# and in the peer's own queue, which drops what is above its high-water mark: that is fetched later.


FAMILY_S: Final = 0.5
"""Time for connecting to a name by one family of addresses: some attempts, 0.1 s apart."""

AHEAD_S: Final = 1.0
"""So much of its rate a peer may send at once: records come in bursts."""

MESSAGE_BYTES: Final = 64
"""What a message costs at least, so that many small ones are not free."""

REQUEST_BYTES: Final = 4 << 10
"""What one without records costs: it is 50 us of work, in which more octets of records are done."""

WAITING_MESSAGES: Final = 1_000
"""Messages of one peer that wait in this process while it is left alone: of ours at most 32 MiB."""

SAY_AGAIN_S: Final = 60.0

_log = logging.getLogger("dafka.mesh")


class PeerRates:
    """Counts what peers send, and says whom to leave alone, and until when.

    Args:
        bytes_per_s: of each peer; 0: there is no limit.

    Attributes:
        paused: who is left alone, by endpoint, and until when.
        pause_count: how often somebody was.
    """

    def __init__(self, bytes_per_s: int) -> None:
        self.paused: dict[str, float] = {}
        self.pause_count = 0
        self._bytes_per_s = bytes_per_s
        self._even_at: dict[str, float] = {}  # when a peer is at its rate if it sends nothing more
        self._said_at = -inf

    def add(self, now: float, endpoint: str, node: str, size_bytes: int) -> bool:
        """A peer has sent something; whether it is to be left alone from now on."""
        if not self._bytes_per_s:
            return False
        even_at = max(now, self._even_at.get(endpoint, now)) + size_bytes / self._bytes_per_s
        self._even_at[endpoint] = even_at
        if even_at <= now + AHEAD_S:
            return False
        self.paused[endpoint] = even_at - AHEAD_S
        self.pause_count += 1
        if now - self._said_at >= SAY_AGAIN_S:
            self._said_at = now
            _log.warning(
                "%(node)s at %(endpoint)s sends more than %(bytes_per_s)d bytes a second, option "
                "max_peer_rate_bytes: it is left alone until that is made up for. Peers were left "
                "alone %(count)d times so far",
                {
                    "node": node,
                    "endpoint": endpoint,
                    "bytes_per_s": self._bytes_per_s,
                    "count": self.pause_count,
                },
                extra={"event": "peer_left_alone"},
            )
        return True

    def take_due(self, now: float) -> list[str]:
        """Who is not left alone any more."""
        due = [endpoint for endpoint, until in self.paused.items() if until <= now]
        for endpoint in due:
            del self.paused[endpoint]
        return due

    def deadline(self) -> float:
        """When somebody is not left alone any more; ``inf`` if nobody is."""
        return min(self.paused.values(), default=inf)

    def forget(self, endpoint: str) -> None:
        """A connection is closed; a new one begins anew."""
        self.paused.pop(endpoint, None)
        self._even_at.pop(endpoint, None)


HANDSHAKE_MS: Final = 10_000
"""Who has connected, and has not said in this time who he is as ZeroMQ asks, is let go: each such
connection takes an open file."""

STALLED_MS: Final = 10_000
"""A connection on which nothing leaves for so long is closed, and what waits for the peer is freed:
large messages would take too much memory before the high-water mark is reached.  The peer connects
anew by itself."""

IDLE_S: Final = 5
"""When nothing has come from a peer for so long, and each time as long again, TCP asks it."""

CONNECT_TIMEOUT_MS: Final = 5_000
"""How long one attempt to connect may take.  A peer without room for more lets attempts go by, and
TCP alone would ask again later each time, up to a minute."""

BURST_COUNT: Final = 65_536
BURST_BYTES: Final = 16 << 20
"""Messages received from one socket before the others have their turn.  The allocator gives larger
buffers back to the system each time, and the system's zeroing of new ones would cost more than
everything else here."""

MOST_SOCKETS: Final = 3 * MAX_PEERS + 100
"""A peer that is told apart has a socket, and two by which it is watched; ZeroMQ's own limit of
1,023 in all would be reached by some 300 peers."""

CONTROL_COUNT: Final = 1_000
"""Beacons, subscriptions, or messages without packed records, each some 50 us of work, received
before something else has its turn."""

_SEQUENCE = Struct(">Q")

_RECORD_IDS = b"MD"

HANDSHAKE_FAILED: Final = (
    zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
)
"""Events of a connection that has ended before it was one."""

_monitors = count()


def new_socket(
    context: zmq.Context[zmq.Socket[bytes]], kind: int, max_bytes: int, high_water_mark: int = 1_000
) -> zmq.Socket[bytes]:
    """A socket that refuses frames above ``max_bytes``, and drops what it has not sent at its end.

    TCP's keep-alive finds connections that the other end has closed while nothing got through: a
    socket that only receives would wait on them for ever.
    """
    socket = context.socket(kind)
    socket.set_hwm(high_water_mark)
    if kind == zmq.SUB:
        # What it sends are its own subscriptions: beyond the limit ZeroMQ drops them in silence,
        # when it connects anew, too (libzmq's issues 2942 and 4064).
        socket.set(zmq.SNDHWM, 0)
    socket.set(zmq.LINGER, 0)
    socket.set(zmq.MAXMSGSIZE, max_bytes)
    socket.set(zmq.CONNECT_TIMEOUT, CONNECT_TIMEOUT_MS)
    socket.set(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
    socket.set(zmq.TCP_KEEPALIVE, 1)
    socket.set(zmq.TCP_KEEPALIVE_IDLE, IDLE_S)
    socket.set(zmq.TCP_KEEPALIVE_INTVL, IDLE_S)
    return socket


def watched(
    context: zmq.Context[zmq.Socket[bytes]], socket: zmq.Socket[bytes]
) -> zmq.Socket[bytes]:
    """A socket that tells which connections of a socket are made, end, and are tried again.

    Where there is no open file left for it, the watched one is closed.
    """
    address = f"inproc://monitor-{next(_monitors)}"
    made = zmq.EVENT_CONNECTED | zmq.EVENT_HANDSHAKE_SUCCEEDED
    events = made | zmq.EVENT_DISCONNECTED | zmq.EVENT_CONNECT_RETRIED | HANDSHAKE_FAILED
    try:
        socket.monitor(address, events)
        monitor = context.socket(zmq.PAIR)
    except zmq.ZMQError:
        socket.disable_monitor()
        socket.close()
        raise
    monitor.set_hwm(0)  # at a limit ZeroMQ's own thread would wait for this one
    monitor.connect(address)
    return monitor


def connect(socket: zmq.Socket[bytes], endpoint: str, *, is_ipv6: bool = False) -> None:
    """Connect to an endpoint; to a name by one family of its addresses, as ZeroMQ does.

    Raises:
        zmq.ZMQError: the endpoint is invalid, or no open file is left.
    """
    socket.set(zmq.IPV6, is_ipv6 or "[" in endpoint)
    socket.connect(endpoint)


@dataclass(slots=True)
class AddressFamily:
    """The family of addresses by which a name is connected to: they take turns until one works.

    IPv4 is first, as C nodes know no other.
    """

    is_ipv6: bool = False
    _tried_at: float = -inf

    def switches(self, now: float, endpoint: str) -> bool:
        """Return whether to connect by the other family, after a connection could not be made."""
        is_name = address_of(parse_endpoint(endpoint).host) is None
        if not is_name or now < self._tried_at + FAMILY_S:
            return False
        self.is_ipv6, self._tried_at = not self.is_ipv6, now
        return True


def close_watched(socket: zmq.Socket[bytes], monitor: zmq.Socket[bytes]) -> None:
    """Closes a socket and the one that tells of its connections.

    Until a socket is gone its connections are tried again, and ZeroMQ's own thread would wait for
    ever to tell that to nobody (libzmq's issue 3575): no connection of the node would ever be made,
    heard or ended again.
    """
    socket.disable_monitor()
    for each in (socket, monitor):
        each.close()


def drop_stalled_peers(socket: zmq.Socket[bytes]) -> None:
    """Has a sending socket close connections on which nothing leaves any more."""
    socket.set(zmq.TCP_MAXRT, STALLED_MS)


def received(socket: zmq.Socket[bytes]) -> Iterator[list[bytes]]:
    """The messages that have come, at most ``CONTROL_COUNT``; each is received when asked for."""
    with contextlib.suppress(zmq.Again):
        for _ in range(CONTROL_COUNT):
            yield socket.recv_multipart(zmq.NOBLOCK)


def received_frames(
    socket: zmq.Socket[bytes], quotas: ConnectionQuotas, max_frames: int
) -> Iterator[list[zmq.Frame]]:
    """Receive messages of a bound socket, at most ``CONTROL_COUNT``.

    A message of more frames ends its connection, and is skipped.
    """
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
    socket: zmq.Socket[bytes], security: Security, quotas: ConnectionQuotas
) -> Iterator[tuple[bytes, int]]:
    """Subscriptions that have come, at most ``CONTROL_COUNT``, and the descriptors they came by.

    What the owners of keys are not allowed to be sent is left out.
    That is -1 where ZeroMQ does not say, as for what it takes back itself when a peer has gone.
    """
    for (frame,) in received_frames(socket, quotas, 1):
        descriptor = descriptor_of(frame)
        quotas.subscribe(descriptor, frame.bytes)
        key = security.owner(frame)
        octets = None if key is None else security.granted(key, frame.bytes)
        if octets is not None:
            yield octets, descriptor


def receive_burst(
    socket: zmq.Socket[bytes], decoder: BulkDecoder, quotas: ConnectionQuotas
) -> tuple[list[list[bytes]], int]:
    """Receives the messages that have come, until there are enough for one turn.

    Records in two frames go to ``decoder``; the frames of all other messages are returned.  A
    message is received whole, however many frames it has: none of its frames is ever taken for
    the beginning of another message.  Also returns about how many octets they all have.
    """
    others: list[list[bytes]] = []
    buckets = decoder.buckets
    # A Frame knows whether more follow; asking the socket costs more than making a Frame.
    receive = partial(Socket.recv, socket, copy=False)
    recv = cast("Callable[[int], zmq.Frame]", receive)
    if quotas.observed:
        recv = _noted(recv, quotas)
    nowait, size_bytes, count = int(zmq.NOBLOCK), 0, 0
    try:
        quotas.skip(socket)
        for count in range(BURST_COUNT):  # noqa: B007 -- how many there were, afterwards
            if size_bytes > BURST_BYTES or len(others) >= CONTROL_COUNT:
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
    except zmq.Again:
        pass
    size_bytes += sum(len(frame) for frames in others for frame in frames)
    return others, size_bytes + count * MESSAGE_BYTES + len(others) * REQUEST_BYTES


def _noted(
    recv: Callable[[int], zmq.Frame], quotas: ConnectionQuotas
) -> Callable[[int], zmq.Frame]:
    """Receive frames and note the connections they came by, of which some are observed."""

    def noted(flags: int) -> zmq.Frame:
        frame = recv(flags)
        quotas.note(descriptor_of(frame))
        return frame

    return noted


def send_one_by_one(socket: zmq.Socket[bytes], message: OutgoingBatch, layout: str) -> None:
    """Sends a message for each record of the batch."""
    batch, requestor = message.batch, message.requestor
    if layout != C_LAYOUT:
        for offset, content in enumerate(batch.values, batch.offset):
            record = (*batch.tp, offset, content)
            single = DirectRecord(requestor, *record) if requestor else RecordMessage(*record)
            socket.send_multipart(encode(single, layout))
        return
    prefix = encode_batch_prefix(requestor, batch.tp, packed=False)
    send, pack, more = partial(Socket.send, socket), _SEQUENCE.pack, int(zmq.SNDMORE)
    for sequence, value in enumerate(batch.values, batch.offset):
        send(prefix + pack(sequence), more)
        send(value)


def send_packed(socket: zmq.Socket[bytes], message: OutgoingBatch) -> None:
    """Sends the batch in as few messages as the limits allow, without looking at its records."""
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
        times = pack_times(batch.times, start, stop)
        offset, runs = batch.offset + start, len(times) // RUN_BYTES
        numbers = BatchNumbers(offset, stop - start, batch.transaction, batch.epoch, runs)
        socket.send(prefix + pack_batch_numbers(numbers), zmq.SNDMORE)
        socket.send(b"".join((times, lengths[4 * start : 4 * stop], records)))
        start = stop
