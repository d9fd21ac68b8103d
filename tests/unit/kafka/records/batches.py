"""Records, and their encodings by two other implementations of Kafka's formats."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from hypothesis import strategies as st
from kafka.record import default_records as kafka_python

from dafka_core.model.envelope import Headers, closed
from dafka_core.model.records import RecordBatch, TopicPartition
from dafka_kafka.records.kafka_batch import KafkaBatch

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


def by_aiokafka(records: Sequence[Parts], codec: int = 0) -> bytes:
    """A record batch v2."""
    return _built(DefaultRecordBatchBuilder, records, codec)


def by_kafka_python(records: Sequence[Parts], codec: int = 0) -> bytes:
    """A record batch v2."""
    return _built(kafka_python.DefaultRecordBatchBuilder, records, codec)


BUILDERS: list[Callable[..., bytes]] = [by_aiokafka, by_kafka_python]


def _built(builder: Any, records: Sequence[Parts], codec: int) -> bytes:
    made = builder(2, codec, False, -1, -1, -1, 1 << 30)
    for offset, (key, value, headers, stamp) in enumerate(records):
        made.append(offset, timestamp=stamp, key=key, value=value, headers=list(headers))
    return bytes(made.build())


def read_by_aiokafka(octets: bytes) -> list[Parts]:
    """Decode the records of a batch with a valid CRC."""
    return _read(DefaultRecordBatch(bytearray(octets)))


def read_by_kafka_python(octets: bytes) -> list[Parts]:
    """Decode the records of a batch with a valid CRC."""
    return _read(kafka_python.DefaultRecordBatch(octets))


READERS: list[Callable[[bytes], list[Parts]]] = [read_by_aiokafka, read_by_kafka_python]


def _read(batch: Any) -> list[Parts]:
    assert batch.validate_crc()
    return [Parts(each.key, each.value, tuple(each.headers), each.timestamp) for each in batch]


def records_of(batch: KafkaBatch) -> list[Parts]:
    """The decoded records."""
    none = [None] * batch.count
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
