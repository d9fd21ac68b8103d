"""Queries that name what no store has."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from dafka_core.errors import ConfigError
from dafka_core.queries.source_offset import SourceOffset
from dafka_core.records import TopicPartition
from dafka_spark.options import SourceOptions
from dafka_spark.schema import full
from dafka_spark.source.batch_reader import DafkaBatchReader
from dafka_spark.source.range_planner import OffsetRange
from dafka_spark.source.stream_reader import DafkaStreamReader
from tests.integration.cluster.stores import HeardOf, Serve

FLIGHTS = TopicPartition("flights", "AB12")


@pytest.fixture
def source(serve: Serve) -> HeardOf:
    """A store with two topics."""
    store = serve("one")
    store.add(FLIGHTS, 5)
    store.add(TopicPartition("sensors", "CD34"), 5)
    return HeardOf([store])


def planned(source: HeardOf, **given: str) -> list[Any]:
    options = SourceOptions.of({"fetchtimeoutms": "20000", **given}).for_batch()
    return DafkaBatchReader(full(), options, source.connect).partitions()


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (
            {"subscribe": r"bda\xff"},
            r"'bda\xff': no store has topic 'bda\xff' (did you mean 'bad\xff'?)",
        ),
        (
            {"assign": json.dumps({r"bad\xff": [r"AB1\x0d"]})},
            r"no store has partition AB1\x0d of topic 'bad\xff' (did you mean 'AB1\x0a'?)",
        ),
    ],
)
def test_odd_names_are_shown_as_they_can_be_written(
    serve: Serve, given: dict[str, str], sentence: str
) -> None:
    store = serve("one")
    store.add(TopicPartition("bad\udcff", "AB1\n"), 5)
    assert planned(HeardOf([store]), subscribe=r"bad\xff") != []
    with pytest.raises(ConfigError) as caught:
        planned(HeardOf([store]), **given)
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"subscribe": "fligths"}, "no store has topic 'fligths' (did you mean 'flights'?)"),
        ({"subscribe": "flights,x"}, "no store has topic 'x' (there are 'flights', 'sensors')"),
        (
            {"assign": '{"flights": ["AB13"]}'},
            "no store has partition AB13 of topic 'flights' (did you mean 'AB12'?)",
        ),
        (
            {"assign": '{"sensor": ["CD34"]}'},
            "no store has topic 'sensor' (did you mean 'sensors'?)",
        ),
    ],
)
def test_a_batch_fails_with_the_nearest_name(
    source: HeardOf, given: dict[str, str], sentence: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        planned(source, **given)
    assert sentence in str(caught.value)
    assert f"option {next(iter(given))!r}" in str(caught.value)
    assert "failOnMissingTopic = false reads it as empty" in str(caught.value)


def test_where_bounds_are_given_the_name_is_still_what_is_wrong(source: HeardOf) -> None:
    bounds = '{"fligths": {"AB12": 3}}'
    with pytest.raises(ConfigError, match="did you mean 'flights'"):
        planned(source, subscribe="fligths", startingOffsets=bounds)


def test_a_batch_may_read_what_is_not_there_as_empty(source: HeardOf) -> None:
    assert planned(source, subscribe="fligths", failOnMissingTopic="false") == []
    [part] = planned(source, subscribe="flights,none", failOnMissingTopic="false")
    assert part.topic == "flights"


def test_a_pattern_names_nothing(source: HeardOf) -> None:
    assert planned(source, subscribePattern="none.*") == []


def test_no_more_names_than_are_read(serve: Serve) -> None:
    store = serve("one")
    for number in range(13):
        store.add(TopicPartition(f"{number:02}", "A"), 1)
    with pytest.raises(ConfigError, match=r"there are '00', .*'09' and 3 more\); failOn"):
        planned(HeardOf([store]), subscribe="flights")


def test_a_stream_waits_and_says_so_once(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    store = serve("one")
    store.add(FLIGHTS, 5)
    options = SourceOptions.of({"subscribe": "fligths", "startingOffsets": "earliest"})
    stream = DafkaStreamReader(full(), options.for_stream(), HeardOf([store]).connect)
    begin = stream.initialOffset()
    for _ in range(3):
        assert stream.latestOffset(begin, ReadAllAvailable()) == begin
    [said] = [record.getMessage() for record in caplog.records]
    assert said == (
        "no store has topic 'fligths' (did you mean 'flights'?); the query waits for it"
    )
    store.add(TopicPartition("fligths", "A"), 2)
    end = stream.latestOffset(begin, ReadAllAvailable())
    [part] = stream.partitions(begin, end)
    assert isinstance(part, OffsetRange)
    assert part.end == 2


@pytest.mark.parametrize(
    ("given", "ends"),
    [({"subscribe": "fligths"}, True), ({"assign": '{"flights": ["AB13"]}'}, False)],
)
def test_a_stream_that_ends_or_names_partitions_fails(
    source: HeardOf, given: dict[str, str], *, ends: bool
) -> None:
    def asked(**more: str) -> dict[str, Any]:
        options = SourceOptions.of({**given, "startingOffsets": "earliest", **more})
        stream = DafkaStreamReader(full(), options.for_stream(), source.connect)
        if ends:
            stream.prepareForTriggerAvailableNow()
        begin = stream.initialOffset()
        return stream.latestOffset(begin, ReadAllAvailable())

    with pytest.raises(ConfigError, match=r"did you mean .*failOnMissingTopic = false"):
        asked()
    assert asked(failOnMissingTopic="false")["topics"] == {}


def test_a_topic_that_was_read_before_may_only_be_away(source: HeardOf) -> None:
    options = SourceOptions.of({"subscribe": "gone"})
    stream = DafkaStreamReader(full(), options.for_stream(), source.connect)
    stream.prepareForTriggerAvailableNow()
    begin = SourceOffset({TopicPartition("gone", "A"): 0}).as_json()
    assert stream.latestOffset(begin, ReadAllAvailable()) == begin
