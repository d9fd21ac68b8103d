"""Runs of records as the mesh brings them, made columns."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dafka_core.records import RecordBatch, Values
from dafka_spark.source.mesh_batches import UNKNOWN_US, chunks, joined, times_of


def runs_of(lists: list[list[bytes]], offset: int) -> list[RecordBatch]:
    runs = []
    for values in lists:
        runs.append(RecordBatch("t", "A", offset, Values.of(values)))
        offset += len(values)
    return runs


@given(
    st.lists(st.lists(st.binary(max_size=12), min_size=1, max_size=9), max_size=9),
    st.integers(1, 12),
    st.integers(1, 30),
)
def test_chunks_keep_every_record(
    lists: list[list[bytes]], max_records: int, max_bytes: int
) -> None:
    runs = runs_of(lists, 5)
    expected = [value for values in lists for value in values]
    cut = list(chunks(iter(runs), max_records, max_bytes))
    assert [value for chunk in cut for piece in chunk.pieces for value in piece] == expected
    at = 5
    for chunk in cut:
        assert chunk.offset == at
        assert 1 <= chunk.rows <= max_records
        assert chunk.size_bytes == sum(piece.size_bytes for piece in chunk.pieces)
        assert chunk.size_bytes <= max_bytes or chunk.rows == 1
        at = chunk.end


def test_a_gap_ends_a_chunk() -> None:
    runs = [RecordBatch.of("t", "A", 5, [b"a"]), RecordBatch.of("t", "A", 7, [b"b", b"c"])]
    (first, second) = joined(iter(runs), None, 10, 100)
    assert (first.offset, first.values.to_pylist(), first.times) == (5, [b"a"], None)
    assert (second.offset, second.values.to_pylist()) == (7, [b"b", b"c"])


@given(
    st.dictionaries(st.integers(0, 40), st.integers(0, 10**16)).map(lambda d: sorted(d.items())),
    st.integers(0, 40),
    st.integers(1, 20),
)
def test_each_record_has_the_last_time_before_it(
    written: list[tuple[int, int]], offset: int, count: int
) -> None:
    runs = times_of(written, offset, offset + count)
    assert (runs[:, 0] > 0).all()
    expected = [
        next((us for first, us in reversed(written) if first <= each), UNKNOWN_US)
        for each in range(offset, offset + count)
    ]
    assert np.repeat(runs[:, 1], runs[:, 0]).tolist() == expected
