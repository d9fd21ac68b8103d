"""Sockets and a thread around a role.

One thread owns every socket and runs the role: the loop.  Applications' threads touch no socket;
they hand the loop functions to call.
"""

from __future__ import annotations

import contextlib
import logging
import socket as sockets
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeVar

import zmq

from dafka_core.config.node_options import NEEDED_NODES, NodeOptions
from dafka_core.errors import (
    ClosedError,
    NodeFailedError,
    NoStoreError,
    ProtocolError,
    TowerNotFoundError,
)
from dafka_core.model.records import RecordBatch
from dafka_core.nodes.addresses import bound
from dafka_core.nodes.connection_quotas import ConnectionQuotas
from dafka_core.nodes.peers import Peers
from dafka_core.nodes.process_limits import make_room_for_node
from dafka_core.nodes.security import Security
from dafka_core.nodes.sockets import (
    MOST_SOCKETS,
    drop_stalled_peers,
    new_socket,
    receive_burst,
    received_subscriptions,
    send_one_by_one,
    send_packed,
)
from dafka_core.nodes.threads import InterruptibleCondition, NodeThread, weakly
from dafka_core.protocol import timing
from dafka_core.protocol.authorization import may_write, records_refusal, refusal
from dafka_core.protocol.beacons import NodeBeacon
from dafka_core.protocol.bulk_decoder import BulkDecoder
from dafka_core.protocol.codec import decode, encode, parse_subscription, subscription
from dafka_core.protocol.limits import MAX_HEADER_BYTES, max_taken_bytes
from dafka_core.protocol.messages import (
    Ack,
    DirectRecord,
    DirectRecordBatch,
    DirectRecordBatches,
    EpochAck,
    Message,
    RecordBatchMessage,
    RecordMessage,
)
from dafka_core.protocol.record_limits import RecordLimits, announcement
from dafka_core.protocol.role import Outgoing, OutgoingBatch, PeerNews, Role
from dafka_core.protocol.store_directory import StoreDirectory, StoreQuery
from dafka_core.security.permissions import EVERYBODY, Permissions
from dafka_core.system.closing import ProcessBound
from dafka_core.system.hosts import address_of

# Counters of the messages a node receives and sends, and of the frames it refuses.
#
# The loop's thread counts, other threads read.


SAY_AGAIN_S: Final = 60.0
"""How often the same reason is spoken of: anybody may send thousands in a second."""

FORBIDDEN: Final = "forbidden"

REASONS: Final = ("message", "records", "beacon", "tower", FORBIDDEN)
"""Why frames are refused: they are no message; they are no records; they are no beacon, or name an
endpoint to which nobody can connect; they tell of no tower; their sender's key does not allow
them."""

_CAUSES: Final = {FORBIDDEN: "a key allows only what its file says (docs/security.md)"}
_NO_PROTOCOL: Final = (
    "who sends them speaks no protocol of ours, or is of a version that this one does not know"
)

LOOK_S: Final = 1.0
"""How often the loop looks whether there is something to say."""

_log = logging.getLogger("dafka.mesh")


class RefusedFrames:
    """Says what was refused, of a node.

    Args:
        node: which node it is, for people.
    """

    def __init__(self, node: str) -> None:
        self._node = node
        self._due = 0.0
        self._said: dict[str, tuple[float, int]] = {}
        self._last: dict[str, str] = {}

    def note(self, reason: str, why: str) -> None:
        """Keeps what was wrong with the last one, for when it is said."""
        self._last[reason] = why

    def is_due(self, now: float) -> bool:
        """Whether ``report`` is to be called."""
        return now >= self._due

    def report(self, now: float, counts: Mapping[str, int]) -> None:
        """Says how many were refused since it was said last, by reason."""
        self._due = now + LOOK_S
        for reason, count in counts.items():
            said_at, said = self._said.get(reason, (-SAY_AGAIN_S, 0))
            if count == said or now - said_at < SAY_AGAIN_S:
                continue
            self._said[reason] = now, count
            _log.warning(
                "%(node)s: %(count)d frames refused, reason %(reason)s%(last)s; %(cause)s",
                {
                    "node": self._node,
                    "count": count - said,
                    "reason": reason,
                    "cause": _CAUSES.get(reason, _NO_PROTOCOL),
                    "last": f" (the last one: {why})" if (why := self._last.get(reason)) else "",
                },
                extra={"event": "frames_refused"},
            )


class MeshTraffic:
    """Counts messages and records, but not what they are about: that anybody could make too many.

    Args:
        node: which node it is, for people.
        decoder: what counts records that are none.

    Attributes:
        records_received, bytes_received: records of peers and their contents, as they came; those
            that came twice, or that the node did not want, are among them.
        received: messages without records, by their type's name.
        live_records, live_bytes: published, to peers that follow the topic; each counts once,
            however many peers there are.
        direct_records, direct_bytes: sent again to one peer that asked for them.
        invalid_count, forbidden_count: messages that were none, but for records; and those that
            keys do not allow.
        sent: messages by their type's name, but for those that are records and nothing else.
    """

    def __init__(self, node: str, decoder: BulkDecoder) -> None:
        self._decoder = decoder
        self.invalid_count = self.forbidden_count = 0
        self._refused = RefusedFrames(node)
        self.records_received = self.bytes_received = 0
        self.live_records = self.live_bytes = 0
        self.direct_records = self.direct_bytes = 0
        self.received = Counter[str]()
        self.sent = Counter[str]()

    def add_received(self, batch: RecordBatch) -> None:
        """Counts records that have come."""
        self.records_received += batch.count
        self.bytes_received += batch.values.size_bytes

    def add_sent(self, message: OutgoingBatch) -> None:
        """Counts records that are sent."""
        batch = message.batch
        if message.requestor:
            self.direct_records += batch.count
            self.direct_bytes += batch.values.size_bytes
        else:
            self.live_records += batch.count
            self.live_bytes += batch.values.size_bytes

    def add_sent_message(self, message: Message) -> None:
        """Counts another message; the answer to a FETCH-BATCH has records, too."""
        self.sent[type(message).__name__] += 1
        if isinstance(message, DirectRecordBatches):
            self.direct_records += sum(each.end - each.earliest for each in message.entries)
            self.direct_bytes += len(message.value)

    def admits_records(self, sender: Permissions, batch: RecordBatch) -> bool:
        """Counts records that have come; whether they may come from who has sent them."""
        if not may_write(sender, batch.tp):
            self._forbid(records_refusal(sender, batch.tp))
            return False
        self.add_received(batch)
        return True

    def admitted(self, sender: Permissions, frames: list[bytes]) -> Message | None:
        """The message that frames are; None if they are none, or none that the sender may send."""
        try:
            message = decode(frames)
        except ProtocolError as error:
            self.invalid_count += 1
            self._refused.note(REASONS[0], str(error))
            return None
        why = "" if sender is EVERYBODY else refusal(sender, message)
        if why:
            self._forbid(why)
        return None if why else message

    def _forbid(self, why: str) -> None:
        self.forbidden_count += 1
        self._refused.note(FORBIDDEN, why)

    def refused(self, peers: Peers) -> dict[str, int]:
        """How often frames were refused, by reason."""
        counts = (
            *(self.invalid_count, self._decoder.invalid_count),
            *(peers.invalid_count, peers.towers.invalid_count),
            self.forbidden_count + peers.security.refused_beacons,
        )
        return dict(zip(REASONS, counts, strict=True))

    def look(self, now: float, peers: Peers) -> None:
        """Says what was refused, if it is time to."""
        if self._refused.is_due(now):
            if peers.security.refused_node:
                self._refused.note(FORBIDDEN, peers.security.refused_node)
                peers.security.refused_node = ""
            self._refused.report(now, self.refused(peers))


_NEVER: Final = (sockets.EAI_NONAME, sockets.EAI_NODATA)
"""There is no such name; other failures are perhaps over soon."""


class HostLookup:
    """Looks names up beside what the caller does: that may take long, and no signal ends it.

    Calls ``on_failure()`` when a name does not resolve.
    """

    def __init__(self, hosts: Iterable[str], on_failure: Callable[[], None]) -> None:
        self._hosts = {*hosts}
        self._on_failure = on_failure
        self._failures: dict[str, int | None] = {}
        for host in self._hosts:
            if address_of(host) is None:
                threading.Thread(
                    target=self._look, args=(host,), name="dafka-hosts", daemon=True
                ).start()

    @property
    def unknown(self) -> list[str]:
        """The names that do not resolve, as far as is known by now."""
        return sorted(self._failures)

    @property
    def in_vain(self) -> bool:
        """Whether none of the hosts exists."""
        failures = dict(self._failures)
        return len(failures) == len(self._hosts) and all(
            code in _NEVER for code in failures.values()
        )

    def _look(self, host: str) -> None:
        try:
            sockets.getaddrinfo(host, None)
        except OSError as error:
            self._failures[host] = error.errno
            self._on_failure()


# Which peers receive records packed, and which one by one.
#
# Our nodes subscribe to both forms of a record, RECORD and its packed extension, since a producer
# may be ours or a C node.  Our producers must not send them both: the XPUB socket's manual mode
# (ZeroMQ's XPUB_MANUAL) lets a node decide what each peer's subscription means, and a peer that
# subscribes to the packed form is sent no single records.


MAX_NAMES: Final = 100_000
"""Requestors known to take packed answers, and topics subscribed to.  Peers choose the names;
beyond the limit they are not counted, and those requestors are answered one by one."""


class Subscribers:
    """Applies the subscriptions that an XPUB socket in manual mode tells of."""

    def __init__(self, pub: zmq.Socket[bytes], *, pack: bool = True) -> None:
        self._pub = pub
        self._pack = pack
        self._single: Counter[str] = Counter()  # subscriptions to RECORD, by topic
        self._packed: Counter[str] = Counter()  # subscriptions to its packed form
        self._requestors: Counter[str] = Counter()  # connections that take packed answers
        self._epoch_ackers: Counter[str] = Counter()  # partitions whose producers know epochs
        self._layouts: dict[str, list[bool]] = {}  # of one topic, until a subscription changes it

    def apply(self, frame: bytes) -> None:
        """Takes a subscription, right after it was received: ZeroMQ applies it to its sender."""
        subscribed, kind, topic = parse_subscription(frame)
        if not subscribed:
            if frame[:1] == b"\x00":
                self._pub.set(zmq.UNSUBSCRIBE, frame[1:])
                if kind is DirectRecordBatch:
                    self._forget(self._requestors, topic)
                elif kind is EpochAck:
                    self._forget(self._epoch_ackers, topic)
            return
        self._pub.set(zmq.SUBSCRIBE, frame[1:])
        if kind is RecordMessage:
            self._count(self._single, topic)
        # A SUB socket sends its subscriptions in the order of their octets, and the packed forms
        # come after the single ones.
        elif kind is RecordBatchMessage and self._pack:
            self._pub.set(zmq.UNSUBSCRIBE, subscription(RecordMessage) + frame[2:])
            self._count(self._packed, topic)
        elif kind is EpochAck and self._has_room(self._epoch_ackers, topic):
            self._epoch_ackers[topic] += 1
        elif kind is Ack and self._epoch_ackers[topic] > 0:
            # Its other subscription came before this one, and says more.
            self._pub.set(zmq.UNSUBSCRIBE, frame[1:])
        elif kind is DirectRecordBatch and self._pack and self._has_room(self._requestors, topic):
            self._pub.set(zmq.UNSUBSCRIBE, subscription(DirectRecord) + frame[2:])
            self._requestors[topic] += 1

    def layouts(self, topic: str, requestor: str) -> list[bool]:
        """How to send records: packed (True), one by one (False), both, or not at all."""
        if requestor:
            return [requestor in self._requestors]
        layouts = self._layouts.get(topic)
        if layouts is None:
            packed = _matching(self._packed, topic)
            # ZeroMQ does not tell of every subscription that ends, so the counts may be too high:
            # records are sent in a form too many then, which costs only time.
            single = _matching(self._single, topic) - packed
            layouts = [form for form, count in ((True, packed), (False, single)) if count > 0]
            self._layouts = {topic: layouts}
        return layouts

    def _count(self, subscriptions: Counter[str], topic: str) -> None:
        if self._has_room(subscriptions, topic):
            subscriptions[topic] += 1
            self._layouts = {}

    @staticmethod
    def _forget(names: Counter[str], name: str) -> None:
        names[name] -= 1
        if names[name] <= 0:
            del names[name]

    @staticmethod
    def _has_room(names: Counter[str], name: str) -> bool:
        return name in names or len(names) < MAX_NAMES


def _matching(subscriptions: Counter[str], topic: str) -> int:
    return sum(count for prefix, count in subscriptions.items() if topic.startswith(prefix))


LINGER_MS: Final = 200
"""How long a node that ends waits until its last messages have left."""

T = TypeVar("T")


class Mesh(ProcessBound):
    """A node of the mesh: connects to the peers that it needs, and runs ``role``.

    Args:
        kind: the node's kind, one of ``KINDS``.
        tell_peers_apart: receive from each peer through a socket of its own, so that the role
            is told who sent a message.  RFC 46's ACK does not say it.
    """

    def __init__(
        self, kind: str, role: Role, config: NodeOptions, *, tell_peers_apart: bool = False
    ) -> None:
        self.kind = kind
        self.role = role
        self.failure: BaseException | None = None
        """What ended the loop, if it was an error."""
        self._config = config
        self._towers = [str(tower) for tower in config.tower]
        self._on_round: Callable[[float], bool] = lambda now: False
        self._calls: deque[Callable[[float], object]] = deque()
        self._round_ended = InterruptibleCondition()
        self._stopping = False
        self._decoder = BulkDecoder()
        self.traffic = MeshTraffic(f"{kind} {role.address}", self._decoder)
        """What has come and gone, in numbers."""
        self._context = zmq.Context()
        self._context.set(zmq.MAX_SOCKETS, MOST_SOCKETS)
        # Not a pair of ZeroMQ's: with a high-water mark of 1 it refuses to send for up to a
        # millisecond after its peer has received, and a lost wake costs a whole second.
        self._waker, self._wakened = sockets.socketpair()
        make_room_for_node(self._wakened.fileno())
        self._waker.setblocking(False)
        self._wakened.setblocking(False)
        # Only subscriptions come in by it.
        self._pub = new_socket(self._context, zmq.XPUB, MAX_HEADER_BYTES, config.high_water_mark)
        self._quotas = ConnectionQuotas(
            config.max_subscribed_bytes,
            self._key_name,
            encrypted=bool(config.secret_key_file),
            option="max_subscribed_bytes",
        )
        self.beacon = self._bind()
        """Where peers reach the node."""
        self._subscribers = Subscribers(self._pub)
        self._poller = zmq.Poller()
        self._poller.register(self._wakened.fileno(), zmq.POLLIN)
        self._poller.register(self._pub, zmq.POLLIN)
        if self.security.own is not None:
            self._poller.register(self.security.zap, zmq.POLLIN)
        self.limits = RecordLimits()
        """The largest records that peers take."""
        own_limit = announcement(kind, role.address, max_taken_bytes(config.max_record_bytes))
        self.peers = Peers(
            self.beacon,
            [own_limit, *role.subscriptions()],
            config,
            self._context,
            self._poller,
            tell_peers_apart,
            self.security,
            self._quotas,
        )
        """Used by the loop's thread only, once it has started."""
        self._thread = NodeThread(f"dafka-{kind}", self._run)

    @property
    def invalid_count(self) -> int:
        """How many invalid messages and beacons have come; they were dropped."""
        return sum(self.traffic.refused(self.peers).values())

    # -- called by the application's threads ----------------------------------------------------

    def start(self, on_round: Callable[[float], bool]) -> None:
        """Starts the loop, and waits for a tower.  If that fails, the node is closed.

        The loop calls ``on_round(now)`` at the end of each round, to do the node's own work; it
        returns whether there is more to do at once.  The loop does not keep the node alive.

        Raises:
            TowerNotFoundError: none answered within ``tower_timeout_s``, and ``wait_for_tower``
                is not set.
        """
        self.attend(weakly(on_round, False))
        try:
            self._thread.start()
            self._wait_for_tower()
        except BaseException:
            self.close()
            raise

    def _wait_for_tower(self) -> None:
        if self._config.wait_for_tower:
            self.wait_until(lambda: self.peers.tower_found, None)
            return
        began_s, timeout_s = time.monotonic(), self._config.tower_timeout_s
        names = HostLookup((tower.host for tower in self._config.tower), self._round_ended.notify)
        self.wait_until(lambda: self.peers.tower_found or names.in_vain, timeout_s)
        if not self.peers.tower_found:
            waited_s, refusals = timeout_s, [*self.peers.towers.refusals.items()]
            if names.in_vain:
                waited_s = min(round(time.monotonic() - began_s, 1), timeout_s)
            why = "; ".join(map("tower {0[0]} does not let this node in: {0[1]}".format, refusals))
            raise TowerNotFoundError(self._towers, waited_s, names.unknown, diagnosis=why)

    def attend(self, on_round: Callable[[float], bool]) -> None:
        """Has the loop call another function at the end of each round, and keep it alive."""
        self._on_round = on_round

    def call_soon(self, function: Callable[[float], object]) -> None:
        """Has the loop call ``function(now)``."""
        self.check()
        self._calls.append(function)
        self.wake()

    def call(self, function: Callable[[float], T]) -> T:
        """Has the loop call ``function(now)``; waits for it, and returns what it has returned."""
        results: list[T] = []
        self.call_soon(lambda now: results.append(function(now)))
        self.wait_until(lambda: bool(results), None)
        return results[0]

    def wait_until(self, condition: Callable[[], T], timeout_s: float | None) -> T:
        """Waits until rounds of the loop have made ``condition()`` true, or the time is over.

        Returns what ``condition`` has returned last.

        Raises:
            NodeFailedError: an error has ended the loop.
            ClosedError: the node was closed.
        """
        return self._round_ended.wait_until(self._or_ended(condition), timeout_s)

    async def wait_until_async(self, condition: Callable[[], T]) -> T:
        """The same in an event loop, and without a limit."""
        return await self._round_ended.wait_until_async(self._or_ended(condition))

    def _or_ended(self, condition: Callable[[], T]) -> Callable[[], T]:
        def look() -> T:
            found = condition()
            if not found:
                self.check()
            return found

        return look

    def query(
        self,
        directory: StoreDirectory,
        ask: Callable[[float], tuple[StoreQuery, list[Outgoing]]],
        timeout_s: float,
    ) -> StoreQuery:
        """Has the loop ``ask(now)`` a question of the directory's, and waits for the answers.

        It waits longer while there may be stores that are far away: see ``ExpectedStores``.

        Raises:
            NoStoreError: no store has answered within ``timeout_s`` seconds.
        """

        def send(now: float) -> StoreQuery:
            query, messages = ask(now)
            self.send(messages)
            return query

        query = self.call(send)
        answered = self.wait_until(lambda: query.answered, timeout_s)
        if not answered and directory.waits_for_others(query):
            self.wait_until(
                lambda: query.answered or not directory.waits_for_others(query),
                timing.MAX_STORE_TIMEOUT_S,
            )
            answered = query.answered
        self.call_soon(lambda now: directory.forget(query))
        if not answered:
            unmet = self.peers.inbound.unmet(directory.stores)
            raise NoStoreError(self._towers, timeout_s, unmet, self.peers.inbound.endpoint)
        return query

    def wake(self) -> None:
        """Has the loop begin a round, if it waits."""
        # When the socket is full, it holds a wake already; closed, the loop has ended.
        with contextlib.suppress(OSError):
            self._waker.send(b"\0")

    def check(self) -> None:
        """Raises NodeFailedError or ClosedError if the loop does not run any more."""
        if self.failure is not None:
            why = f"{type(self.failure).__name__}: {self.failure}"
            raise NodeFailedError(self.kind, why) from self.failure
        if self._stopping:
            raise ClosedError(self.kind)

    def join(self, timeout_s: float | None) -> bool:
        """Waits for the loop to end; True if it has."""
        return self._thread.join(timeout_s)

    def close(self) -> None:
        """Ends the loop and closes the sockets; may be called twice."""
        self._stopping = True
        if self._thread.started:
            self.wake()
            self._thread.join()
        else:
            self._close_sockets()

    # -- called by the loop's thread only --------------------------------------------------------

    def send(self, messages: list[Outgoing]) -> None:
        """Publishes messages."""
        for message in messages:
            if isinstance(message, EpochAck):  # a peer takes one of the two
                self._pub.send_multipart(encode(message.plain, self._config.wire))
            for part in self.limits.kept(message):
                if isinstance(part, OutgoingBatch):
                    self._send_records(part)
                elif (answer := self.security.shown(part)) is not None:
                    self.traffic.add_sent_message(answer)
                    self._pub.send_multipart(encode(answer, self._config.wire))

    def _send_records(self, message: OutgoingBatch) -> None:
        layouts = self._subscribers.layouts(message.batch.topic, message.requestor)
        if layouts:
            self.traffic.add_sent(message)
        for packed in layouts:
            if packed:
                send_packed(self._pub, message)
            else:
                send_one_by_one(self._pub, message, self._config.wire)

    def has_subscriber(self, topic: str) -> bool:
        """Whether any peer receives the topic's records."""
        return bool(self._subscribers.layouts(topic, ""))

    def set_receiving(self, receiving: bool) -> None:
        """Says whether to receive from peers."""
        self.peers.set_receiving(receiving)

    def _bind(self) -> NodeBeacon:
        drop_stalled_peers(self._pub)
        self._pub.set(zmq.XPUB_VERBOSE, 1)  # each peer's subscriptions are told of
        self._pub.set(zmq.XPUB_MANUAL, 1)  # and are for ``Subscribers`` to apply
        self._pub.set(zmq.LINGER, LINGER_MS)  # an ACK sent last would be lost otherwise
        try:
            self.security = Security(self._config, self._context)
            self.security.check_address(self.role.address)
            self.security.serve(self._pub)
            self._quotas.watch(self._context, self._pub)
            host, port = bound(self._pub, self._config)
        except BaseException:
            self._close_sockets()
            raise
        kind = self.kind[0].upper() if self._config.connect_to == NEEDED_NODES else ""
        return NodeBeacon(self.role.address, host, port, kind)

    def _key_name(self, descriptor: int) -> str:
        return self.security.key_name(descriptor)

    def _close_sockets(self) -> None:
        self._quotas.close()
        self._context.destroy()
        self._waker.close()
        self._wakened.close()

    def _run(self) -> None:
        try:
            more = False
            while not self._stopping:
                more = self._round(more)
                self._round_ended.notify()
            # What was called for before the end still goes out.
            self._run_calls(time.monotonic())
        except BaseException as error:  # noqa: BLE001 -- the application is told of every error
            self.failure = error
        finally:
            self._close_sockets()
            self.attend(lambda now: False)  # the node may be collected without the loop
            self._round_ended.notify()

    def _round(self, more: bool) -> bool:
        ready = dict(self._poller.poll(0 if more else self._timeout_ms(time.monotonic())))
        now = time.monotonic()
        self._quotas.rounds += 1
        if self._wakened.fileno() in ready:
            self._wakened.recv(4_096)  # all wakes, an octet each
        self.security.attend(now)
        self._run_calls(now)
        if self._pub in ready:
            self._receive_subscriptions(now)
        for endpoint, socket, node, sender in self.peers.ready(ready):
            size_bytes = self._receive_messages(now, socket, node, sender)
            self.peers.on_received(now, endpoint, node, size_bytes)
        # Peers are never disconnected between poll and recv: poll takes a message's first frame
        # from the queue, a disconnect drops the others, and recv then aborts the process (a
        # defect of libzmq).
        self.peers.receive_beacons(now, ready)
        self.peers.connect(now, ready)
        for news in self.peers.take_news():
            self.role.on_peer(now, news)
        for node in self.peers.send_beacon(now):
            self.role.on_peer_lost(node)
        self.send(self.role.on_tick(now))
        self.traffic.look(now, self.peers)
        return self._on_round(now)

    def _timeout_ms(self, now: float) -> int:
        deadline = self.role.deadline(now)
        due = self.security.due(self.peers.due)
        due = due if deadline is None else min(deadline, due)
        return max(0, int((due - now) * 1000) + 1)

    def _run_calls(self, now: float) -> None:
        for _ in range(len(self._calls)):
            self._calls.popleft()(now)

    def _receive_messages(
        self, now: float, socket: zmq.Socket[bytes], peer: str, sender: Permissions
    ) -> int:
        others, size_bytes = receive_burst(socket, self._decoder, self._quotas)
        for requestor, batch in self._decoder.take():
            if self.traffic.admits_records(sender, batch):
                self.send(self.role.on_batch(now, requestor, batch))
        for frames in others:
            message = self.traffic.admitted(sender, frames)
            if message is None:
                continue
            if isinstance(message, RecordMessage | DirectRecord):
                batches = iter([RecordBatch.of(message.tp, message.sequence, [message.value])])
            elif isinstance(message, DirectRecordBatches):
                batches = message.batches()
            else:
                self.traffic.received[type(message).__name__] += 1
                self.send(self.role.on_message(now, message, peer))
                continue
            for batch in batches:
                self.traffic.add_received(batch)
                self.send(self.role.on_batch(now, message.requestor, batch))
        return size_bytes

    def _receive_subscriptions(self, now: float) -> None:
        for frame, descriptor in received_subscriptions(self._pub, self.security, self._quotas):
            self._subscribers.apply(frame)
            introduced = self.limits.apply(frame)
            if introduced is not None:
                news = PeerNews(introduced.node, is_store=introduced.is_store)
                self.role.on_peer(now, news)
            subscribed, kind, topic = parse_subscription(frame)
            self.peers.inbound.note(topic)
            if kind is DirectRecord:  # each node has them sent to its own address
                self.peers.room.note_inbound(descriptor, topic)
            self.peers.neighbours.apply(frame, descriptor, introduced, kind, topic)
            if subscribed and kind is not None:
                self.send(self.role.on_subscribed(now, kind, topic))
        self.limits.refresh()
