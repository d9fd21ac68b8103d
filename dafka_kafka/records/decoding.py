"""The records of a request or an answer: Kafka batches of any version, one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from dafka_core.model.values import Bytes
from dafka_kafka.records.compression import MAX_DECOMPRESSED_BYTES
from dafka_kafka.records.errors import CORRUPT_MESSAGE, CorruptRecordsError
from dafka_kafka.records.kafka_batch import KafkaBatch
from dafka_kafka.records.message_set import ENTRY, MIN_SIZE, decode_message_set
from dafka_kafka.records.record_batch import MAGIC, decode_record_batch

_MAGIC_AT: Final = 16
"""In all versions."""


def decode_batches(
    octets: Bytes, max_bytes: int = MAX_DECOMPRESSED_BYTES, *, may_end_early: bool = False
) -> Iterator[KafkaBatch]:
    """The batches, each decoded when it is asked for.

    Args:
        max_bytes: what each may be decompressed to; all messages of v0 and v1 that follow each
            other may be so together.
        may_end_early: what is left of a last batch that is not whole is passed over, as Kafka's
            consumers do: a broker cuts where a fetch's size ends.  In a produce request it is an
            error.

    Raises:
        CorruptRecordsError: octets are no batch.
    """
    octets = memoryview(octets)
    first = at = 0  # of messages of v0 and v1 that are whole
    while len(octets) - at > _MAGIC_AT:
        _, size = ENTRY.unpack_from(octets, at)
        if size < MIN_SIZE:
            raise CorruptRecordsError(CORRUPT_MESSAGE, f"no batch has {size} bytes")
        end = at + ENTRY.size + size
        if end > len(octets):
            break
        if octets[at + _MAGIC_AT] >= MAGIC:
            yield from decode_message_set(octets[first:at], max_bytes)
            yield decode_record_batch(octets[at:end], max_bytes)
            first = end
        at = end
    yield from decode_message_set(octets[first:at], max_bytes)
    if at < len(octets) and not may_end_early:
        raise CorruptRecordsError(CORRUPT_MESSAGE, "the last batch ends early")
