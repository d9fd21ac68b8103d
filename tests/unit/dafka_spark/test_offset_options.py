"""Which of the options that say where to begin and to end counts, and which are refused."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from dafka_core.errors import ConfigError
from dafka_core.records import TopicPartition
from dafka_spark.options import SourceOptions
from dafka_spark.positions import AT_EARLIEST, AT_LATEST, LATEST, TIME, Position

A = TopicPartition("t", "A")
BY_TIME = '{"t": {"A": 2000}}'


def read(**given: object) -> SourceOptions:
    return SourceOptions.of({"subscribe": "t", **{k: str(v) for k, v in given.items()}})


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
    """A start of ``-10m`` must not fail a query because one producer is idle."""
    assert read(startingTimestamp=1).starting(AT_LATEST).fails_unmatched
    assert read(startingOffsetsByTimestamp=BY_TIME).starting(AT_LATEST).fails_unmatched
    assert not read(startingOffsets="-10m").starting(AT_LATEST).fails_unmatched
    strategy = {"startingOffsetsByTimestampStrategy": "LATEST"}
    assert not read(startingTimestamp=1, **strategy).starting(AT_LATEST).fails_unmatched


def test_a_strategy_without_a_time_is_said(caplog: pytest.LogCaptureFixture) -> None:
    strategy = {"startingOffsetsByTimestampStrategy": "latest"}
    with caplog.at_level(logging.WARNING, "dafka_spark"):
        read(startingTimestamp=1, **strategy).for_batch()
        read(startingOffsetsByTimestamp=BY_TIME, **strategy).for_stream()
        assert not caplog.records
        read(startingOffsets="-10m", **strategy).for_batch()
        read(**strategy).for_stream()
    sentence = (
        "option startingOffsetsByTimestampStrategy = latest is ignored: it is about "
        "startingTimestamp and startingOffsetsByTimestamp; give one of them"
    )
    assert [each.getMessage() for each in caplog.records] == [sentence, sentence]


@pytest.mark.parametrize("name", ["endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"])
def test_streams_have_no_end(name: str) -> None:
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
