"""A node's loop in the simulation: what ``nodes/mesh.py`` does with sockets.

Everything but the sockets is production's: the codec, bursts, the choice of packed records, the
table of peers, and the role.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, cast

from dafka_core.config.node_options import C_LAYOUT, MAX_RECORD_BYTES
from dafka_core.config.node_options import RFC46 as RFC46_LAYOUT
from dafka_core.model.records import RecordBatch
from dafka_core.nodes.sockets import (
    FORBIDDEN,
    INVALID_MESSAGE,
    MeshTraffic,
    Subscribers,
    send_packed,
)
from dafka_core.protocol import messages as m
from dafka_core.protocol.beacons import BEACON, NodeBeacon, tower_subscriptions
from dafka_core.protocol.codec import BulkDecoder, decode, encode
from dafka_core.protocol.record_limits import RecordLimits, announcement
from dafka_core.protocol.role import Outgoing, OutgoingBatch, PeerNews, Role
from dafka_core.security.permissions import Permissions
from tests.simulation.corruption import PACKED, largest_record_bytes
from tests.simulation.keys import SimulatedSecurity
from tests.simulation.network import Link, Network
from tests.simulation.peers import SimulatedPeers
from tests.simulation.pub import Pub
from tests.simulation.shape import RFC46, SINGLE
from tests.simulation.world import World

if TYPE_CHECKING:
    from tests.simulation.checkers import Checkers

EXTENSION_IDS: Final = b"rpQTsuNOABCIJVX"  # commands that C nodes do not know

_ROUND_S: Final = 0.0001


class SimulatedMesh:
    """A node that is running, and honest.

    Args:
        name: of the machine, which lasts when the node is started again.
        on_round: as ``Mesh`` has it.
        limit_bytes: a larger record ends the connection by which it comes.
    """

    byzantine = False

    def __init__(
        self,
        network: Network,
        checkers: Checkers,
        name: str,
        role: Role,
        style: str,
        *,
        on_round: Callable[[float], bool],
        socket_per_peer: bool = False,
        limit_bytes: int = MAX_RECORD_BYTES,
    ) -> None:
        self.network = network
        self.world: World = network.world
        self.checkers = checkers
        self.name = name
        self.role = role
        self.style = style
        self.alive = True
        self.expected_invalid_count = 0
        self.stalled_until = 0.0
        self.overdue = 0  # rounds, one after the other, after which something was still due
        self.taken_bytes = 0  # size of the last burst from the queue
        self.put_bytes = 0  # size of writers' records that are not on disk
        self._limit_bytes = limit_bytes
        kind = _kind_of(role)
        own_limit = announcement(kind, role.address, limit_bytes)
        self.subscriptions = dict.fromkeys(self._known([own_limit, *role.subscriptions()]))
        self.inbox: deque[tuple[Link, list[bytes], bool]] = deque()
        self._on_round = on_round
        self._apart = socket_per_peer
        self._layout = RFC46_LAYOUT if style == RFC46 else C_LAYOUT
        self._pub = Pub()
        self.subscribers = Subscribers(cast("Any", self._pub))
        self.limits = RecordLimits()
        self._burst = BulkDecoder()
        self._traffic = MeshTraffic(name)
        self.security = SimulatedSecurity(network.keys, name)
        self._queued: Counter[Link] = Counter()
        self._told: deque[tuple[Link, bytes, str]] = deque()
        self._calls: deque[Callable[[float], list[Outgoing] | None]] = deque()
        self._receiving = True
        self._round_at: float | None = None
        self.number = network.add(self)
        own = NodeBeacon(role.address, name, self.number, "" if style == SINGLE else kind)
        self.tower_subscriptions = (*tower_subscriptions(own), *(() if own.kind else (BEACON,)))
        """A node in the style of C nodes connects to every node."""
        self.peers = SimulatedPeers(self, own)
        self.wake(self.world.now)

    # -- from outside ----------------------------------------------------------------------------

    def call_soon(self, function: Callable[[float], list[Outgoing] | None]) -> None:
        """Has the loop call ``function(now)`` and send what it returns."""
        self._calls.append(function)
        self.wake(self.world.now + self._lag_s())

    def kill(self) -> None:
        """The node is gone from one moment to the other."""
        self.alive = False
        self.network.remove(self)

    @property
    def invalid_count(self) -> int:
        """Count refused frames as ``Mesh`` does, without those that keys do not allow."""
        return self._traffic.refused[INVALID_MESSAGE] + self._burst.invalid_count

    def trusts(self, endpoint: str, key: str) -> bool:
        """Return True if the node at an endpoint has the expected key, as CURVE checks."""
        return self.security.expects(endpoint, key)

    def take_subscription(self, link: Link, frame: bytes, key: str = "") -> None:
        """The owner of a key has subscribed; without one, a connection has ended."""
        self._told.append((link, frame, key))
        self.wake(self.world.now + self._lag_s())

    def take_beacon(self, frames: list[bytes]) -> None:
        if self.alive:
            self.peers.add(frames)
            self.wake(self.world.now + self._lag_s())

    def take_frames(self, link: Link, frames: list[bytes], *, invalid: bool = False) -> bool:
        """A message has come; False if the queue is full."""
        if not self.alive:
            return False
        if largest_record_bytes(frames) > self._limit_bytes:
            self.world.fault("record too large", self.name)
            self.network.cut(link, 0.0)
            return False
        if self._queued[link] >= self.network.shape.high_water_mark:
            self.world.fault("queue full", self.name)
            return False
        self._queued[link] += 1
        self.inbox.append((link, frames, invalid))
        self.wake(self.world.now + self._lag_s())
        return True

    def expect_invalid(self, link: Link, time_s: float, kind: str, frames: list[bytes]) -> None:
        def arrive() -> None:
            if link.up and self.take_frames(link, frames, invalid=True):
                self.world.fault("corrupted", self.name, kind)

        self.world.at(time_s, arrive)

    def wake(self, time_s: float) -> None:
        """Has the loop go round at a time, or before."""
        time_s = max(time_s, self.stalled_until, self.world.now)
        if self._round_at is None or time_s < self._round_at:
            self._round_at = time_s
            self.world.at(time_s, lambda: self._round(time_s))

    # -- the loop's own --------------------------------------------------------------------------

    def subscribe(self, prefixes: list[bytes]) -> None:
        new = [prefix for prefix in self._known(prefixes) if prefix not in self.subscriptions]
        self.subscriptions.update(dict.fromkeys(new))
        for link in self.network.subscriber_links(self):
            self.network.tell(link, [b"\x01" + prefix for prefix in new])

    def unsubscribe(self, prefixes: list[bytes]) -> None:
        old = [prefix for prefix in prefixes if prefix in self.subscriptions]
        for prefix in old:
            del self.subscriptions[prefix]
        for link in self.network.subscriber_links(self):
            self.network.tell(link, [b"\x00" + prefix for prefix in old])

    def set_receiving(self, receiving: bool) -> None:
        if receiving and not self._receiving:
            self.wake(self.world.now)
        self._receiving = receiving

    def has_subscriber(self, topic: str) -> bool:
        return bool(self.subscribers.forms(topic, ""))

    def send(self, messages: list[Outgoing]) -> None:
        for message in messages:
            self.checkers.on_sent(self, message)
            if isinstance(message, m.EpochAck):
                self.network.publish(self, encode(message.plain, self._layout))
            for part in self.limits.kept(message):
                if isinstance(part, OutgoingBatch):
                    self._send_records(part)
                    continue
                answer = self.security.shown(part)
                if answer is None:
                    continue
                frames = encode(answer, self._layout)
                if self.style == SINGLE and frames[0][:1] in EXTENSION_IDS:
                    continue
                self.world.note(self.name, f"-> {part}")
                self.network.publish(self, frames)

    def _send_records(self, message: OutgoingBatch) -> None:
        batch = message.batch
        to = f" to {message.requestor}" if message.requestor else ""
        what = f"-> {batch.tp.topic} {batch.tp.partition[:4]} [{batch.offset}, {batch.end}){to}"
        for packed in self.subscribers.forms(batch.tp.topic, message.requestor):
            self.world.note(self.name, f"{what} {'packed' if packed else 'one by one'}")
            if packed:
                self._send_packed(message)
            else:
                self._send_singles(message)

    def _send_packed(self, message: OutgoingBatch) -> None:
        send_packed(cast("Any", self._pub), message)
        frames, self._pub.frames = self._pub.frames, []
        for header, value in zip(frames[::2], frames[1::2], strict=True):
            self.network.publish(self, [header, value])

    def _send_singles(self, message: OutgoingBatch) -> None:
        batch, single = message.batch, message.requestor
        for sequence, value in enumerate(batch.values, batch.offset):
            record: m.Message = (
                m.DirectRecord(single, batch.tp.topic, batch.tp.partition, sequence, value)
                if single
                else m.RecordMessage(batch.tp.topic, batch.tp.partition, sequence, value)
            )
            self.network.publish(self, encode(record, self._layout))

    def _known(self, prefixes: list[bytes]) -> list[bytes]:
        if self.style != SINGLE:
            return prefixes
        return [prefix for prefix in prefixes if prefix[:1] not in EXTENSION_IDS]

    def _lag_s(self) -> float:
        return self.world.random.random() * self.network.shape.lag_s

    def _round(self, time_s: float) -> None:
        if not self.alive or self._round_at != time_s:
            return
        now = self.world.now
        if now < self.stalled_until:
            self._round_at = None
            self.wake(self.stalled_until)
            return
        self._round_at = None
        self.taken_bytes = 0
        self.peers.take(now)
        for _ in range(len(self._calls)):
            self.send(self._calls.popleft()(now) or [])
        self._take_subscriptions(now)
        if self._receiving:
            self._take_messages(now)
        self.peers.keep(now)
        self.send(self.role.on_tick(now))
        more = self._on_round(now)
        self.checkers.after_round(self)
        due = min(self.role.deadline(now), self.peers.due)
        if more or self._calls:
            due = now + _ROUND_S
        if self.alive:
            self.wake(max(due, now + _ROUND_S))

    def _take_subscriptions(self, now: float) -> None:
        while self._told:
            link, told, key = self._told.popleft()
            frame = self.security.granted(key, told)
            if frame is None:
                if key:  # else the ended one of several equal subscriptions is unknown
                    self._refuse(link, "subscription", repr(told))
                continue
            if self.style == SINGLE and frame[1:2] in EXTENSION_IDS:
                continue  # nothing that it sends begins so
            self._pub.link = link if link.known else None
            subscribed, kind, topic = self.subscribers.apply(frame)
            if (introduced := self.limits.apply(frame)) is not None:
                self.learn(PeerNews(introduced.node, is_store=introduced.is_store))
            self._pub.link = None
            if subscribed and kind is not None:
                self.send(self.role.on_subscribed(now, kind, topic))
        self.limits.refresh()

    def learn(self, news: PeerNews) -> None:
        """Pass news of a peer to the role, as ``Mesh`` does."""
        self.role.on_peer(self.world.now, news)

    def _take_messages(self, now: float) -> None:
        inbox, self.inbox = self.inbox, deque()
        self._queued.clear()
        self.taken_bytes = sum(len(frame) for _, frames, _ in inbox for frame in frames)
        by_peer: dict[tuple[str, bool], list[tuple[Link, list[bytes]]]] = {}
        locked = self.network.keys.locked  # each peer has a socket then
        for link, frames, invalid in inbox:
            if locked and link.closed:
                continue
            self.expected_invalid_count += invalid and not link.publisher.byzantine
            peer = link.publisher.role.address if self._apart else ""
            source = (link.endpoint if locked else peer, link.publisher.byzantine)
            by_peer.setdefault(source, []).append((link, frames))
        for (at, _), messages in by_peer.items():
            self._take_from(now, self.peers.table.node_at(at) if locked else at, messages)

    def _take_from(self, now: float, peer: str, messages: list[tuple[Link, list[bytes]]]) -> None:
        before = self.invalid_count
        others = [frames for _, frames in messages if not self._is_record(frames)]
        link = messages[0][0]
        sender = self.security.sender(link.endpoint)
        for requestor, batch in self._burst.take():
            if not self._traffic.admits_records(sender, batch):
                self._refuse(link, "records", str(batch.tp))
                continue
            if not requestor:
                self.checkers.on_told(self, batch)
            self.send(self.role.on_batch(now, requestor, batch))
        for frames in others:
            self._take_other(now, link, sender, frames, peer)
        if link.publisher.byzantine:
            self.expected_invalid_count += self.invalid_count - before
            self.world.refused["invalid"] += self.invalid_count - before

    def _refuse(self, link: Link, kind: str, what: str) -> None:
        """A key does not allow it, so it is no honest node's."""
        peer = link.subscriber if kind == "subscription" else link.publisher
        if not peer.byzantine:
            self.world.fail(self.name, f"refuses {what}, of {peer.name}, who is honest")
        self.world.refused[kind] += 1

    def _is_record(self, frames: list[bytes]) -> bool:
        """Puts a record into the burst, as ``sockets.receive_burst`` does."""
        if len(frames) != 2 or frames[0][:1] not in (b"M", b"D", *PACKED):
            return False
        self._burst.add(frames[0], frames[1])
        return True

    def _take_other(
        self, now: float, link: Link, sender: Permissions, frames: list[bytes], peer: str
    ) -> None:
        before = self._traffic.refused[FORBIDDEN]
        message = self._traffic.admitted(sender, frames)
        if self._traffic.refused[FORBIDDEN] > before:
            self._refuse(link, type(decode(frames)).__name__, str(frames))
        if message is None:
            return
        if isinstance(message, m.RecordMessage | m.DirectRecord):
            requestor = message.requestor if isinstance(message, m.DirectRecord) else ""
            batch = RecordBatch.of(message.tp, message.sequence, [message.value])
            if not requestor:
                self.checkers.on_told(self, batch)
            self.send(self.role.on_batch(now, requestor, batch))
        elif isinstance(message, m.DirectRecordBatches):
            for batch in message.batches():
                self.send(self.role.on_batch(now, message.requestor, batch))
        else:
            self.checkers.on_told(self, message)
            self.send(self.role.on_message(now, message, peer))


def _kind_of(role: Role) -> str:
    """Return the letter of its production role."""
    production = (each for each in type(role).__mro__ if each.__module__.startswith("dafka_core"))
    return next(production).__name__[0]
