"""Limits on what one connection makes a node hold in memory, and on the rate of a peer.

ZeroMQ keeps any number of frames of a message until the last one has arrived, and keeps every
subscription, at about 100 bytes for each byte of its prefix.  No option of ZeroMQ bounds either.
So the node compares the bytes that the kernel has received on each connection with the messages
that ZeroMQ has delivered from it, and shuts down connections above a quota.

One thread checks the connections of all nodes of the process, because ZeroMQ applies subscriptions
in the loop's thread and a flood of them keeps the loop from running.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket as sockets
import sys
import threading
import time
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass
from itertools import count
from math import inf
from pathlib import Path
from struct import Struct
from typing import Any, Final
from weakref import WeakSet

import zmq
from zmq.utils.monitor import parse_monitor_message

from dafka_core.nodes.zmq_types import Context, Socket
from dafka_core.security.throttles import LogThrottle

CHECK_S: Final = 0.05  # interval of the checks; what arrives in between comes on top of each quota
CHECK_SHARE: Final = 0.01  # of a CPU: checks of very many connections are less frequent
WIRE_FACTOR: Final = 2  # wire bytes for each byte of a subscription
WIRE_FACTOR_ENCRYPTED: Final = 4  # CURVE adds 35 bytes to a topic of 20
SKIPPED_FRAMES: Final = 10_000  # frames of an invalid message skipped in one turn, some 5 ms
AHEAD_S: Final = 1.0  # a peer may send this much of its rate at once: records come in bursts

OBSERVED_BYTES: Final = 8 << 20
"""A connection that exceeds it without a message noted is observed more closely.  Only a message
with a record can be larger: the largest other one has 5.4 MB."""

OBSERVED_S: Final = 0.3  # in which the loop must have read a message that is complete

GROWTH_BYTES: Final = 64 << 20
GROWTH_FACTOR: Final = 4
"""Memory by which a process may grow for an observed connection: this much, and 4 times what it
has sent.  If it grows by more, the message consists of tiny frames: ZeroMQ takes 64 bytes for one
that has 2 bytes on the wire."""

ALERT_S: Final = 600.0
"""Time after such a message in which growth is counted from before it: the process has the memory
then, and the next such message would not show."""

_RECEIVED: Final = Struct("@128xQ")  # ``tcpi_bytes_received`` in Linux's ``struct tcp_info``
_COUNTS_BYTES: Final = sys.platform == "linux"

_monitors = count()
_log = logging.getLogger("dafka.mesh")


@dataclass(slots=True)
class _Connection:
    """One connection of a node.

    ``noted`` is set by the loop when it reads a message; ``counted_bytes`` were received by then.
    """

    source: str  # the endpoint of the peer, or the endpoint that accepted it
    limit_bytes: int
    address: Any  # of the other end; empty if it has ended
    is_inbound: bool = False
    counted_bytes: int = 0
    subscribed_bytes: int = 0
    noted: bool = False
    observed_at: float = 0.0
    observed_rounds: int = 0
    peak_bytes: int = 0  # of the process, when the connection was observed first


class ConnectionQuotas:
    """The quotas of a node's or a tower's connections.

    The loop's thread calls all methods but ``check``, which the checking thread calls.

    Args:
        subscribed_bytes: quota of the subscriptions of one connection.
        owner_of: names the key of a connection by its descriptor, for the log.
        option: the option that sets the quota, for the log; may be empty.
    """

    def __init__(
        self,
        subscribed_bytes: int,
        owner_of: Callable[[int], str],
        *,
        encrypted: bool,
        option: str = "",
    ) -> None:
        self.observed: set[int] = set()  # descriptors of which the loop must note the next message
        # Sockets of which the rest of an invalid message must be skipped.  Disconnecting from a
        # peer within a message aborts the process (a defect of libzmq).
        self.unfinished: set[Socket] = set()
        self.rounds = 0  # of the loop
        self.count = 0  # ended connections
        self.is_paused = False  # the loop reads no messages from peers,
        self.left_alone: Container[str] = ()  # or none from these endpoints
        factor = WIRE_FACTOR_ENCRYPTED if encrypted else WIRE_FACTOR
        self._subscribed_bytes = subscribed_bytes
        self._inbound_bytes = factor * subscribed_bytes
        self._cure = f": raise option {option} if it needs them" if option else ""
        self._owner_of = owner_of
        self._connections: dict[int, _Connection] = {}
        self._monitors: list[tuple[Socket, Socket]] = []
        self._lock = threading.Lock()  # of the monitors, and of the connections' dictionary
        self._alert = 0, 0.0  # memory before the last message of tiny frames; until when it counts
        self._throttle = LogThrottle()

    def watch(self, context: Context, socket: Socket) -> None:
        """Apply the quotas to the connections that a bound socket accepts from now on."""
        if _COUNTS_BYTES:
            monitor = monitored(context, socket, zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED)
            self._monitors.append((socket, monitor))
            _checker.add(self)

    def close(self) -> None:
        """End the checks, before the sockets are closed."""
        with self._lock:
            self._connections.clear()
            for socket, monitor in self._monitors:
                socket.disable_monitor()  # ZeroMQ's thread would wait for its reader
                monitor.close()
            self._monitors.clear()
        _checker.remove(self)

    def follow(self, descriptor: int, peer: str, limit_bytes: int) -> None:
        """Limit what may arrive without a message by a connection to the endpoint of a peer."""
        _, address = ends_of(descriptor)
        if address[1:2] == (_port_in(peer),):
            self._add(descriptor, _Connection(peer, limit_bytes, address))

    def forget(self, descriptor: int, source: str) -> None:
        """Drop an ended connection; one of another source may have its descriptor by now."""
        connection = self._connections.get(descriptor)
        if connection is not None and connection.source == source:
            self._remove(descriptor)

    def note(self, descriptor: int) -> None:
        """Note that the loop has read a message of a connection."""
        self.observed.discard(descriptor)
        if (connection := self._connections.get(descriptor)) is not None:
            connection.noted = True

    def subscribe(self, descriptor: int, frame: bytes) -> None:
        """Count a subscription, or its end, and shut the connection down above the quota."""
        if descriptor < 0 or not _COUNTS_BYTES:
            return
        connection = self._connections.get(descriptor)
        if connection is None or not connection.is_inbound:
            connection = self._accept(descriptor, "")  # its event is yet to come
        size_bytes = len(frame) - 1
        connection.subscribed_bytes += size_bytes if frame[:1] == b"\1" else -size_bytes
        if connection.subscribed_bytes > self._subscribed_bytes:
            why = f"subscribes to more than {self._subscribed_bytes} bytes{self._cure}"
            self.end(descriptor, why)

    def refuse_message(self, socket: Socket, frame: zmq.Frame) -> None:
        """Shut down the connection of a message with too many frames, and skip the rest of it."""
        self.unfinished.add(socket)
        self.end(descriptor_of(frame), "sends a message of too many frames")
        self.skip(socket)

    def skip(self, socket: Socket) -> None:
        """Skip frames of an invalid message.

        Raises:
            zmq.Again: more remain than fit into one turn of the loop.
        """
        if socket in self.unfinished:
            for _ in range(SKIPPED_FRAMES):
                if not socket.recv(copy=False).more:
                    self.unfinished.discard(socket)
                    return
            raise zmq.Again

    def end(self, descriptor: int, why: str) -> None:
        """Shut a connection down and log why; ZeroMQ then finds that the peer has ended it."""
        connection = self._remove(descriptor)
        if connection is None or not shut_down(descriptor, connection.address):
            return
        self.count += 1
        host, port = connection.address[:2]
        peer = f"{host}:{port}" if connection.is_inbound else connection.source
        owner = self._owner_of(descriptor)
        if self._throttle.is_new(host if connection.is_inbound else peer):
            text = "ended the connection of %(peer)s%(owner)s, which %(why)s (docs/security.md)"
            facts = {"peer": peer, "owner": owner and f" with key {owner}", "why": why}
            _log.warning(text, facts, extra={"event": "connection_quota"})

    def _accept(self, descriptor: int, source: str) -> _Connection:
        new = _Connection(source, self._inbound_bytes, ends_of(descriptor)[1], is_inbound=True)
        known = self._connections.get(descriptor)
        if known is not None and known.address == new.address:  # its subscriptions count
            new.subscribed_bytes = known.subscribed_bytes
        return self._add(descriptor, new)

    def _add(self, descriptor: int, connection: _Connection) -> _Connection:
        self._remove(descriptor)
        self._connections[descriptor] = connection
        return connection

    def _remove(self, descriptor: int) -> _Connection | None:
        self.observed.discard(descriptor)
        return self._connections.pop(descriptor, None)

    # -- called by the checking thread -------------------------------------------------------------

    def check(self, now: float) -> None:
        """Shut down the connections above their quotas."""
        with self._lock:
            for _, monitor in self._monitors:
                with contextlib.suppress(zmq.Again):
                    while True:
                        self._apply_event(
                            parse_monitor_message(monitor.recv_multipart(zmq.NOBLOCK))
                        )
            for descriptor, connection in [*self._connections.items()]:
                received_bytes = _received_bytes(descriptor)
                if received_bytes is not None:
                    self._judge(now, descriptor, connection, received_bytes)

    def _apply_event(self, event: Any) -> None:
        descriptor, endpoint = event["value"], event["endpoint"].decode()
        if event["event"] != zmq.EVENT_ACCEPTED:
            self.forget(descriptor, endpoint)
        elif ends_of(descriptor)[0][1:2] == (_port_in(endpoint),):
            self._accept(descriptor, endpoint)

    def _judge(self, now: float, descriptor: int, each: _Connection, received_bytes: int) -> None:
        unread_bytes = received_bytes - each.counted_bytes
        is_read, is_above = each.noted, unread_bytes > each.limit_bytes
        if not each.is_inbound:
            is_read, is_above = self._observe(now, descriptor, each, unread_bytes)
        if is_above:
            why = f"has sent {unread_bytes} bytes without a complete message"
            self.end(descriptor, f"{why}: its quota is {each.limit_bytes}")
        elif is_read:
            each.counted_bytes, each.noted, each.observed_at = received_bytes, False, 0.0

    def _observe(
        self, now: float, descriptor: int, each: _Connection, unread_bytes: int
    ) -> tuple[bool, bool]:
        """Return whether messages of a connection to a peer are read, and whether it is to end.

        The loop notes messages of observed connections only, so that others cost it nothing.
        """
        if self.is_paused or each.source in self.left_alone:
            self.observed.discard(descriptor)
            return True, False
        if unread_bytes <= OBSERVED_BYTES:
            return False, False
        if not each.observed_at:
            each.observed_at, each.observed_rounds = now, self.rounds
            each.peak_bytes = _peak_bytes()
            self.observed.add(descriptor)
            return False, False
        if descriptor not in self.observed:
            return True, False
        before_bytes, until = self._alert
        before_bytes = min(before_bytes, each.peak_bytes) if now < until else each.peak_bytes
        has_grown = _peak_bytes() > before_bytes + GROWTH_BYTES + GROWTH_FACTOR * unread_bytes
        if has_grown:
            self._alert = before_bytes, now + ALERT_S
        was_slow = now > each.observed_at + OBSERVED_S and self.rounds > each.observed_rounds + 1
        return False, has_grown or (was_slow and unread_bytes > each.limit_bytes)


class _Checker:
    """The thread that checks the connections of all nodes of the process."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Begin anew: after a fork the child has the lock, perhaps held, and not the thread."""
        self._quotas = WeakSet[ConnectionQuotas]()
        self._lock = threading.Lock()
        self._is_running = False

    def add(self, quotas: ConnectionQuotas) -> None:
        with self._lock:
            self._quotas.add(quotas)
            if not self._is_running:
                self._is_running = True
                name = "dafka-connections"
                threading.Thread(target=self._run, name=name, daemon=True).start()

    def remove(self, quotas: ConnectionQuotas) -> None:
        with self._lock:
            self._quotas.discard(quotas)

    def _run(self) -> None:
        took_s = 0.0
        while True:
            time.sleep(max(CHECK_S, took_s / CHECK_SHARE))
            began_s = time.thread_time()
            with self._lock:
                found = [*self._quotas]
                self._is_running = bool(found)
            if not found:
                return
            for quotas in found:
                quotas.check(time.monotonic())
            took_s = time.thread_time() - began_s
            del found, quotas


_checker = _Checker()
os.register_at_fork(after_in_child=_checker.reset)


class PeerRates:
    """The rates of peers: a node pauses receiving from a peer that sends too fast.

    A pause discards nothing here.  Messages wait in ZeroMQ's queue, then in TCP's windows and in
    the peer's own queue, which drops those above its high-water mark: these are fetched later.
    """

    def __init__(self, bytes_per_s: int) -> None:
        self.paused: dict[str, float] = {}  # the ends of the pauses, by endpoint
        self.pause_count = 0
        self._bytes_per_s = bytes_per_s  # of each peer; 0: no limit
        self._even_at: dict[str, float] = {}  # when a peer is at its rate if it sends nothing more
        self._throttle = LogThrottle()

    def add(self, now: float, endpoint: str, node: str, size_bytes: int) -> bool:
        """Count what a peer has sent; return True if it is paused from now on."""
        if not self._bytes_per_s:
            return False
        even_at = max(now, self._even_at.get(endpoint, now)) + size_bytes / self._bytes_per_s
        self._even_at[endpoint] = even_at
        if even_at <= now + AHEAD_S:
            return False
        self.paused[endpoint] = even_at - AHEAD_S
        self.pause_count += 1
        if self._throttle.is_new("peer"):
            text = (
                "%(node)s at %(endpoint)s sends more than %(bytes_per_s)d bytes a second, option "
                "max_peer_rate_bytes: its messages are not read until it is below that rate again. "
                "Peers were paused %(count)d times so far"
            )
            facts = {"node": node, "endpoint": endpoint, "count": self.pause_count}
            facts["bytes_per_s"] = self._bytes_per_s
            _log.warning(text, facts, extra={"event": "peer_left_alone"})
        return True

    def take_due(self, now: float) -> list[str]:
        """Remove and return the peers that are not paused any more."""
        due = [endpoint for endpoint, until in self.paused.items() if until <= now]
        for endpoint in due:
            del self.paused[endpoint]
        return due

    def deadline(self) -> float:
        """Return the end of the next pause; ``inf`` without one."""
        return min(self.paused.values(), default=inf)

    def forget(self, endpoint: str) -> None:
        """Forget a closed connection; a new one is counted from zero."""
        self.paused.pop(endpoint, None)
        self._even_at.pop(endpoint, None)


# -- monitors and descriptors of connections -------------------------------------------------------


def monitored(context: Context, socket: Socket, events: int) -> Socket:
    """Return a monitor of events of a socket's connections."""
    address = f"inproc://monitor-{next(_monitors)}"
    socket.monitor(address, events)
    monitor = context.socket(zmq.PAIR)
    monitor.set_hwm(0)  # at a limit ZeroMQ's own thread would wait for the monitor's reader
    monitor.connect(address)
    return monitor


def descriptor_of(frame: zmq.Frame) -> int:
    """Return the file descriptor that a frame came by; -1 if ZeroMQ made the frame."""
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


def shut_down(descriptor: int, peer: object) -> bool:
    """End a connection to a peer's address, which ZeroMQ cannot do; return True if it was ended.

    ZeroMQ treats it as closed by the peer.  The descriptor may belong to something else by now.
    """
    with contextlib.suppress(OSError), _copied(descriptor) as connection:
        if connection.getpeername() == peer:
            connection.shutdown(sockets.SHUT_RDWR)
            return True
    return False


@contextlib.contextmanager
def _copied(descriptor: int) -> Iterator[sockets.socket]:
    """Duplicate the descriptor of a connection that ZeroMQ owns, to check and end the connection.

    ZeroMQ's thread may close its own between the two, and the number may be assigned again.
    """
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
    """Return the bytes that a connection has received; None if the system does not count them."""
    found, info = None, b""
    with contextlib.suppress(OSError):  # it has ended
        # With all arguments Python makes no system call to find them.
        found = sockets.socket(
            sockets.AF_INET, sockets.SOCK_STREAM, sockets.IPPROTO_TCP, fileno=descriptor
        )
        info = found.getsockopt(sockets.IPPROTO_TCP, sockets.TCP_INFO, _RECEIVED.size)
    if found is not None:
        found.detach()
    return int(_RECEIVED.unpack(info)[0]) if len(info) == _RECEIVED.size else None


def _peak_bytes() -> int:
    """Return the largest size that the process has had in memory."""
    status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    return int(status.partition("VmHWM:")[2].split()[0]) << 10
