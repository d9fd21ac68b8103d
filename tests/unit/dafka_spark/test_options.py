"""Options of source and sink: parsing, contradictions, warnings, and what follows from them."""

from __future__ import annotations

import logging
import pickle
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import types

from dafka_core.config.node_options import NO_KEYS, KeyFiles, ReaderOptions
from dafka_core.errors import ConfigError
from dafka_core.model.records import TopicPartition
from dafka_core.storage.block import MAX_BLOCK_BYTES, MAX_BLOCK_RECORDS
from dafka_spark import DafkaDataSource
from dafka_spark.cluster import connections
from dafka_spark.errors import ColumnError
from dafka_spark.option_types import (
    ALL_STORES,
    AT_EARLIEST,
    AT_LATEST,
    LATEST,
    TIME,
    UNLIMITED_BYTES,
    Position,
)
from dafka_spark.options import (
    DEFAULT_BYTES,
    SinkOptions,
    SourceOptions,
    SparkOptions,
    sides,
    user_options,
)
from dafka_spark.schema import is_table, table_options
from dafka_spark.sink.rows import check_columns
from scripts.options import markdown_table
from tests.unit.dafka_spark.descriptors import INT64, File

A = TopicPartition("t", "A")
ASSIGN = '{"t": ["A"]}'
BY_TIME = '{"t": {"A": 2000}}'
JSON = {"valueformat": "json", "valueschema": "id BIGINT"}
STORES = "grpc://127.0.0.1:1"
TYPED = "is for valueFormat = json or arrow or avro or protobuf, not"


def read(**given: object) -> SourceOptions:
    return SourceOptions.of({"subscribe": "t", **{k: str(v) for k, v in given.items()}})


def test_names_match_in_any_case() -> None:
    options = SourceOptions.of(
        {"SUBSCRIBE": "a, b", "fetchtimeoutms": "7", "failOnDataLoss": "false", "fetch": "Local"}
    )
    assert options.fetch == "local"
    assert options.subscribe == ("a", "b")
    assert options.fetch_timeout_s == 0.007
    assert options.fail_on_data_loss is False


def test_defaults() -> None:
    options = read()
    # A store's block passes as one batch.
    assert options.max_records_per_batch == MAX_BLOCK_RECORDS
    assert options.max_bytes_per_batch >= MAX_BLOCK_BYTES
    assert options.max_trigger_delay == 900_000  # Kafka's default, 15 m
    assert SinkOptions.of({}).acks_needed == ALL_STORES
    assert SinkOptions.of({"acks": "2"}).acks_needed == 2
    assert SinkOptions.of({}).delivery_timeout_s == 120.0


def test_hosts_may_have_ipv6_addresses() -> None:
    stores = read(stores="grpc://[::1]:5,grpc+tls://[fd00::7]:6").mesh_address.stores
    assert stores == ("grpc://[::1]:5", "grpc+tls://[fd00::7]:6")
    mesh = read(tower="[fd00::7],[fe80::7%eth0]:1:2", host="::1").mesh_address
    assert (mesh.tower, mesh.host) == ("[fd00::7]:5556:5557,[fe80::7%eth0]:1:2", "[::1]")


def test_options_travel_to_executors() -> None:
    options = read(startingOffsets='{"t": {"A": 5}}', where="offset >= 5")
    assert pickle.loads(pickle.dumps(options)) == options


def test_every_option_is_in_the_table() -> None:
    table = markdown_table(SourceOptions)
    assert "| `maxOffsetsPerTrigger` | int |" in table
    assert "| `tower` | HOST[:SUB_PORT:PUB_PORT] |" in table
    for side in sides():
        assert all(row.meaning for row in side.table())


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"subscribes": "t"}, "did you mean 'subscribe'"),
        ({"fetchtimeout": "1"}, "did you mean 'fetchTimeoutMs'"),
        ({"maxBytePerTrigger": "1"}, "did you mean 'maxBytesPerTrigger'"),
        ({"topic": "t"}, "is an option of writing"),
        ({"path": "t"}, "has no path; name the topic with option 'subscribe'"),
        ({"zzzzzz": "t"}, "there are archive, assign, endingOffsets"),
        ({"fetchTimeoutMs": "0"}, "at least 1"),
        ({"fetchTimeoutMs": "soon"}, "whole number"),
        ({"minPartitions": "0"}, "at least 1"),
        ({"maxRecordsPerPartition": "-1"}, "at least 1"),
        ({"maxOffsetsPerTrigger": "0"}, "at least 1"),
        ({"maxBytesPerTrigger": "0"}, "at least 1"),
        ({"minOffsetsPerTrigger": "0"}, "at least 1"),
        ({"maxTriggerDelay": "soon"}, "must be a time like 500ms, 30s, 15m, 2h or 1d"),
        (
            {"minOffsetsPerTrigger": "11", "maxOffsetsPerTrigger": "10"},
            "'minOffsetsPerTrigger' = 11: must not be above maxOffsetsPerTrigger, which is 10",
        ),
        ({"failOnDataLoss": "maybe"}, "true or false"),
        ({"fetch": "disk"}, "must be one of auto, local, flight, mesh"),
        ({"fetch": "mesh", "stores": STORES}, "'fetch' = 'mesh': reads from the mesh; leave it"),
        ({"tower": "host:1"}, "HOST[:SUB_PORT:PUB_PORT]"),
        ({"tower": "::1"}, "HOST[:SUB_PORT:PUB_PORT]"),
        ({"stores": "grpc://::1:5"}, "must be like grpc://HOST:PORT"),
        ({"stores": "grpc://[fe80::7%25eth0]:5"}, "must be like grpc://HOST:PORT"),
        ({"archive": "s3://bucket/a"}, "must be the path of a directory, on a disk that all"),
        ({"archive": ""}, "must be the path of a directory"),
        ({"progressTopic": "queries"}, "must begin with __dafka., so that no pattern matches"),
        ({"envelope": "none", "includeHeaders": "true"}, "leave out includeHeaders"),
        ({"subscribe": "t,,u"}, "a topic must have 1 to 255 bytes"),
        ({"subscribePattern": "t.*"}, "'t.*': name what to read with exactly one of subscribe, "),
        ({"assign": '{"u": ["B", "A"]}'}, """'assign' = '{"u": ["A", "B"]}': name what to read"""),
        ({"metadata": "topics", "assign": ASSIGN}, "not with subscribe and assign"),
        ({"metadata": "topic"}, "must be one of topics, partitions, stores"),
        ({"metadata": "topics", "startingOffsets": "earliest"}, "'startingOffsets' = 'earliest'"),
        ({"metadata": "topics", "archive": "/a"}, "'/a': is about records; leave it out"),
        ({"metadata": "lag", "queryName": "q"}, "is about records"),
        ({"metadata": "topics", **JSON}, "is about records"),
        ({"startingOffsets": "first"}, "must be earliest, latest or JSON"),
        ({"startingTimestamp": "1767225600"}, "did you mean 1767225600000 (2026-01-01T00:00:00Z)"),
        ({"endingTimestamp": "1767225600"}, "did you mean 1767225600000"),
        ({"startingOffsetsByTimestamp": '{"t": 1767225600}'}, "did you mean 1767225600000"),
        ({"endingOffsetsByTimestamp": '{"t": {"A": 1767225600}}'}, "did you mean 1767225600000"),
        (
            {"startingOffsets": '{"u": {"A": 3}}'},
            "names topic 'u', partition A, which the query does not read; compare it with subsc",
        ),
        (
            {"endingOffsets": '{"u": "latest-3"}'},
            """= '{"u": "latest-3"}': names topic 'u', which the query does not read""",
        ),
        ({"valueformat": "xml"}, "must be one of bytes, string, json, arrow, avro, protobuf"),
        ({"valueformat": "json"}, "'valueFormat' = 'json': needs a schema: name it with option"),
        ({"valueformat": "arrow"}, "needs a schema: name it with option valueSchema"),
        ({"valueformat": "json", "valueschema": "id"}, "must be columns like"),
        ({"valueformat": "json", "valueschema": "b BINARY"}, "unbase64"),
        ({"valueformat": "avro", "valueschema": "id BIGINT"}, "must be an Avro schema as JSON"),
        ({"valueformat": "string", "valueschema": "id INT"}, f"{TYPED} string"),
        ({"valueschema": "id INT"}, f"{TYPED} bytes"),
        ({"mode": "PERMISSIVE"}, "'mode' = 'PERMISSIVE': needs valueFormat"),
        ({**JSON, "mode": "ignore"}, "must be one of FAILFAST, PERMISSIVE, DROPMALFORMED"),
        ({**JSON, "messagename": "M"}, "'messageName' = 'M': is for valueFormat = protobuf"),
        ({"valueformat": "protobuf", "valueschema": "x"}, "'messageName' = '': is required with"),
        (
            {"valueformat": "protobuf", "valueschema": "x", "messagename": "M"},
            "'valueSchema' = 'x': must be a descriptor set",
        ),
    ],
)  # fmt: skip
def test_refused_source_options(given: dict[str, str], error: str) -> None:
    with pytest.raises(ConfigError) as caught:
        SourceOptions.of({"subscribe": "t", **given})
    assert error in str(caught.value)
    assert "TopicPartition" not in str(caught.value)


def test_a_source_without_topics_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"exactly one of subscribe, .* leave the columns out"):
        SourceOptions.of({})


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"subscribe": "t"}, "is an option of reading; writing takes acks, allowControlCharacters"),
        ({"mode": "PERMISSIVE"}, "is an option of reading"),
        ({"topics": "t"}, "did you mean 'topic'"),
        ({"path": "t"}, "has no path; name the topic with option 'topic'"),
        ({"acks": "0"}, "at least 1, or all"),
        ({"delivery": "exactly-once"}, "each batch is written exactly once"),
        ({"Commit": "batch"}, "leave the option out"),
        ({"topic": ""}, "a topic must have 1 to 255 bytes"),
        ({"topic": r"a\x1b"}, "set option allowControlCharacters to true"),
        ({"deliveryTimeoutMs": "0"}, "at least 1"),
        ({"txnAppId": "a"}, "'txnAppId' = 'a': is given with 'txnVersion' only: name both"),
        ({"txnVersion": "1"}, "'txnVersion' = 1: is given with 'txnAppId' only: name both"),
        ({"txnAppId": "a", "txnVersion": "-1"}, "at least 0"),
        ({"txnAppId": "a", "txnVersion": "562949953421312"}, "at most 562949953421311"),
        ({"txnAppId": "a", "txnVersion": "1", "writerId": "w"}, "leave out writerId"),
        ({"valueformat": "json", "valueschema": "id"}, "must be columns like"),
    ],
)
def test_refused_sink_options(given: dict[str, str], error: str) -> None:
    with pytest.raises(ConfigError) as caught:
        SinkOptions.of(given)
    assert error in str(caught.value)


def test_a_sink_accepts_what_spark_adds() -> None:
    given = {"topic": "t", "checkpointlocation": "/c", "queryname": "q"}
    assert SinkOptions.of(given).topic == "t"


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"startingOffsets": "latest"}, "starts at the latest offset reads nothing"),
        ({"endingOffsets": "earliest"}, "reads nothing"),
        ({"endingOffsets": '{"t": {"A": -2}}'}, """'{"t": {"A": -2}}': a batch that ends at the"""),
    ],
)
def test_a_batch_that_reads_nothing_is_refused(given: dict[str, str], error: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(error)):
        read(**given).for_batch()


@pytest.mark.parametrize(
    "given", [{"metadata": "stores"}, {"subscribe": "t", "endingOffsets": "latest"}]
)
def test_streams_have_neither_an_end_nor_metadata(given: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="is for batch queries only"):
        SourceOptions.of(given).for_stream()


def test_metadata_of_all_topics_or_of_those_named() -> None:
    everything = SourceOptions.of({"metadata": "Topics", "minstores": "all"}).for_batch()
    assert everything.metadata == "topics"
    assert everything.selection.asked is None
    assert SourceOptions.of({"metadata": "topics", "subscribe": "t"}).selection.asked == ["t"]


STRATEGY = {"startingOffsetsByTimestampStrategy": "error"}
PROGRESS_TOPIC = {"progressTopic": "__dafka.mine"}


NO_TRIGGER = "a batch has no trigger"
NO_TIME = "it is for startingTimestamp and startingOffsetsByTimestamp"
NO_NAME = "only a query with option queryName reports progress"


@pytest.mark.parametrize(
    ("given", "in_batch", "in_stream"),
    [
        ({"maxOffsetsPerTrigger": 5}, NO_TRIGGER, ""),
        ({"maxBytesPerTrigger": 5}, NO_TRIGGER, ""),
        ({"minOffsetsPerTrigger": 5}, NO_TRIGGER, ""),
        ({"maxTriggerDelay": 5}, NO_TRIGGER, "no batch waits without minOffsetsPerTrigger"),
        ({"queryName": "q"}, "a batch reports no progress", ""),
        ({"pushFilters": True}, "", "Spark pushes filters of batches only"),
        (STRATEGY, NO_TIME, NO_TIME),
        ({**STRATEGY, "startingOffsets": "-10m"}, NO_TIME, NO_TIME),
        ({**STRATEGY, "startingTimestamp": 1}, "", ""),
        ({**STRATEGY, "startingOffsetsByTimestamp": BY_TIME}, "", ""),
        (PROGRESS_TOPIC, NO_NAME, NO_NAME),
        ({}, "", ""),
    ],
)
def test_options_without_effect_are_named_in_a_warning(
    given: dict[str, object], in_batch: str, in_stream: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "dafka_spark")
    for use, why in ((SourceOptions.for_batch, in_batch), (SourceOptions.for_stream, in_stream)):
        caplog.clear()
        use(read(**given))
        name, value = next(iter(given.items()), ("", ""))
        assert caplog.messages == [f"option {name} = {value} is ignored: {why}"] * bool(why)


def test_options_with_an_effect_beside_others(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "dafka_spark")
    read(maxTriggerDelay="1s", minOffsetsPerTrigger=5).for_stream()
    read(**PROGRESS_TOPIC, queryName="q").for_stream()
    SourceOptions.of({"metadata": "lag", **PROGRESS_TOPIC}).for_batch()
    assert not caplog.messages


def test_times_take_precedence_over_offsets() -> None:
    given = {"startingTimestamp": 1000, "startingOffsetsByTimestamp": BY_TIME}
    start = read(**given, startingOffsets="earliest").starting(AT_LATEST)
    assert (start.option, start.everywhere) == ("startingTimestamp", Position(TIME, 1_000_000))
    del given["startingTimestamp"]
    start = read(**given, startingOffsets="earliest").starting(AT_LATEST)
    assert (start.option, start.everywhere) == ("startingOffsetsByTimestamp", None)
    assert start.limit.partitions == {A: Position(TIME, 2_000_000)}
    assert start.default == AT_EARLIEST
    assert read(startingOffsets="earliest").starting(AT_LATEST).everywhere == AT_EARLIEST
    assert read().starting(AT_LATEST).everywhere == AT_LATEST


def test_ending_times_take_precedence_over_offsets() -> None:
    given = {"endingTimestamp": 1000, "endingOffsetsByTimestamp": BY_TIME}
    assert read(**given, endingOffsets="latest-5").ending().everywhere == Position(TIME, 1_000_000)
    del given["endingTimestamp"]
    end = read(**given, endingOffsets="latest-5").ending()
    assert (end.option, end.default) == ("endingOffsetsByTimestamp", AT_LATEST)
    assert read(endingOffsets="latest-5").ending().everywhere == Position(LATEST, 5)
    assert read().ending().everywhere == AT_LATEST


def test_a_partition_without_a_later_record_fails_only_with_the_strategy() -> None:
    """A producer may be idle or have ended; ``-10m`` never fails a query."""
    assert not read(startingTimestamp=1).starting(AT_LATEST).is_strict
    assert read(startingTimestamp=1, **STRATEGY).starting(AT_LATEST).is_strict
    assert read(startingOffsetsByTimestamp=BY_TIME, **STRATEGY).starting(AT_LATEST).is_strict
    assert not read(startingOffsets="-10m", **STRATEGY).starting(AT_LATEST).is_strict


def test_positions_may_name_any_selected_topic() -> None:
    for which in ({"assign": ASSIGN}, {"subscribePattern": "[tu]"}):
        options = SourceOptions.of({**which, "startingOffsets": '{"t": "latest-5"}'})
        assert options.starting(AT_LATEST).limit.of(A, AT_EARLIEST) == Position(LATEST, 5)
    with pytest.raises(ConfigError, match="names topic 't', partition B, which the query does"):
        SourceOptions.of({"assign": ASSIGN, "startingOffsets": '{"t": {"B": 1}}'})


def test_options_without_start_and_end() -> None:
    options = read(startingTimestamp=1, endingOffsets="latest", minPartitions=7).without_limits()
    assert options == read(minPartitions=7)


@pytest.mark.parametrize(
    ("given", "size", "by_default"),
    [
        ({}, DEFAULT_BYTES, True),
        ({"minOffsetsPerTrigger": "10"}, DEFAULT_BYTES, True),
        ({"maxBytesPerTrigger": "1000"}, 1_000, False),
        ({"maxBytesPerTrigger": "Unlimited"}, UNLIMITED_BYTES, False),
        ({"maxOffsetsPerTrigger": "10"}, UNLIMITED_BYTES, False),
        ({"maxOffsetsPerTrigger": "10", "maxBytesPerTrigger": "1k"}, 1_024, False),
    ],
)
def test_size_of_a_micro_batch(given: dict[str, str], size: int, by_default: bool) -> None:
    options = read(**given)
    assert options.max_trigger_bytes == size
    assert options.is_limited_by_default is by_default


# The cluster, keys and options of nodes


@pytest.mark.usefixtures("no_spark")
def test_tower_of_the_drivers_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAFKA_TOWER", "example:1:2")
    assert read().tower == "example:1:2"
    monkeypatch.setenv("DAFKA_TOWER", "a:b")
    with pytest.raises(ConfigError, match=r"^environment variable 'DAFKA_TOWER' = 'a:b': must be"):
        read()
    assert read(tower="10.0.0.1").tower == "10.0.0.1:5556:5557"


def test_keys_of_options_or_of_the_drivers_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert read().keys == NO_KEYS
    monkeypatch.setenv("DAFKA_SECRET_KEY_FILE", "/k/own")
    monkeypatch.setenv("DAFKA_ALLOWED_KEYS", "/k")
    options = read(stores=STORES)
    assert options.keys == options.mesh_address.keys == KeyFiles("/k/own", "/k")
    own = {"dafka.secretKeyFile": "/o/own", "dafka.allowed_keys": "/o"}
    assert read(**own).keys == KeyFiles("/o/own", "/o")


@pytest.mark.parametrize(
    "name", ["dafka.peer_expiry_ms", "DAFKA.PEER_EXPIRY_MS", "dafka.peerExpiryMs"]
)
def test_node_options_in_any_spelling(name: str) -> None:
    address = read(**{name: "9000", "dafka.wire": "rfc46"}).mesh_address
    assert address.node == (("peer_expiry_ms", "9000"), ("wire", "rfc46"))
    assert address != read().mesh_address  # other queries do not share its reader


def test_node_options_reach_the_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: dict[str, Any] = {}

    class MemoryReader:
        def __init__(self, **given: Any) -> None:
            opened.update(given)

        def close(self) -> None:
            pass

    monkeypatch.setattr(connections, "Reader", MemoryReader)
    with connections.lend(read(tower="host", **{"dafka.peer_expiry_ms": "9000"}).mesh_address):
        assert ReaderOptions.build(opened).peer_expiry_ms == 9_000


def test_a_sink_takes_options_of_readers() -> None:
    options = SinkOptions.of({"dafka.max_queued_bytes": "8", "dafka.wire": "rfc46"})
    assert options.mesh_address.node == (("max_queued_bytes", "8"), ("wire", "rfc46"))


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"dafka.peer_expire_ms": "1"}, "did you mean 'dafka.peer_expiry_ms'?"),
        ({"dafka.peer_expiry_ms": "soon"}, "option 'dafka.peer_expiry_ms' = 'soon': must be a who"),
        ({"dafka.peerExpiryMs": "1"}, "option 'dafka.peer_expiry_ms' = '1': must be at least 100"),
        ({"dafka.tower": "x"}, "option 'dafka.tower' = 'x': is option 'tower' here"),
        ({"dafka.allow_control_characters": "x"}, "is option 'allowControlCharacters' here"),
        (
            {"dafka.peerExpiryMs": "900", "dafka.peer_expiry_ms": "900"},
            "option 'dafka.peer_expiry_ms' = '900': is option 'dafka.peerExpiryMs' in another spel",
        ),
        ({"dafka.secret_key": "Z"}, "'dafka.secret_key' = '(not shown)': there is no such option"),
        ({"dafka.": "7"}, "there is no such option"),
        ({"dafka.wire": "rfc46", "stores": STORES}, "'dafka.wire' = 'rfc46': has no effect with"),
    ],
)  # fmt: skip
def test_refused_node_options(given: dict[str, str], error: str) -> None:
    with pytest.raises(ConfigError) as caught:
        SinkOptions.of({"topic": "t", **given})
    assert error in str(caught.value)


@pytest.mark.parametrize("side", [SourceOptions, SinkOptions])
def test_options_of_producers_are_refused(side: type[SparkOptions]) -> None:
    with pytest.raises(ConfigError, match="there is no such option"):
        side.of({"dafka.max_unacked_records": "7"})


# Values


def test_the_format_determines_the_columns() -> None:
    plain = DafkaDataSource({"subscribe": "t"}).schema()
    assert plain["value"].dataType == types.BinaryType()
    for given, kind in ({"valueformat": "string"}, "string"), (JSON, "struct<id:bigint>"):
        for mode, more in ("FAILFAST", []), ("permissive", ["_error", "_corrupt_record"]):
            schema = DafkaDataSource({"subscribe": "t", **given, "mode": mode}).schema()
            assert schema["value"].dataType.simpleString() == kind
            assert schema.names == plain.names + more


def test_columns_of_the_query_must_match_the_options() -> None:
    def reader(name: str, kind: types.DataType, **given: str) -> None:
        schema = types.StructType([types.StructField(name, kind)])
        DafkaDataSource({"subscribe": "t", "tower": "127.0.0.1", **JSON, **given}).reader(schema)

    reader("VALUE", types.StructType([types.StructField("id", types.LongType())]))
    reader("_ERROR", types.StringType(), mode="permissive")
    with pytest.raises(ColumnError, match=r"is struct<id:bigint>, not binary"):
        reader("value", types.BinaryType())
    with pytest.raises(ColumnError, match=r"with option mode = PERMISSIVE only"):
        reader("_error", types.StringType())


def test_a_sink_takes_its_schema_from_the_rows() -> None:
    assert SinkOptions.of({"topic": "t", "valueformat": "json"}).codec() is None
    assert SinkOptions.of({"topic": "t", **JSON}).codec() is not None


def test_the_driver_reads_a_schema_file(tmp_path: Path) -> None:
    avro, protobuf = tmp_path / "id.avsc", tmp_path / "a.desc"
    file = File()
    file.message("M", id=INT64)
    given: list[tuple[Path, dict[str, Any]]] = [
        (avro, {"valueformat": "avro", "valueschema": avro}),
        (protobuf, {"valueformat": "protobuf", "valueschema": protobuf, "messagename": "a.M"}),
    ]
    for _, options in given:
        with pytest.raises(ConfigError, match=r"cannot be read: .*No such file"):
            read(**options)
    avro.write_text('{"type":"record","name":"R","fields":[{"name":"id","type":"long"}]}')
    protobuf.write_bytes(file.octets)
    for path, options in given:
        parsed = read(**options)
        path.unlink()  # executors do not have it
        assert parsed.value_type.simpleString() == "struct<id:bigint>"
    assert parsed == read(**{**given[1][1], "valueschema": file.text})
    with pytest.raises(ConfigError, match=r"'valueSchema' .* has no message 'N'; there are a\.M"):
        read(**{**given[1][1], "valueschema": file.text, "messagename": "N"})


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fastavro", None)
    with pytest.raises(ConfigError, match=r"'avro': needs fastavro.*pip install 'dafka-spark\[avr"):
        read(valueformat="avro", valueschema="{}")


# SQL tables


def test_options_of_a_table_among_its_properties() -> None:
    given = {"owner": "me", "ab": "x", "option.ab": "x", "provider": "dafka", "pp": "q"}
    assert user_options(given) == {"ab": "x"}
    assert user_options({"ab": "x"}) == {"ab": "x"}


def test_a_table_keeps_its_format_for_reading_and_writing() -> None:
    kept = {"subscribe": "t", "tower": "127.0.0.1", **JSON, "mode": "PERMISSIVE"}
    given = {"provider": "dafka", **{f"option.{name}": value for name, value in kept.items()}}
    table = DafkaDataSource(given).schema()
    assert table["value"].dataType.simpleString() == "struct<id:bigint>"
    DafkaDataSource({}).reader(table)
    options = SinkOptions.of_table(table_options(table), {})
    assert is_table(table)
    assert (options.topic, options.value_format, options.value_schema) == ("t", "json", "id BIGINT")
    check_columns(table, options)
