"""Options of values, refused before a query starts."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import types

from dafka_core.errors import ConfigError
from dafka_spark import DafkaDataSource
from dafka_spark.errors import ColumnError
from dafka_spark.options import SinkOptions, SourceOptions
from dafka_spark.schema import is_table, table_options
from dafka_spark.sink.task_writer import check_columns
from tests.unit.dafka_spark.descriptors import INT64, File

JSON = {"valueformat": "json", "valueschema": "id BIGINT"}


def source(**given: Any) -> SourceOptions:
    return SourceOptions.of({"subscribe": "t", **given})


def test_columns_are_those_of_the_format() -> None:
    plain = DafkaDataSource({"subscribe": "t"}).schema()
    assert plain["value"].dataType == types.BinaryType()
    for given, kind in ({"valueformat": "string"}, "string"), (JSON, "struct<id:bigint>"):
        for mode, more in ("FAILFAST", []), ("permissive", ["_error", "_corrupt_record"]):
            schema = DafkaDataSource({"subscribe": "t", **given, "mode": mode}).schema()
            assert schema["value"].dataType.simpleString() == kind
            assert schema.names == plain.names + more


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"valueformat": "xml"}, "must be one of bytes, string, json, arrow, avro, protobuf"),
        ({"valueformat": "json"}, "name them with option valueSchema"),
        ({"valueformat": "json", "valueschema": "id"}, "must be columns like"),
        ({"valueformat": "json", "valueschema": "b BINARY"}, "unbase64"),
        (
            {"valueformat": "string", "valueschema": "id INT"},
            "is for valueFormat = json or arrow or avro or protobuf",
        ),
        ({"valueschema": "id INT"}, "is for valueFormat = json or arrow or avro or protobuf, not"),
        ({"mode": "PERMISSIVE"}, "needs valueFormat"),
        ({**JSON, "mode": "ignore"}, "must be one of FAILFAST, PERMISSIVE, DROPMALFORMED"),
        ({"valueformat": "arrow"}, "name them with option valueSchema"),
        ({**JSON, "metadata": "topics"}, "is about records"),
        ({**JSON, "messagename": "M"}, "is for valueFormat = protobuf, not json"),
        ({"valueformat": "protobuf", "valueschema": "x"}, "'messageName'.*is needed with"),
        (
            {"valueformat": "protobuf", "valueschema": "x", "messagename": "M"},
            "must be a descriptor set",
        ),
    ],
)
def test_what_does_not_fit_is_refused(given: dict[str, str], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        source(**given)


def test_columns_that_are_asked_for_are_checked() -> None:
    def reader(schema: types.StructType, **given: str) -> None:
        DafkaDataSource({"subscribe": "t", "tower": "127.0.0.1", **given}).reader(schema)

    struct = types.StructType([types.StructField("id", types.LongType())])
    reader(types.StructType([types.StructField("VALUE", struct)]), **JSON)
    reader(
        types.StructType([types.StructField("_ERROR", types.StringType())]),
        **JSON,
        mode="permissive",
    )
    with pytest.raises(ColumnError, match=r"is struct<id:bigint>, not binary"):
        reader(types.StructType([types.StructField("value", types.BinaryType())]), **JSON)
    with pytest.raises(ColumnError, match=r"with option mode = PERMISSIVE only"):
        reader(types.StructType([types.StructField("_error", types.StringType())]), **JSON)


def test_writing_takes_its_schema_from_the_rows() -> None:
    assert SinkOptions.of({"topic": "t", "valueformat": "json"}).codec() is None
    assert SinkOptions.of({"topic": "t", **JSON}).codec() is not None
    with pytest.raises(ConfigError, match="must be columns like"):
        SinkOptions.of({"topic": "t", "valueformat": "json", "valueschema": "id"})
    with pytest.raises(ConfigError, match="is an option of reading"):
        SinkOptions.of({"topic": "t", "mode": "PERMISSIVE"})


def test_an_avro_schema_may_be_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "id.avsc"
    given = {"valueformat": "avro", "valueschema": str(path)}
    with pytest.raises(ConfigError, match=r"cannot be read: .*No such file"):
        source(**given)
    path.write_text('{"type":"record","name":"R","fields":[{"name":"id","type":"long"}]}')
    options = source(**given)
    path.unlink()  # as on an executor
    codec = options.codec()
    assert codec is not None
    assert codec.kind.simpleString() == "struct<id:bigint>"
    with pytest.raises(ConfigError, match="must be an Avro schema as JSON"):
        source(valueformat="avro", valueschema="id BIGINT")


def test_a_descriptor_set_may_be_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "a.desc"
    file = File()
    file.message("M", id=INT64)
    given = {"valueformat": "protobuf", "valueschema": str(path), "messagename": "a.M"}
    with pytest.raises(ConfigError, match=r"cannot be read: .*No such file"):
        source(**given)
    path.write_bytes(file.octets)
    options = source(**given)
    path.unlink()  # as on an executor
    assert options.value_kind.simpleString() == "struct<id:bigint>"
    assert source(**given | {"valueschema": file.text}).value_schema == options.value_schema
    with pytest.raises(ConfigError, match=r"'valueSchema' .* has no message 'N'; there are a\.M"):
        source(**given | {"valueschema": file.text, "messagename": "N"})


def test_what_must_be_installed_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fastavro", None)
    with pytest.raises(
        ConfigError, match=r"'avro': needs fastavro.*pip install 'dafka-spark\[avro"
    ):
        source(valueformat="avro", valueschema="{}")


def test_a_sql_table_keeps_its_format_for_reading_and_writing() -> None:
    kept = {"subscribe": "t", "tower": "127.0.0.1", **JSON, "mode": "PERMISSIVE"}
    given = {"provider": "dafka", **{f"option.{name}": value for name, value in kept.items()}}
    table = DafkaDataSource(given).schema()
    assert table["value"].dataType.simpleString() == "struct<id:bigint>"
    DafkaDataSource({}).reader(table)
    options = SinkOptions.of_table(table_options(table), {})
    assert is_table(table)
    assert (options.topic, options.value_format, options.value_schema) == ("t", "json", "id BIGINT")
    check_columns(table, options)
