"""Access checks for messages, where nodes have keys.

The connection identifies the sender of a message, so messages need no signatures: the sender is the
producer itself, or a store, which is trusted with the records of others that it forwards.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from dafka_core.model.epochs import NO_LIFE
from dafka_core.model.records import TopicPartition
from dafka_core.protocol import messages as m
from dafka_core.protocol.codec import parse_subscription
from dafka_core.protocol.record_limits import parse_announcement
from dafka_core.security.permissions import Permissions

_REQUEST: Final = "ask for it, or have the answer sent to that address"
_OF_STORE: Final = "speak for a store, or for one at that address"
_WRITE: Final = "write to that topic, or to that partition"


def refusal(key: Permissions, message: m.Message) -> str:
    """Return the reason why a sender may not send a message; empty if it may."""
    may, right = False, "send it"
    match message:
        case m.ConsumerHello():
            may, right = key.is_own(message.consumer), _REQUEST
        case m.GetHeads() | m.HeadsQuery():
            may, right = key.is_own(message.requestor), _REQUEST
        case m.Fetch():
            may = key.may_consume(message.topic) or key.may_write(*message.tp)
            may, right = may and key.is_own(message.requestor), _REQUEST
        case m.FetchBatch():
            may = all(key.may_consume(each.topic) for each in message.entries)
            may, right = may and key.is_own(message.requestor), _REQUEST
        case m.HistoryQuery() if message.life != NO_LIFE:  # it takes the partition over
            may, right = key.may_write(*message.tp) and key.is_own(message.requestor), _REQUEST
        case m.TimesQuery() | m.HistoryQuery():
            may, right = key.may_know(message.topic) and key.is_own(message.requestor), _REQUEST
        case m.HistoryReply():
            may, right = key.is_own(message.store) and key.may_write(*message.tp), _OF_STORE
        case m.Ack(store=""):  # a C store's ACK names no store
            may, right = key.is_store, _OF_STORE
        case m.Ack() | m.EpochAck() | m.StoreHello() | m.OfStore():
            may, right = key.is_store and key.is_own(message.store), _OF_STORE
        case m.DirectRecordBatches():
            may, right = all(key.may_write(*each[:2]) for each in message.entries), _WRITE
        case m.OfPartition():  # records, heads, and reports of records that are too large
            may, right = key.may_write(*message.tp), _WRITE
    return "" if may else f"a {type(message).__name__}: key {key.name} may not {right}"


def records_refusal(key: Permissions, tp: TopicPartition) -> str:
    """Return the reason why a sender may not send records of a partition; empty if it may.

    RFC 46: "only one producer SHALL ever publish to the same partition"; stores forward them.
    """
    if key.may_write(*tp):
        return ""
    return f"records of topic {tp.topic}, partition {tp.partition}: key {key.name} may not {_WRITE}"


def granted(key: Permissions, frame: bytes) -> bytes | None:
    """Return the permitted part of a subscription for an XPUB socket; None if it is refused.

    ZeroMQ compares prefixes: a subscriber to topic ``ab`` would receive ``abc``, too.  The
    delimiter that follows a name (in the layout of C nodes) restricts it to the one name.
    """
    prefix = frame[1:].rstrip(b"\0")
    introduced = parse_announcement(frame[1:])
    if introduced is not None:
        may = key.is_own(introduced.node) and (key.is_store or not introduced.is_store)
        return frame if may else None
    _, kind, topic = parse_subscription(frame)
    if kind is None or not (key.is_store if not topic else _may_follow(key, kind, topic)):
        return None
    return frame[:1] + prefix + (b"\0" if topic else b"")


def _may_follow(key: Permissions, kind: type[m.Message], topic: str) -> bool:
    if kind in (m.RecordMessage, m.RecordBatchMessage, m.Head):
        return key.may_consume(topic)
    if kind is m.GetHeads:
        return key.may_produce(topic)
    return key.is_own(topic)  # messages to one node, or about a producer's own partition


def shown(key: Permissions, message: m.Message) -> m.Message | None:
    """Return the part of an answer that a permitted requestor may receive; None if nothing."""
    if isinstance(message, m.DirectHead) and not key.may_know(message.topic):
        return None
    if isinstance(message, m.HeadsReply) and not key.knows_all:
        return replace(message, entries=tuple(e for e in message.entries if key.may_know(e.topic)))
    return message
