"""Peers with a key of the cluster: they forge, replay, eavesdrop and send false messages.

They are worse than any owner of a key can be: they know the content of every disk, receive each
message (as if they had recorded it before keys were in use), and never end.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, Final, cast

from dafka_core.protocol import messages as m
from dafka_core.protocol.beacons import (
    NEEDED_KINDS,
    WELCOME,
    NodeBeacon,
    decode_tower_beacon,
    encode_node_beacon,
)
from dafka_core.protocol.codec import decode, subscription
from dafka_core.protocol.messages import COMMANDS
from dafka_core.protocol.record_limits import LEAST_BYTES, announcement
from dafka_core.security.permissions import CONSUME, PRODUCE, Permissions
from tests.simulation.corruption import corrupted
from tests.simulation.forgeries import Forger
from tests.simulation.keys import Keys, SimulatedSecurity
from tests.simulation.network import Link

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster

KINDS: Final = {kind.command.id: kind.__name__ for kind in COMMANDS.values()}
"""Names of messages by their first byte."""

MOST_PREFIXES: Final = 40

MOST: Final = 250  # limit of a byzantine peer's actions in a simulation: a flood, and its end


class ByzantinePeer:
    """One of them, as the network knows nodes."""

    byzantine = True

    def __init__(self, cluster: Cluster, name: str) -> None:
        self._cluster = cluster
        self._network = cluster.network
        self._world = cluster.world
        self._chance = random.Random(f"{name} {cluster.shape.seed}")
        self.name = name
        self.alive = True
        roles = self._chance.choice(((PRODUCE,), (CONSUME,), (PRODUCE, CONSUME)))
        topics = cluster.shape.topics
        patterns = ((self._chance.choice(topics),), ("nobody's",), tuple(topics))
        produce, consume = self._chance.choice(patterns), self._chance.choice(patterns)
        self._permissions = cluster.network.keys.add(name, *roles, produce=produce, consume=consume)
        self.address = self.new_address()
        self.role = self  # of which the network asks for the address
        self.security = SimulatedSecurity(Keys(locked=False), name)
        self._forger = Forger(cluster, self, self._chance)
        self.subscriptions = dict.fromkeys(self._prefixes())
        self._endpoints: dict[str, None] = {}
        self._left = MOST
        self.tower_subscriptions = (b"",)
        self._port = self._network.add(cast("Any", self))
        self._act_later()
        self._announce()

    def new_address(self) -> str:
        """One that its key proves to be its own."""
        return self._permissions.made_own(f"{self._chance.getrandbits(128):032X}")

    @property
    def partitions(self) -> list[str]:
        """Its own."""
        return self._forger.own

    # -- what the network asks -------------------------------------------------------------------

    def trusts(self, endpoint: str, key: str) -> bool:
        return True

    def learn(self, news: object) -> None:
        """It knows everything anyhow."""

    def take_subscription(self, link: Link, frame: bytes, key: str = "") -> None:
        """It sends whatever it likes."""

    def expect_invalid(self, link: Link, time_s: float, kind: str, frames: list[bytes]) -> None:
        """It does not mind."""

    def take_frames(self, link: Link, frames: list[bytes]) -> None:
        """Hears something; it must be for its ears."""
        if not self._network.keys.locked or link.publisher.byzantine:
            return
        if not _may_hear(self._permissions, decode(frames)):
            self._world.fail(self.name, f"overhears {frames} from {link.publisher.name}")

    def take_beacon(self, frames: list[bytes]) -> None:
        if frames == [WELCOME]:
            return
        endpoint = decode_tower_beacon(frames[:3]).endpoint
        if endpoint not in self._endpoints and endpoint != f"tcp://{self.name}:{self._port}":
            self._endpoints[endpoint] = None
            self._network.connect(cast("Any", self), endpoint)

    # -- what it does ----------------------------------------------------------------------------

    def _prefixes(self) -> list[bytes]:
        """Everything, by nothing, by letters, by topics, by others' addresses."""
        nodes = [host.permissions.prefix for host in self._cluster.hosts]
        nodes += [tp.partition for tp in self._cluster.partitions]
        names = [*self._cluster.shape.topics, *nodes, self.address, *self._forger.own]
        kinds = [subscription(kind) for kind in COMMANDS.values()]
        stores = [store.address for store in self._cluster.stores]
        limits = [announcement("store", each, 9_000_000) for each in [*stores, self.address]]
        limits.append(announcement("consumer", self.address, LEAST_BYTES))
        for_others = [kind + name.encode() for kind in kinds for name in names]
        return [b"", *kinds, *limits, *self._chance.sample(for_others, MOST_PREFIXES)]

    def _act_later(self) -> None:
        self._left -= 1
        if self._left:
            mean_s = self._cluster.shape.attack_every_s
            self._world.after(self._chance.expovariate(1 / mean_s), self._act)

    def _act(self) -> None:
        what = self._chance.random()
        if what < 0.45:
            for frames in self._forger.frames():
                self._send(frames)
        elif what < 0.6:
            self._equivocate()
        elif what < 0.75 and self._network.overheard:
            self._send(self._chance.choice(self._network.overheard), "replayed ")
        elif what < 0.85:
            self._send_octets()
        elif what < 0.88:
            self._eavesdrop()
        elif what < 0.95:
            self._lie_to_towers()
        else:
            self._come_and_go()
        self._act_later()

    def _send(self, frames: list[bytes], how: str = "", links: list[Link] | None = None) -> None:
        """Send a message to all, or some, of the SUB sockets that accept it."""
        for link in self._network.links_to(cast("Any", self)) if links is None else links:
            if not frames[0].startswith((*link.subscriber.subscriptions,)):
                continue
            self._world.sent[how + KINDS.get(frames[0][:1], "nothing")] += 1
            self._network.carry(link, frames)

    def _equivocate(self) -> None:
        links = self._network.links_to(cast("Any", self))
        for_some = [link for link in links if self._chance.random() < 0.5]
        for story, told in zip(
            self._forger.equivocation(),
            (for_some, [link for link in links if link not in for_some]),
            strict=True,
        ):
            for frames in story:
                self._send(frames, links=told)

    def _send_octets(self) -> None:
        """Send invalid messages, or nearly invalid ones."""
        source = self._forger.frames()
        if self._network.overheard and self._chance.random() < 0.5:
            source = [self._chance.choice(self._network.overheard)]
        for frames in source:
            kind = self._chance.random()
            if kind < 0.5:
                found = corrupted(self._chance, frames)
                broken = found[1] if found else frames
            elif kind < 0.75:
                at = self._chance.randrange(1, len(frames[0]) + 1)
                broken = [frames[0][:at] + self._chance.randbytes(self._chance.randint(0, 40))]
            else:
                at = self._chance.randrange(1, max(len(frames[-1]), 2))
                octet = bytes([self._chance.getrandbits(8)])
                broken = [*frames[:-1], frames[-1][:at] + octet + frames[-1][at + 1 :]]
            self._send(broken, "malformed ")

    def _eavesdrop(self) -> None:
        """Subscribe to messages for a different node, with its announcement."""
        host = self._chance.choice(self._cluster.hosts)
        if host.mesh is None:
            return
        address = host.mesh.role.address
        prefixes = [subscription(kind, address) for kind in COMMANDS.values()]
        prefixes += [each for each in host.mesh.subscriptions if address.encode() in each]
        some = self._chance.sample(prefixes, min(5, len(prefixes)))
        new = dict.fromkeys(each for each in some if each not in self.subscriptions)
        self.subscriptions.update(new)
        for link in self._network.subscriber_links(cast("Any", self)):
            self._network.tell(link, [b"\1" + prefix for prefix in new])

    def _come_and_go(self) -> None:
        """End its connections, with their subscriptions."""
        for link in self._network.subscriber_links(cast("Any", self)):
            if self._chance.random() < 0.5:
                self._world.sent["come and go"] += 1
                self._network.cut(link, 0.0)

    # -- its beacons ----------------------------------------------------------------------------

    def _announce(self) -> None:
        self._beacon(self.address, self.name, self._port)
        self._world.after(self._cluster.shape.beacon_s, self._announce)

    def _lie_to_towers(self) -> None:
        hosts = [host for host in self._cluster.hosts if host.mesh is not None]
        for _ in range(self._chance.choice((1, 1, 5))):
            own = self._chance.choice([self.address, self.new_address()])
            if not hosts or self._chance.random() < 0.3:
                self._beacon(own, "nowhere", self._chance.randint(1, 50))
                continue
            victim = self._chance.choice(hosts)
            assert victim.mesh is not None
            if self._chance.random() < 0.5:
                self._beacon(victim.mesh.role.address, self.name, self._port)
            else:
                self._beacon(own, victim.name, victim.mesh.number)

    def _beacon(self, node: str, host: str, port: int) -> None:
        self._world.sent["beacon"] += 1
        beacon = NodeBeacon(node, host, port, self._chance.choice(("", *NEEDED_KINDS)))
        self._network.beacon(cast("Any", self), encode_node_beacon(beacon))


def _may_hear(who: Permissions, message: Any) -> bool:
    """Return True if an owner with these permissions may receive a message."""
    to = getattr(message, "requestor", "")
    match message:
        case m.RecordMessage() | m.RecordBatchMessage() | m.Head():
            return who.may_consume(message.topic)
        case m.GetHeads():
            return who.may_produce(message.topic)
        case m.Fetch() | m.Ack() | m.EpochAck():
            to, may = message.partition, True
        case m.DirectRecord() | m.DirectRecordBatch():
            may = who.may_consume(message.topic) or who.is_own(message.partition)
        case m.DirectRecordBatches():
            may = all(who.may_consume(each.topic) for each in message.entries)
        case m.HeadsReply():
            may = all(who.may_know(each.topic) for each in message.entries)
        case m.DirectHead() | m.HistoryReply():
            may = who.may_know(message.topic)
        case _:
            to, may = to or message.consumer, True
    return may and who.is_own(to)
