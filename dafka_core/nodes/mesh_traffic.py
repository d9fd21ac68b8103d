"""Counters of the messages a node receives and sends, and of the frames it refuses.

The loop's thread counts, other threads read.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from typing import Final

from dafka_core.errors import ProtocolError
from dafka_core.model.records import RecordBatch
from dafka_core.nodes.peers import Peers
from dafka_core.protocol.authorization import may_write, records_refusal, refusal
from dafka_core.protocol.bulk_decoder import BulkDecoder
from dafka_core.protocol.codec import decode
from dafka_core.protocol.messages import DirectRecordBatches, Message
from dafka_core.protocol.role import OutgoingBatch
from dafka_core.security.permissions import EVERYBODY, Permissions

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
