"""Access checks for messages, where nodes have keys.

The connection identifies the sender of a message, so messages need no signatures: the sender is the
producer itself, or a store, which is trusted with the records of others that it forwards.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from dafka_core.model.epochs import NO_LIFE
from dafka_core.model.records import TopicPartition
from dafka_core.protocol import messages as m
from dafka_core.protocol.codec import parse_subscription
from dafka_core.protocol.record_limits import parse_announcement
from dafka_core.security.permissions import Permissions

_Check = Callable[[Permissions, Any], bool]

_ASKED: Final = "ask for it, or have the answer sent to that address"
_TOLD: Final = "speak for a store, or for one at that address"
_WRITTEN: Final = "write to that topic, or to that partition"


def may_write(who: Permissions, tp: TopicPartition) -> bool:
    """Return True if records of a partition may come from this sender.

    RFC 46: "only one producer SHALL ever publish to the same partition"; stores forward them.
    """
    return who.may_write(*tp)


def _writes(who: Permissions, message: Any) -> bool:
    return may_write(who, message.tp)


def _writes_all(who: Permissions, message: m.DirectRecordBatches) -> bool:
    return all(
        may_write(who, TopicPartition(each.topic, each.partition)) for each in message.entries
    )


def _is_of_store(who: Permissions, message: Any) -> bool:
    return who.is_store and who.is_own(message.store)


def _fetches(who: Permissions, message: m.Fetch) -> bool:
    may = who.may_consume(message.topic) or may_write(who, message.tp)
    return may and who.is_own(message.requestor)


def _fetches_all(who: Permissions, message: m.FetchBatch) -> bool:
    may = all(who.may_consume(each.topic) for each in message.entries)
    return may and who.is_own(message.requestor)


def _asks(who: Permissions, message: Any) -> bool:
    return who.is_own(message.requestor)


def _asks_of_topic(who: Permissions, message: m.TimesQuery) -> bool:
    return who.may_know(message.topic) and who.is_own(message.requestor)


def _asks_history(who: Permissions, message: m.HistoryQuery) -> bool:
    # A request with a life takes the partition over.
    may = may_write(who, message.tp) if message.life != NO_LIFE else who.may_know(message.topic)
    return may and who.is_own(message.requestor)


def _tells_history(who: Permissions, message: m.HistoryReply) -> bool:
    return who.is_own(message.store) and may_write(who, message.tp)


_RULES: Final[Mapping[type[m.Message], tuple[_Check, str]]] = {
    **dict.fromkeys(
        (
            *(m.RecordMessage, m.DirectRecord, m.RecordBatchMessage, m.DirectRecordBatch),
            *(m.Head, m.DirectHead, m.RecordTooLarge),
        ),
        (_writes, _WRITTEN),
    ),
    m.DirectRecordBatches: (_writes_all, _WRITTEN),
    **dict.fromkeys(
        (m.EpochAck, m.StoreHello, m.HeadsReply, m.TimesReply, m.StoreEndpoints, m.StoresKnown),
        (_is_of_store, _TOLD),
    ),
    # A C store's ACK names no store; ours do.
    m.Ack: (lambda who, ack: who.is_store and (not ack.store or who.is_own(ack.store)), _TOLD),
    m.HistoryReply: (_tells_history, _TOLD),
    m.Fetch: (_fetches, _ASKED),
    m.FetchBatch: (_fetches_all, _ASKED),
    m.GetHeads: (_asks, _ASKED),
    m.HeadsQuery: (_asks, _ASKED),
    m.TimesQuery: (_asks_of_topic, _ASKED),
    m.HistoryQuery: (_asks_history, _ASKED),
    m.ConsumerHello: (lambda who, hello: who.is_own(hello.consumer), _ASKED),
}
"""The required permission of each message's sender.  A message without a rule is always refused."""

_LIVE: Final = frozenset({m.RecordMessage, m.RecordBatchMessage, m.Head})


def refusal(who: Permissions, message: m.Message) -> str:
    """Return the reason why a sender may not send a message; empty if it may."""
    check, what = _RULES[type(message)]
    return (
        "" if check(who, message) else f"a {type(message).__name__}: key {who.name} may not {what}"
    )


def records_refusal(who: Permissions, tp: TopicPartition) -> str:
    """Return the reason why records of a partition are refused."""
    return (
        f"records of topic {tp.topic}, partition {tp.partition}: key {who.name} may not {_WRITTEN}"
    )


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
    if kind in _LIVE:
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
