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


def refusal(who: Permissions, message: m.Message) -> str:
    """Return the reason why a sender may not send a message; empty if it may."""
    needed = _missing_right(who, message)
    return needed and f"a {type(message).__name__}: key {who.name} may not {needed}"


def records_refusal(who: Permissions, tp: TopicPartition) -> str:
    """Return the reason why a sender may not send records of a partition; empty if it may.

    RFC 46: "only one producer SHALL ever publish to the same partition"; stores forward them.
    """
    if who.may_write(*tp):
        return ""
    return f"records of topic {tp.topic}, partition {tp.partition}: key {who.name} may not {_WRITE}"


def _missing_right(who: Permissions, message: m.Message) -> str:
    """Return the right that a message needs and its sender lacks; empty if it has it."""
    match message:
        case m.ConsumerHello():
            may, right = who.is_own(message.consumer), _REQUEST
        case (
            m.Fetch()
            | m.FetchBatch()
            | m.GetHeads()
            | m.HeadsQuery()
            | m.TimesQuery()
            | m.HistoryQuery()
        ):
            may, right = who.is_own(message.requestor) and _may_request(who, message), _REQUEST
        case m.Ack(store=""):  # a C store's ACK names no store
            may, right = who.is_store, _OF_STORE
        case m.HistoryReply():
            may, right = who.is_own(message.store) and who.may_write(*message.tp), _OF_STORE
        case (
            m.Ack()
            | m.EpochAck()
            | m.StoreHello()
            | m.StoreEndpoints()
            | m.StoresKnown()
            | m.Reply()
        ):
            may, right = who.is_store and who.is_own(message.store), _OF_STORE
        case m.DirectRecordBatches():
            may, right = all(who.may_write(*each[:2]) for each in message.entries), _WRITE
        case m.OfPartition():  # records, heads, and reports of records that are too large
            may, right = who.may_write(*message.tp), _WRITE
        case _:
            may, right = False, "send it"
    return "" if may else right


def _may_request(who: Permissions, message: m.Message) -> bool:
    match message:
        case m.Fetch():
            return who.may_consume(message.topic) or who.may_write(*message.tp)
        case m.FetchBatch():
            return all(who.may_consume(each.topic) for each in message.entries)
        case m.HistoryQuery() if message.life != NO_LIFE:  # it takes the partition over
            return who.may_write(*message.tp)
        case m.TimesQuery() | m.HistoryQuery():
            return who.may_know(message.topic)
    return True


def granted(who: Permissions, frame: bytes) -> bytes | None:
    """Return the permitted part of a subscription for an XPUB socket; None if it is refused.

    ZeroMQ compares prefixes: a subscriber to topic ``ab`` would receive ``abc``, too.  The
    delimiter that follows a name (in the layout of C nodes) restricts it to the one name.
    """
    prefix = frame[1:].rstrip(b"\0")
    introduced = parse_announcement(frame[1:])
    if introduced is not None:
        may = who.is_own(introduced.node) and (who.is_store or not introduced.is_store)
        return frame if may else None
    _, kind, topic = parse_subscription(frame)
    if kind is None or not (who.is_store if not topic else _may_follow(who, kind, topic)):
        return None
    return frame[:1] + prefix + (b"\0" if topic else b"")


def _may_follow(who: Permissions, kind: type[m.Message], topic: str) -> bool:
    if kind in (m.RecordMessage, m.RecordBatchMessage, m.Head):
        return who.may_consume(topic)
    if kind is m.GetHeads:
        return who.may_produce(topic)
    return who.is_own(topic)  # messages to one node, or about a producer's own partition


def shown(who: Permissions, message: m.Message) -> m.Message | None:
    """Return the part of an answer that a permitted requestor may receive; None if nothing."""
    if isinstance(message, m.DirectHead) and not who.may_know(message.topic):
        return None
    if isinstance(message, m.HeadsReply) and not who.knows_all:
        return replace(message, entries=tuple(e for e in message.entries if who.may_know(e.topic)))
    return message
