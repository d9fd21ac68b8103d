"""Connections between nodes, as ZeroMQ's PUB and SUB sockets have them, and what befalls them.

A node that discovers a peer connects to it and sends its subscriptions, which TCP carries
without loss.  Messages that match go to it in order, as long as the connection lasts.  On top of
that everything bad happens that the seed's shape asks for: also what TCP would not do, such as
doubling a message, as a role must not depend on its absence.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Literal

from dafka_core.errors import ProtocolError
from dafka_core.protocol.beacons import WELCOME, decode_node_beacon, endpoint_of, tower_beacons
from dafka_core.protocol.role import PeerNews
from tests.simulation.corruption import corrupted
from tests.simulation.keys import Keys, SimulatedSecurity
from tests.simulation.shape import Shape
from tests.simulation.world import World

if TYPE_CHECKING:
    from tests.simulation.mesh import SimulatedMesh

TOWER: Final = "tower"  # of several, what their names begin with
MAX_OVERHEARD: Final = 500  # messages from which a byzantine peer takes what it sends again
RECONNECT_S: Final = 0.2  # interval at which a SUB socket tries to connect

Fate = Literal["lost", "held"]
"""Fate of a message that cannot pass: TCP holds it back, until a queue is full."""

Block = tuple[float, Fate]


class Link:
    def __init__(self, publisher: SimulatedMesh, subscriber: SimulatedMesh, endpoint: str) -> None:
        self.publisher = publisher
        self.subscriber = subscriber
        self.endpoint = endpoint
        self.up = True  # true while the subscriber receives from it
        self.known = True  # true while the publisher sends into it
        self.closed = False  # the subscriber has closed its socket, with the messages in it
        self.told: dict[bytes, None] = {}  # the subscriptions that have reached the publisher
        self.prefixes: tuple[bytes, ...] = ()  # the prefixes that the publisher has granted
        self.arrives_at = 0.0
        self.tells_at = 0.0


class Network:
    """All links, and the towers."""

    def __init__(self, world: World, shape: Shape) -> None:
        self.world = world
        self.shape = shape
        self.keys = Keys(locked=shape.locked)
        self.keys.add(TOWER, TOWER)
        self._security = SimulatedSecurity(self.keys, TOWER)
        self.overheard: deque[list[bytes]] = deque(maxlen=shape.byzantine and MAX_OVERHEARD)
        """The last messages of any node: a byzantine peer may have recorded them."""
        self.faulty = True  # true while chance may lose, double, delay or corrupt messages
        self.blocks: dict[tuple[str, str], Block] = {}
        """Blocked directions between two machines, each with its end and the fate of messages."""
        self.far_s: dict[str, float] = {}
        """Nodes that are far from all others: how long everything takes to them, and from them."""
        self.towers = (TOWER, *(f"{TOWER}-{i}" for i in range(1, shape.towers)))
        self.towers_up = dict.fromkeys(self.towers)
        self._meshes: dict[str, SimulatedMesh] = {}  # that live, by endpoint
        self._connecting: dict[tuple[SimulatedMesh, str], Link | None] = {}
        self._far_tried: set[tuple[SimulatedMesh, str]] = set()
        self._out: dict[SimulatedMesh, list[Link]] = {}
        # The nodes that have joined each tower.
        self._welcomed: dict[str, dict[SimulatedMesh, None]] = {name: {} for name in self.towers}
        self._ports = 0

    # -- nodes -----------------------------------------------------------------------------------

    def add(self, mesh: SimulatedMesh) -> int:
        """A node has come; returns its port."""
        self._ports += 1
        port = 10_000 + self._ports
        self._meshes[f"tcp://{mesh.name}:{port}"] = mesh
        self._out[mesh] = []
        for tower in self.towers:
            self._join(tower, mesh)
        return port

    def remove(self, mesh: SimulatedMesh) -> None:
        """A node is gone, at once; others notice some time."""
        self._meshes = {e: other for e, other in self._meshes.items() if other is not mesh}
        for welcomed in self._welcomed.values():
            welcomed.pop(mesh, None)
        for link in self._out.pop(mesh):
            link.up = link.known = False
            self._reconnect_later(link)
        for key, own in list(self._connecting.items()):
            if key[0] is mesh:
                del self._connecting[key]
                if own is not None:
                    self._end(own, half_open_s=self._half_open_s())

    def connect(self, subscriber: SimulatedMesh, endpoint: str) -> None:
        """Connects, now or as soon as it can be, and again whenever the connection breaks."""
        if (subscriber, endpoint) not in self._connecting:
            self._connecting[subscriber, endpoint] = None
            self._try(subscriber, endpoint)

    def disconnect(self, subscriber: SimulatedMesh, endpoint: str) -> None:
        """Ends a connection; messages that have come by a former one go, too."""
        link = self._connecting.pop((subscriber, endpoint), None)
        for queued, *_ in subscriber.inbox:
            queued.closed = queued.closed or queued.endpoint == endpoint
        if link is not None:
            link.closed = True
            self._end(link, half_open_s=0)

    def links(self) -> list[Link]:
        """The connections that are up."""
        return [link for link in self._connecting.values() if link is not None and link.up]

    def renew(self, subscriber: SimulatedMesh, endpoint: str) -> None:
        """Reconnect, since a different node is expected there."""
        self.disconnect(subscriber, endpoint)
        self.connect(subscriber, endpoint)

    def cut(self, link: Link, half_open_s: float) -> None:
        """Break a connection; the publisher notices after ``half_open_s``."""
        if link.up:
            self._end(link, half_open_s=half_open_s)
            self._reconnect_later(link)

    def blocked(self, source: str, target: str) -> Block | None:
        """Whether nothing passes."""
        block = self.blocks.get((source, target))
        return block if block is not None and block[0] > self.world.now else None

    def _half_open_s(self) -> float:
        return self.world.between(0, 3) if self.faulty and self.world.chance(0.3) else 0.0

    def _reconnect_later(self, link: Link) -> None:
        for (subscriber, endpoint), current in self._connecting.items():
            if current is link:
                self._connecting[subscriber, endpoint] = None
                self._try_later(subscriber, endpoint)
                return

    def _try_later(self, subscriber: SimulatedMesh, endpoint: str) -> None:
        delay_s = self.world.between(0.5, 1.0) * RECONNECT_S
        self.world.after(delay_s, lambda: self._try(subscriber, endpoint))

    def _try(self, subscriber: SimulatedMesh, endpoint: str) -> None:
        if not subscriber.alive or self._connecting.get((subscriber, endpoint), self) is not None:
            return
        publisher = self._meshes.get(endpoint)
        if publisher is None:
            # No node listens there, and none ever will: addresses are not reused.
            return
        names = (subscriber.name, publisher.name)
        if self.blocked(*names) or self.blocked(*reversed(names)):
            self._try_later(subscriber, endpoint)
            return
        round_trip_s = 2 * self._far_s(*names)
        if round_trip_s and (subscriber, endpoint) not in self._far_tried:
            # TCP's handshake takes one round trip, ZeroMQ's one and a half after it.
            self._far_tried.add((subscriber, endpoint))
            news = PeerNews(publisher.role.address, accepts=True)
            self.world.after(round_trip_s, lambda: subscriber.learn(news))
            self.world.after(2.5 * round_trip_s, lambda: self._try(subscriber, endpoint))
            return
        if not subscriber.trusts(endpoint, publisher.name):
            self._try_later(subscriber, endpoint)  # the handshake fails
            return
        subscriber.security.claims.prove(endpoint, is_proved=True)
        link = Link(publisher, subscriber, endpoint)
        self._connecting[subscriber, endpoint] = link
        self._out[publisher].append(link)
        self.world.note(subscriber.name, f"connects to {publisher.name}")
        self.tell(link, [b"\x01" + prefix for prefix in sorted(subscriber.subscriptions)])

    def _end(self, link: Link, *, half_open_s: float) -> None:
        link.up = False
        link.subscriber.security.claims.prove(link.endpoint, is_proved=False)

        def notice() -> None:
            if link.known and link.publisher.alive:
                link.known = False
                self._out[link.publisher].remove(link)
                for prefix in link.told:
                    link.publisher.take_subscription(link, b"\x00" + prefix)

        if half_open_s:
            self.world.fault("half-open connection", link.publisher.name, link.subscriber.name)
            self.world.after(half_open_s, notice)
        else:
            notice()

    # -- messages --------------------------------------------------------------------------------

    def subscriber_links(self, subscriber: SimulatedMesh) -> list[Link]:
        """A node's own connections to others."""
        return [link for (mesh, _), link in self._connecting.items() if mesh is subscriber and link]

    def tell(self, link: Link, frames: list[bytes]) -> None:
        """Tells a publisher of subscriptions: nothing is lost unless the connection is."""

        def arrive() -> None:
            if not link.known or not link.publisher.alive:
                return
            if not link.up:  # they were under way when it broke
                return
            for frame in frames:
                if frame[:1] == b"\x01":
                    link.told[frame[1:]] = None
                else:
                    link.told.pop(frame[1:], None)
                link.publisher.take_subscription(link, frame, link.subscriber.name)

        names = (link.subscriber.name, link.publisher.name)
        block = self.blocked(*names)
        start_s = block[0] if block else self.world.now
        link.tells_at = max(link.tells_at, start_s + self._delay_s(*names))
        self.world.at(link.tells_at, arrive)

    def publish(self, publisher: SimulatedMesh, frames: list[bytes]) -> None:
        self.overheard.append(frames)
        header = frames[0]
        for link in self._out[publisher]:
            if link.prefixes and header.startswith(link.prefixes):
                self.carry(link, frames)

    def links_to(self, publisher: SimulatedMesh) -> list[Link]:
        """The connections by which a node sends."""
        return self._out[publisher]

    def carry(self, link: Link, frames: list[bytes]) -> None:
        world, shape = self.world, self.shape
        names = (link.publisher.name, link.subscriber.name)
        block = self.blocked(*names)
        if block is not None and block[1] == "lost":
            world.fault("lost in a partition", *names)
            return
        if self.faulty and world.chance(shape.loss):
            world.fault("lost", *names)
            return
        arrives_at = (block[0] if block else world.now) + self._delay_s(*names)
        if self.faulty and world.chance(shape.reorder):
            world.fault("reordered", *names)
            arrives_at += world.between(0, shape.reorder_s)
        else:
            arrives_at = link.arrives_at = max(arrives_at, link.arrives_at)
        self._deliver_at(arrives_at, link, frames)
        if self.faulty and world.chance(shape.double):
            world.fault("doubled", *names)
            self._deliver_at(arrives_at + world.between(0, shape.reorder_s), link, frames)

    def _deliver_at(self, time_s: float, link: Link, frames: list[bytes]) -> None:
        honest = not link.publisher.byzantine
        if honest and self.faulty and self.world.chance(self.shape.corrupt):
            found = corrupted(self.world.random, frames)
            if found is not None:
                kind, frames = found
                link.subscriber.expect_invalid(link, time_s, kind, frames)
                return

        def arrive() -> None:
            if link.up:
                link.subscriber.take_frames(link, frames)

        self.world.at(time_s, arrive)

    def _delay_s(self, *names: str) -> float:
        return self.world.random.random() * self.shape.delay_s + self._far_s(*names)

    def _far_s(self, *names: str) -> float:
        return sum(self.far_s.get(name, 0.0) for name in names)

    # -- the towers ------------------------------------------------------------------------------

    def tower_down(self, tower: str) -> None:
        """A tower is killed: connections between nodes stay."""
        del self.towers_up[tower]
        self._welcomed[tower].clear()

    def tower_back(self, tower: str) -> None:
        """Restart a tower, which knows no node."""
        self.towers_up[tower] = None
        for mesh in list(self._meshes.values()):
            self._join(tower, mesh)

    def beacon(self, mesh: SimulatedMesh, frames: list[bytes]) -> None:
        """A node's beacon goes to each tower, and from there to all."""
        for tower in self.towers:
            if tower in self.towers_up and mesh in self._welcomed[tower]:
                self._tell_all(tower, mesh, frames)

    def _tell_all(self, tower: str, mesh: SimulatedMesh, frames: list[bytes]) -> None:
        if self._lost(mesh.name, tower):
            return

        def arrive() -> None:
            try:
                beacon = decode_node_beacon(frames)
                self._security.check_node(beacon.node, mesh.name)
            except ProtocolError as error:
                if not mesh.byzantine:
                    self.world.fail(mesh.name, f"a beacon of production is refused: {error}")
                self.world.refused["beacon"] += 1
                return
            for form in tower_beacons(beacon, endpoint_of(beacon, "")):
                told = self._security.named(form, mesh.name)
                for other in list(self._welcomed[tower]):
                    if (
                        told[0].startswith(other.tower_subscriptions)
                        and tower in self.towers_up
                        and not self._lost(tower, other.name)
                    ):
                        self.world.after(self._delay_s(other.name), _taker(other, told))

        self.world.after(self._delay_s(mesh.name), arrive)

    def _lost(self, source: str, target: str) -> bool:
        if self.blocked(source, target):
            return True
        if self.faulty and self.world.chance(self.shape.loss):
            self.world.fault("beacon lost", source, target)
            return True
        return False

    def _join(self, tower: str, mesh: SimulatedMesh) -> None:
        def join() -> None:
            if not mesh.alive or mesh in self._welcomed[tower] or tower not in self.towers_up:
                return
            if self.blocked(mesh.name, tower) or self.blocked(tower, mesh.name):
                self._join(tower, mesh)
                return
            self._welcomed[tower][mesh] = None
            mesh.take_beacon([WELCOME])

        self.world.after(self.world.between(0.001, RECONNECT_S), join)


def _taker(mesh: SimulatedMesh, frames: list[bytes]) -> Callable[[], None]:
    return lambda: mesh.take_beacon(frames)
