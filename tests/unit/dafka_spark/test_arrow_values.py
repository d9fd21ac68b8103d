"""Arrow streams as values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types

from dafka_spark.errors import BatchTooLargeError
from dafka_spark.formats.arrow_values import MAX_BATCH, MAX_OPENED, ArrowCodec
from dafka_spark.formats.codecs import concat_parts, decode_parts
from dafka_spark.formats.ddl import parse_ddl

CODEC = ArrowCodec(parse_ddl("id BIGINT, name STRING, at STRUCT<t: TIMESTAMP>"))
ROW = {"id": pa.int64(), "name": pa.utf8(), "at": pa.struct([("t", pa.timestamp("us", "UTC"))])}
ARROW = pa.list_(pa.struct(list(ROW.items())))


def stream(table: pa.Table, compression: str | None = None) -> bytes:
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=1 << 20 if compression else 2)
    found: bytes = sink.getvalue().to_pybytes()
    return found


def decoded(*values: bytes | None) -> tuple[list[Any], dict[int, str]]:
    parts = list(decode_parts(pa.array(values, pa.binary()), CODEC.decode))
    column = concat_parts(parts, ARROW)
    column.validate(full=True)
    return column.to_pylist(), {part.start: part.why for part in parts if part.why}


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
    plain = pa.table({"more": [[1], None, []], "name": names})
    others = names.cast(pa.string_view()), names.cast(pa.utf8()).dictionary_encode()
    layouts = [stream(pa.table({"name": column})) for column in others]
    values = [stream(plain), None, stream(pa.table({"at": stamps, "id": [1]}))]
    rows, bad = decoded(*values, *layouts, stream(plain, "zstd"), stream(plain, "lz4"))
    assert not bad
    assert rows[0] == [{"id": None, "name": name, "at": None} for name in ("a", "b", None)]
    assert rows[1] is None
    assert rows[2][0]["at"]["t"].microsecond == 7
    assert [row == rows[0] for row in rows[3:]] == [True] * 4


NOT_ONE = "not an Arrow stream"


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (b"", NOT_ONE),
        (b"\xff" * 100, NOT_ONE),
        (stream(pa.table({"id": [1, 2, 3]}))[:-200], NOT_ONE),
        (stream(pa.table({"name": pa.array([b"\xff"]).view(pa.utf8())})), NOT_ONE),
        (stream(pa.table({"id": ["1"]})), "column 'id' is string, not bigint"),
        (stream(pa.table({"id": pa.array([1], pa.int32())})), "column 'id' is int32, not bigint"),
        (stream(pa.table([[1], [2]], names=["id", "id"])), "duplicate column 'id'"),
    ],
)
def test_a_bad_value_spoils_no_other(value: bytes, why: str) -> None:
    good = stream(pa.table({"id": [7]}))
    rows, bad = decoded(good, value, good, good)
    assert [each and each[0]["id"] for each in rows] == [7, None, 7, 7]
    assert list(bad) == [1]
    assert why in bad[1]


@given(st.integers(0, 1 << 16), st.binary(min_size=1, max_size=8))
def test_a_damaged_stream_is_a_bad_value_or_a_table(at: int, damage: bytes) -> None:
    whole = stream(pa.table({"id": [1, 2, 3], "name": ["a", "b", "c"]}), "zstd")
    at %= len(whole)
    rows, _ = decoded((whole[:at] + damage + whole)[: len(whole)])
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
    values = pa.array([stream(pa.table({column: made()}), "zstd")], pa.binary())
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
    value = stream(pa.table({"more": pa.nulls(500_000)}), "zstd")
    values = pa.array([value] * 30, pa.binary())
    why = rf"the 30 values .* open to \d+ bytes, more than {MAX_BATCH}\. .*maxRecordsPerBatch"
    with pytest.raises(BatchTooLargeError, match=why):
        list(decode_parts(values, CODEC.decode))


def test_only_a_list_of_structs_has_a_codec() -> None:
    for kind in types.LongType(), types.ArrayType(types.LongType()):
        with pytest.raises(ValueError, match=r"a list of structs"):
            ArrowCodec(kind)
