"""CURVE on ZeroMQ's sockets (RFC 25 and 26): keys of peers, and claims to endpoints.

Without keys this module does nothing, and nodes communicate unencrypted, as C nodes do.
"""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from dataclasses import dataclass
from typing import Final

import zmq
from zmq import SyncContext as Context
from zmq import SyncSocket as Socket
from zmq.utils import z85

from dafka_core.config.node_options import SecurityOptions
from dafka_core.errors import ConfigError, ProtocolError
from dafka_core.model.names import escape, quoted
from dafka_core.nodes.connection_quotas import Connection
from dafka_core.protocol.authorization import granted, shown
from dafka_core.protocol.beacons import TowerBeacon, decode_tower_beacon
from dafka_core.protocol.codec import parse_subscription
from dafka_core.protocol.messages import Message
from dafka_core.protocol.record_limits import parse_announcement
from dafka_core.security.allowed_keys import AllowedKeys, unlisted
from dafka_core.security.key_files import AllowedKey, KeyPair, read_secret
from dafka_core.security.permissions import EVERYBODY, NOBODY, STORE, TOWER, Permissions, refused
from dafka_core.security.throttles import LogThrottle

PROOF_S: Final = 2.0  # for proving a key before the endpoint is offered to the next claimant
MOST_REFUSED: Final = 100_000  # distinct refused prefixes: an allowed peer may request any number
MISMATCH: Final = 0x11000002  # of an event of ZeroMQ: one end has a key, and the other does not

_ZAP: Final = "inproc://zeromq.zap.01"
_DOMAIN: Final = b"dafka"  # with it ZeroMQ rejects connections that no ZAP handler has approved
_log = logging.getLogger("dafka.security")


class RefusedNodeError(ProtocolError):
    """A beacon of a node that keys do not allow."""


@dataclass(slots=True)
class _Claim:
    key: str
    since: float
    is_proved: bool = False  # a connection to the owner of the key exists


class Claims:
    """The keys of the nodes at endpoints.

    An endpoint belongs to the peer that proved its key by a connection.  Until then the announced
    peers take turns, so that a peer cannot block another.
    """

    def __init__(self) -> None:
        self._at: dict[str, _Claim] = {}

    def key_at(self, endpoint: str) -> str:
        """Return the key of the node at an endpoint; empty if none was announced."""
        claim = self._at.get(endpoint)
        return "" if claim is None else claim.key

    def take(self, now: float, endpoint: str, key: str) -> bool:
        """Note the announced key of an endpoint; return True if it replaces a different key.

        Raises RefusedNodeError if a different key is proved there, or may still be proved.
        """
        claim = self._at.setdefault(endpoint, _Claim(key, now))
        if claim.key == key:
            return False
        if claim.is_proved or now < claim.since + PROOF_S:
            raise RefusedNodeError("another node was announced at that endpoint")
        self._at[endpoint] = _Claim(key, now)
        return True

    def prove(self, endpoint: str, *, is_proved: bool) -> None:
        """Note that a connection with the expected key was made there, or has ended."""
        if (claim := self._at.get(endpoint)) is not None:
            claim.is_proved = is_proved

    def forget(self, endpoint: str) -> None:
        """Remove the claim to an endpoint that has no node any more."""
        self._at.pop(endpoint, None)


class RefusedSubscriptions:
    """The refused subscriptions, so that their removal is not taken for another node's.

    When a connection ends, ZeroMQ removes all of its subscriptions without naming the connection.
    A refused one that is taken for another node's would end the messages to that node.  If several
    nodes subscribed to the same prefix, the first removal counts for the refused subscription.
    """

    def __init__(self) -> None:
        self.counts = Counter[int]()  # by the hash of a prefix, which may have thousands of bytes
        self._is_full = False

    def note(self, prefix: bytes) -> None:
        """Note that a subscription to a prefix was refused."""
        self._is_full = self._is_full or len(self.counts) >= MOST_REFUSED
        if not self._is_full:
            self.counts[hash(prefix)] += 1

    def end(self, prefix: bytes) -> bool:
        """Note that ZeroMQ removes a subscription; return True if it was refused, as far as known.

        After too many refusals every one counts as refused: more messages are sent than needed.
        """
        count, was_full = self.counts.pop(hash(prefix), 0), self._is_full
        if count > 1:
            self.counts[hash(prefix)] = count - 1
        self._is_full = was_full and bool(self.counts)
        return count > 0 or was_full


class Security:
    """The keys of a node or a tower; only for the thread that owns the sockets.

    ZeroMQ asks it to approve each connection (ZAP, RFC 27).  It learns a connection's key from
    incoming messages, and ends a connection if its key is not allowed any more.  Without keys
    every node has all permissions.  A tower also accepts keys with only the role of a tower.
    """

    def __init__(
        self, config: SecurityOptions, context: Context, *, is_tower: bool = False
    ) -> None:
        self.own: KeyPair | None = None  # without security
        self.claims = Claims()
        self._is_tower = is_tower
        self.refused = RefusedSubscriptions()
        self._admitted: dict[int, Connection] = {}  # by descriptor
        self._throttle = LogThrottle()
        self._self = EVERYBODY  # this node's permissions by its own directory, at its start
        if not config.secret_key_file:
            return
        own = read_secret(config.secret_key_file)
        self._allowed = AllowedKeys(config.allowed_keys)
        if not is_tower and not self._allowed.with_role(TOWER):
            why = f"has no key with role {TOWER}, so that no tower can be trusted"
            raise ConfigError("allowed_keys", config.allowed_keys, why)
        known = self._allowed.find(own.public.decode())
        self.own = own
        self._self = unlisted(own.public) if known is None else known.permissions
        why = ""
        if known is None:
            text = "this node's own key (%s) is not in %s: nodes with the same keys refuse it"
            _log.warning(text, own.public.decode(), self._allowed.directory)
        elif is_tower and TOWER not in known.roles:
            why = f"key {known.name} has not the role {TOWER} in {config.allowed_keys}"
        elif not is_tower and known.roles == {TOWER}:
            why = f"key {known.name} is a tower's only in {config.allowed_keys}: add another role"
        if why:
            raise ConfigError("secret_key_file", config.secret_key_file, why)
        self.zap = context.socket(zmq.REP)
        self.zap.bind(_ZAP)

    # -- keys and nodes --------------------------------------------------------------------------

    def check_address(self, address: str) -> None:
        """Raise ConfigError unless an address of this node belongs to its key."""
        if not self._self.is_own(address):
            raise ConfigError("address", escape(address), f"is {_foreign(self._self)} everywhere")

    def check_consume(self, topic: str) -> None:
        """Raise NotAllowedError if this node's directory forbids its key to consume a topic.

        Otherwise only the logs of other nodes would report it.
        """
        owner = self._permissions(self.own.public.decode() if self.own else "")
        if not owner.may_consume(topic):
            raise refused(owner, f"consume {quoted(topic)}")

    def check_node(self, node: str, key: str) -> None:
        """Raise RefusedNodeError unless a node's address belongs to a key."""
        owner = self._permissions(key)
        if not owner.is_own(node):
            why = f"node {escape(node)} is {_foreign(owner)}"
            self._warn(f"{key} address", "%s", why)
            raise RefusedNodeError(why)

    def is_tower(self, key: str) -> bool:
        """Return True if a tower may have a key."""
        if self.own is None:
            return True
        known = self._allowed.find(key)
        return known is not None and TOWER in known.roles

    def tower_key(self, attempt: int) -> str:
        """Return the expected key of a tower: several keys take turns."""
        if self.own is None:
            return ""
        towers = self._allowed.with_role(TOWER)
        # Without any it is a key without an owner: nothing is ever sent unencrypted.
        return towers[attempt % len(towers)].key if towers else zmq.curve_keypair()[0].decode()

    def sender(self, endpoint: str) -> Permissions:
        """Return the permissions of the node at an endpoint."""
        return self._permissions(self.claims.key_at(endpoint))

    def _permissions(self, key: str) -> Permissions:
        if self.own is None:
            return EVERYBODY
        known = self._guest(key)
        if known is not None:
            return known.permissions
        return self._self if key.encode() == self.own.public else NOBODY

    def _guest(self, key: str) -> AllowedKey | None:
        known = self._allowed.find(key)
        if known is None or (not self._is_tower and known.roles == {TOWER}):
            return None
        return known

    # -- beacons of towers -----------------------------------------------------------------------

    def named(self, frames: list[bytes], owner: str) -> list[bytes]:
        """Return a tower's beacon with the key of the announced node."""
        return frames if self.own is None else [*frames, owner.encode()]

    def announced(self, now: float, frames: list[bytes]) -> tuple[TowerBeacon, bool]:
        """Return a tower's beacon, and whether its endpoint has a new key.

        Raises ProtocolError if it is invalid, and RefusedNodeError if keys do not allow its node,
        or its endpoint belongs to another key.
        """
        key = ""
        if self.own is not None:
            *frames, announced = frames
            if len(frames) != 3:
                raise ProtocolError("a node with an allowed key is announced with that key")
            key = announced.decode("ascii", "replace")
            if announced != self.own.public and self._guest(key) is None:
                raise RefusedNodeError(f"key {key} of a node is not in {self._allowed.directory}")
        beacon = decode_tower_beacon(frames)
        self.check_node(beacon.node, key)
        return beacon, self.claims.take(now, beacon.endpoint, key)

    # -- connections -----------------------------------------------------------------------------

    def require_keys(self, socket: Socket) -> None:
        """Make a socket, before it is bound, accept only owners of allowed keys."""
        if self.own is not None:
            socket.set(zmq.CURVE_SERVER, 1)
            socket.set(zmq.CURVE_SECRETKEY, self.own.secret)
            socket.set(zmq.ZAP_DOMAIN, _DOMAIN)

    def expect_key(self, socket: Socket, key: str) -> None:
        """Restrict a socket's next connections to the owner of a key."""
        if self.own is not None:
            socket.set(zmq.CURVE_PUBLICKEY, self.own.public)
            socket.set(zmq.CURVE_SECRETKEY, self.own.secret)
            socket.set(zmq.CURVE_SERVERKEY, key.encode())

    def check_connections(self, now: float) -> None:
        """End connections whose key is not allowed now, and admit those that ZeroMQ asks about."""
        if self.own is None:
            return
        if self._allowed.look(now):
            # A node with changed permissions connects and subscribes again, to what it may receive.
            for each in [*self._admitted.values()]:
                if self._guest(each.key) is None or self._permissions(each.key) != each.owner:
                    each.shut_down()
                    del self._admitted[each.descriptor]
        with contextlib.suppress(zmq.Again):
            while True:
                self.zap.send_multipart(self._answer(self.zap.recv_multipart(zmq.NOBLOCK)))

    def _answer(self, frames: list[bytes]) -> list[bytes]:
        version, request = frames[:2]
        key = ""
        if len(frames) == 7 and frames[5] == b"CURVE":
            key = z85.encode(frames[6]).decode()
        if self._guest(key) is not None:
            return [version, request, b"200", b"OK", key.encode(), b""]
        text = "refused a connection from %s with key %s: it is not in %s, or only as a tower's"
        host = frames[3].decode("ascii", "replace")
        self._warn(f"{host} {key}", text, host, key or "none", self._allowed.directory)
        return [version, request, b"400", b"not allowed", b"", b""]

    def owner(self, frame: zmq.Frame, connection: Connection | None) -> str | None:
        """Return the key of a frame's sender on a bound socket; empty without security.

        None if the key is not allowed any more; the connection is ended then.
        """
        if self.own is None or connection is None:
            return ""
        connection.key = key = str(frame.get("User-Id"))
        connection.owner = self._permissions(key)
        if self._guest(key) is None:
            connection.shut_down()
            return None
        self._admitted[connection.descriptor] = connection
        return key

    def report_refusal(self, event: int, value: int, peer: str) -> str:
        """Return the reason of a failed handshake with a peer, and log it; empty if unknown."""
        own, why = self.own, ""
        if event == zmq.EVENT_HANDSHAKE_FAILED_AUTH and own is not None:
            key = own.public.decode()
            why = f"it refuses this node's key {key}, which is not in its directory"
        elif event == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL and value == MISMATCH:
            why = "it has no key, and this node accepts owners of allowed keys only"
            if own is None:
                why = "it lets in owners of keys only: set secret_key_file and allowed_keys"
        elif event == zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL and own is not None:
            why = "it has no key, or not the one that this node's allowed_keys has for it"
        if why:
            self._warn(f"{peer} {why}", "%s does not let this node in: %s", peer, why)
        return why

    # -- subscriptions and answers ---------------------------------------------------------------

    def granted(self, key: str, frame: bytes) -> bytes | None:
        """Return the permitted part of a subscription by a key's owner; None if nothing."""
        if self.own is None:
            return frame
        if not key and frame[:1] == b"\0":
            # ZeroMQ itself removes it, because a connection has ended.
            return None if self.refused.end(frame[1:]) else frame
        allowed = granted(self._permissions(key), frame)
        if allowed is None:
            if frame[:1] != b"\0":
                self.refused.note(frame[1:])
            self._warn_of_refusal(key, frame)
        return allowed

    def _warn_of_refusal(self, key: str, frame: bytes) -> None:
        owner = self._permissions(key)
        # An announcement comes first, and must not suppress the log of later subscriptions.
        introduced = parse_announcement(frame[1:])
        if introduced is None:
            # Once for each key: a node subscribes to many kinds of messages at the same time.
            _, kind, topic = parse_subscription(frame)
            text = "refused to send a node with key %s each %s of %r: its key does not allow it"
            named = "message" if kind is None else kind.__name__
            self._warn(key, text, owner.name, named, topic)
        elif owner.is_own(introduced.node):
            text = f"node %s is a store, and its key %s is not: add role {STORE} to %s.key"
            self._warn(f"{key} {STORE}", text, escape(introduced.node), owner.name, owner.name)
        else:
            node = escape(introduced.node)
            self._warn(f"{key} address", "node %s is %s", node, _foreign(owner))

    def shown(self, message: Message) -> Message | None:
        """Return the part of an answer that its requestor may receive; None if nothing."""
        if self.own is None or (requestor := getattr(message, "requestor", None)) is None:
            return message
        known = self._allowed.owner(requestor)
        owner = self._self if self._self.is_own(requestor) else known and known.permissions
        return None if owner is None else shown(owner, message)

    def _warn(self, what: str, text: str, *facts: object) -> None:
        if self._throttle.is_new(what):
            _log.warning(text, *facts, extra={"event": "key_refused"})


def _foreign(owner: Permissions) -> str:
    """Describe an address that does not belong to a key."""
    return (
        f"not an address of key {owner.name}, as these begin with {owner.prefix}: if it is older "
        f"than the key, list it under 'addresses' in {owner.name}.key"
    )
