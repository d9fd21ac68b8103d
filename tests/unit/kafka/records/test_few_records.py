"""A few records are the octets that columns of them would be."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dafka_core.envelope import closed
from dafka_core.kafka.records.decoding import decode_batches
from dafka_core.kafka.records.few_records import MOST, encode_few
from dafka_core.kafka.records.record_batch import encode_record_batches
from dafka_core.kafka.records.record_columns import RecordColumns, encode_records
from dafka_core.records import RecordBatch, TopicPartition


def by_columns(values: list[bytes], deltas: list[int]) -> bytes:
    return bytes(
        encode_records(RecordColumns(pa.array(values, pa.binary()), None, None, np.array(deltas)))
    )


@given(
    st.lists(
        st.tuples(st.binary(max_size=70), st.integers(-(2**62), 2**62)), min_size=1, max_size=MOST
    )
)
def test_they_are_what_columns_are(records: list[tuple[bytes, int]]) -> None:
    values, deltas = [value for value, _ in records], [delta for _, delta in records]
    assert encode_few(values, deltas) == by_columns(values, deltas)


@pytest.mark.parametrize("size", [0, 1, 55, 56, 57, 63, 64, 8_180, 8_191, 8_192, 1 << 20, 1 << 21])
def test_sizes_at_which_a_number_takes_more_octets(size: int) -> None:
    values, deltas = [b"x" * size] * 2, [0, 64]
    assert encode_few(values, deltas) == by_columns(values, deltas)


@pytest.mark.parametrize("count", [1, MOST, MOST + 1])
@pytest.mark.parametrize("last", [b"bare", closed(b"value", b"key", [("a", None)])])
def test_a_batch_of_few_or_of_more_comes_back(count: int, last: bytes) -> None:
    values = [b"%d" % number for number in range(count - 1)] + [last]
    times = np.array([(1, 1_000_000 + number * 1_000) for number in range(count)], np.int64)
    batch = RecordBatch.of(TopicPartition("t", "A"), 7, values)
    octets = b"".join(encode_record_batches(RecordBatch(batch.tp, 7, batch.values, times=times)))
    [found] = decode_batches(octets)
    assert list(found.contents()) == values
    assert found.offsets.tolist() == list(range(7, 7 + count))
    assert found.timestamps_ms.tolist() == [1_000 + number for number in range(count)]
