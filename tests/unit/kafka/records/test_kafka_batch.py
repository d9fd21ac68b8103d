"""Decoded records, as a store takes them, and the errors of invalid ones."""

from __future__ import annotations

import pickle

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dafka_core.model.envelope_columns import HEADERS_TYPE
from dafka_core.model.records import UNKNOWN_US
from dafka_kafka import errors
from dafka_kafka.errors import MESSAGE_TOO_LARGE, CorruptRecordsError, KafkaError
from dafka_kafka.records.kafka_batch import NO_TIMESTAMP, KafkaBatch, milliseconds, times_of
from tests.unit.kafka.records.batches import binary


def batch(stamps: list[int], headers: pa.Array | None = None) -> KafkaBatch:
    values = binary(*[b"v"] * len(stamps))
    return KafkaBatch(2, np.arange(len(stamps)), values, None, headers, np.array(stamps, np.int64))


def test_timestamps_are_runs_of_microseconds() -> None:
    times = times_of(batch([5, 5, 7, -1, 7]).timestamps_ms)
    assert times is not None
    assert times.tolist() == [[2, 5_000], [1, 7_000], [1, UNKNOWN_US], [1, 7_000]]
    assert times_of(batch([-1, -1]).timestamps_ms) is None
    assert times_of(batch([-1]).timestamps_ms) is None
    assert milliseconds(None, 2).tolist() == [NO_TIMESTAMP] * 2


@given(st.lists(st.integers(-3, 3) | st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=9))
def test_timestamps_come_back_unless_they_are_too_large(stamps: list[int]) -> None:
    most = 2**63 // 1000 - 1
    expected = [max(-most, min(stamp, most)) for stamp in stamps]
    assert milliseconds(times_of(batch(stamps).timestamps_ms), len(stamps)).tolist() == expected


def test_more_headers_than_an_envelope_holds_are_an_error() -> None:
    many = [("name", b"value")] * 8_192
    headers = pa.array([many], HEADERS_TYPE)
    with pytest.raises(CorruptRecordsError, match="too many headers") as caught:
        batch([1], headers).contents()
    assert caught.value.error == MESSAGE_TOO_LARGE
    assert len(batch([1], pa.array([many[:8_191]], HEADERS_TYPE)).contents()) == 1


def test_it_keeps_its_facts_and_names_an_error_of_kafka() -> None:
    made = errors.CorruptRecordsError(errors.CORRUPT_MESSAGE, "the CRC is wrong")
    for error in (made, pickle.loads(pickle.dumps(made))):
        assert str(error) == "the CRC is wrong (Kafka's error CORRUPT_MESSAGE)"
        assert (error.error, error.reason) == ("CORRUPT_MESSAGE", "the CRC is wrong")
        assert KafkaError[error.error] == KafkaError.CORRUPT_MESSAGE


def test_each_name_is_one_of_kafka() -> None:
    names = (errors.INVALID_RECORD, errors.UNSUPPORTED_COMPRESSION_TYPE)
    assert [KafkaError[name] for name in names] == [87, 76]
