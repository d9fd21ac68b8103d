"""Options are checked, with a sentence that helps, before anything runs."""

from __future__ import annotations

import logging
import pickle
from typing import Any

import pytest

from dafka_core.errors import ConfigError
from dafka_core.records import TopicPartition
from dafka_core.storage.block_builder import MAX_BLOCK_BYTES, MAX_BLOCK_RECORDS
from dafka_spark import option_values as values
from dafka_spark.option_values import ALL_STORES
from dafka_spark.options import SinkOptions, SourceOptions
from scripts.options import markdown_table


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
