"""Records as columns, and the metadata beside their batches."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dafka_core.flight.columns import batch_of, packed_metadata, parse_metadata, schema_of
from dafka_core.model.records import RecordBatch, TopicPartition
from dafka_core.model.values import Longs, Values

TP = TopicPartition("t", "P")

runs_of = st.lists(st.integers(1, 9), min_size=1, max_size=8).map(
    lambda counts: np.array([(count, 100 + n) for n, count in enumerate(counts)], np.int64)
)


@settings(deadline=None)
@given(st.integers(0, 2**63 - 1), runs_of)
def test_metadata_are_parsed_again(offset: int, runs: Longs) -> None:
    count = int(runs[:, 0].sum())
    packed = pa.py_buffer(packed_metadata(offset, runs))
    found, times = parse_metadata(packed, count, times=True)
    assert found == offset
    assert times is not None
    assert times.tolist() == runs.tolist()
    assert parse_metadata(packed, count, times=False) == (offset, None)


@pytest.mark.parametrize(
    ("metadata", "says"),
    [
        (None, "0 bytes"),
        (b"", "0 bytes"),
        (b"x" * 17, "17 bytes"),
        (np.array([2, 0]).tobytes(), "version 2"),
        (np.array([1, 0]).tobytes(), "not those of its records"),
        (np.array([1, 0, 4, 9]).tobytes(), "not those of its records"),
        (np.array([1, 0, 6, 9, -1, 9]).tobytes(), "not those of its records"),
    ],
)
def test_metadata_that_are_wrong_are_refused(metadata: bytes | None, says: str) -> None:
    buffer = None if metadata is None else pa.py_buffer(metadata)
    with pytest.raises(ValueError, match=says):
        parse_metadata(buffer, 5, times=True)


def test_columns_are_made_in_the_order_asked_for() -> None:
    records = RecordBatch(TP, 3, Values.of([b"a", b"b"]), times=np.array([(2, 1_000_000)]))
    names = ("partition", "timestamp", "value", "topic", "offset")
    batch = batch_of([records], schema_of(names))
    batch.validate(full=True)
    assert batch.schema.names == list(names)
    rows = [{name: row[name] for name in names if name != "timestamp"} for row in batch.to_pylist()]
    assert rows == [
        {"partition": "P", "value": b"a", "topic": "t", "offset": 3},
        {"partition": "P", "value": b"b", "topic": "t", "offset": 4},
    ]
    assert batch["timestamp"].cast(pa.int64()).to_pylist() == [1_000_000] * 2
