"""What a Kafka producer has sent for one partition: checked, and as the log takes it."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from itertools import accumulate, repeat, starmap
from typing import Final, NamedTuple

import numpy as np

from dafka_core.kafka.kafka_errors import KafkaError
from dafka_core.kafka.producer_states import Sequenced
from dafka_core.kafka.records.compression import Codec
from dafka_core.kafka.records.decoding import decode_batches
from dafka_core.kafka.records.errors import CorruptRecordsError
from dafka_core.kafka.records.kafka_batch import KafkaBatch, contents_of, times_of
from dafka_core.kafka.records.record_batch import MAGIC, OpenedBatch, open_record_batch
from dafka_core.kafka.records.record_columns import decode_together
from dafka_core.kafka.refusal import RefusedError
from dafka_core.values import Longs, Values

_log: Final = logging.getLogger("dafka.kafka")

BATCH_VERSION: Final = 3
"""From this version of Produce on clients send one record batch; before it, a message set."""

ZSTD_VERSION: Final = 7
"""From this one on also compressed with zstd (KIP-110)."""


SMALL_BYTES: Final = 64 << 10
"""Batches of at most so many octets are decoded together.  Java's producers send 16 KiB unless they
are told otherwise; of larger ones little is gained."""

CHUNK_BYTES: Final = 256 << 10
"""What is decoded together at most: of more nothing is gained, and it takes much memory."""


class DecodedRecords(NamedTuple):
    """Records that were decoded together; their contents are in envelopes where they must be."""

    contents: Values
    stamps_ms: Longs


class ProducedRecords(NamedTuple):
    """Records that are written together: some rows of those that were decoded together.

    ``latest_ms`` is the newest of their times.  Of an idempotent producer they have its id, and are
    ``sequenced``.
    """

    decoded: DecodedRecords
    start: int
    stop: int
    latest_ms: int
    producer_id: int = -1
    sequenced: Sequenced | None = None

    @property
    def record_count(self) -> int:
        """How many there are."""
        return self.stop - self.start


def joined(parts: Sequence[ProducedRecords]) -> tuple[Values, Longs | None]:
    """The contents and times of all parts, as ``RecordBatch`` has them.

    Of those that follow each other where they were decoded nothing is copied.
    """
    runs = [parts[0]]
    for each in parts[1:]:
        last = runs[-1]
        if each.decoded is last.decoded and each.start == last.stop:
            runs[-1] = last._replace(stop=each.stop)
        else:
            runs.append(each)
    contents = [each.decoded.contents[each.start : each.stop] for each in runs]
    stamps_ms = [each.decoded.stamps_ms[each.start : each.stop] for each in runs]
    return Values.concat(contents), times_of(np.concatenate(stamps_ms))


def produced_together(
    requests: Sequence[tuple[memoryview, int]], limit_bytes: int, max_bytes: int
) -> list[ProducedRecords | RefusedError]:
    """What ``produced_records`` gives of each, or raises: of the first ones, at least of one.

    Small batches are decoded together, as they mostly come: of each alone it takes far longer.

    Args:
        requests: octets, and the version of their request.
        max_bytes: when they have more together, no further one is looked at.
    """
    found: list[ProducedRecords | RefusedError | OpenedBatch] = []
    size_bytes = 0
    for octets, version in requests:
        small = _opened(octets, version)
        each = small or _alone(octets, version, limit_bytes)
        found.append(each)
        if small is not None:
            size_bytes += len(small.records)
        elif isinstance(each, ProducedRecords):
            size_bytes += each.decoded.contents.size_bytes
        if size_bytes >= max_bytes:
            break
    chunks = _chunks([each for each in found if isinstance(each, OpenedBatch)])
    decoded = (each for chunk in chunks for each in _together(chunk, limit_bytes))
    return [
        (next(decoded) if isinstance(each, OpenedBatch) else each) or _alone(*request, limit_bytes)
        for each, request in zip(found, requests, strict=False)
    ]


def _chunks(batches: Sequence[OpenedBatch]) -> Iterator[Sequence[OpenedBatch]]:
    first = size_bytes = 0
    for at, batch in enumerate(batches):
        size_bytes += len(batch.records)
        if size_bytes > CHUNK_BYTES and at > first:
            yield batches[first:at]
            first, size_bytes = at, len(batch.records)
    if batches:
        yield batches[first:]


def _alone(octets: memoryview, version: int, limit_bytes: int) -> ProducedRecords | RefusedError:
    try:
        return produced_records(octets, version, limit_bytes)
    except RefusedError as error:
        return error
    except Exception as error:  # noqa: BLE001 -- a defect concerns these records alone
        _log.exception("Kafka: records cannot be decoded")
        return RefusedError(KafkaError.UNKNOWN_SERVER_ERROR, repr(error))


def _opened(octets: memoryview, version: int) -> OpenedBatch | None:
    """A batch that is to be decoded together with others; None where it is looked at alone."""
    if version < BATCH_VERSION or len(octets) > SMALL_BYTES:
        return None
    try:
        opened = open_record_batch(octets, SMALL_BYTES)
        _check(opened, version)
    except Exception:  # noqa: BLE001 -- it is looked at alone, and what it is is told then
        return None
    return opened


def _together(batches: Sequence[OpenedBatch], limit_bytes: int) -> Iterator[ProducedRecords | None]:
    """The records of each; None for all where something is wrong with one of them."""
    counts = [each.count for each in batches]
    try:
        columns = decode_together([each.records for each in batches], counts)
        contents = contents_of(columns.values, columns.keys, columns.headers)
    except Exception:  # noqa: BLE001 -- likewise, each of them
        return repeat(None, len(batches))
    if contents.largest_bytes > limit_bytes:
        return repeat(None, len(batches))
    stamps_ms = columns.deltas + np.repeat([each.base_ms for each in batches], counts)
    decoded = DecodedRecords(contents, stamps_ms)
    bounds = [*accumulate(counts, initial=0)]
    latest = np.maximum.reduceat(stamps_ms, bounds[:-1]).tolist()
    each = zip(batches, repeat(decoded), bounds[:-1], bounds[1:], latest, strict=False)
    return starmap(_produced, each)


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
    stamps_ms = np.concatenate([each.timestamps_ms for each in batches])
    decoded = DecodedRecords(contents, stamps_ms)
    return _produced(batches[0], decoded, 0, len(contents), int(stamps_ms.max()))


def _produced(
    batch: KafkaBatch | OpenedBatch, decoded: DecodedRecords, start: int, stop: int, latest_ms: int
) -> ProducedRecords:
    if batch.producer_id < 0:
        return ProducedRecords(decoded, start, stop, latest_ms)
    sequenced = Sequenced(batch.producer_epoch, batch.base_sequence, batch.count)
    return ProducedRecords(decoded, start, stop, latest_ms, batch.producer_id, sequenced)


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


def _check(batch: KafkaBatch | OpenedBatch, version: int) -> None:
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
