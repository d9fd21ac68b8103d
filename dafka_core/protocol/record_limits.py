"""The largest record that each peer accepts: peers announce it, and receive nothing larger.

A node announces its limit by a subscription that matches no message, so C nodes are unaffected.
ZeroMQ delivers it before any other (a SUB socket sends them in the order of their bytes), and
withdraws it when the connection ends.
"""

from __future__ import annotations

import re
from collections import Counter
from math import inf
from typing import Final, NamedTuple

import numpy as np

from dafka_core.config.node_options import MAX_RECORD_BYTES
from dafka_core.errors import RecordTooLargeError
from dafka_core.model.name_limits import MAX_CLIENT_BYTES, is_client_name
from dafka_core.model.names import octets_of, text_of
from dafka_core.protocol.beacons import MAX_PEERS
from dafka_core.protocol.limits import max_taken_bytes
from dafka_core.protocol.messages import DirectRecordBatches, Head, RecordTooLarge
from dafka_core.protocol.role import Outgoing, OutgoingBatch

# Accepted by every node.  A lower announcement is invalid: no peer can make others send less.
LEAST_BYTES: Final = max_taken_bytes(0)
_ID: Final = b"A"
_ANNOUNCEMENT: Final = re.compile(
    rb"A([A-Z])\0([^\0]{1,255})\0([0-9]{1,10})(?:\0([^\0]{1,%d}))?" % MAX_CLIENT_BYTES, re.DOTALL
)


class Announcement(NamedTuple):
    """A node's announced kind, by its first letter, record limit, and name, if it has one."""

    letter: str
    node: str
    limit_bytes: int
    client: str = ""

    @property
    def is_store(self) -> bool:
        """Return True if producers publish no record above its limit."""
        return self.letter == "S"


def announcement(kind: str, node: str, limit_bytes: int, client: str = "") -> bytes:
    """Return the subscription with which a node announces itself to peers."""
    own = b"%b%b\0%b\0%d" % (_ID, kind[:1].upper().encode(), octets_of(node), limit_bytes)
    return b"%b\0%b" % (own, client.encode()) if client else own


def parse_announcement(prefix: bytes) -> Announcement | None:
    """Parse a subscription; return None if it is no announcement."""
    match = _ANNOUNCEMENT.fullmatch(prefix)
    if match is None:
        return None
    kind, node, limit_bytes = match[1], text_of(match[2]), int(match[3])
    client = text_of(match[4] or b"")
    if not (LEAST_BYTES <= limit_bytes <= MAX_RECORD_BYTES and is_client_name(client)):
        return None
    return Announcement(kind.decode(), node, limit_bytes, client)


def error_of(record: RecordTooLarge, limit_bytes: int, node: str) -> RecordTooLargeError:
    """Return the error for a record that was not sent to ``node``."""
    return RecordTooLargeError(*record.tp, record.sequence, record.size_bytes, limit_bytes, node)


class RecordLimits:
    """The limits of a node's peers; ``smallest_store`` is the store with the smallest, if any."""

    def __init__(self) -> None:
        self.smallest_store: Announcement | None = None
        self._announced: Counter[Announcement] = Counter()  # a node may be connected twice
        self._by_node: dict[str, int] = {}
        self._smallest_bytes: float = inf
        self._changed = False

    def apply(self, frame: bytes) -> Announcement | None:
        """Process a subscription frame for the next ``refresh``; return a new announcement."""
        if frame[1:2] != _ID or (found := parse_announcement(frame[1:])) is None:
            return None
        self._changed = True
        if frame[0]:
            if found in self._announced or len(self._announced) < MAX_PEERS:
                self._announced[found] += 1
            return found
        if self._announced[found] > 1:
            self._announced[found] -= 1
        else:
            self._announced.pop(found, None)
        return None

    def refresh(self) -> None:
        """Recompute the limits after a burst of ``apply``."""
        if not self._changed:
            return
        self._changed = False
        ascending = sorted(self._announced, key=lambda each: each.limit_bytes)
        self.smallest_store = next((each for each in ascending if each.is_store), None)
        self._smallest_bytes = ascending[0].limit_bytes if ascending else inf
        self._by_node = {each.node: each.limit_bytes for each in reversed(ascending)}

    def with_stores(self, own_bytes: int, own: str) -> tuple[int, str]:
        """Return the smallest limit of the stores and the node ``own``, and whose it is."""
        store = self.smallest_store
        if store is None or store.limit_bytes >= own_bytes:
            return own_bytes, own
        return store.limit_bytes, f"store {store.node}"

    def letters(self) -> Counter[str]:
        """Return the number of nodes by their kind's first letter.  Any thread may call this."""
        nodes = {(each.letter, each.node) for each in [*self._announced]}
        return Counter(letter for letter, _ in nodes)

    def kept(self, message: Outgoing) -> list[Outgoing]:
        """Return the message without records too large for its receivers.

        A requestor receives an error for each of them.  A published record that is too large for
        one peer is replaced by the head: the other peers fetch it.
        """
        if isinstance(message, DirectRecordBatches):
            if len(message.value) <= self._by_node.get(message.requestor, inf):
                return [message]
            each = (OutgoingBatch(batch, message.requestor) for batch in message.batches())
            return [part for batch in each for part in self.kept(batch)]
        if not isinstance(message, OutgoingBatch):
            return [message]
        batch, requestor = message.batch, message.requestor
        limit_bytes = self._by_node.get(requestor, inf) if requestor else self._smallest_bytes
        if batch.values.size_bytes <= limit_bytes:
            return [message]
        kept, start = list[Outgoing](), batch.offset
        lengths = np.diff(batch.values.columns()[0])
        for index in np.flatnonzero(lengths > limit_bytes).tolist():
            offset, size_bytes = batch.offset + index, int(lengths[index])
            if start < offset:
                kept.append(OutgoingBatch(batch.between(start, offset), requestor))
            if requestor:
                kept.append(RecordTooLarge(requestor, *batch.tp, offset, size_bytes))
            else:
                kept.append(Head(*batch.tp, offset))
            start = offset + 1
        if start < batch.end:
            kept.append(OutgoingBatch(batch.between(start, batch.end), requestor))
        return kept
