"""Values collected to blocks: all of them, in order, and a block as soon as it is worth sending."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dafka_spark.sink import staging
from dafka_spark.sink.staging import RowBuffer

PIECES = st.lists(st.lists(st.binary(max_size=9), max_size=7), max_size=9)


@given(PIECES, st.integers(1, 9), st.integers(1, 60))
def test_blocks_have_all_values_and_are_sent_when_they_are_full(
    pieces: list[list[bytes]], max_rows: int, max_bytes: int
) -> None:
    buffer = RowBuffer()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(staging, "BLOCK_ROWS", max_rows)
        patch.setattr(staging, "BLOCK_BYTES", max_bytes)
        arrays = [pa.array(values, pa.binary()) for values in pieces]
        full = [block.to_pylist() for array in arrays for block in buffer.add(array)]
        rest = [block.to_pylist() for block in buffer.rest()]
        assert list(buffer.rest()) == []
    expected = [value for values in pieces for value in values]
    assert [value for block in full + rest for value in block] == expected
    assert all(0 < len(block) <= max_rows for block in full + rest)
    for block in full:  # a value takes 4 to 8 bytes beside what is in it
        assert len(block) == max_rows or sum(map(len, block)) + 8 * len(block) >= max_bytes
    for block in rest:
        assert len(block) < max_rows
        assert sum(map(len, block)) + 4 * len(block) < max_bytes


def test_a_block_may_be_of_values_of_any_kind() -> None:
    buffer = RowBuffer()
    kinds = (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())
    for kind in kinds:
        assert list(buffer.add(pa.array(["é", ""]).cast(kind))) == []
    (block,) = buffer.rest()
    assert block.type == pa.binary()
    assert block.to_pylist() == ["é".encode(), b""] * len(kinds)
