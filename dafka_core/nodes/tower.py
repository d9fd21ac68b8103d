"""A tower, which introduces nodes to each other.  No record passes through it.

Nodes send beacons to its XSUB socket and receive those of all others from its XPUB socket, which
sends each new subscriber a welcome message.
"""

from __future__ import annotations

import contextlib
import logging
import re
import time
from typing import Any, Final

import zmq
from zmq import SyncSocket as Socket

from dafka_core.config.node_options import TowerAddress, TowerOptions
from dafka_core.errors import ConfigError, NodeFailedError, ProtocolError
from dafka_core.nodes.addresses import bind, check_closed, network_host, why_unbound
from dafka_core.nodes.connection_quotas import ConnectionQuotas
from dafka_core.nodes.node import Node, NodeThread
from dafka_core.nodes.security import Security
from dafka_core.nodes.sockets import (
    destroyed_at_end,
    new_socket,
    received_frames,
    received_subscriptions,
)
from dafka_core.protocol import beacons
from dafka_core.protocol.beacons import MAX_PEERS
from dafka_core.protocol.limits import RecentNames
from dafka_core.system.distribution import this_version
from dafka_core.system.hosts import bracketed, is_any, is_loopback, parse_endpoint, plain

MAX_BEACON_BYTES: Final = 4096  # the largest frame of a beacon is a UUID or host of 255 bytes
MAX_FRAMES: Final = 6  # frames of the longest message to a tower: a beacon with kind and receiver

# Quota of one connection: a node subscribes to some ten prefixes, most with its own address.
MAX_SUBSCRIBED_BYTES: Final = 64 << 10
CHECK_MS: Final = 1_000  # interval of checks of the allowed keys

# Time after which a silent node is not counted: 2.5 times the default of ``peer_expiry_ms``.
SILENT_S: Final = 10.0

_log: Final = logging.getLogger("dafka.tower")


class DiscoveredNodes:
    """Nodes with recent beacons.  The tower's thread calls ``note``, any thread ``count``."""

    def __init__(self) -> None:
        self._beacon_at = RecentNames[float](MAX_PEERS)  # the longest silent node first

    def note(self, now: float, node: str, endpoint: str) -> None:
        """Note the beacon of a node, and drop silent nodes."""
        if node not in self._beacon_at:
            text, facts = "node %(node)s has come, at %(endpoint)s", {"node": node}
            _log.info(text, facts | {"endpoint": endpoint}, extra={"event": "node_came"})
        self._beacon_at.keep(node, now)
        while now - self._beacon_at[silent := next(iter(self._beacon_at))] >= SILENT_S:
            del self._beacon_at[silent]
            _log.info("node %(node)s is silent", {"node": silent}, extra={"event": "node_went"})

    def count(self) -> int:
        """Return the number of nodes with recent beacons."""
        since = time.monotonic() - SILENT_S
        return sum(beacon_at > since for beacon_at in [*self._beacon_at.values()])


class Tower(Node):
    """A tower in its own thread, from construction until ``close``; see ``TowerOptions``."""

    def __init__(self, **options: Any) -> None:
        self.relay = relay = Relay(TowerOptions.build(options))
        place = relay.place
        self.host, self.sub_port, self.pub_port = place.host, place.sub_port, place.pub_port
        self.tower = str(place)  # for the ``tower`` option of nodes
        self._thread = NodeThread("dafka-tower", relay.run)
        try:
            self._thread.start()
        except BaseException:
            self._end_thread()
            raise
        self.is_open = True
        facts = {"tower": self.tower, "version": this_version()}
        text = "tower %(tower)s is started: version %(version)s"
        _log.info(text, facts, extra={"event": "tower_started"})

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the tower has stopped; return True if it has.

        Raises NodeFailedError if an error has ended it.
        """
        ended = self._thread.join(timeout_s)
        if self.relay.failure is not None:
            raise NodeFailedError("tower", str(self.relay.failure)) from self.relay.failure
        return ended

    def close(self) -> None:
        """Stop the tower; may be called twice.  Connections between nodes stay."""
        was_open, self.is_open = self.is_open, False
        self._end_thread()
        if was_open:
            facts, extra = {"tower": self.tower}, {"event": "tower_stopped"}
            _log.info("tower %(tower)s has stopped", facts, extra=extra)

    def _end_thread(self) -> None:
        if not self._thread.started:
            self.relay.close()
        elif not self._thread.join(0):
            with contextlib.suppress(zmq.ZMQError):
                self.relay.stop_signal.send(b"", zmq.NOBLOCK)
            self._thread.join()


class Relay:
    """The sockets and loop of a tower; its thread keeps them alive, but not the tower."""

    def __init__(self, config: TowerOptions) -> None:
        self.invalid_count = self.beacon_count = 0  # of dropped and of forwarded beacons
        self.discovered = DiscoveredNodes()
        self.failure: BaseException | None = None  # the error that ended the tower
        with contextlib.ExitStack() as made:
            self._context = zmq.Context()
            made.push(destroyed_at_end(self._context, 0))
            self.security = Security(config, self._context, is_tower=True)
            is_encrypted = bool(config.secret_key_file)
            self._quotas = ConnectionQuotas(MAX_SUBSCRIBED_BYTES, encrypted=is_encrypted)
            made.callback(self._quotas.close)
            self._xsub = self._new_socket(zmq.XSUB)
            # Subscriptions of nodes are not forwarded: each would go to all nodes.
            for first in (beacons.BEACON_WITH_KIND, beacons.BEACON):
                self._xsub.send(b"\1" + first)
            self._xpub = self._new_socket(zmq.XPUB)
            self._xpub.set(zmq.XPUB_WELCOME_MSG, beacons.WELCOME)
            self._xpub.set(zmq.XPUB_MANUAL, 1)
            host, sub_port = _bind(self._xsub, "sub_address", config)
            _, pub_port = _bind(self._xpub, "pub_address", config)
            self.place = TowerAddress(network_host() if is_any(host) else host, sub_port, pub_port)
            self.stop_signal, self._stopped = (self._context.socket(zmq.PAIR) for _ in range(2))
            self._stopped.bind("inproc://stop")
            self.stop_signal.connect("inproc://stop")
            self.close = made.pop_all().close

    def _new_socket(self, kind: int) -> Socket:
        socket = new_socket(self._context, kind, MAX_BEACON_BYTES)
        self.security.require_keys(socket)
        self._quotas.watch(self._context, socket)
        return socket

    def run(self) -> None:
        """Serve until the stop signal comes."""
        poller = zmq.Poller()
        for socket in (self._xsub, self._xpub, self._stopped):
            poller.register(socket, zmq.POLLIN)
        if self.security.own is not None:
            poller.register(self.security.zap, zmq.POLLIN)
        try:
            while True:
                ready = dict(poller.poll(CHECK_MS))
                self.security.check_connections(time.monotonic())
                if self._stopped in ready:
                    return
                if self._xpub in ready:
                    self._receive_subscriptions()
                if self._xsub in ready:
                    self._forward_beacons()
        except BaseException as error:  # noqa: BLE001 -- ``wait`` reports every error
            self.failure = error
        finally:
            self.close()

    def _receive_subscriptions(self) -> None:
        for frame, *_ in received_subscriptions(self._xpub, self.security, self._quotas):
            action, prefix = frame[:1], frame[1:]
            # Others match no message of a tower, and would only take memory.
            if action in (b"\x00", b"\x01") and beacons.is_tower_subscription(prefix):
                self._xpub.set(zmq.SUBSCRIBE if action == b"\x01" else zmq.UNSUBSCRIBE, prefix)
            else:
                self.invalid_count += 1

    def _forward_beacons(self) -> None:
        for frames in received_frames(self._xsub, self._quotas, MAX_FRAMES):
            connection = self._quotas.sender(frames[0])
            if (owner := self.security.owner(frames[0], connection)) is not None:
                try:
                    self._forward(owner, frames)
                except ProtocolError:
                    self.invalid_count += 1

    def _forward(self, owner: str, frames: list[zmq.Frame]) -> None:
        parts = [frame.bytes for frame in frames]
        beacon = beacons.decode_node_beacon(parts)
        self.security.check_node(beacon.node, owner)
        self.beacon_count += 1
        endpoint = beacons.endpoint_of(beacon, self._seen_host(frames[0]))
        self.discovered.note(time.monotonic(), beacon.node, endpoint)
        for each in beacons.tower_beacons(beacon, endpoint):
            self._xpub.send_multipart(self.security.named(each, owner))

    def _seen_host(self, frame: zmq.Frame) -> str:
        """Return the host to announce for a node that named none: the source of its beacon."""
        try:
            seen = str(frame.get("Peer-Address"))
        except zmq.ZMQError:
            seen = ""
        # A node on this machine uses loopback; others reach it at the tower's host.
        return self.place.host if not seen or is_loopback(seen) else plain(seen)


def _bind(socket: Socket, option: str, config: TowerOptions) -> tuple[str, int]:
    address = str(getattr(config, option))
    try:
        where = parse_endpoint(re.sub(r":\*$", ":0", address))  # ZeroMQ's notation for any port
        host = bracketed(where.host)
        port = bind(socket, host, where.port)
    except ValueError:
        why = "must be tcp://HOST:PORT, as tcp://127.0.0.1:5556"
        raise ConfigError(option, address, why) from None
    except zmq.ZMQError as error:
        why = f"cannot be bound to: {why_unbound(error)}; port 0 lets the system choose"
        raise ConfigError(option, address, why) from None
    check_closed(socket, option, address, config)
    return host, port
