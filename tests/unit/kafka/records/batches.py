"""Records, and their encodings by two other implementations of Kafka's formats."""

import gzip
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from aiokafka import codec as aiokafka_codec
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.legacy_records import LegacyRecordBatchBuilder
from aiokafka.record.memory_records import MemoryRecords
from hypothesis import strategies as st
from kafka.record import default_records, legacy_records, memory_records

from dafka_core.model.envelope import Headers, closed
from dafka_core.model.records import RecordBatch, TopicPartition
from dafka_kafka.records.compression import Codec
from dafka_kafka.records.formats import KafkaBatch

TP = TopicPartition("t", "P")
START_MS = 1_700_000_000_000


class Parts(NamedTuple):
    """A record."""

    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    timestamp_ms: int = START_MS


OCTETS = st.none() | st.binary(max_size=70) | st.binary(min_size=120, max_size=200)
HEADERS = st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=70)), max_size=4)
STAMPS = st.integers(0, 100) | st.integers(0, 20_000) | st.integers(-(2**40), 2**52)
RECORDS = st.lists(
    st.builds(
        Parts,
        OCTETS,
        OCTETS,
        st.just(()) | HEADERS.map(tuple),
        STAMPS.map(lambda delta: max(START_MS + delta, 0)),
    ),
    min_size=1,
    max_size=12,
)


class Library(NamedTuple):
    """Another implementation."""

    batches: Any
    messages: Any
    reader: Any

    def built(self, records: Sequence[Parts], magic: int = 2, codec: int = 0) -> bytes:
        """Encode records in a format's version."""
        if magic < 2:
            old = self.messages(magic, codec, 1 << 30)
            for offset, each in enumerate(records):
                old.append(offset, timestamp=each.timestamp_ms, key=each.key, value=each.value)
            return bytes(old.build())
        made = self.batches(2, codec, False, -1, -1, -1, 1 << 30)
        for offset, (key, value, headers, stamp) in enumerate(records):
            made.append(offset, timestamp=stamp, key=key, value=value, headers=list(headers))
        return bytes(made.build())

    def read(self, octets: bytes) -> list[tuple[int, Parts]]:
        """Decode records with valid CRCs, with their offsets."""
        found, records = self.reader(octets), []
        while (batch := found.next_batch()) is not None:
            assert batch.validate_crc()
            for each in batch:
                stamp = -1 if each.timestamp is None else each.timestamp
                part = Parts(each.key, each.value, tuple(each.headers), stamp)
                records.append((each.offset, part))
        return records


AIOKAFKA = Library(DefaultRecordBatchBuilder, LegacyRecordBatchBuilder, MemoryRecords)
KAFKA_PYTHON = Library(
    default_records.DefaultRecordBatchBuilder,
    legacy_records.LegacyRecordBatchBuilder,
    memory_records.MemoryRecords,
)
LIBRARIES = [AIOKAFKA, KAFKA_PYTHON]


def by_aiokafka(records: Sequence[Parts], codec: int = 0) -> bytes:
    """A record batch v2."""
    return AIOKAFKA.built(records, codec=codec)


def batch(
    values: Sequence[bytes | None],
    *,
    key: bytes | None = None,
    producer: tuple[int, int, int] = (-1, -1, -1),
    codec: int = 0,
    transactional: bool = False,
    timestamp: int = START_MS,
) -> bytes:
    """A record batch v2, a millisecond apart; ``producer`` is its id, epoch and sequence."""
    builder = DefaultRecordBatchBuilder(2, codec, transactional, *producer, 1 << 30)
    for at, value in enumerate(values):
        assert builder.append(at, timestamp + at, key, value, []) is not None
    return bytes(builder.build())


def messages_of(
    magic: int,
    values: Sequence[bytes | None],
    codec: int = 0,
    *,
    timestamp: int = START_MS,
    step_ms: int = 0,
) -> bytes:
    """A message set of v0 or v1, with key ``k``."""
    records = [Parts(b"k", e, (), timestamp + at * step_ms) for at, e in enumerate(values)]
    return AIOKAFKA.built(records, magic, codec)


def records_of(batch: KafkaBatch) -> list[Parts]:
    """The decoded records."""
    none = [None] * len(batch.values)
    columns = [none if each is None else each.to_pylist() for each in (batch.keys, batch.headers)]
    rows = zip(columns[0], batch.values.to_pylist(), columns[1], batch.timestamps_ms, strict=True)
    return [
        Parts(key, value, tuple((each["key"], each["value"]) for each in headers or ()), int(stamp))
        for key, value, headers, stamp in rows
    ]


def as_dafka(records: Sequence[Parts], offset: int = 0) -> RecordBatch:
    """The records as a store has them."""
    batch = RecordBatch.of(TP, offset, [closed(each.value, *each[:3:2]) for each in records])
    times = np.array([(1, each.timestamp_ms * 1_000 + 999) for each in records], np.int64)
    return RecordBatch(batch.tp, batch.offset, batch.values, times=times)


def binary(*values: bytes | None) -> pa.Array:
    """A column."""
    return pa.array(values, pa.binary())


def compressed(codec: Codec, octets: bytes) -> bytes:
    """Compress as aiokafka does; the result does not depend on the time."""
    made: bytes = _ENCODERS[codec](octets)
    return made


_ENCODERS = {
    Codec.NONE: bytes,
    Codec.GZIP: partial(gzip.compress, mtime=0),
    Codec.SNAPPY: aiokafka_codec.snappy_encode,
    Codec.LZ4: aiokafka_codec.lz4_encode,
    Codec.ZSTD: aiokafka_codec.zstd_encode,
}
