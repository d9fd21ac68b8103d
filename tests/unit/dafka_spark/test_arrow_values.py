"""Arrow's streams as values."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types

from dafka_spark.formats.arrow_values import MAX_ROWS, ArrowCodec
from dafka_spark.formats.codec import apart, joined
from dafka_spark.formats.codecs import parse_ddl

KIND = parse_ddl("id BIGINT, name STRING, at STRUCT<t: TIMESTAMP>")
CODEC = ArrowCodec(KIND)
ARROW = pa.list_(
    pa.struct(
        [
            ("id", pa.int64()),
            ("name", pa.utf8()),
            ("at", pa.struct([("t", pa.timestamp("us", "UTC"))])),
        ]
    )
)


def stream(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=2)
    found: bytes = sink.getvalue().to_pybytes()
    return found


def decoded(*values: bytes | None) -> tuple[list[Any], dict[int, str]]:
    parts = list(apart(pa.array(values, pa.binary()), CODEC.decode))
    column = joined(parts, ARROW)
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
def test_what_is_encoded_is_decoded(rows: list[Any], start: int) -> None:
    column = pa.array(rows, ARROW).slice(start)
    values = CODEC.encode(column)
    assert values.null_count == column.null_count
    assert CODEC.decode(values).to_pylist() == column.to_pylist()


def test_a_schema_that_has_changed() -> None:
    names = pa.array(["a", "b", None], pa.large_utf8())
    table = pa.table({"more": [[1], None, []], "name": names})
    viewed = pa.table({"name": names.cast(pa.string_view())})
    stamps = pa.array([{"t": 7_000}], pa.struct([("t", pa.timestamp("ns", "Europe/Paris"))]))
    rows, bad = decoded(
        stream(table), None, stream(pa.table({"at": stamps, "id": [1]})), stream(viewed)
    )
    assert not bad
    assert [row["name"] for row in rows[0]] == ["a", "b", None]
    assert {(row["id"], row["at"]) for row in rows[0]} == {(None, None)}
    assert rows[3] == rows[0]
    assert rows[1] is None
    assert rows[2][0]["at"]["t"].microsecond == 7


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (b"", "no stream of Arrow's"),
        (stream(pa.table({"x": pa.nulls(MAX_ROWS + 1)})), "it has 1000001 rows, at most"),
        (b"\xff" * 100, "no stream of Arrow's"),
        (stream(pa.table({"id": [1, 2, 3]}))[:-200], "no stream of Arrow's"),
        (stream(pa.table({"id": ["1"]})), "column 'id' is string, not bigint"),
        (stream(pa.table({"id": pa.array([1], pa.int32())})), "column 'id' is int32, not bigint"),
        (stream(pa.table([[1], [2]], names=["id", "id"])), "column 'id' is there twice"),
        (stream(pa.table({"name": pa.array([b"\xff"]).view(pa.utf8())})), "no stream of Arrow's"),
    ],
)
def test_a_bad_value_spoils_no_other(value: bytes, why: str) -> None:
    good = stream(pa.table({"id": [7]}))
    rows, bad = decoded(good, value, good, good)
    assert [each and each[0]["id"] for each in rows] == [7, None, 7, 7]
    assert list(bad) == [1]
    assert why in bad[1]


def test_what_is_no_list_of_structs_is_refused() -> None:
    for kind in types.LongType(), types.ArrayType(types.LongType()):
        with pytest.raises(ValueError, match=r"a list of structs"):
            ArrowCodec(kind)
