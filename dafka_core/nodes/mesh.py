"""The sockets of a node and the thread that runs its role.

One thread, the loop, owns every socket and runs the role.  Applications' threads touch no socket;
they pass functions for the loop to call.
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

# Counters of the messages that a node receives and sends, and of the frames that it refuses.
#
# The loop's thread counts, other threads read.


SAY_AGAIN_S: Final = 60.0
"""Time before the same reason is logged again: a peer may send thousands of frames per second."""

FORBIDDEN: Final = "forbidden"

REASONS: Final = ("message", "records", "beacon", "tower", FORBIDDEN)
"""Reasons for refusing frames: invalid message, invalid records, invalid beacon or one with an
unusable endpoint, invalid announcement of a tower, not allowed by the sender's key."""

_CAUSES: Final = {FORBIDDEN: "a key allows only what its file says (docs/security.md)"}
_NO_PROTOCOL: Final = (
    "who sends them speaks no protocol of ours, or is of a version that this one does not know"
)

LOOK_S: Final = 1.0
"""Interval at which the loop checks for refusals to log."""

_log = logging.getLogger("dafka.mesh")


class RefusedFrames:
    """The log of a node's refused frames.

    Args:
        node: the node's name in the log.
    """

    def __init__(self, node: str) -> None:
        self._node = node
        self._due = 0.0
        self._said: dict[str, tuple[float, int]] = {}
        self._last: dict[str, str] = {}

    def note(self, reason: str, why: str) -> None:
        """Note why the last frame was refused, for the next report."""
        self._last[reason] = why

    def is_due(self, now: float) -> bool:
        """Return True if ``report`` should be called."""
        return now >= self._due

    def report(self, now: float, counts: Mapping[str, int]) -> None:
        """Log the number of frames refused since the last report, by reason."""
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
    """Counters of messages and records; not by topic, because peers could create too many.

    Args:
        node: the node's name in the log.
        decoder: counts invalid records.

    Attributes:
        records_received, bytes_received: records of peers and their contents, as received,
            including duplicates and records that the node did not want.
        received: messages without records, by the name of their type.
        live_records, live_bytes: published to peers that follow the topic; each counts once,
            for any number of peers.
        direct_records, direct_bytes: sent again to one peer that requested them.
        invalid_count, forbidden_count: invalid messages, except records; and messages that keys
            do not allow.
        sent: messages by the name of their type, except those that consist of records only.
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
        """Count received records."""
        self.records_received += batch.count
        self.bytes_received += batch.values.size_bytes

    def add_sent(self, message: OutgoingBatch) -> None:
        """Count sent records."""
        batch = message.batch
        if message.requestor:
            self.direct_records += batch.count
            self.direct_bytes += batch.values.size_bytes
        else:
            self.live_records += batch.count
            self.live_bytes += batch.values.size_bytes

    def add_sent_message(self, message: Message) -> None:
        """Count another message; the answer to a FETCH-BATCH contains records, too."""
        self.sent[type(message).__name__] += 1
        if isinstance(message, DirectRecordBatches):
            self.direct_records += sum(each.end - each.earliest for each in message.entries)
            self.direct_bytes += len(message.value)

    def admits_records(self, sender: Permissions, batch: RecordBatch) -> bool:
        """Count received records; return True if their sender may write them."""
        if not may_write(sender, batch.tp):
            self._forbid(records_refusal(sender, batch.tp))
            return False
        self.add_received(batch)
        return True

    def admitted(self, sender: Permissions, frames: list[bytes]) -> Message | None:
        """Return the decoded message; None if it is invalid or the sender may not send it."""
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
        """Return the number of refused frames, by reason."""
        counts = (
            *(self.invalid_count, self._decoder.invalid_count),
            *(peers.invalid_count, peers.towers.invalid_count),
            self.forbidden_count + peers.security.refused_beacons,
        )
        return dict(zip(REASONS, counts, strict=True))

    def look(self, now: float, peers: Peers) -> None:
        """Log the refused frames if a report is due."""
        if self._refused.is_due(now):
            if peers.security.refused_node:
                self._refused.note(FORBIDDEN, peers.security.refused_node)
                peers.security.refused_node = ""
            self._refused.report(now, self.refused(peers))


_NEVER: Final = (sockets.EAI_NONAME, sockets.EAI_NODATA)
"""The name does not exist; other failures may be temporary."""


class HostLookup:
    """Lookups of host names in background threads: they may take long, and no signal ends them.

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
        """Return the names that are known by now not to resolve."""
        return sorted(self._failures)

    @property
    def in_vain(self) -> bool:
        """Return True if none of the hosts exists."""
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


# The form in which each peer receives records: packed, or one by one.
#
# Our nodes subscribe to both forms of a record, RECORD and its packed extension, because a producer
# may be ours or a C node.  Our producers must not send both: the XPUB socket's manual mode
# (ZeroMQ's XPUB_MANUAL) lets a node decide what each peer's subscription means, and a peer that
# subscribes to the packed form receives no single records.


MAX_NAMES: Final = 100_000
"""Limit on the requestors known to accept packed answers, and on subscribed topics: peers choose
the names.  Further names are not counted, and such requestors are answered one by one."""


class Subscribers:
    """The subscriptions that an XPUB socket in manual mode reports."""

    def __init__(self, pub: zmq.Socket[bytes], *, pack: bool = True) -> None:
        self._pub = pub
        self._pack = pack
        self._single: Counter[str] = Counter()  # subscriptions to RECORD, by topic
        self._packed: Counter[str] = Counter()  # subscriptions to its packed form
        self._requestors: Counter[str] = Counter()  # connections that accept packed answers
        self._epoch_ackers: Counter[str] = Counter()  # partitions with producers that know epochs
        self._layouts: dict[str, list[bool]] = {}  # of one topic, until a subscription changes them

    def apply(self, frame: bytes) -> None:
        """Apply a subscription right after it was received: ZeroMQ applies it to its sender."""
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
        # A SUB socket sends its subscriptions in the order of their bytes, and the packed forms
        # come after the single ones.
        elif kind is RecordBatchMessage and self._pack:
            self._pub.set(zmq.UNSUBSCRIBE, subscription(RecordMessage) + frame[2:])
            self._count(self._packed, topic)
        elif kind is EpochAck and self._has_room(self._epoch_ackers, topic):
            self._epoch_ackers[topic] += 1
        elif kind is Ack and self._epoch_ackers[topic] > 0:
            # The peer's earlier subscription, to EpochAck, contains more.
            self._pub.set(zmq.UNSUBSCRIBE, frame[1:])
        elif kind is DirectRecordBatch and self._pack and self._has_room(self._requestors, topic):
            self._pub.set(zmq.UNSUBSCRIBE, subscription(DirectRecord) + frame[2:])
            self._requestors[topic] += 1

    def layouts(self, topic: str, requestor: str) -> list[bool]:
        """Return the forms to send records in: packed (True), one by one (False), both or none."""
        if requestor:
            return [requestor in self._requestors]
        layouts = self._layouts.get(topic)
        if layouts is None:
            packed = _matching(self._packed, topic)
            # ZeroMQ does not report the end of every subscription, so the counts may be too high:
            # records are then sent in an unneeded form as well, which costs only time.
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
"""Time for the last messages to leave when a node ends."""

T = TypeVar("T")


class Mesh(ProcessBound):
    """A node of the mesh, which connects to the peers that it needs and runs ``role``.

    Args:
        kind: the node's kind, one of ``KINDS``.
        tell_peers_apart: receive from each peer through its own socket, so that the role knows
            the sender of a message.  RFC 46's ACK does not contain it.
    """

    def __init__(
        self, kind: str, role: Role, config: NodeOptions, *, tell_peers_apart: bool = False
    ) -> None:
        self.kind = kind
        self.role = role
        self.failure: BaseException | None = None
        """The error that ended the loop, if any."""
        self._config = config
        self._towers = [str(tower) for tower in config.tower]
        self._on_round: Callable[[float], bool] = lambda now: False
        self._calls: deque[Callable[[float], object]] = deque()
        self._round_ended = InterruptibleCondition()
        self._stopping = False
        self._decoder = BulkDecoder()
        self.traffic = MeshTraffic(f"{kind} {role.address}", self._decoder)
        """Counters of received and sent messages."""
        self._context = zmq.Context()
        self._context.set(zmq.MAX_SOCKETS, MOST_SOCKETS)
        # Not a pair of ZeroMQ sockets: with a high-water mark of 1, one refuses to send for up to a
        # millisecond after its peer has received, and a lost wake costs a whole second.
        self._waker, self._wakened = sockets.socketpair()
        make_room_for_node(self._wakened.fileno())
        self._waker.setblocking(False)
        self._wakened.setblocking(False)
        # It receives subscriptions only.
        self._pub = new_socket(self._context, zmq.XPUB, MAX_HEADER_BYTES, config.high_water_mark)
        self._quotas = ConnectionQuotas(
            config.max_subscribed_bytes,
            self._key_name,
            encrypted=bool(config.secret_key_file),
            option="max_subscribed_bytes",
        )
        self.beacon = self._bind()
        """The address at which peers reach the node."""
        self._subscribers = Subscribers(self._pub)
        self._poller = zmq.Poller()
        self._poller.register(self._wakened.fileno(), zmq.POLLIN)
        self._poller.register(self._pub, zmq.POLLIN)
        if self.security.own is not None:
            self._poller.register(self.security.zap, zmq.POLLIN)
        self.limits = RecordLimits()
        """The largest records that peers accept."""
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
        """Return the number of invalid or forbidden messages and beacons, which were dropped."""
        return sum(self.traffic.refused(self.peers).values())

    # -- called by the application's threads ----------------------------------------------------

    def start(self, on_round: Callable[[float], bool]) -> None:
        """Start the loop, and wait for a tower.  If that fails, close the node.

        The loop calls ``on_round(now)`` at the end of each round, to do the node's own work; it
        returns True if the next round should start at once.  The loop does not keep the node alive.

        Raises:
            TowerNotFoundError: no tower answered within ``tower_timeout_s``, and
                ``wait_for_tower`` is not set.
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
        """Set the function that the loop calls at the end of each round, and keep it alive."""
        self._on_round = on_round

    def call_soon(self, function: Callable[[float], object]) -> None:
        """Make the loop call ``function(now)``."""
        self.check()
        self._calls.append(function)
        self.wake()

    def call(self, function: Callable[[float], T]) -> T:
        """Make the loop call ``function(now)``; wait for its result and return it."""
        results: list[T] = []
        self.call_soon(lambda now: results.append(function(now)))
        self.wait_until(lambda: bool(results), None)
        return results[0]

    def wait_until(self, condition: Callable[[], T], timeout_s: float | None) -> T:
        """Wait until rounds of the loop have made ``condition()`` true, or until the timeout.

        Returns the last result of ``condition``.

        Raises:
            NodeFailedError: an error has ended the loop.
            ClosedError: the node was closed.
        """
        return self._round_ended.wait_until(self._or_ended(condition), timeout_s)

    async def wait_until_async(self, condition: Callable[[], T]) -> T:
        """Wait like ``wait_until``, but in an event loop and without a timeout."""
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
        """Make the loop ``ask(now)`` a question of the directory, and wait for the answers.

        Waits longer if only distant stores are missing: see ``StoreDirectory.waits_for_others``.

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
        """Start a round of the loop if it is waiting."""
        # A full socket already contains a wake; if it is closed, the loop has ended.
        with contextlib.suppress(OSError):
            self._waker.send(b"\0")

    def check(self) -> None:
        """Raise NodeFailedError or ClosedError if the loop no longer runs."""
        if self.failure is not None:
            why = f"{type(self.failure).__name__}: {self.failure}"
            raise NodeFailedError(self.kind, why) from self.failure
        if self._stopping:
            raise ClosedError(self.kind)

    def join(self, timeout_s: float | None) -> bool:
        """Wait for the loop to end; return True if it has."""
        return self._thread.join(timeout_s)

    def close(self) -> None:
        """End the loop and close the sockets; may be called twice."""
        self._stopping = True
        if self._thread.started:
            self.wake()
            self._thread.join()
        else:
            self._close_sockets()

    # -- called by the loop's thread only --------------------------------------------------------

    def send(self, messages: list[Outgoing]) -> None:
        """Publish messages."""
        for message in messages:
            if isinstance(message, EpochAck):  # a peer subscribes to one of the two
                self._pub.send_multipart(encode(message.plain, self._config.wire))
            for part in self.limits.kept(message):
                if isinstance(part, OutgoingBatch):
                    self._send_records(part)
                elif (answer := self.security.shown(part)) is not None:
                    self.traffic.add_sent_message(answer)
                    self._pub.send_multipart(encode(answer, self._config.wire))

    def _send_records(self, message: OutgoingBatch) -> None:
        layouts = self._subscribers.layouts(message.batch.tp.topic, message.requestor)
        if layouts:
            self.traffic.add_sent(message)
        for packed in layouts:
            if packed:
                send_packed(self._pub, message)
            else:
                send_one_by_one(self._pub, message, self._config.wire)

    def has_subscriber(self, topic: str) -> bool:
        """Return True if any peer receives the topic's records."""
        return bool(self._subscribers.layouts(topic, ""))

    def set_receiving(self, receiving: bool) -> None:
        """Set whether to receive from peers."""
        self.peers.set_receiving(receiving)

    def _bind(self) -> NodeBeacon:
        drop_stalled_peers(self._pub)
        self._pub.set(zmq.XPUB_VERBOSE, 1)  # report each peer's subscriptions,
        self._pub.set(zmq.XPUB_MANUAL, 1)  # for ``Subscribers`` to apply
        self._pub.set(zmq.LINGER, LINGER_MS)  # the last ACK would be lost otherwise
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
            # Calls requested before the end still run, and their messages are sent.
            self._run_calls(time.monotonic())
        except BaseException as error:  # noqa: BLE001 -- every error is reported to the application
            self.failure = error
        finally:
            self._close_sockets()
            self.attend(lambda now: False)  # so that the loop does not keep the node alive
            self._round_ended.notify()

    def _round(self, more: bool) -> bool:
        ready = dict(self._poller.poll(0 if more else self._timeout_ms(time.monotonic())))
        now = time.monotonic()
        self._quotas.rounds += 1
        if self._wakened.fileno() in ready:
            self._wakened.recv(4_096)  # all wakes, a byte each
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
            if kind is DirectRecord:  # each node subscribes to those for its own address
                self.peers.room.note_inbound(descriptor, topic)
            self.peers.neighbours.apply(descriptor, introduced, kind, topic, subscribed=subscribed)
            if subscribed and kind is not None:
                self.send(self.role.on_subscribed(now, kind, topic))
        self.limits.refresh()
