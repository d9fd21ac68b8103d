"""Options are checked, with a sentence that helps, before anything runs."""

from __future__ import annotations

import logging
import pickle
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import types

from dafka_core.errors import ConfigError
from dafka_core.model.records import TopicPartition
from dafka_core.storage.block import MAX_BLOCK_BYTES, MAX_BLOCK_RECORDS
from dafka_spark import DafkaDataSource
from dafka_spark import option_types as values
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
from dafka_spark.options import DEFAULT_BYTES, SinkOptions, SourceOptions
from dafka_spark.schema import is_table, table_options
from dafka_spark.sink.rows import check_columns
from scripts.options import markdown_table
from tests.unit.dafka_spark.descriptors import INT64, File


def read(**given: object) -> SourceOptions:
    return SourceOptions.of({"subscribe": "t", **{k: str(v) for k, v in given.items()}})


def test_keys_match_in_any_case() -> None:
    options = SourceOptions.of(
        {"SUBSCRIBE": "a, b", "fetchtimeoutms": "7", "failOnDataLoss": "false", "fetch": "Local"}
    )
    assert options.fetch == "local"
    assert options.subscribe == ("a", "b")
    assert options.fetch_timeout_ms == 7
    assert options.fetch_timeout_s == 0.007
    assert options.fail_on_data_loss is False


def test_defaults() -> None:
    options = read()
    assert options.starting_offsets is None
    assert options.max_offsets_per_trigger is None
    assert options.fail_on_data_loss is True
    assert options.fetch == "auto"
    # A store's block passes as one batch.
    assert options.max_records_per_batch == MAX_BLOCK_RECORDS
    assert options.max_bytes_per_batch >= MAX_BLOCK_BYTES
    assert SinkOptions.of({}).acks_needed == ALL_STORES
    assert SinkOptions.of({"delivery": "at-least-once"}).acks_needed == 1
    assert SinkOptions.of({"acks": "2"}).acks_needed == 2
    assert SinkOptions.of({}).is_exact
    assert SinkOptions.of({}).delivery_timeout_s == 120.0


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"subscribes": "t"}, "did you mean 'subscribe'"),
        ({"fetchtimeout": "1"}, "did you mean 'fetchTimeoutMs'"),
        ({"maxoffsetpertrigger": "1"}, "did you mean 'maxOffsetsPerTrigger'"),
        ({"topic": "t"}, "is an option of writing"),
        ({"acks": "1"}, "is an option of writing"),
        ({"path": "t"}, "has no path; name the topic with option 'subscribe'"),
        ({"zzzzzz": "t"}, "there are archive, assign, endingOffsets"),
        ({"fetchTimeoutMs": "0"}, "at least 1"),
        ({"fetchTimeoutMs": "soon"}, "whole number"),
        ({"minPartitions": "0"}, "at least 1"),
        ({"maxRecordsPerPartition": "-1"}, "at least 1"),
        ({"maxOffsetsPerTrigger": "0"}, "at least 1"),
        ({"failOnDataLoss": "maybe"}, "true or false"),
        ({"fetch": "disk"}, "must be one of auto, local, flight, mesh"),
        ({"tower": "host:1"}, "HOST[:SUB_PORT:PUB_PORT]"),
        ({"subscribePattern": "t.*"}, "not with subscribe and subscribePattern"),
        ({"assign": '{"t": ["A"]}'}, "not with subscribe and assign"),
        ({"startingOffsets": "first"}, "must be earliest, latest or JSON"),
        ({"startingOffsets": '{"u": {"A": 3}}'}, "does not read"),
        ({"endingOffsets": '{"u": {"A": 3}}'}, "does not read"),
        ({"metadata": "topic"}, "must be one of topics, partitions, stores"),
        ({"metadata": "topics", "startingOffsets": "earliest"}, "'startingOffsets' = 'earliest'"),
        ({"metadata": "topics", "archive": "/a"}, "'/a': is about records; leave it out"),
        ({"archive": "s3://bucket/a"}, "must be the path of a directory, on a disk that all"),
        ({"archive": ""}, "must be the path of a directory"),
        ({"metadata": "topics", "minPartitions": "2"}, "is about records"),
        ({"metadata": "lag", "queryName": "q"}, "is about records"),
        ({"progressTopic": "queries"}, "must begin with __dafka., as what no pattern matches"),
        ({"metadata": "topics", "assign": '{"t": ["A"]}'}, "not with subscribe and assign"),
    ],
)  # fmt: skip
def test_wrong_source_options(given: Any, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        SourceOptions.of({"subscribe": "t", **given})
    assert says in str(caught.value)


def test_metadata_are_of_all_topics_unless_some_are_named() -> None:
    everything = SourceOptions.of({"metadata": "Topics", "minstores": "all"}).for_batch()
    assert everything.metadata == "topics"
    assert everything.selection.asked is None
    assert everything.selection.has(TopicPartition("any\n", "P"))
    assert SourceOptions.of({"metadata": "topics", "subscribe": "t"}).selection.asked == ["t"]
    with pytest.raises(ConfigError, match="'metadata' = 'stores': is for batch queries only"):
        SourceOptions.of({"metadata": "stores"}).for_stream()


def test_a_wrong_variable_of_the_environment_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAFKA_TOWER", "a:b")
    with pytest.raises(ConfigError, match=r"^environment variable 'DAFKA_TOWER' = 'a:b': must be"):
        SourceOptions.of({"subscribe": "t"})
    assert SourceOptions.of({"subscribe": "t", "tower": "c"}).tower == "c:5556:5557"


def test_a_report_that_nobody_makes_is_said(caplog: pytest.LogCaptureFixture) -> None:
    topic = {"progressTopic": "__dafka.mine"}
    why = "only a query with option queryName reports there"
    with caplog.at_level(logging.WARNING, "dafka_spark"):
        read(**topic, queryName="q").for_stream()
        SourceOptions.of({"metadata": "lag", **topic}).for_batch()
        assert not caplog.records
        read(**topic).for_stream()
        read(queryName="q").for_batch()
    assert [each.getMessage() for each in caplog.records] == [
        f"option progressTopic = __dafka.mine is ignored: {why}",
        "option queryName = q is ignored: a batch reports nothing",
    ]


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ({"subscribe": "t, u", "subscribePattern": "x"}, "'subscribePattern' = 'x': "),
        ({"subscribe": "t", "assign": '{"u": ["B", "A"]}'}, """'assign' = '{"u": ["A", "B"]}': """),
        (
            {"assign": '{"t": ["A"]}', "endingOffsets": '{"t": {"A": -2}}'},
            """'endingOffsets' = '{"t": {"A": -2}}': """,
        ),
    ],
)
def test_values_are_shown_as_they_are_written(given: dict[str, str], shown: str) -> None:
    for use in (SourceOptions.for_batch, SourceOptions.for_stream):
        with pytest.raises(ConfigError) as caught:
            use(SourceOptions.of(given))
        assert shown in str(caught.value)
        assert "TopicPartition" not in str(caught.value)
    assert values.as_written(("t", "\x1b")) == r"t,\x1b"
    assert values.as_written("earliest") == "earliest"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, "exactly one of subscribe, subscribePattern and assign"),
        ({"subscribe": "t,,u"}, "a topic must have 1 to 255 bytes"),
        ({"subscribePattern": "("}, "regular expression"),
        ({"assign": "t"}, "must be JSON like"),
        ({"assign": '{"t": ["A"]}', "startingOffsets": '{"t": {"B": 1}}'}, "does not read"),
    ],
)
def test_wrong_choice_of_topics(given: Any, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        SourceOptions.of(given)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (
            {"subscribe": "t"},
            "is an option of reading; writing takes acks, allowControlCharacters, audit, commit",
        ),
        ({"startingOffsets": "latest"}, "is an option of reading"),
        ({"topics": "t"}, "did you mean 'topic'"),
        ({"path": "t"}, "has no path; name the topic with option 'topic'"),
        ({"acks": "0"}, "at least 1, or all"),
        ({"delivery": "twice"}, "must be one of exactly-once, at-least-once"),
        ({"topic": ""}, "a topic must have 1 to 255 bytes"),
        ({"deliveryTimeoutMs": "0"}, "at least 1"),
        ({"commit": "Task"}, "another number of tasks, by adaptive execution"),
        ({"commit": "job"}, "must be one of batch"),
        ({"txnAppId": "a"}, "'txnAppId' = 'a': is given with 'txnVersion' only: name both"),
        ({"txnVersion": "1"}, "'txnVersion' = 1: is given with 'txnAppId' only: name both"),
        ({"txnAppId": "a", "txnVersion": "-1"}, "at least 0"),
        ({"txnAppId": "a", "txnVersion": "562949953421312"}, "at most 562949953421311"),
        ({"txnAppId": "a", "txnVersion": "1", "writerId": "w"}, "leave out writerId"),
        (
            {"txnAppId": "a", "txnVersion": "1", "delivery": "at-least-once"},
            "a version is written once: it needs delivery = exactly-once",
        ),
    ],
)
def test_wrong_sink_options(given: Any, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        SinkOptions.of(given)
    assert says in str(caught.value)


@pytest.mark.parametrize(("delivery", "exact"), [("Exactly-Once", True), ("AT-LEAST-ONCE", False)])
def test_delivery(delivery: str, exact: bool) -> None:
    assert SinkOptions.of({"delivery": delivery}).is_exact is exact


def test_what_spark_adds_to_a_sink_is_no_error() -> None:
    given = {"topic": "t", "checkpointlocation": "/c", "queryname": "q"}
    assert SinkOptions.of(given).topic == "t"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"startingOffsets": "latest"}, "reads nothing"),
        ({"endingOffsets": "earliest"}, "reads nothing"),
        ({"endingOffsets": '{"t": {"A": -2}}'}, "reads nothing"),
    ],
)
def test_what_batches_refuse(given: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        read(**given).for_batch()


def test_streams_have_no_end() -> None:
    with pytest.raises(ConfigError, match=r"for batch queries only"):
        read(endingOffsets="latest").for_stream()


@pytest.mark.usefixtures("no_spark")
def test_tower_of_the_drivers_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAFKA_TOWER", "example:1:2")
    assert read().tower == "example:1:2"
    assert read(tower="10.0.0.1").tower == "10.0.0.1:5556:5557"


def test_options_travel_to_executors() -> None:
    options = read(startingOffsets='{"t": {"A": 5}}')
    assert pickle.loads(pickle.dumps(options)) == options


def test_every_option_is_in_the_table() -> None:
    table = markdown_table(SourceOptions)
    assert "| `maxOffsetsPerTrigger` | int |" in table
    assert "| `tower` | HOST[:SUB_PORT:PUB_PORT] |" in table
    assert "`deliveryTimeoutMs`" in markdown_table(SinkOptions)
    for row in (*SourceOptions.table(), *SinkOptions.table()):
        assert row.meaning


def test_streams_pass_pushed_filters_over(caplog: pytest.LogCaptureFixture) -> None:
    options = SourceOptions.of({"subscribe": "t", "pushFilters": "true"})
    with caplog.at_level(logging.WARNING, "dafka_spark"):
        options.for_batch()
        assert not caplog.records
        options.for_stream()
    assert "pushFilters = True is ignored: Spark pushes filters of batches only" in caplog.text


A = TopicPartition("t", "A")
BY_TIME = '{"t": {"A": 2000}}'


def test_a_time_goes_before_offsets_as_in_kafkas() -> None:
    everything = {
        "startingOffsets": "earliest",
        "startingOffsetsByTimestamp": BY_TIME,
        "startingTimestamp": 1000,
    }
    start = read(**everything).starting(AT_LATEST)
    assert (start.option, start.everywhere) == ("startingTimestamp", Position(TIME, 1_000_000))
    del everything["startingTimestamp"]
    start = read(**everything).starting(AT_LATEST)
    assert (start.option, start.everywhere) == ("startingOffsetsByTimestamp", None)
    assert start.limit.partitions == {A: Position(TIME, 2_000_000)}
    assert start.unnamed == AT_EARLIEST
    del everything["startingOffsetsByTimestamp"]
    assert read(**everything).starting(AT_LATEST).everywhere == AT_EARLIEST
    assert read().starting(AT_LATEST).everywhere == AT_LATEST


def test_the_end_too() -> None:
    everything = {
        "endingOffsets": "latest-5",
        "endingOffsetsByTimestamp": BY_TIME,
        "endingTimestamp": 1000,
    }
    assert read(**everything).ending().everywhere == Position(TIME, 1_000_000)
    del everything["endingTimestamp"]
    end = read(**everything).ending()
    assert (end.option, end.unnamed) == ("endingOffsetsByTimestamp", AT_LATEST)
    del everything["endingOffsetsByTimestamp"]
    assert read(**everything).ending().everywhere == Position(LATEST, 5)
    assert read().ending().everywhere == AT_LATEST


def test_the_strategy_is_of_kafkas_options_only() -> None:
    """By default no query fails because one producer is idle or has ended."""
    assert not read(startingTimestamp=1).starting(AT_LATEST).fails_unmatched
    strategy = {"startingOffsetsByTimestampStrategy": "ERROR"}
    assert read(startingTimestamp=1, **strategy).starting(AT_LATEST).fails_unmatched
    assert read(startingOffsetsByTimestamp=BY_TIME, **strategy).starting(AT_LATEST).fails_unmatched
    assert not read(startingOffsets="-10m", **strategy).starting(AT_LATEST).fails_unmatched


def test_a_strategy_without_a_time_is_said(caplog: pytest.LogCaptureFixture) -> None:
    strategy = {"startingOffsetsByTimestampStrategy": "error"}
    with caplog.at_level(logging.WARNING, "dafka_spark"):
        read(startingTimestamp=1, **strategy).for_batch()
        read(startingOffsetsByTimestamp=BY_TIME, **strategy).for_stream()
        assert not caplog.records
        read(startingOffsets="-10m", **strategy).for_batch()
        read(**strategy).for_stream()
    sentence = (
        "option startingOffsetsByTimestampStrategy = error is ignored: it is about "
        "startingTimestamp and startingOffsetsByTimestamp; give one of them"
    )
    assert [each.getMessage() for each in caplog.records] == [sentence, sentence]


@pytest.mark.parametrize("name", ["endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"])
def test_streams_have_no_end_of_offset_options(name: str) -> None:
    value = {"endingOffsets": "latest", "endingTimestamp": "1000"}.get(name, BY_TIME)
    with pytest.raises(ConfigError, match=rf"'{name}' = .*: is for batch queries only"):
        read(**{name: value}).for_stream()
    assert read(**{name: value}).for_batch().ending().option == name


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"startingOffsets": "latest"}, "a batch that starts at the latest offset reads nothing"),
        ({"startingOffsets": "latest-0"}, "a batch that starts at the latest offset reads nothing"),
        ({"endingOffsets": "earliest"}, "a batch that ends at the earliest offset (-2) reads"),
        ({"endingOffsets": '{"t": {"A": -2}}'}, "a batch that ends at the earliest offset (-2)"),
        ({"endingOffsets": '{"t": "earliest"}'}, "a batch that ends at the earliest offset (-2)"),
    ],
)  # fmt: skip
def test_batches_that_would_read_nothing(given: Any, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(**given).for_batch()
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"startingTimestamp": "soon"}, "'startingTimestamp' = 'soon': must be milliseconds"),
        ({"startingOffsetsByTimestampStrategy": "no"}, "must be one of error, latest"),
        ({"startingOffsetsByTimestamp": '{"u": {"A": 1}}'}, "'u/A': names a partition that this"),
        ({"endingOffsets": '{"u": "latest"}'}, "'endingOffsets' = 'u': names a topic that this"),
        ({"startingTimestmp": "1"}, "did you mean 'startingTimestamp'?"),
    ],
)  # fmt: skip
def test_what_is_refused(given: Any, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(**given)
    assert says in str(caught.value)


def test_a_topic_may_be_named_of_any_selection() -> None:
    start = '{"t": "latest-5"}'
    for which in ({"assign": '{"t": ["A"]}'}, {"subscribePattern": "[tu]"}):
        options = SourceOptions.of({**which, "startingOffsets": start})
        assert options.starting(AT_LATEST).limit.of(A, AT_EARLIEST) == Position(LATEST, 5)
    with pytest.raises(ConfigError, match="names a topic"):
        SourceOptions.of({"assign": '{"u": ["A"]}', "startingOffsets": start})


def test_the_options_without_bounds() -> None:
    options = read(startingTimestamp=1, endingOffsets="latest", minPartitions=7).without_bounds()
    assert options.bounds == {}
    assert options.min_partitions == 7


@pytest.mark.parametrize(
    ("given", "size", "by_default"),
    [
        ({}, DEFAULT_BYTES, True),
        ({"maxBytesPerTrigger": "1000"}, 1_000, False),
        ({"maxBytesPerTrigger": "512m"}, 512 << 20, False),
        ({"maxBytesPerTrigger": "4 GB"}, 4 << 30, False),
        ({"maxBytesPerTrigger": "Unlimited"}, UNLIMITED_BYTES, False),
        ({"maxBytesPerTrigger": "99999999999999999p"}, UNLIMITED_BYTES, False),
        ({"maxOffsetsPerTrigger": "10"}, UNLIMITED_BYTES, False),
        ({"maxOffsetsPerTrigger": "10", "maxBytesPerTrigger": "1k"}, 1_024, False),
        ({"minOffsetsPerTrigger": "10"}, DEFAULT_BYTES, True),
    ],
)
def test_the_most_bytes(given: dict[str, str], size: int, by_default: bool) -> None:
    options = read(**given)
    assert options.trigger_bytes == size
    assert options.is_limited_by_default is by_default


def test_the_longest_delay() -> None:
    assert read().max_trigger_delay == 900_000  # Kafka's default, 15 m
    assert read(maxTriggerDelay="30s").max_trigger_delay == 30_000


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"maxBytesPerTrigger": "much"}, "a number of bytes, a size like 512m or 4g, or unlimited"),
        ({"maxBytesPerTrigger": "0"}, "must be at least 1"),
        ({"maxBytesPerTrigger": "-5"}, "a number of bytes, a size like"),
        ({"minOffsetsPerTrigger": "0"}, "must be at least 1"),
        ({"maxTriggerDelay": "soon"}, "must be a time like 500ms, 30s, 15m, 2h or 1d"),
        (
            {"minOffsetsPerTrigger": "11", "maxOffsetsPerTrigger": "10"},
            "'minOffsetsPerTrigger' = 11: must not be above maxOffsetsPerTrigger, which is 10",
        ),
        ({"maxBytePerTrigger": "1"}, "did you mean 'maxBytesPerTrigger'"),
    ],
)  # fmt: skip
def test_wrong_triggers(given: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(**given)
    assert says in str(caught.value)


def test_a_batch_query_says_that_they_mean_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """As Kafka's connector does: one function may make options for both."""
    given = {"maxOffsetsPerTrigger": "5", "maxTriggerDelay": "1s"}
    with caplog.at_level(logging.WARNING, "dafka_spark"):
        read(**given).for_batch()
    assert [each.getMessage() for each in caplog.records] == [
        "option maxOffsetsPerTrigger = 5 is ignored: a batch has no trigger",
        "option maxTriggerDelay = 1000 is ignored: a batch has no trigger",
    ]
    caplog.clear()
    read().for_batch()
    assert not caplog.records


def test_a_delay_without_what_it_delays(caplog: pytest.LogCaptureFixture) -> None:
    """As Kafka's connector does it changes nothing; but it is said."""
    with caplog.at_level(logging.WARNING, "dafka_spark"):
        read(maxTriggerDelay="1s").for_stream()
        read(maxTriggerDelay="1s", minOffsetsPerTrigger=5).for_stream()
    (warning,) = [each.getMessage() for each in caplog.records]
    why = "no batch waits without minOffsetsPerTrigger; give it, too"
    assert warning == f"option maxTriggerDelay = 1000 is ignored: {why}"


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
