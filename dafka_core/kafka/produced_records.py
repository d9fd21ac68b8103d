"""What a Kafka producer has sent for one partition: checked, and as the log takes it."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from dafka_core.kafka.kafka_errors import KafkaError
from dafka_core.kafka.producer_states import Sequenced
from dafka_core.kafka.records.compression import Codec
from dafka_core.kafka.records.decoding import decode_batches
from dafka_core.kafka.records.errors import CorruptRecordsError
from dafka_core.kafka.records.kafka_batch import KafkaBatch
from dafka_core.kafka.records.record_batch import MAGIC
from dafka_core.kafka.refusal import RefusedError
from dafka_core.records import UNKNOWN_US
from dafka_core.timestamps import stamped_once
from dafka_core.values import Longs, Values

BATCH_VERSION: Final = 3
"""From this version of Produce on clients send one record batch; before it, a message set."""

ZSTD_VERSION: Final = 7
"""From this one on also compressed with zstd (KIP-110)."""


class ProducedRecords(NamedTuple):
    """Records that are written together.

    ``contents`` are in envelopes where they must be; ``times`` as ``RecordBatch`` has them.  Of an
    idempotent producer they have its id, and are ``sequenced``.
    """

    contents: Values
    times: Longs | None
    producer_id: int = -1
    sequenced: Sequenced | None = None


def produced_records(octets: memoryview, version: int, limit_bytes: int) -> ProducedRecords:
    """The records of one partition in a Produce request of a version.

    Args:
        limit_bytes: the largest content that stores take.

    Raises:
        RefusedError: they cannot be taken, with Kafka's error for it.
    """
    try:
        batches = _batches(octets, version)
        contents = Values.concat([each.contents() for each in batches])
    except CorruptRecordsError as error:
        raise RefusedError(KafkaError[error.error], error.reason) from error
    if contents.largest_bytes > limit_bytes:
        why = (
            f"a record has {contents.largest_bytes} bytes with its key and headers; stores take "
            f"{limit_bytes} at most (option max_record_bytes)"
        )
        raise RefusedError(KafkaError.MESSAGE_TOO_LARGE, why)
    times = _joined([(each.times(), each.count) for each in batches])
    batch = batches[0]
    if batch.producer_id < 0:
        return ProducedRecords(contents, times)
    sequenced = Sequenced(batch.producer_epoch, batch.base_sequence, batch.count)
    return ProducedRecords(contents, times, batch.producer_id, sequenced)


def _batches(octets: memoryview, version: int) -> list[KafkaBatch]:
    """The batches of one partition: one record batch, or message sets in old versions."""
    is_new = version >= BATCH_VERSION
    found: list[KafkaBatch] = []
    for batch in decode_batches(octets):
        if (batch.magic == MAGIC) is not is_new or (found and is_new):
            has = "one record batch for a partition" if is_new else "message sets"
            why = f"a Produce request of version {version} has {has}, and nothing else"
            raise RefusedError(KafkaError.INVALID_RECORD, why)
        _check(batch, version)
        found.append(batch)
    if not found:
        raise RefusedError(KafkaError.INVALID_RECORD, "there are no records")
    return found


def _joined(times: list[tuple[Longs | None, int]]) -> Longs | None:
    """The times of all batches; those of records without one are to be given."""
    if all(each is None for each, _ in times):
        return None
    known = [stamped_once(count, UNKNOWN_US) if each is None else each for each, count in times]
    return known[0] if len(known) == 1 else np.concatenate(known)


def _check(batch: KafkaBatch, version: int) -> None:
    """Raises what ``produced_records`` does unless a client may send such a batch."""
    if batch.codec == Codec.ZSTD and version < ZSTD_VERSION:
        why = f"Produce of version {version} does not know zstd"
        raise RefusedError(KafkaError.UNSUPPORTED_COMPRESSION_TYPE, why)
    if batch.is_control:
        raise RefusedError(KafkaError.INVALID_RECORD, "a client writes no control records")
    if batch.is_transactional:
        raise RefusedError(KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, NO_TRANSACTIONS)
    if batch.is_append_time:
        why = "a client gives records their create time, not an append time"
        raise RefusedError(KafkaError.INVALID_TIMESTAMP, why)
    if batch.producer_id >= 0 and min(batch.producer_epoch, batch.base_sequence) < 0:
        why = "a batch with a producer's id has an epoch and a sequence"
        raise RefusedError(KafkaError.INVALID_RECORD, why)


NO_TRANSACTIONS: Final = (
    "this gateway knows no transactions of Kafka: write without a transactional id; an idempotent "
    "producer writes each record once"
)
