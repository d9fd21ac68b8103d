"""The ends of partitions in messages."""

from __future__ import annotations

from dafka_core.model.records import RecordBatch, TopicPartition
from dafka_core.protocol.messages import DirectHead, Head, HeadsReply, Message


def told_of(message: Message | RecordBatch) -> list[tuple[TopicPartition, int]]:
    """Return the partitions in a message, each with its next offset."""
    match message:
        case RecordBatch():
            return [(message.tp, message.offset)]
        case Head() | DirectHead():
            return [(message.tp, message.end)]
        case HeadsReply():
            return [(info.tp, info.end) for info in message.entries]
    return []
