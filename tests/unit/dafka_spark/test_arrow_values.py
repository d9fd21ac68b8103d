"""Arrow streams as values: their layouts, and the memory that they may take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_type

from dafka_spark.errors import BatchTooLargeError
from dafka_spark.formats.arrow_values import MAX_BATCH, MAX_OPENED, ArrowCodec
from dafka_spark.formats.codecs import decode_parts
from dafka_spark.formats.ddl import parse_ddl
from tests.unit.dafka_spark.descriptors import decoded, stream

CODEC = ArrowCodec(parse_ddl("id BIGINT, name STRING, at STRUCT<t: TIMESTAMP>"))
ARROW = to_arrow_type(CODEC.kind, timezone="UTC")
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "id": st.none() | st.integers(-(2**63), 2**63 - 1),
            "name": st.none() | st.text(st.characters(codec="utf-8"), max_size=3),
            "at": st.none(),
        }
    ),
    max_size=3,
)


@given(st.lists(st.none() | ROWS, min_size=1, max_size=4), st.integers(0, 2))
def test_encoded_rows_are_decoded(rows: list[Any], start: int) -> None:
    column = pa.array(rows, ARROW).slice(start)
    values = CODEC.encode(column)
    assert values.null_count == column.null_count
    assert CODEC.decode(values).to_pylist() == column.to_pylist()


def test_streams_of_several_schemas_and_layouts() -> None:
    names = pa.array(["a", "b", None], pa.large_utf8())
    stamps = pa.array([{"t": 7_000}], pa.struct([("t", pa.timestamp("ns", "Europe/Paris"))]))
    plain = {"more": [[1], None, []], "name": names}
    others = names.cast(pa.string_view()), names.cast(pa.utf8()).dictionary_encode()
    layouts = [stream({"name": column}) for column in others]
    values = [stream(plain), None, stream({"at": stamps, "id": [1]})]
    rows, bad = decoded(CODEC, *values, *layouts, stream(plain, "zstd"), stream(plain, "lz4"))
    assert not bad
    assert rows[0] == [{"id": None, "name": name, "at": None} for name in ("a", "b", None)]
    assert rows[1] is None
    assert rows[2][0]["at"]["t"].microsecond == 7
    assert [row == rows[0] for row in rows[3:]] == [True] * 4


@given(st.integers(0, 1 << 16), st.binary(min_size=1, max_size=8))
def test_a_damaged_stream_is_a_bad_value_or_a_table(at: int, damage: bytes) -> None:
    whole = stream({"id": [1, 2, 3], "name": ["a", "b", "c"]}, "zstd")
    at %= len(whole)
    rows, _ = decoded(CODEC, (whole[:at] + damage + whole)[: len(whole)])
    assert len(rows) == 1


LONG = "x" * (MAX_OPENED // 4)
SHORT = b"x" * 1000


def shared() -> pa.Array:
    """A dictionary of one text, which 70,000 rows share."""
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(70_000, np.int8)), [SHORT.decode()])


def viewed() -> pa.Array:
    """Views of one text, which 70,000 rows share."""
    view = np.array([len(SHORT), int.from_bytes(SHORT[:4], "little"), 0, 0], np.int32)
    buffers = [None, pa.py_buffer(np.tile(view, 70_000)), pa.py_buffer(SHORT)]
    return pa.Array.from_buffers(pa.string_view(), 70_000, buffers)


@pytest.mark.parametrize(
    ("column", "made"),
    [
        ("name", lambda: pa.array([LONG] * 5)),
        ("unknown", lambda: pa.array([[LONG] * 5])),
        ("unknown", lambda: pa.nulls(2_000_000)),
        ("name", shared),
        ("name", viewed),
        ("at", lambda: pa.StructArray.from_arrays([shared()], ["name"])),
        ("names", lambda: pa.ListArray.from_arrays([0, 70_000], shared())),
    ],
)
def test_a_value_that_opens_to_too_much_is_bad_before_it_takes_memory(
    column: str, made: Callable[[], pa.Array]
) -> None:
    codec = ArrowCodec(parse_ddl("name STRING, at STRUCT<name: STRING>, names ARRAY<STRING>"))
    values = pa.array([stream({column: made()}, "zstd")], pa.binary())
    assert len(values[0].as_buffer()) < MAX_OPENED // 1000
    default = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(default)
    pa.set_memory_pool(pool)  # its peak counts from here
    try:
        with pytest.raises(ValueError, match="opens to more than 64 MiB; write fewer rows"):
            codec.decode(values)
    finally:
        pa.set_memory_pool(default)
    assert pool.max_memory() < MAX_OPENED // 4


def test_values_that_open_to_too_much_together_fail_the_query() -> None:
    """Each of them is good: none of them may be null in a result, or left out."""
    value = stream({"more": pa.nulls(500_000)}, "zstd")
    values = pa.array([value] * 30, pa.binary())
    why = rf"the 30 values .* open to \d+ bytes, more than {MAX_BATCH}\. .*maxRecordsPerBatch"
    with pytest.raises(BatchTooLargeError, match=why):
        list(decode_parts(values, CODEC.decode))
