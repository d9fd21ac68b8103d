"""Formats by their names."""

from __future__ import annotations

from dafka_spark.formats.codecs import FORMATS, codec_of, parse_ddl
from tests.unit.dafka_spark.descriptors import INT64, File


def test_every_format_has_a_codec() -> None:
    kind = parse_ddl("id BIGINT")
    avro = '{"type":"record","name":"R","fields":[{"name":"id","type":"long"}]}'
    file = File()
    file.message("M", id=INT64)
    schemas = {"avro": avro, "protobuf": file.text}
    kinds = {name: codec_of(name, schemas.get(name, "id BIGINT"), "M") for name in FORMATS}
    assert {name: codec.kind.simpleString() for name, codec in kinds.items() if codec} == {
        "string": "string",
        "json": "struct<id:bigint>",
        "arrow": "array<struct<id:bigint>>",
        "avro": "struct<id:bigint>",
        "protobuf": "struct<id:bigint>",
    }
    found = codec_of("json", kind)
    assert found is not None
    assert found.kind == kind
