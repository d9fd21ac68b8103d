"""The sockets of a node and the thread that runs its role.

One thread, the loop, owns every socket and runs the role.  Applications' threads touch no socket;
they pass functions for the loop to call.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable
from socket import socketpair
from typing import Final, TypeVar

import zmq
from zmq import SyncSocket as Socket

from dafka_core.config.node_options import NEEDED_NODES, NodeOptions, ProducerOptions
from dafka_core.errors import (
    ClosedError,
    DafkaError,
    ForkedError,
    NodeFailedError,
    NoStoreError,
    TowerNotFoundError,
)
from dafka_core.model.records import RecordBatch
from dafka_core.nodes import sockets
from dafka_core.nodes.addresses import bound, unresolved_hosts
from dafka_core.nodes.connection_quotas import ConnectionQuotas
from dafka_core.nodes.node import InterruptibleCondition, NodeThread, weakly
from dafka_core.nodes.peers import Peers
from dafka_core.nodes.security import Security
from dafka_core.protocol import timing
from dafka_core.protocol.beacons import NodeBeacon
from dafka_core.protocol.codec import BulkDecoder, encode
from dafka_core.protocol.limits import MAX_HEADER_BYTES, max_taken_bytes
from dafka_core.protocol.messages import DirectRecord, DirectRecordBatches, EpochAck, RecordMessage
from dafka_core.protocol.record_limits import RecordLimits, announcement
from dafka_core.protocol.role import Outgoing, OutgoingBatch, PeerNews, Role
from dafka_core.protocol.store_directory import Query, Question, StoreDirectory
from dafka_core.security.permissions import Permissions
from dafka_core.system.closing import ProcessBound, check_process
from dafka_core.system.files import raise_open_files_limit

LINGER_MS: Final = 200  # time for the last messages to leave when a node ends

T = TypeVar("T")


class Mesh(ProcessBound):
    """A node of the mesh, which connects to the peers that it needs and runs ``role``.

    With ``socket_per_peer`` it receives from each peer through its own socket, so that the role
    knows the sender of a message.  RFC 46's ACK does not contain it.
    """

    def __init__(
        self, kind: str, role: Role, config: NodeOptions, *, socket_per_peer: bool = False
    ) -> None:
        self.kind = kind
        self.role = role
        self.failure: BaseException | None = None  # the error that ended the loop
        self.limits = RecordLimits()  # the largest records that peers accept
        self._config = config
        self._towers = [str(tower) for tower in config.tower]
        self._on_round: Callable[[float], bool] = lambda now: False
        self._calls: deque[Callable[[float], object]] = deque()
        self._round_ended = InterruptibleCondition()
        self._stopping = False
        self._decoder = BulkDecoder()
        self.traffic = sockets.MeshTraffic(f"{kind} {role.address}")
        raise_open_files_limit()
        with contextlib.ExitStack() as made:
            # Not a pair of ZeroMQ sockets: with a high-water mark of 1, one refuses to send for up
            # to a millisecond after its peer has received, and a lost wake costs a whole second.
            self._waker, self._wakened = socketpair()
            for each in (self._waker, self._wakened):
                made.enter_context(each).setblocking(False)
            self._context = zmq.Context()
            made.push(sockets.destroyed_at_end(self._context))
            self._context.set(zmq.MAX_SOCKETS, sockets.MOST_SOCKETS)
            self.security = Security(config, self._context)
            self.security.check_address(role.address)
            self.quotas = ConnectionQuotas(
                config.max_subscribed_bytes,
                encrypted=bool(config.secret_key_file),
                option="max_subscribed_bytes",
            )
            made.callback(self.quotas.close)
            self._pub = self._new_pub()
            host, port = bound(self._pub, config)
            letter = kind[0].upper() if config.connect_to == NEEDED_NODES else ""
            self.beacon = NodeBeacon(role.address, host, port, letter)
            self._subscribers = sockets.Subscribers(self._pub)
            self._poller = zmq.Poller()
            self._poller.register(self._wakened.fileno(), zmq.POLLIN)
            self._poller.register(self._pub, zmq.POLLIN)
            if self.security.own is not None:
                self._poller.register(self.security.zap, zmq.POLLIN)
            # Used by the loop's thread only, once it has started.
            self.peers = Peers(
                self.beacon,
                config,
                self._context,
                self._poller,
                socket_per_peer,
                self.security,
                self.quotas,
                self.traffic,
            )
            limit_bytes = max_taken_bytes(config.max_record_bytes)
            client = config.client if isinstance(config, ProducerOptions) else ""
            introduction = announcement(kind, role.address, limit_bytes, client)
            self.peers.subscribe([introduction, *role.subscriptions()])
            self._thread = NodeThread(f"dafka-{kind}", self._run)
            self._resources = made.pop_all()

    def _new_pub(self) -> Socket:
        """Return the socket for publishing, which receives subscriptions only."""
        most = self._config.high_water_mark
        pub = sockets.new_socket(self._context, zmq.XPUB, MAX_HEADER_BYTES, most)
        pub.set(zmq.TCP_MAXRT, sockets.STALLED_MS)
        pub.set(zmq.XPUB_VERBOSE, 1)  # report each peer's subscriptions,
        pub.set(zmq.XPUB_MANUAL, 1)  # for ``Subscribers`` to apply
        pub.set(zmq.LINGER, LINGER_MS)  # the last ACK would be lost otherwise
        self.security.require_keys(pub)
        self.quotas.watch(self._context, pub)
        return pub

    # -- called by the application's threads ----------------------------------------------------

    def start(self, on_round: Callable[[float], bool]) -> None:
        """Start the loop, and wait for a tower.  If that fails, close the node.

        The loop calls ``on_round(now)`` at the end of each round, to do the node's own work; it
        returns True if the next round should start at once.  The loop does not keep the node alive.

        Raises TowerNotFoundError if none answers within ``tower_timeout_s``, unless
        ``wait_for_tower`` is set.
        """
        self._on_round = weakly(on_round, False)
        try:
            self._thread.start()
            self._wait_for_tower()
        except BaseException:
            self.close()
            raise

    def _wait_for_tower(self) -> None:
        timeout_s = self._config.tower_timeout_s
        waits_s = None if self._config.wait_for_tower else timeout_s
        if self.wait_until(lambda: self.peers.tower_found, waits_s):
            return
        unresolved = unresolved_hosts(each.host for each in self._config.tower)
        refusals = self.peers.towers.refusals.items()
        why = "; ".join(map("tower {0[0]} does not let this node in: {0[1]}".format, refusals))
        raise TowerNotFoundError(self._towers, timeout_s, unresolved, diagnosis=why)

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

        Returns the last result of ``condition``.  Raises NodeFailedError if an error has ended the
        loop, and ClosedError if the node was closed.
        """
        return self._round_ended.wait_until(self._or_ended(condition), timeout_s)

    async def wait_until_async(self, condition: Callable[[], T]) -> T:
        """Wait like ``wait_until``, but in an event loop and without a timeout."""
        return await self._round_ended.wait_until_async(self._or_ended(condition))

    def _or_ended(self, condition: Callable[[], T]) -> Callable[[], T]:
        def check_found() -> T:
            found = condition()
            if not found:
                self.check()
            return found

        return check_found

    def query(
        self,
        directory: StoreDirectory,
        timeout_s: float,
        kind: Callable[..., Query],
        *content: object,
    ) -> Question:
        """Ask the stores a question by the directory, and wait for the answers.

        Waits longer if only distant stores are missing: see ``StoreDirectory.waits_for_others``.
        Raises NoStoreError if none has answered within ``timeout_s`` seconds.
        """
        asked: list[Question] = []

        def send(now: float) -> None:
            question, messages = directory.ask(now, kind, *content)
            asked.append(question)
            self.send(messages)

        def forget(now: float) -> None:
            for question in asked:
                directory.forget(question)

        try:
            self.call(send)
            (question,) = asked
            answered = self.wait_until(lambda: question.answered, timeout_s)
            if not answered and directory.waits_for_others(question):
                self.wait_until(
                    lambda: question.answered or not directory.waits_for_others(question),
                    timing.MAX_STORE_TIMEOUT_S,
                )
                answered = question.answered
        finally:  # also after Ctrl-C: the directory would repeat an open question for ever
            with contextlib.suppress(DafkaError):
                self.call_soon(forget)
        if not answered:
            unconnected = self.peers.inbound.unconnected(directory.stores)
            raise NoStoreError(self._towers, timeout_s, unconnected, self.peers.inbound.endpoint)
        return question

    def wake(self) -> None:
        """Start a round of the loop if it is waiting."""
        # A full socket already contains a wake; if it is closed, the loop has ended.
        with contextlib.suppress(OSError):
            self._waker.send(b"\0")

    def check(self) -> None:
        """Raise NodeFailedError, ClosedError or ForkedError if the loop does not run here."""
        check_process(self.kind, self.process)
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
            self._resources.close()

    def on_forked(self) -> None:
        """Make callers that check only ``failure`` call ``check`` in a forked child."""
        self.failure = ForkedError(self.kind, self.process)

    # -- called by the loop's thread only --------------------------------------------------------

    def send(self, messages: list[Outgoing]) -> None:
        """Publish messages."""
        for message in messages:
            if isinstance(message, EpochAck):  # ``Subscribers`` lets a peer receive one of the two
                self._pub.send_multipart(encode(message.plain, self._config.wire))
            for part in self.limits.kept(message):
                if isinstance(part, OutgoingBatch):
                    self._send_records(part)
                elif (answer := self.security.shown(part)) is not None:
                    self.traffic.add_sent_message(answer)
                    self._pub.send_multipart(encode(answer, self._config.wire))

    def _send_records(self, message: OutgoingBatch) -> None:
        forms = self._subscribers.forms(message.batch.tp.topic, message.requestor)
        if forms:
            self.traffic.add_sent(message)
        for packed in forms:
            if packed:
                sockets.send_packed(self._pub, message)
            else:
                sockets.send_one_by_one(self._pub, message, self._config.wire)

    def has_subscriber(self, topic: str) -> bool:
        """Return True if any peer receives the topic's records."""
        return bool(self._subscribers.forms(topic, ""))

    def set_receiving(self, receiving: bool) -> None:
        """Set whether to receive from peers."""
        self.peers.set_receiving(receiving)

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
            self._resources.close()
            self._round_ended.notify()

    def _round(self, more: bool) -> bool:
        ready = dict(self._poller.poll(0 if more else self._timeout_ms(time.monotonic())))
        now = time.monotonic()
        self.quotas.rounds += 1
        if self._wakened.fileno() in ready:
            self._wakened.recv(4_096)  # all wakes, a byte each
        self.security.check_connections(now)
        self._run_calls(now)
        if self._pub in ready:
            self._receive_subscriptions(now)
        senders = list(self.peers.ready(ready))
        max_bytes = sockets.share_bytes(len(senders))
        for socket, node, sender in senders:
            self._receive_messages(now, socket, node, sender, max_bytes)
        for news in self.peers.update(now, ready):
            self.role.on_peer(now, news)
        self.send(self.role.on_tick(now))
        return self._on_round(now)

    def _timeout_ms(self, now: float) -> int:
        due = min(self.role.deadline(now), self.peers.due)
        return max(0, int((due - now) * 1000) + 1)

    def _run_calls(self, now: float) -> None:
        for _ in range(len(self._calls)):
            self._calls.popleft()(now)

    def _receive_messages(
        self, now: float, socket: Socket, peer: str, sender: Permissions, max_bytes: int
    ) -> None:
        invalid_before = self._decoder.invalid_count
        others = sockets.receive_burst(socket, self._decoder, self.quotas, max_bytes)
        for requestor, batch in self._decoder.take():
            if self.traffic.admits_records(sender, batch):
                self.send(self.role.on_batch(now, requestor, batch))
        if invalid_count := self._decoder.invalid_count - invalid_before:
            self.traffic.refuse(sockets.INVALID_RECORDS, count=invalid_count)
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

    def _receive_subscriptions(self, now: float) -> None:
        received = sockets.received_subscriptions(self._pub, self.security, self.quotas)
        for subscription, key, connection in received:
            frame = self.security.granted(key, subscription)
            if frame is None:
                continue
            subscribed, kind, topic = self._subscribers.apply(frame)
            if (introduced := self.limits.apply(frame)) is not None:
                self.peers.inbound.introduce(connection, introduced.node, introduced.letter)
                is_store, client = introduced.is_store, introduced.client
                news = PeerNews(introduced.node, is_store=is_store, client=client)
                self.role.on_peer(now, news)
            else:
                self.peers.inbound.apply(connection, subscribed, kind, topic)
            if subscribed and kind is not None:
                self.send(self.role.on_subscribed(now, kind, topic))
        self.limits.refresh()
