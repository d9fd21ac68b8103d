"""Which peers take records packed, and which one by one.

Our nodes subscribe to both forms of a record: RECORD and its packed extension, since a producer
may be of either kind.  A producer of ours must not send them both.  XPUB_MANUAL lets it decide
what each peer's subscription means: whoever subscribes to the packed form gets no single records.
"""

from __future__ import annotations

from typing import Final

import zmq

from dafka_core.protocol.messages import DirectRecord, DirectRun, RecordMessage, RecordRun
from dafka_core.protocol.wire import command_id, parse_subscription

MAX_REQUESTORS: Final = 100_000
"""Requestors known to take packed answers.  Peers choose the names; beyond the limit all are
forgotten and served one by one until they subscribe again."""

_SINGLE_OF: Final = {RecordRun: command_id(RecordMessage), DirectRun: command_id(DirectRecord)}


class Subscribers:
    """Applies the subscriptions that an XPUB socket in manual mode tells of."""

    def __init__(self, pub: zmq.Socket[bytes], *, pack: bool) -> None:
        self._pub = pub
        self._pack = pack
        self._single_count = 0
        self._packed_count = 0
        self._requestors: set[str] = set()

    def apply(self, frame: bytes) -> None:
        """Takes a subscription, right after it was received: it concerns the peer it is from."""
        subscribed, kind, topic = parse_subscription(frame)
        if not subscribed:
            if frame[:1] == b"\x00":
                self._pub.set(zmq.UNSUBSCRIBE, frame[1:])
            return
        self._pub.set(zmq.SUBSCRIBE, frame[1:])
        if kind is RecordMessage:
            self._single_count += 1
        # A SUB socket sends its subscriptions in the order of their octets, and the packed forms
        # come after the single ones.
        elif kind in _SINGLE_OF and self._pack:
            self._pub.set(zmq.UNSUBSCRIBE, _SINGLE_OF[kind] + frame[2:])
            if kind is RecordRun:
                self._packed_count += 1
            else:
                if len(self._requestors) >= MAX_REQUESTORS:
                    self._requestors.clear()
                self._requestors.add(topic)

    def layouts(self, requestor: str) -> list[bool]:
        """How to send records: packed (True), one by one (False), or both."""
        if requestor:
            return [requestor in self._requestors]
        # Who goes does not always say so; one send too many costs only time.
        single = self._single_count > self._packed_count
        return [form for form, wanted in ((True, self._packed_count), (False, single)) if wanted]
