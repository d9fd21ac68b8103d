"""Limits on what one connection makes a node hold in memory.

ZeroMQ keeps any number of frames of a message until the last one has arrived, and keeps every
subscription, at about 100 bytes for each byte of its prefix.  No option of ZeroMQ bounds either.
So a thread compares the bytes that the kernel has received on each connection with the messages
that the node's loop has read from it, and shuts down connections above a limit:

| connection | bytes without a message | ended, too |
|---|---|---|
| from a peer | the quota of subscriptions, on the wire | above that quota of subscriptions |
| to a peer | ``OBSERVED_BYTES`` and the largest record | if the process grows by tiny frames |

One thread checks the connections of all nodes of the process, because ZeroMQ applies subscriptions
in the loop's thread and a flood of them keeps the loop from running.  What arrives between two
checks comes on top of each quota.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket as sockets
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from struct import Struct
from typing import Any, Final

import zmq
from zmq import SyncContext as Context
from zmq import SyncSocket as Socket

from dafka_core.model.names import escape
from dafka_core.security.permissions import EVERYBODY, Permissions
from dafka_core.security.throttles import LogThrottle
from dafka_core.system.closing import CheckThread

CHECK_SHARE: Final = 0.01  # of a CPU: checks of very many connections are less frequent
WIRE_FACTOR: Final = 2  # wire bytes for each byte of a subscription
WIRE_FACTOR_ENCRYPTED: Final = 4  # CURVE adds 35 bytes to a topic of 20
SKIPPED_FRAMES: Final = 10_000  # frames of an invalid message skipped in one turn, some 5 ms

# Without a message, above which a connection to a peer is observed more closely.  Only a message
# with a record can be larger: the largest other one has 5.4 MB.
OBSERVED_BYTES: Final = 8 << 20
OBSERVED_S: Final = 0.3  # in which the loop must have read a message that is complete

# Memory by which a process may grow for an observed connection: this much, and 4 times what it has
# sent.  If it grows by more, the message consists of tiny frames: ZeroMQ takes 64 bytes for one
# that has 2 bytes on the wire.
GROWTH_BYTES: Final = 64 << 20
GROWTH_FACTOR: Final = 4

# Time after such a message in which growth is counted from before it: the process has the memory
# then, and the next such message would not show.
ALERT_S: Final = 600.0

_RECEIVED: Final = Struct("@128xQ")  # ``tcpi_bytes_received`` in Linux's ``struct tcp_info``
_monitor_numbers = count()
_log = logging.getLogger("dafka.mesh")


@dataclass(slots=True, eq=False)
class Connection:
    """A TCP connection of a node, which ZeroMQ owns."""

    descriptor: int
    address: Any  # of the other end; empty if it has ended
    limit_bytes: int  # that may arrive without a message
    endpoint: str = ""  # of the peer that the node has connected to; empty if it was accepted
    owner: Permissions = EVERYBODY  # of its key, at its last message
    # Of an accepted one: its key, the address of its node, and the size of its subscriptions.
    key: str = ""
    node: str = ""
    subscribed_bytes: int = 0
    # The loop has read a message since the last check; these bytes had been received by then.
    noted: bool = False
    counted_bytes: int = 0
    observed_at: float = 0.0
    observed_rounds: int = 0
    peak_bytes: int = 0  # of the process, when the connection was observed first

    def shut_down(self) -> bool:
        """End the connection, which ZeroMQ cannot do; return True if it had not ended.

        ZeroMQ treats it as closed by the peer.  The descriptor may belong to something else by now.
        """
        with contextlib.suppress(OSError), _copied(self.descriptor) as connection:
            if connection.getpeername() == self.address:
                connection.shutdown(sockets.SHUT_RDWR)
                return True
        return False


class ConnectionQuotas:
    """The connections of a node or a tower, and their quotas.

    The loop's thread calls all methods but ``check``, which the checking thread calls.

    Args:
        subscribed_bytes: quota of the subscriptions of one connection.
        option: the option that sets the quota, for the log; may be empty.
    """

    def __init__(self, subscribed_bytes: int, *, encrypted: bool, option: str = "") -> None:
        self.observed: set[int] = set()  # descriptors of which the loop must note the next message
        # Sockets of which the rest of an invalid message must be skipped.  Disconnecting from a
        # peer within a message aborts the process (a defect of libzmq).
        self.unfinished: set[Socket] = set()
        self.rounds = 0  # of the loop
        self.is_paused = False  # the loop reads no messages from peers now
        factor = WIRE_FACTOR_ENCRYPTED if encrypted else WIRE_FACTOR
        self._subscribed_bytes = subscribed_bytes
        self._inbound_bytes = factor * subscribed_bytes
        self._cure = f": raise option {option} if it needs them" if option else ""
        self._connections: dict[int, Connection] = {}  # by descriptor
        self._monitors: list[tuple[Socket, Socket]] = []
        self._lock = threading.Lock()  # of the monitors
        self._alert = 0, 0.0  # memory before the last message of tiny frames; until when it counts
        self._throttle = LogThrottle()

    def watch(self, context: Context, socket: Socket) -> None:
        """Apply the quotas to the connections that a bound socket accepts from now on."""
        if sys.platform == "linux":  # no other system counts received bytes
            self._monitors.append((socket, monitored(context, socket, zmq.EVENT_ACCEPTED)))
            _checker.add(self)

    def close(self) -> None:
        """End the checks, before the sockets are closed."""
        _checker.remove(self)
        with self._lock:
            self._connections.clear()
            for socket, monitor in self._monitors:
                socket.disable_monitor()  # ZeroMQ's thread would wait for its reader
                monitor.close()
            self._monitors.clear()

    def follow(self, descriptor: int, endpoint: str, limit_bytes: int, owner: Permissions) -> None:
        """Limit what may arrive without a message by a connection to the endpoint of a peer."""
        _, address = ends_of(descriptor)
        if address[1:2] == (_port_in(endpoint),):
            self._add(Connection(descriptor, address, limit_bytes, endpoint, owner))

    def sender(self, frame: zmq.Frame) -> Connection | None:
        """Return a frame's accepted connection; None if ZeroMQ made it, as its peer has gone."""
        descriptor = descriptor_of(frame)
        return None if descriptor < 0 else self.accepted(descriptor, ends_of(descriptor)[1])

    def accepted(self, descriptor: int, address: object) -> Connection:
        """Return the accepted connection of a descriptor and an address of a peer."""
        known = self._connections.get(descriptor)
        if known is None or known.endpoint or known.address != address:
            known = Connection(descriptor, address, self._inbound_bytes)
            self._add(known)
        return known

    def note(self, descriptor: int) -> None:
        """Note that the loop has read a message of a connection."""
        if (connection := self._connections.get(descriptor)) is not None:
            connection.noted = True
        self.observed.discard(descriptor)

    def subscribe(self, connection: Connection, frame: bytes) -> None:
        """Count a subscription, or its end, and shut the connection down above the quota."""
        size_bytes = len(frame) - 1
        connection.subscribed_bytes += size_bytes if frame[:1] == b"\1" else -size_bytes
        if connection.subscribed_bytes > self._subscribed_bytes:
            why = f"subscribes to more than {self._subscribed_bytes} bytes{self._cure}"
            self._end(connection, why)

    def refuse_message(self, socket: Socket, frame: zmq.Frame) -> None:
        """Shut down the connection of a message with too many frames, and skip the rest of it."""
        self.unfinished.add(socket)
        if (connection := self._connections.get(descriptor_of(frame))) is not None:
            self._end(connection, "sends a message of too many frames")
        self.skip(socket)

    def skip(self, socket: Socket) -> None:
        """Skip frames of an invalid message; raise zmq.Again if too many remain for one turn."""
        if socket in self.unfinished:
            for _ in range(SKIPPED_FRAMES):
                if not socket.recv(copy=False).more:
                    self.unfinished.discard(socket)
                    return
            raise zmq.Again

    def _end(self, connection: Connection, why: str) -> None:
        """Shut a connection down and log why."""
        self._remove(connection.descriptor)
        if not connection.shut_down():
            return
        host, port = connection.address[:2]
        peer = connection.endpoint or f"{host}:{port}"
        if self._throttle.is_new(connection.endpoint or host):
            key = "" if connection.owner is EVERYBODY else escape(connection.owner.name)
            text = "ended the connection of %(peer)s%(key)s, which %(why)s (docs/security.md)"
            facts = {"peer": peer, "key": key and f" with key {key}", "why": why}
            _log.warning(text, facts, extra={"event": "connection_quota"})

    def _add(self, connection: Connection) -> None:
        self.observed.discard(connection.descriptor)
        self._connections[connection.descriptor] = connection

    def _remove(self, descriptor: int) -> None:
        self.observed.discard(descriptor)
        self._connections.pop(descriptor, None)

    # -- called by the checking thread -------------------------------------------------------------

    def check(self, now: float) -> None:
        """Shut down the connections above their quotas."""
        with self._lock:
            for _, monitor in self._monitors:
                for _, descriptor, endpoint in monitor_events(monitor):
                    own, address = ends_of(descriptor)
                    if own[1:2] == (_port_in(endpoint),):
                        self.accepted(descriptor, address)
            for connection in [*self._connections.values()]:
                received_bytes = _received_bytes(connection.descriptor)
                if received_bytes is None:
                    self._remove(connection.descriptor)
                    continue
                unread_bytes = received_bytes - connection.counted_bytes
                is_above = False
                with contextlib.suppress(OSError):  # no free descriptor: the next check decides
                    is_above = self._is_above(now, connection, unread_bytes)
                if is_above:
                    why = f"has sent {unread_bytes} bytes without a complete message"
                    self._end(connection, f"{why}: its quota is {connection.limit_bytes}")
                elif connection.noted:
                    connection.counted_bytes, connection.noted = received_bytes, False

    def _is_above(self, now: float, each: Connection, unread_bytes: int) -> bool:
        """Return True if a connection is above its quota; observe one to a peer before.

        The loop notes messages of observed connections only, so that others cost it nothing.
        """
        if not each.endpoint:
            return unread_bytes > each.limit_bytes
        if self.is_paused:
            self.note(each.descriptor)
        if each.noted or unread_bytes <= OBSERVED_BYTES:
            return False
        if each.descriptor not in self.observed:
            if ends_of(each.descriptor)[1] != each.address:  # another connection has it by now
                self._remove(each.descriptor)
                return False
            each.observed_at, each.observed_rounds = now, self.rounds
            each.peak_bytes = _peak_bytes()
            self.observed.add(each.descriptor)
            return False
        before_bytes, until = self._alert
        before_bytes = min(before_bytes, each.peak_bytes) if now < until else each.peak_bytes
        has_grown = _peak_bytes() > before_bytes + GROWTH_BYTES + GROWTH_FACTOR * unread_bytes
        if has_grown:
            self._alert = before_bytes, now + ALERT_S
        was_slow = now > each.observed_at + OBSERVED_S and self.rounds > each.observed_rounds + 1
        return has_grown or (was_slow and unread_bytes > each.limit_bytes)


_checker: Final = CheckThread[ConnectionQuotas]("dafka-connections", CHECK_SHARE)
# After a fork the child has the lock, perhaps held, and not the thread.
os.register_at_fork(after_in_child=_checker.reset)


# -- monitors and descriptors of connections -------------------------------------------------------


def monitored(context: Context, socket: Socket, events: int) -> Socket:
    """Return a monitor of events of a socket's connections."""
    address = f"inproc://monitor-{next(_monitor_numbers)}"
    socket.monitor(address, events)
    monitor = context.socket(zmq.PAIR)
    monitor.set_hwm(0)  # at a limit ZeroMQ's own thread would wait for the monitor's reader
    monitor.connect(address)
    return monitor


_EVENT: Final = Struct("=hi")
"""The kind and the value in a monitor's message.  ZeroMQ's own parser imports asyncio."""


def monitor_events(monitor: Socket) -> Iterator[tuple[int, int, str]]:
    """Yield the waiting events of a monitor: kind, value and endpoint."""
    with contextlib.suppress(zmq.Again):
        while True:
            fact, endpoint = monitor.recv_multipart(zmq.NOBLOCK)
            yield *_EVENT.unpack(fact), endpoint.decode()


def descriptor_of(frame: zmq.Frame) -> int:
    """Return the file descriptor of a frame's connection; -1 if ZeroMQ made the frame."""
    try:
        return int(frame.get(zmq.SRCFD))
    except zmq.ZMQError:
        return -1


def ends_of(descriptor: int) -> tuple[Any, Any]:
    """Return a connection's own address and its peer's; both are empty if it has ended.

    Events of ended connections arrive later, when another connection may have the descriptor.
    """
    with contextlib.suppress(OSError), _copied(descriptor) as connection:
        return connection.getsockname(), connection.getpeername()
    return (), ()


@contextlib.contextmanager
def _copied(descriptor: int) -> Iterator[sockets.socket]:
    """Duplicate a descriptor: ZeroMQ's thread may close its own, and the number be used again."""
    copy = os.dup(descriptor)
    try:
        connection = sockets.socket(fileno=copy)
    except OSError:
        os.close(copy)
        raise
    with connection:
        yield connection


def _port_in(endpoint: str) -> int:
    return int(endpoint.rpartition(":")[2])


def _received_bytes(descriptor: int) -> int | None:
    """Return the bytes that a connection has received; None if it has ended."""
    with contextlib.suppress(OSError):
        # With all arguments Python makes no system call to find them.
        kind = sockets.AF_INET, sockets.SOCK_STREAM, sockets.IPPROTO_TCP
        found = sockets.socket(*kind, fileno=descriptor)
        try:
            info = found.getsockopt(sockets.IPPROTO_TCP, sockets.TCP_INFO, _RECEIVED.size)
        finally:
            found.detach()
        return int(_RECEIVED.unpack(info)[0]) if len(info) == _RECEIVED.size else None
    return None


def _peak_bytes() -> int:
    """Return the largest size that the process has had in memory."""
    status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    return int(status.partition("VmHWM:")[2].split()[0]) << 10
