"""Receiving a burst of messages, and sending a run of records.

Where a record is a message of its own, as deployed nodes have it, these loops are the only ones
that cost Python time per record, so they do nothing but their work.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from struct import Struct
from typing import Final, cast

import numpy as np
import zmq
from zmq.backend import Socket  # without the conveniences that zmq.Socket puts before each call

from dafka_core.protocol.bulk_decoder import PACKED_IDS, BulkDecoder
from dafka_core.protocol.codec import C_LAYOUT, encode, encode_batch_prefix, pack_batch_numbers
from dafka_core.protocol.limits import (
    DIRECT_BATCH_BYTES,
    LIVE_BATCH_BYTES,
    MAX_BATCH_COUNT,
    MAX_FRAMES,
)
from dafka_core.protocol.messages import DirectRecord, RecordMessage
from dafka_core.protocol.role import OutgoingBatch

STALLED_MS: Final = 10_000
"""A peer that takes nothing for so long is cut off, and what waits for it goes: large messages
would take too much before the high-water mark is reached.  It connects anew by itself."""

IDLE_S: Final = 5
"""Without anything from a peer for so long, and each time as long again, the system asks it."""

_SEQUENCE = Struct(">Q")

_RECORD_IDS = b"MD"


def let_go(socket: zmq.Socket[bytes]) -> None:
    """Has a socket that sends close connections on which nothing leaves any more."""
    socket.set(zmq.TCP_MAXRT, STALLED_MS)


def keep_alive(socket: zmq.Socket[bytes]) -> None:
    """Has the system find out that the other end has closed a connection while nothing got through.

    Who only receives would wait for ever on a connection that its peer has let go of.
    """
    socket.set(zmq.TCP_KEEPALIVE, 1)
    socket.set(zmq.TCP_KEEPALIVE_IDLE, IDLE_S)
    socket.set(zmq.TCP_KEEPALIVE_INTVL, IDLE_S)


def drain(
    socket: zmq.Socket[bytes], burst: BulkDecoder, *, max_count: int, max_bytes: int
) -> list[list[bytes]]:
    """Takes messages that are there, until one of the limits is passed.

    Two-frame records go into ``burst``; the frames of all other messages are returned.  A
    message is taken whole, however many frames it has, so that no frame of one is ever taken
    for the beginning of another.
    """
    others: list[list[bytes]] = []
    buckets = burst.buckets
    # A Frame knows whether more follow; asking the socket costs more than making a Frame.
    receive = partial(Socket.recv, socket, copy=False)
    recv = cast("Callable[[int], zmq.Frame]", receive)
    nowait, size_bytes = int(zmq.NOBLOCK), 0
    try:
        for _ in range(max_count):
            if size_bytes > max_bytes:
                break
            frame = recv(nowait)
            header = frame.bytes
            if not frame.more:
                others.append([header])
                continue
            frame = recv(nowait)
            if frame.more:
                others.append(_rest(socket, [header, frame.bytes]))
                continue
            if header[:1] in PACKED_IDS:
                # Where it lies: it is copied when the burst is joined.
                size_bytes += len(frame)
                burst.add(header, frame.buffer)
                continue
            value = frame.bytes
            size_bytes += len(value)
            bucket = buckets.get(header[:-8])
            if bucket is not None:
                bucket.sequences.append(header[-8:])
                bucket.values.append(value)
            elif header[:1] in _RECORD_IDS:
                burst.add(header, value)
            else:
                others.append([header, value])
    except zmq.Again:
        pass
    return others


def _rest(socket: zmq.Socket[bytes], frames: list[bytes]) -> list[bytes]:
    while socket.get(zmq.RCVMORE):
        frame = socket.recv()
        # Frames beyond the limit make the message invalid; there is no need to keep them.
        if len(frames) <= MAX_FRAMES:
            frames.append(frame)
    return frames


def send_batch(socket: zmq.Socket[bytes], message: OutgoingBatch, layout: str) -> None:
    """Sends a record message for each record of the run."""
    batch = message.batch
    if layout != C_LAYOUT:
        _send_one_by_one(socket, message, layout)
        return
    prefix = encode_batch_prefix(message.requestor, batch.tp, packed=False)
    send, pack, more = partial(Socket.send, socket), _SEQUENCE.pack, int(zmq.SNDMORE)
    for sequence, value in enumerate(batch.values, batch.offset):
        send(prefix + pack(sequence), more)
        send(value)


def send_packed(socket: zmq.Socket[bytes], message: OutgoingBatch) -> None:
    """Sends the run in as few messages as the limits allow, without looking at its records."""
    batch = message.batch
    prefix = encode_batch_prefix(message.requestor, batch.tp, packed=True)
    limit_bytes = DIRECT_BATCH_BYTES if message.requestor else LIVE_BATCH_BYTES
    ends, data = batch.values.columns()
    lengths = memoryview(np.diff(ends).astype("<u4").tobytes())
    start = 0
    while start < len(batch.values):
        stop = int(ends.searchsorted(ends[start] + limit_bytes, side="right")) - 1
        stop = min(max(stop, start + 1), start + MAX_BATCH_COUNT, len(batch.values))
        records = data[int(ends[start]) : int(ends[stop])]
        header = prefix + pack_batch_numbers(batch.offset + start, stop - start, batch.transaction)
        socket.send(header, zmq.SNDMORE)
        socket.send(b"".join((lengths[4 * start : 4 * stop], records)))
        start = stop


def _send_one_by_one(socket: zmq.Socket[bytes], message: OutgoingBatch, layout: str) -> None:
    batch = message.batch
    for sequence, value in enumerate(batch.values, batch.offset):
        if message.requestor:
            direct = DirectRecord(message.requestor, batch.topic, batch.partition, sequence, value)
            socket.send_multipart(encode(direct, layout))
        else:
            record = RecordMessage(batch.topic, batch.partition, sequence, value)
            socket.send_multipart(encode(record, layout))
