"""What a node has received from its peers and sent to them, in plain numbers.

The loop's thread counts, other threads read.
"""

from __future__ import annotations

from collections import Counter

from dafka_core.errors import ProtocolError
from dafka_core.nodes.peers import Peers
from dafka_core.nodes.refused_frames import FORBIDDEN, REASONS, RefusedFrames
from dafka_core.permissions import EVERYBODY, Permissions
from dafka_core.protocol.authorization import may_write, records_refusal, refusal
from dafka_core.protocol.bulk_decoder import BulkDecoder
from dafka_core.protocol.codec import decode
from dafka_core.protocol.messages import DirectRecordBatches, Message
from dafka_core.protocol.role import OutgoingBatch
from dafka_core.records import RecordBatch


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
