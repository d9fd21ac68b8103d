"""Rows with a typed value, on their way to stores."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql import types

from dafka_spark.errors import ColumnError
from dafka_spark.formats.value_schema import parse_ddl
from dafka_spark.options import SinkOptions
from dafka_spark.sink.task_writer import by_topic, check_columns
from dafka_spark.sink.typed_rows import encoded, row_codec


def options(**given: str) -> SinkOptions:
    return SinkOptions.of({"topic": "t", **given})


@pytest.mark.parametrize(
    ("kind", "given", "why"),
    [
        (parse_ddl("id INT"), {}, r"is struct<id:int>, must be binary or string; name a format"),
        (types.BinaryType(), {"valueformat": "string"}, "must be string with valueFormat = string"),
        (types.StringType(), {"valueformat": "json"}, "is string, a JSON object is made of a stru"),
        (
            parse_ddl("id INT"),
            {"valueformat": "arrow", "valueschema": "id INT"},
            "is struct<id:int>",
        ),
        (
            parse_ddl("id INT"),
            {"valueformat": "avro"},
            "an Avro schema: name it with option valueS",
        ),
        (types.StringType(), {"valueformat": "arrow"}, "is string; a stream is made of a list"),
        (parse_ddl("b BINARY"), {"valueformat": "json"}, "no form in JSON"),
        (
            parse_ddl("id INT"),
            {"valueformat": "json", "valueschema": "id BIGINT"},
            r"is struct<id:int>, and option valueSchema says struct<id:bigint>",
        ),
    ],
)
def test_columns_are_checked_before_a_query_starts(
    kind: types.DataType, given: dict[str, str], why: str
) -> None:
    schema = types.StructType([types.StructField("VALUE", kind)])
    with pytest.raises(ColumnError, match=why):
        check_columns(schema, options(**given))


def test_structs_are_written() -> None:
    kind = parse_ddl("id BIGINT, name STRING")
    chosen = options(valueformat="json", valueschema="id BIGINT, name STRING")
    rows = [{"id": 1, "name": "a"}, None, {"id": None, "name": None}]
    arrow = pa.struct([("id", pa.int64()), ("name", pa.utf8())])
    keys = pa.array([b"k", b"gone", None])
    batch = pa.RecordBatch.from_arrays([keys, pa.array(rows, arrow)], ["key", "Value"])
    for each in chosen, options(valueformat="json"):
        (written,) = encoded(iter([batch]), row_codec(kind, each))
        assert written.schema.names == ["key", "Value"]
        assert written.column(1).to_pylist() == ['{"id":1,"name":"a"}', None, "{}"]
        assert written.column(0).equals(keys)
        ((topic, contents),) = by_topic(written, each)
        assert (topic, len(contents), contents.null_count) == ("t", 3, 0)
    plain = pa.RecordBatch.from_arrays([pa.array(["x"])], ["value"])
    for form in "bytes", "string":
        codec = row_codec(types.StringType(), options(valueformat=form))
        assert list(encoded(iter([plain]), codec)) == [plain]
