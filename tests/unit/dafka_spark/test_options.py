"""Options of source and sink: parsing, contradictions, warnings, and what follows from them."""

import logging
import pickle
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from pyspark.sql import types

from dafka_core.config.missing_stores import EVERY_STORE
from dafka_core.config.node_options import NO_KEYS, KeyFiles, ReaderOptions
from dafka_core.errors import ConfigError
from dafka_core.model.positions import AT_EARLIEST, AT_LATEST, LATEST, TIME, Position
from dafka_core.model.records import TopicPartition
from dafka_core.storage.block import MAX_BLOCK_BYTES, MAX_BLOCK_RECORDS
from dafka_spark import DafkaDataSource
from dafka_spark.cluster import cluster_reader, connections
from dafka_spark.errors import ColumnError
from dafka_spark.frames import spark_options
from dafka_spark.options import SinkOptions, SourceOptions, SparkOptions, user_options
from dafka_spark.schema import is_table, parse_ddl, table_options
from dafka_spark.sink.rows import check_columns
from tests.unit.dafka_spark.descriptors import INT64, File

A = TopicPartition("t", "A")
ASSIGN = '{"t": ["A"]}'
BY_TIME = '{"t": {"A": 2000}}'
JSON = {"valueformat": "json", "valueschema": "id BIGINT"}
STORES = "grpc://127.0.0.1:1"
TYPED = "is for valueFormat = json or arrow or avro or protobuf, not"


def read(**given: object) -> SourceOptions:
    return SourceOptions.of({"subscribe": "t", **{k: str(v) for k, v in given.items()}})


def test_names_match_in_any_case_and_options_travel_to_executors() -> None:
    options = SourceOptions.of(
        {"SUBSCRIBE": "a, b", "fetchtimeoutms": "7", "failOnDataLoss": "false", "fetch": "Local"}
    )
    assert (options.fetch, options.subscribe) == ("local", ("a", "b"))
    assert options.fetch_timeout_s == 0.007
    assert options.fail_on_data_loss is False
    options = read(startingOffsets='{"t": {"A": 5}}', where="offset >= 5")
    assert pickle.loads(pickle.dumps(options)) == options


def test_a_stores_block_is_a_batch_and_all_stores_acknowledge() -> None:
    assert read().max_records_per_batch == MAX_BLOCK_RECORDS
    assert read().max_bytes_per_batch >= MAX_BLOCK_BYTES
    given = {"topic": "t", "checkpointlocation": "/c", "queryname": "q"}  # Spark adds the last two
    assert SinkOptions.of(given).acks_needed == EVERY_STORE
    assert SinkOptions.of({"acks": "2"}).acks_needed == 2


def test_values_of_programs_become_texts() -> None:
    stores = ["grpc://a:1", "grpc://b:2"]
    given = {"maxOffsetsPerTrigger": 7, "fail_on_data_loss": False, "stores": stores}
    given |= {"starting_offsets": {"t": {"A": 3}}, "subscribe": ("a,b", "c\n"), "query_name": None}
    texts = spark_options(given)
    assert texts == {
        "startingOffsets": '{"t": {"A": 3}}',
        "maxOffsetsPerTrigger": "7",
        "failOnDataLoss": "false",
        "stores": "grpc://a:1,grpc://b:2",
        "subscribe": r"a\x2cb,c\x0a",
    }
    assert SourceOptions.of({"subscribe": texts["subscribe"]}).subscribe == ("a,b", "c\n")


def test_hosts_may_have_ipv6_addresses() -> None:
    stores = read(stores="grpc://[::1]:5,grpc+tls://[fd00::7]:6").mesh_address.stores
    assert stores == ("grpc://[::1]:5", "grpc+tls://[fd00::7]:6")
    mesh = read(tower="[fd00::7],[fe80::7%eth0]:1:2", host="::1").mesh_address
    assert (mesh.tower, mesh.host) == ("[fd00::7]:5556:5557,[fe80::7%eth0]:1:2", "[::1]")


NO_OPTION = "unknown option"
SEVERAL = "name what to read with exactly one of subscribe, "
READ = {"subscribe": "t"}
COUNTS = ("fetchTimeoutMs", "minPartitions", "maxRecordsPerPartition", "maxOffsetsPerTrigger",
          "maxBytesPerTrigger", "minOffsetsPerTrigger")  # fmt: skip
TIMES = ("startingTimestamp", "endingTimestamp")
TXN = {"txnAppId": "a", "txnVersion": "1"}


@pytest.mark.parametrize(
    ("side", "given", "error"),
    [
        (SourceOptions, {}, "lists columns: leave the columns out"),
        *(
            (SourceOptions, {**READ, **given}, error)
            for given, error in (
                ({"subscribes": "t"}, "did you mean 'subscribe'"),
                ({"fetchtimeout": "1"}, "did you mean 'fetchTimeoutMs'"),
                ({"topic": "t"}, "is an option of writing"),
                ({"path": "t"}, "has no path; name the topic with option 'subscribe'"),
                ({"zzzzzz": "t"}, "must be one of archive, assign, endingOffsets"),
                *(({name: "0"}, "at least 1") for name in COUNTS),
                *(({name: "1767225600"}, "did you mean 1767225600000 (2026-01") for name in TIMES),
                *(({f"{name}OffsetsByTimestamp": '{"t": 1767225600}'}, "you mean 1767225600000")
                  for name in ("starting", "ending")),
                ({"fetchTimeoutMs": "soon"}, "whole number"),
                ({"maxTriggerDelay": "soon"}, "must be a time like 500ms, 30s, 15m, 2h, 1d or 1w"),
                ({"minOffsetsPerTrigger": "11", "maxOffsetsPerTrigger": "10"},
                 "'minOffsetsPerTrigger' = 11: must not be above maxOffsetsPerTrigger, which is 1"),
                ({"failOnDataLoss": "maybe"}, "true or false"),
                ({"fetch": "disk"}, "must be one of auto, local, flight, mesh"),
                ({"fetch": "mesh", "stores": STORES}, "= 'mesh': reads from the mesh; leave it"),
                ({"tower": "host:1"}, "HOST[:SUB_PORT:PUB_PORT]"),
                ({"archive": "s3://bucket/a"}, "must be the path of a directory, on a disk that"),
                ({"archive": ""}, "must be the path of a directory"),
                ({"progressTopic": "queries"}, "must begin with __dafka., so that no pattern mat"),
                ({"envelope": "none", "includeHeaders": "true"}, "leave out includeHeaders"),
                ({"subscribe": "t,,u"}, "a topic must have 1 to 255 bytes"),
                ({"subscribePattern": "t.*"}, f"'t.*': {SEVERAL}"),
                ({"assign": '{"u": ["B", "A"]}'}, f"""= '{{"u": ["A", "B"]}}': {SEVERAL}"""),
                ({"metadata": "topics", "assign": ASSIGN}, "not with subscribe and assign"),
                ({"metadata": "topic"}, "must be one of topics, partitions, stores"),
                ({"metadata": "topics", "startingOffsets": "latest"}, "'latest': is about recor"),
                ({"metadata": "topics", "archive": "/a"}, "'/a': is about records; leave it out"),
                ({"metadata": "lag", "queryName": "q"}, "is about records"),
                ({"startingOffsets": "first"}, "must be earliest, latest or JSON"),
                ({"startingOffsets": '{"u": {"A": 3}}'},
                 "names topic 'u', partition A, which the query does not read; compare it with s"),
                ({"endingOffsets": '{"u": "latest-3"}'},
                 """= '{"u": "latest-3"}': names topic 'u', which the query does not read"""),
                ({"valueformat": "xml"}, "must be one of bytes, string, json, arrow, avro, proto"),
                ({"valueformat": "json"}, "= 'json': needs a schema: name it with option valueSc"),
                ({"valueformat": "string", "valueschema": "id INT"}, f"{TYPED} string"),
                ({"valueschema": "id INT"}, f"{TYPED} bytes"),
                ({"mode": "PERMISSIVE"}, "'mode' = 'PERMISSIVE': needs valueFormat"),
                ({**JSON, "mode": "ignore"}, "must be one of FAILFAST, PERMISSIVE, DROPMALFORMED"),
                ({**JSON, "messagename": "M"}, "'messageName' = 'M': is for valueFormat = protob"),
                ({"valueformat": "protobuf", "valueschema": "x"}, "'messageName' = '': is require"),
            )
        ),
        (SinkOptions, READ, "is an option of reading; writing takes acks, allowControlCharacters"),
        (SinkOptions, {"path": "t"}, "has no path; name the topic with option 'topic'"),
        (SinkOptions, {"acks": "0"}, "at least 1, or all"),
        (SinkOptions, {"delivery": "exactly-once"}, "each batch is written exactly once"),
        (SinkOptions, {"topic": r"a\x1b"}, "set option allowControlCharacters to true"),
        (SinkOptions, {"deliveryTimeoutMs": "0"}, "at least 1"),
        (SinkOptions, {"txnAppId": "a"}, "'a': needs option 'txnVersion', too"),
        (SinkOptions, {"txnVersion": "1"}, "= 1: needs option 'txnAppId', too"),
        (SinkOptions, {**TXN, "txnVersion": "-1"}, "at least 0"),
        (SinkOptions, {**TXN, "txnVersion": "562949953421312"}, "at most 562949953421311"),
        (SinkOptions, {**TXN, "writerId": "w"}, "leave out writerId"),
        (SinkOptions, {"valueformat": "json", "valueschema": "id"}, "must be columns like"),
        *(
            (SinkOptions, {"topic": "t", **given}, error)
            for given, error in (
                ({"dafka.peer_expire_ms": "1"}, "did you mean 'dafka.peer_expiry_ms'?"),
                ({"dafka.peer_expiry_ms": "soon"}, "'dafka.peer_expiry_ms' = 'soon': must be a w"),
                ({"dafka.peerExpiryMs": "1"}, "'dafka.peer_expiry_ms' = '1': must be at least 1"),
                ({"dafka.tower": "x"}, "option 'dafka.tower' = 'x': is option 'tower' here"),
                ({"dafka.allow_control_characters": "x"}, "is option 'allowControlCharacters' he"),
                ({"dafka.peerExpiryMs": "900", "dafka.peer_expiry_ms": "900"},
                 "option 'dafka.peer_expiry_ms' = '900': is given in two spellings; leave one"),
                ({"dafka.secret_key": "Z"}, f"'dafka.secret_key' = '(not shown)': {NO_OPTION}"),
                ({"dafka.max_unacked_records": "7"}, NO_OPTION),  # of producers
                ({"dafka.wire": "rfc46", "stores": STORES}, "'rfc46': has no effect with"),
            )
        ),
    ],
)  # fmt: skip
def test_refused_options(side: type[SparkOptions], given: dict[str, str], error: str) -> None:
    with pytest.raises(ConfigError) as caught:
        side.of(given)
    assert error in str(caught.value)
    assert "TopicPartition" not in str(caught.value)


BATCH, STREAM = SourceOptions.for_batch, SourceOptions.for_stream


@pytest.mark.parametrize(
    ("use", "given", "error"),
    [
        (BATCH, {"startingOffsets": "latest"}, "starts at the latest offset reads nothing"),
        (BATCH, {"endingOffsets": '{"t": {"A": -2}}'}, "'.*-2}}': a batch that ends"),
        (STREAM, {"metadata": "stores"}, "is for batch queries only"),
        (STREAM, {"endingOffsets": "latest"}, "is for batch queries only"),
    ],
)
def test_batches_read_records_and_streams_have_no_end(use: Any, given: Any, error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        use(read(**given))


STRATEGY = {"startingOffsetsByTimestampStrategy": "error"}
PROGRESS_TOPIC = {"progressTopic": "__dafka.mine"}
NO_TRIGGER = "a batch has no trigger"
NO_REPORT = "a batch reports no progress"
NO_TIME = "it is for startingTimestamp and startingOffsetsByTimestamp"
NO_NAME = "only a query with option queryName reports progress"


@pytest.mark.parametrize(
    ("given", "in_batch", "in_stream"),
    [
        ({"maxOffsetsPerTrigger": 5}, NO_TRIGGER, ""),
        ({"maxBytesPerTrigger": 5}, NO_TRIGGER, ""),
        ({"minOffsetsPerTrigger": 5}, NO_TRIGGER, ""),
        ({"maxTriggerDelay": 5}, NO_TRIGGER, "no batch waits without minOffsetsPerTrigger"),
        ({"queryName": "q", **PROGRESS_TOPIC}, NO_REPORT, ""),
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
    for use, why in ((BATCH, in_batch), (STREAM, in_stream)):
        caplog.clear()
        use(read(**given))
        name, value = next(iter(given.items()), ("", ""))
        assert caplog.messages == [f"option {name} = {value} is ignored: {why}"] * bool(why)
    caplog.clear()
    read(maxTriggerDelay="1s", minOffsetsPerTrigger=5).for_stream()
    SourceOptions.of({"metadata": "lag", **PROGRESS_TOPIC}).for_batch()
    assert not caplog.messages


TIMESTAMP = {"startingTimestamp": 1000, "endingTimestamp": 1000}
BY_TIMESTAMP = {"startingOffsetsByTimestamp": BY_TIME, "endingOffsetsByTimestamp": BY_TIME}
OFFSETS = {"startingOffsets": "latest-5", "endingOffsets": "latest-5"}


@pytest.mark.parametrize(
    ("given", "option", "position", "is_strict"),
    [
        ({**TIMESTAMP, **BY_TIMESTAMP, **OFFSETS}, "Timestamp", Position(TIME, 1_000_000), True),
        ({**BY_TIMESTAMP, **OFFSETS}, "OffsetsByTimestamp", None, True),
        (OFFSETS, "Offsets", Position(LATEST, 5), False),
        ({}, "Offsets", AT_LATEST, False),
    ],
)
def test_times_take_precedence_over_offsets(
    given: dict[str, object], option: str, position: Position | None, is_strict: bool
) -> None:
    """Only the strategy makes a time strict: a producer may be idle or have ended."""
    for strategy, strict in ({}, False), (STRATEGY, is_strict):
        options = read(**given, **strategy, minPartitions=7)
        start, end = options.starting(AT_LATEST), options.ending()
        assert (start.option, end.option) == (f"starting{option}", f"ending{option}")
        assert start.everywhere == end.everywhere == position
        assert start.default == (AT_EARLIEST if given else AT_LATEST)
        assert (start.is_strict, end.is_strict, end.default) == (strict, False, AT_LATEST)
        if position is None:
            assert start.limit.partitions == {A: Position(TIME, 2_000_000)}


def test_positions_may_name_any_selected_topic() -> None:
    for which in ({"assign": ASSIGN}, {"subscribePattern": "[tu]"}):
        options = SourceOptions.of({**which, "startingOffsets": '{"t": "latest-5"}'})
        assert options.starting(AT_LATEST).limit.of(A, AT_EARLIEST) == Position(LATEST, 5)
    with pytest.raises(ConfigError, match="names topic 't', partition B, which the query does"):
        SourceOptions.of({"assign": ASSIGN, "startingOffsets": '{"t": {"B": 1}}'})


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


def test_node_options_in_any_spelling_reach_the_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("dafka.peer_expiry_ms", "DAFKA.PEER_EXPIRY_MS", "dafka.peerExpiryMs"):
        address = SinkOptions.of({name: "9000", "dafka.wire": "rfc46"}).mesh_address
        assert address.node == (("peer_expiry_ms", "9000"), ("wire", "rfc46"))
        assert address != read().mesh_address  # other queries do not share its reader
    opened = Mock()
    monkeypatch.setattr(cluster_reader, "Reader", opened)
    with connections.borrow_reader(address):
        assert ReaderOptions.build(opened.call_args.kwargs).peer_expiry_ms == 9_000


# Values


def test_the_format_determines_the_columns() -> None:
    plain = DafkaDataSource(READ).schema()
    assert plain["value"].dataType == types.BinaryType()
    for given, kind in ({"valueformat": "string"}, "string"), (JSON, "struct<id:bigint>"):
        for mode, more in ("FAILFAST", []), ("permissive", ["_error", "_corrupt_record"]):
            schema = DafkaDataSource({**READ, **given, "mode": mode}).schema()
            assert schema["value"].dataType.simpleString() == kind
            assert schema.names == plain.names + more


@pytest.mark.parametrize(
    ("given", "nullable"),
    [({}, True), ({"envelope": "none"}, False), ({"envelope": "none", "mode": "PERMISSIVE"}, True)],
)
def test_columns_of_the_query_must_match_the_options(given: dict[str, str], nullable: bool) -> None:
    def reader(name: str, kind: str, nullable: bool = True) -> None:
        schema = types.StructType().add(name, parse_ddl(kind) if " " in kind else kind, nullable)
        DafkaDataSource({**READ, "tower": "127.0.0.1", **JSON, **given}).reader(schema)

    reader("VALUE", "id BIGINT")
    with pytest.raises(ColumnError, match=r"is struct<id:bigint>, not binary"):
        reader("value", "binary")
    expected = pytest.raises(ColumnError, match="be NOT NULL") if nullable else nullcontext()
    with expected:
        reader("value", "id BIGINT", nullable=False)


def test_the_driver_reads_a_schema_file(tmp_path: Path) -> None:
    file = File()
    file.message("M", id=INT64)
    avro = b'{"type":"record","name":"R","fields":[{"name":"id","type":"long"}]}'
    for path, content, given in (
        (tmp_path / "id.avsc", avro, {"valueformat": "avro"}),
        (tmp_path / "a.desc", file.content, {"valueformat": "protobuf", "messagename": "a.M"}),
    ):
        with pytest.raises(ConfigError, match=r"cannot be read: .*No such file"):
            read(**given, valueschema=path)
        path.write_bytes(content)
        parsed = read(**given, valueschema=path)
        path.unlink()  # executors do not have it
        assert parsed.value_type.simpleString() == "struct<id:bigint>"
    assert parsed == read(**given, valueschema=file.text)
    with pytest.raises(ConfigError, match=r"'valueSchema' .* has no message 'N'; there are a\.M"):
        read(valueformat="protobuf", valueschema=file.text, messagename="N")


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fastavro", None)
    with pytest.raises(ConfigError, match=r"'avro': needs fastavro.*pip install 'dafka-spark\[avr"):
        read(valueformat="avro", valueschema="{}")


# SQL tables


def test_a_table_keeps_its_format_for_reading_and_writing() -> None:
    kept = {"subscribe": "t", "tower": "127.0.0.1", **JSON, "mode": "PERMISSIVE"}
    given = {"provider": "dafka", "owner": "me", **kept}
    given |= {f"option.{name}": value for name, value in kept.items()}
    assert user_options(given) == kept
    assert user_options(kept) == kept
    table = DafkaDataSource(given).schema()
    assert table["value"].dataType.simpleString() == "struct<id:bigint>"
    DafkaDataSource({}).reader(table)
    options = SinkOptions.of_table(table_options(table), {})
    assert is_table(table)
    assert (options.topic, options.value_format, options.value_schema) == ("t", "json", "id BIGINT")
    check_columns(table, options)
    for name, error in ("subscribes", "did you mean 'subscribe'"), ("acks", "at least 1"):
        with pytest.raises(ConfigError, match=error):
            DafkaDataSource({**given, f"option.{name}": "0"}).schema()
