"""Counters of the messages that a node receives and sends, and the log of those that it refuses.

The loop's thread counts, other threads read.
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import Final

from dafka_core.errors import ProtocolError
from dafka_core.model.records import RecordBatch
from dafka_core.protocol.authorization import records_refusal, refusal
from dafka_core.protocol.codec import decode
from dafka_core.protocol.messages import DirectRecordBatches, Message
from dafka_core.protocol.role import OutgoingBatch
from dafka_core.security.permissions import EVERYBODY, Permissions
from dafka_core.security.throttles import LogThrottle

MESSAGE, RECORDS, BEACON = "message", "records", "beacon"
FORBIDDEN: Final = "forbidden"

REASONS: Final = (MESSAGE, RECORDS, BEACON, FORBIDDEN)
"""Reasons for refusing frames: invalid message, invalid records, invalid beacon, not allowed by the
sender's key."""

_CAUSES: Final = {FORBIDDEN: "the file of a key names its permissions (docs/security.md)"}
_NO_PROTOCOL: Final = "the sender speaks another protocol, or a version unknown to this node"

_log = logging.getLogger("dafka.mesh")


class MeshTraffic:
    """Counters of messages and records; not by topic, because peers could create too many."""

    def __init__(self, node: str) -> None:
        self.refused = Counter[str]()  # frames, by reason
        # As received, including duplicates and records that the node did not want.
        self.records_received = self.bytes_received = 0
        # Published to the followers of a topic; each counts once, for any number of followers.
        self.live_records = self.live_bytes = 0
        self.direct_records = self.direct_bytes = 0  # sent again to a peer that requested them
        # Messages by the name of their type, except those that consist of records only.
        self.received, self.sent = Counter[str](), Counter[str]()
        self._node = node  # its name in the log
        self._throttle = LogThrottle()

    def add_received(self, batch: RecordBatch) -> None:
        """Count received records."""
        self.records_received += batch.count
        self.bytes_received += batch.values.size_bytes

    def add_sent(self, message: OutgoingBatch) -> None:
        """Count sent records."""
        count, size_bytes = message.batch.count, message.batch.values.size_bytes
        if message.requestor:
            self.direct_records += count
            self.direct_bytes += size_bytes
        else:
            self.live_records += count
            self.live_bytes += size_bytes

    def add_sent_message(self, message: Message) -> None:
        """Count another message; the answer to a FETCH-BATCH contains records, too."""
        self.sent[type(message).__name__] += 1
        if isinstance(message, DirectRecordBatches):
            self.direct_records += sum(each.end - each.earliest for each in message.entries)
            self.direct_bytes += len(message.value)

    def admits_records(self, sender: Permissions, batch: RecordBatch) -> bool:
        """Count received records; return True if their sender may write them."""
        if why := records_refusal(sender, batch.tp):
            self.refuse(FORBIDDEN, why)
            return False
        self.add_received(batch)
        return True

    def admitted(self, sender: Permissions, frames: list[bytes]) -> Message | None:
        """Return the decoded message; None if it is invalid or the sender may not send it."""
        try:
            message = decode(frames)
        except ProtocolError as error:
            self.refuse(MESSAGE, str(error))
            return None
        if sender is not EVERYBODY and (why := refusal(sender, message)):
            self.refuse(FORBIDDEN, why)
            return None
        return message

    def refuse(self, reason: str, why: str = "", count: int = 1) -> None:
        """Count refused frames, and log the first ones of each minute, by reason."""
        self.refused[reason] += count
        if self._throttle.is_new(reason):
            facts = {"node": self._node, "count": self.refused[reason], "reason": reason}
            facts["last"] = why and f" (the last one: {why})"
            facts["cause"] = _CAUSES.get(reason, _NO_PROTOCOL)
            text = "%(node)s: %(count)d frames refused so far, reason %(reason)s%(last)s; %(cause)s"
            _log.warning(text, facts, extra={"event": "frames_refused"})
