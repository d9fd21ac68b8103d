"""How much a micro-batch takes, as users say it."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from dafka_core.errors import ConfigError
from dafka_spark.option_values import UNLIMITED_BYTES
from dafka_spark.options import SourceOptions
from dafka_spark.trigger_options import DEFAULT_BYTES


def read(**given: object) -> SourceOptions:
    return SourceOptions.of({"subscribe": "t", **{k: str(v) for k, v in given.items()}})


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
def test_what_is_refused(given: Any, says: str) -> None:
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
