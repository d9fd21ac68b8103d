"""A streaming query reports its progress, and continues when no store takes the report."""

from __future__ import annotations

import logging
import pickle
import time
from functools import partial
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from dafka_core.model.records import TopicPartition
from dafka_core.queries.query_lag import FINISHED, RUNNING, QueryLag, query_lags
from dafka_core.queries.query_progress import partition_of
from dafka_core.testing import PATIENCE_S, wait_until
from dafka_spark.cluster import timing
from dafka_spark.options import SourceOptions
from dafka_spark.schema import full
from dafka_spark.source import progress_publisher
from dafka_spark.source.micro_batch_stream import DafkaMicroBatchStream
from tests.integration.cluster.stores import HeardOf, Serve, Served

A = TopicPartition("t", "A")
ALL = ReadAllAvailable()


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Publish reports without the usual interval."""
    monkeypatch.setattr(progress_publisher, "EVERY_S", 0.05)


def reader(source: HeardOf, **given: str) -> DafkaMicroBatchStream:
    named = {"subscribe": "t", "startingoffsets": "earliest", "queryname": "q", **given}
    return DafkaMicroBatchStream(full(), SourceOptions.of(named).for_stream(), source.connect)


def lags(store: Served) -> list[QueryLag]:
    return query_lags([store.client()], timeout_s=PATIENCE_S)


def has_reports(store: Served, least: int) -> bool:
    return store.log.end(partition_of("q")) > least


def behind(store: Served) -> list[int]:
    return [each.records_behind for each in lags(store)]


def test_the_first_trigger_reports_lag(serve: Serve) -> None:
    store = serve("one")
    store.add(A, 5)
    stream = reader(HeardOf([store]))
    start = stream.initialOffset()
    end = stream.latestOffset(start, ALL)
    wait_until(lambda: behind(store) == [5], "the lag before the first batch")
    store.add(A, 2)
    assert stream.latestOffset(end, ALL) != end
    wait_until(lambda: behind(store) == [2], "the lag after the first batch")
    stream.commit(stream.latestOffset(end, ALL))
    wait_until(lambda: behind(store) == [0], "the lag after the second batch")
    stream.stop()


def test_a_query_without_a_name_reports_nothing(serve: Serve) -> None:
    store = serve("one")
    store.add(A, 5)
    options = SourceOptions.of({"subscribe": "t", "startingoffsets": "earliest"})
    stream = DafkaMicroBatchStream(full(), options, HeardOf([store]).connect)
    end = stream.latestOffset(stream.initialOffset(), ALL)
    stream.commit(end)
    stream.stop()
    assert lags(store) == []
    assert [each.topic for each in store.log.partitions()] == ["t"]


@pytest.mark.parametrize("state", [RUNNING, FINISHED])
def test_an_idle_query_repeats_its_state(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    monkeypatch.setattr(progress_publisher, "IDLE_S", 0.1)
    store = serve("one")
    store.add(A, 5)
    stream = reader(HeardOf([store]))
    if state == FINISHED:
        stream.prepareForTriggerAvailableNow()
    end = stream.latestOffset(stream.initialOffset(), ALL)
    assert stream.latestOffset(end, ALL) == end
    stream.commit(end)  # before a last batch without data, too
    reported = store.log.end(partition_of("q"))
    wait_until(lambda: has_reports(store, reported + 3), "reports without news")
    assert [each.state for each in lags(store)] == [state]
    stream.stop()


def test_a_query_that_ends_by_itself_reports_that_before_it_ends(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress_publisher, "EVERY_S", 3_600.0)
    store = serve("one")
    store.add(A, 5)
    stream = reader(HeardOf([store]), maxoffsetspertrigger="3")
    stream.prepareForTriggerAvailableNow()
    at = stream.initialOffset()
    limit = stream.getDefaultReadLimit()
    while (end := stream.latestOffset(at, limit)) != at:
        at = end
    (ended,) = lags(store)  # Spark may end the process now
    assert (ended.state, ended.records_behind) == (FINISHED, 0)
    assert stream.latestOffset(at, limit) == at  # asked again, it has nothing to wait for
    assert store.log.end(partition_of("q")) <= 2  # the thread may start after the end
    stream.stop()
    again = reader(HeardOf([store]))
    again.latestOffset(at, ALL)
    wait_until(lambda: [each.state for each in lags(store)] == [RUNNING], "the next run")
    again.stop()


def test_a_query_ends_without_a_store_that_takes_reports(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(progress_publisher, "EVERY_S", 3_600.0)
    source = HeardOf((), ["C node"])
    source.add(A, 3)
    stream = reader(source)
    stream.prepareForTriggerAvailableNow()
    at = stream.latestOffset(stream.initialOffset(), ALL)
    began = time.monotonic()
    assert stream.latestOffset(at, ALL) == at
    assert time.monotonic() - began < timing.REQUEST_TIMEOUT_S
    assert "the progress of query 'q' cannot be reported" in caplog.text


def test_a_failing_report_is_logged_once_and_the_query_continues(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    source = HeardOf((), ["C node"])
    source.add(A, 3)
    stream = reader(source)
    with caplog.at_level(logging.DEBUG, "dafka_spark"):
        end = stream.latestOffset(stream.initialOffset(), ALL)
        warning = "the progress of query 'q' cannot be reported; the query continues"
        wait_until(lambda: warning in caplog.text, "the first attempt")
        source.add(A, 1)
        end = stream.latestOffset(end, ALL)
        wait_until(lambda: caplog.text.count(warning) > 1, "the second one")
    levels = [each.levelno for each in caplog.records if warning in each.getMessage()]
    assert levels[0] == logging.WARNING
    assert logging.WARNING not in levels[1:]
    store = serve("one")  # one that is there again is found
    source.served.append(store)
    store.add(A, 9)
    stream.latestOffset(end, ALL)
    wait_until(lambda: behind(store) == [5], "the first report")
    stream.stop()


def test_two_runs_of_one_name_are_two_runs(serve: Serve) -> None:
    store = serve("one")
    store.add(A, 5)
    streams = [reader(HeardOf([store])) for _ in range(2)]
    ends: list[Any] = [each.latestOffset(each.initialOffset(), ALL) for each in streams]
    for count in (1, 2, 3):
        for stream, end in zip(streams, ends, strict=True):
            stream.commit(end)
        store.add(A, 1)
        ends = [each.latestOffset(end, ALL) for each, end in zip(streams, ends, strict=True)]
        least = 2 * count
        wait_until(partial(has_reports, store, least), "reports of both")
    wait_until(lambda: len({each.run for each in lags(store)}) == 2, "both")
    for stream in streams:
        stream.stop()


def test_a_reader_is_pickled_before_it_starts(serve: Serve) -> None:
    options = SourceOptions.of({"subscribe": "t", "queryname": "q"})
    pickle.loads(pickle.dumps(DafkaMicroBatchStream(full(), options)))
