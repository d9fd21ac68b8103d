"""Arrow that people wrote, and Arrow that is meant to harm."""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa
import pytest

from dafka_core.console import arrow_values

TABLE = pa.table(
    {
        "a": [1, 2, 3],
        "b": ["x", None, "z"],
        "d": pa.array(["p", "q", "p"]).dictionary_encode(),
        "l": [[1], [], None],
    }
)


def stream_of(table: pa.Table, **options: Any) -> bytes:
    made = io.BytesIO()
    with pa.ipc.new_stream(made, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table)
    return made.getvalue()


def file_of(table: pa.Table) -> bytes:
    made = io.BytesIO()
    with pa.ipc.new_file(made, table.schema) as writer:
        writer.write_table(table)
    return made.getvalue()


def test_streams_and_files() -> None:
    for value in (stream_of(TABLE), file_of(TABLE)):
        assert arrow_values.looks_so(value)
        assert arrow_values.rows(value) == (TABLE.to_pylist(), "")


def test_only_the_first_rows_are_made() -> None:
    found, note = arrow_values.rows(stream_of(pa.table({"a": range(1_000)})))
    assert (len(found), note) == (50, "the first 50 rows")


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_what_is_compressed_is_not_opened(codec: str) -> None:
    for table in (TABLE, TABLE.select(["d"])):
        with pytest.raises(ValueError, match="compressed"):
            arrow_values.rows(stream_of(table, compression=codec))


@pytest.mark.parametrize(
    "kind",
    [
        pa.list_(pa.null()),
        pa.list_(pa.struct([])),
        pa.struct([("u", pa.list_(pa.binary(0)))]),
        pa.list_(pa.int8(), 100_000),
        pa.list_(pa.run_end_encoded(pa.int32(), pa.int8())),
    ],
)
def test_types_by_which_few_octets_are_much_are_refused(kind: pa.DataType) -> None:
    made = io.BytesIO()
    with pa.ipc.new_stream(made, pa.schema([("c", kind)])):
        pass
    with pytest.raises(ValueError, match=r"not opened here|too long"):
        arrow_values.rows(made.getvalue())


def test_a_type_that_is_too_deep_and_too_many_columns() -> None:
    kind = pa.int8()
    for _ in range(30):
        kind = pa.list_(kind)
    with pytest.raises(ValueError, match="too deep"):
        arrow_values._check_type(kind)
    with pytest.raises(ValueError, match="columns"):
        arrow_values.rows(stream_of(pa.table({f"c{n}": [1] for n in range(300)})))


def test_a_stream_that_is_damaged_anywhere_is_refused_or_read() -> None:
    good = stream_of(TABLE)
    for place in range(8, len(good), 7):
        bad = bytearray(good)
        bad[place] ^= 0xFF
        try:
            found, _ = arrow_values.rows(bytes(bad))
        except Exception:  # noqa: BLE001 -- any error is one; the process lives
            continue
        assert len(found) <= 51
