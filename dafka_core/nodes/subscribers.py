"""Which peers receive records packed, and which one by one.

Our nodes subscribe to both forms of a record, RECORD and its packed extension, since a producer
may be ours or a C node.  Our producers must not send them both: the XPUB socket's manual mode
(ZeroMQ's XPUB_MANUAL) lets a node decide what each peer's subscription means, and a peer that
subscribes to the packed form is sent no single records.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

import zmq

from dafka_core.protocol.codec import parse_subscription, subscription
from dafka_core.protocol.messages import (
    Ack,
    DirectRecord,
    DirectRecordBatch,
    EpochAck,
    RecordBatchMessage,
    RecordMessage,
)

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
