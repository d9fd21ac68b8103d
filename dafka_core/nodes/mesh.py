"""Sockets and a thread around a role.

One thread owns every socket and runs the role.  Applications talk to it by ``call``, which puts
a function into the loop, and never touch a socket.
"""

from __future__ import annotations

import contextlib
import socket as sockets
import time
from collections import deque
from collections.abc import Callable
from typing import Final

import zmq

from dafka_core.errors import (
    ClosedError,
    ConfigError,
    NodeFailedError,
    ProtocolError,
    TowerNotFoundError,
)
from dafka_core.node_options import NodeOptions
from dafka_core.nodes.addresses import own_host
from dafka_core.nodes.interruptible import InterruptibleEvent
from dafka_core.nodes.sockets import drain, keep_alive, let_go, send_batch, send_packed
from dafka_core.nodes.subscribers import Subscribers
from dafka_core.nodes.threads import NodeThread
from dafka_core.protocol.beacons import (
    BEACON,
    WELCOME,
    NodeBeacon,
    PeerTable,
    decode_tower_beacon,
    encode_node_beacon,
)
from dafka_core.protocol.bulk_decoder import BulkDecoder
from dafka_core.protocol.codec import C_LAYOUT, decode, encode, parse_subscription
from dafka_core.protocol.limits import MAX_HEADER_BYTES
from dafka_core.protocol.messages import DirectRecord, Message, RecordMessage
from dafka_core.protocol.role import Outgoing, OutgoingBatch, Role
from dafka_core.records import RecordBatch

BURST_COUNT: Final = 65_536
BURST_BYTES: Final = 16 << 20
"""Messages taken from a socket before anything else gets its turn.  Buffers above this size would
be given back to the system each time, and its zeroing new ones costs more than all else here."""

FIRST_BEACONS_INTERVAL_S: Final = 0.02
"""The interval of beacons until one has come back: a PUB socket drops what it sends before the
tower has taken the connection."""

WAKES_BYTES: Final = 4_096
"""Wakes taken at once, an octet each."""

LINGER_MS: Final = 200
"""How long a node that ends waits for what it has sent last to leave."""

BEACON_BURST_COUNT: Final = 1_000
"""Beacons and subscriptions taken per round."""


class Mesh:
    """A node of the mesh: connects to every peer the towers tell of, and runs ``role``.

    Args:
        what: the node's kind, for messages to people.
        on_round: called by the loop after each round, to do the node's own work; returns
            whether there is more to do at once.
        tell_peers_apart: receive from each peer through a socket of its own, so that the role
            is told who sent a message.  Deployed ACKs do not say it.
    """

    def __init__(
        self,
        what: str,
        role: Role,
        config: NodeOptions,
        *,
        on_round: Callable[[float], bool] = lambda now: False,
        tell_peers_apart: bool = False,
    ) -> None:
        self.what = what
        self.role = role
        self.invalid_count = 0
        """Messages from the network that were none; they were dropped."""
        self._config = config
        self._on_round = on_round
        self._apart = tell_peers_apart
        self._calls: deque[Callable[[float], list[Outgoing] | None]] = deque()
        self._failure: BaseException | None = None
        self._connected = InterruptibleEvent()
        self._stopping = False
        self._receiving = True
        self._peers = PeerTable(role.address, expiry_s=config.peer_expiry_ms / 1000)
        self._burst = BulkDecoder()
        self._beacon_due = 0.0
        self._subscriptions = dict.fromkeys(role.subscriptions())
        self._peer_sockets: dict[str, zmq.Socket[bytes]] = {}
        self._open()
        self._thread = NodeThread(f"dafka-{what}", self._run)

    # -- called by the application's threads ----------------------------------------------------

    def start(self) -> None:
        """Starts the loop, and waits for a tower.

        Raises:
            TowerNotFoundError: none answered within ``tower_timeout_s``, and ``wait_for_tower``
                is not set.  The node is closed then.
        """
        self._thread.start()
        timeout_s = None if self._config.wait_for_tower else self._config.tower_timeout_s
        if not self._connected.wait(timeout_s):
            self.close()
            towers = [str(tower) for tower in self._config.tower]
            raise TowerNotFoundError(towers, self._config.tower_timeout_s)
        self.check()

    def call(self, function: Callable[[float], list[Outgoing] | None]) -> None:
        """Has the loop run ``function(now)`` and send what it returns."""
        self.check()
        self._calls.append(function)
        self.wake()

    def wake(self) -> None:
        """Has the loop go round once."""
        # Full, it holds a wake already; closed, there is no loop any more.
        with contextlib.suppress(OSError):
            self._waker.send(b"\0")

    def check(self) -> None:
        """Raises NodeFailedError or ClosedError if the loop does not run any more."""
        if self._failure is not None:
            why = f"{type(self._failure).__name__}: {self._failure}"
            raise NodeFailedError(self.what, why) from self._failure
        if self._stopping:
            raise ClosedError(self.what)

    def join(self, timeout_s: float | None) -> bool:
        """Waits for the loop to end; True if it has."""
        return self._thread.join(timeout_s)

    @property
    def failure(self) -> BaseException | None:
        """What ended the loop, if it was an error."""
        return self._failure

    def close(self) -> None:
        """Stops the loop and closes the sockets; may be called twice."""
        self._stopping = True
        if not self._thread.started:
            self._close_sockets()
            return
        self.wake()
        self._thread.join()

    # -- the loop's own --------------------------------------------------------------------------

    def subscribe(self, prefixes: list[bytes]) -> None:
        """Subscribes at every peer, now and later (loop's thread only)."""
        for prefix in prefixes:
            self._subscriptions[prefix] = None
            for socket in (self._sub, *self._peer_sockets.values()):
                socket.subscribe(prefix)

    def unsubscribe(self, prefixes: list[bytes]) -> None:
        """Takes subscriptions back (loop's thread only)."""
        for prefix in prefixes:
            if prefix in self._subscriptions:
                del self._subscriptions[prefix]
                for socket in (self._sub, *self._peer_sockets.values()):
                    socket.unsubscribe(prefix)

    def send(self, messages: list[Outgoing]) -> None:
        """Publishes messages (loop's thread only)."""
        for message in messages:
            if not isinstance(message, OutgoingBatch):
                self._pub.send_multipart(encode(message, self._config.wire))
                continue
            for packed in self._subscribers.layouts(message.batch.topic, message.requestor):
                if packed:
                    send_packed(self._pub, message)
                else:
                    send_batch(self._pub, message, self._config.wire)

    def has_subscriber(self, topic: str) -> bool:
        """Whether any peer takes the topic's records (loop's thread only)."""
        return bool(self._subscribers.layouts(topic, ""))

    def receive(self, wanted: bool) -> None:
        """Whether to take messages from peers at all (loop's thread only).

        What is not taken waits in ZeroMQ's queues, and when they are full is dropped there.
        """
        if wanted != self._receiving:
            self._receiving = wanted
            for socket in (self._sub, *self._peer_sockets.values()):
                if wanted:
                    self._poller.register(socket, zmq.POLLIN)
                else:
                    self._poller.unregister(socket)

    def _open(self) -> None:
        self._context = zmq.Context()
        # The system's own: a ZeroMQ socket with a high-water mark of 1 refuses to send for up to a
        # millisecond after its peer has received, and a wake that is lost costs a whole second.
        self._waker, self._wakened = sockets.socketpair()
        self._waker.setblocking(False)
        self._wakened.setblocking(False)
        self._pub = self._context.socket(zmq.XPUB)
        # Each peer's subscriptions are told of, and ours to apply.
        self._pub.set(zmq.XPUB_VERBOSE, 1)
        self._pub.set(zmq.XPUB_MANUAL, 1)
        self._subscribers = Subscribers(self._pub, pack=self._config.wire == C_LAYOUT)
        self._sub = self._new_sub()
        self._beacon_pub = self._context.socket(zmq.PUB)
        self._beacon_sub = self._context.socket(zmq.SUB)
        for socket in (self._pub, self._beacon_pub, self._beacon_sub):
            socket.set_hwm(self._config.high_water_mark)
            socket.set(zmq.LINGER, 0)
            socket.set(zmq.MAXMSGSIZE, MAX_HEADER_BYTES)  # only subscriptions and beacons come in
            keep_alive(socket)
        let_go(self._pub)
        # What is under way to peers gets a moment: an ACK sent last would be lost.
        self._pub.set(zmq.LINGER, LINGER_MS)
        try:
            self._host = own_host(self._config)
            self._port = self._pub.bind_to_random_port(f"tcp://{self._host}")
        except (zmq.ZMQError, OSError) as error:
            self._close_sockets()
            why = f"must be an address of this machine: {error.strerror}"
            raise ConfigError("host", self._config.host, why) from None
        self._beacon_sub.subscribe(BEACON)
        self._beacon_sub.subscribe(WELCOME)
        for tower in self._config.tower:
            self._beacon_sub.connect(tower.pub_endpoint)
            self._beacon_pub.connect(tower.sub_endpoint)
        self._poller = zmq.Poller()
        self._poller.register(self._wakened.fileno(), zmq.POLLIN)
        for socket in (self._pub, self._sub, self._beacon_sub):
            self._poller.register(socket, zmq.POLLIN)

    def _close_sockets(self) -> None:
        self._context.destroy()
        self._waker.close()
        self._wakened.close()

    def _new_sub(self) -> zmq.Socket[bytes]:
        socket = self._context.socket(zmq.SUB)
        socket.set_hwm(self._config.high_water_mark)
        socket.set(zmq.LINGER, 0)
        socket.set(zmq.MAXMSGSIZE, self._config.max_record_bytes)
        keep_alive(socket)
        for prefix in self._subscriptions:
            socket.subscribe(prefix)
        return socket

    def _run(self) -> None:
        try:
            more = False
            while not self._stopping:
                more = self._round(more)
            # What was called for before the end still goes out.
            self._take_calls(time.monotonic())
        except BaseException as error:  # noqa: BLE001 -- whatever it is, the application must hear
            self._failure = error
        finally:
            self._connected.set()
            self._close_sockets()

    def _round(self, more: bool) -> bool:
        now = time.monotonic()
        ready = dict(self._poller.poll(0 if more else self._timeout_ms(now)))
        now = time.monotonic()
        if self._wakened.fileno() in ready:
            self._wakened.recv(WAKES_BYTES)
        if self._beacon_sub in ready:
            self._take_beacons(now)
        self._take_calls(now)
        if self._pub in ready:
            self._take_subscriptions(now)
        if self._sub in ready:
            self._take_messages(now, self._sub, "")
        for endpoint, socket in list(self._peer_sockets.items()):
            if socket in ready:
                self._take_messages(now, socket, self._peers.node_at(endpoint))
        # Never between poll and recv: poll takes a message's first frame from the queue, a
        # disconnect drops the others, and recv then aborts the process (a defect of libzmq).
        self._keep_peers(now)
        self.send(self.role.on_tick(now))
        return self._on_round(now)

    def _timeout_ms(self, now: float) -> int:
        if self._calls:
            return 0
        deadline = self.role.deadline(now)
        due = self._beacon_due if deadline is None else min(deadline, self._beacon_due)
        return max(0, int((due - now) * 1000) + 1)

    def _take_calls(self, now: float) -> None:
        for _ in range(len(self._calls)):
            self.send(self._calls.popleft()(now) or [])

    def _take_messages(self, now: float, socket: zmq.Socket[bytes], peer: str) -> None:
        others = drain(socket, self._burst, max_count=BURST_COUNT, max_bytes=BURST_BYTES)
        batches = self._burst.take()
        self.invalid_count += self._burst.invalid_count
        self._burst.invalid_count = 0
        for requestor, batch in batches:
            self.send(self.role.on_batch(now, requestor, batch))
        for frames in others:
            try:
                message = decode(frames)
            except ProtocolError:
                self.invalid_count += 1
                continue
            self._take_message(now, message, peer)

    def _take_message(self, now: float, message: Message, peer: str) -> None:
        if isinstance(message, RecordMessage | DirectRecord):
            requestor = message.requestor if isinstance(message, DirectRecord) else ""
            batch = RecordBatch.of(message.tp, message.sequence, [message.value])
            self.send(self.role.on_batch(now, requestor, batch))
        else:
            self.send(self.role.on_message(now, message, peer))

    def _take_subscriptions(self, now: float) -> None:
        for _ in range(BEACON_BURST_COUNT):
            try:
                frames = self._pub.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            self._subscribers.apply(frames[0])
            subscribed, kind, topic = parse_subscription(frames[0])
            if subscribed and kind is not None:
                self.send(self.role.on_subscribed(now, kind, topic))

    # -- peers -----------------------------------------------------------------------------------

    def _take_beacons(self, now: float) -> None:
        for _ in range(BEACON_BURST_COUNT):
            try:
                frames = self._beacon_sub.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            if frames == [WELCOME]:
                self._connected.set()
                self._peers.announced = False  # a tower that came back knows nobody
                self._beacon_due = now
                continue
            try:
                beacon = decode_tower_beacon(frames)
            except ProtocolError:
                self.invalid_count += 1
                continue
            if self._peers.hear(now, beacon):
                try:
                    self._connect(beacon.endpoint)
                except zmq.ZMQError:  # ZeroMQ knows more about what cannot be an endpoint
                    self._peers.forget(beacon.endpoint)
                    self.invalid_count += 1
                    continue
                self._beacon_due = now  # the new peer is to hear of us at once

    def _keep_peers(self, now: float) -> None:
        if now >= self._beacon_due:
            interval_s = self._config.beacon_interval_ms / 1000
            if not self._peers.announced and self._connected.is_set():
                interval_s = min(interval_s, FIRST_BEACONS_INTERVAL_S)
            self._beacon_due = now + interval_s
            beacon = NodeBeacon(self.role.address, self._host, self._port)
            self._beacon_pub.send_multipart(encode_node_beacon(beacon))
            for node, endpoint in self._peers.expire(now):
                self._disconnect(endpoint)
                if not self._peers.knows(node):  # it may have come back at another endpoint
                    self.role.on_peer_lost(node)

    def _connect(self, endpoint: str) -> None:
        if not self._apart:
            self._sub.connect(endpoint)
            return
        socket = self._new_sub()
        try:
            socket.connect(endpoint)
        except BaseException:
            socket.close()
            raise
        self._peer_sockets[endpoint] = socket
        if self._receiving:
            self._poller.register(socket, zmq.POLLIN)

    def _disconnect(self, endpoint: str) -> None:
        socket = self._peer_sockets.pop(endpoint, None)
        if socket is None:
            self._sub.disconnect(endpoint)
            return
        if self._receiving:
            self._poller.unregister(socket)
        socket.close()
