"""Shared by the tests of the roles: identifiable records, and a log.

The value of a record is its offset as eight bytes, so values identify records, and a million of
them need no loop.
"""

from collections.abc import Iterable

import numpy as np

from dafka_core.errors import HistoryChangedError, RecordTooLargeError
from dafka_core.model.epochs import EpochId
from dafka_core.model.records import RecordBatch, TopicPartition
from dafka_core.model.values import Values
from dafka_core.protocol.messages import Fetch
from dafka_core.protocol.role import Outgoing, OutgoingBatch
from dafka_core.protocol.store_directory import Question

TOPIC = "hello"
PARTITION = "640AC1809C7044FD9C4E5673ABD1BC5E"
TP = TopicPartition(TOPIC, PARTITION)
LIFE = EpochId(1, 0x11FE, 1)
VALUE_BYTES = 8


def values_of(start: int, end: int) -> Values:
    """The values of the records ``[start, end)``."""
    ends = np.arange(end - start + 1) * VALUE_BYTES
    return Values.from_columns(ends, np.arange(start, end, dtype=">u8").tobytes())


def batch_of(start: int, end: int, topic: str = TOPIC, partition: str = PARTITION) -> RecordBatch:
    """The records ``[start, end)``."""
    return RecordBatch(TopicPartition(topic, partition), start, values_of(start, end))


def offsets_of(
    batches: Iterable[RecordBatch | RecordTooLargeError | HistoryChangedError],
) -> list[int]:
    """Return the offsets in the values of records, which must equal those of their batches."""
    found: list[int] = []
    for batch in batches:
        assert isinstance(batch, RecordBatch)
        offsets = np.frombuffer(batch.values.columns()[1], ">u8").tolist()
        assert offsets == list(range(batch.offset, batch.end))
        found.extend(offsets)
    return found


def bounds(question: Question) -> dict[TopicPartition, tuple[int, int]]:
    """By partition: the earliest offset and the end of what the stores have."""
    return {tp: (info.earliest, info.end) for tp, info in question.heads.items()}


def fetches_in(messages: Iterable[Outgoing]) -> list[Fetch]:
    return [message for message in messages if isinstance(message, Fetch)]


def batches_in(messages: Iterable[Outgoing]) -> list[OutgoingBatch]:
    return [message for message in messages if isinstance(message, OutgoingBatch)]


def answer(fetch: Fetch, end: int, *, at_once: int = 1 << 30) -> list[RecordBatch]:
    """Return a log's answer with the records ``[0, end)``, in batches of ``at_once`` records."""
    stop = min(fetch.end, end)
    return [
        batch_of(start, min(start + at_once, stop), fetch.topic, fetch.partition)
        for start in range(fetch.sequence, stop, at_once)
    ]
