"""Progress that a streaming query reports to stores, and to Spark."""

from __future__ import annotations

import logging
import time
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from dafka_core.model.records import TopicPartition
from dafka_core.queries.query_lag import FINISHED, RUNNING, query_lags
from dafka_core.queries.query_progress import partition_of
from dafka_core.testing import PATIENCE_S, wait_until
from dafka_spark.cluster import timing
from dafka_spark.options import SourceOptions
from dafka_spark.source import progress_publisher
from dafka_spark.source.micro_batch_stream import DafkaMicroBatchStream
from dafka_spark.source.progress_publisher import ReportedLag, described
from dafka_spark.source.read_limit import Sizes, Waiting
from tests.integration.cluster.stores import HeardOf, Serve, Served
from tests.unit.dafka_spark.streams import ALL, everything, reader

A, B = TopicPartition("t", "A"), TopicPartition("t", "B")
REPORTS = partition_of("q")
WARNING = "the progress of query 'q' cannot be reported; the query continues"


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Publish reports without the usual interval."""
    monkeypatch.setattr(progress_publisher, "EVERY_S", 0.05)


@pytest.fixture
def store(serve: Serve) -> Served:
    return serve("one").add(A, 5)


@pytest.fixture
def c_node() -> HeardOf:
    """A mesh without a store that takes reports."""
    source = HeardOf((), ["C node"])
    source.add(A, 30)
    return source


def named(source: HeardOf, **given: str) -> DafkaMicroBatchStream:
    return reader(source, queryName="q", **given)


def found(store: Served) -> set[tuple[str, int]]:
    """Return the state of each run, and its lag."""
    lags = query_lags([store.client()], timeout_s=PATIENCE_S)
    return {(each.state, each.records_behind) for each in lags}


def reported(store: Served, state: str, lag: int) -> None:
    wait_until(lambda: found(store) == {(state, lag)}, f"{state} with lag {lag}")


def test_the_first_trigger_reports_lag(store: Served) -> None:
    stream = named(HeardOf([store]))
    end = everything(stream)
    reported(store, RUNNING, 5)
    store.add(A, 2)
    assert stream.latestOffset(end, ALL) != end
    reported(store, RUNNING, 2)
    stream.commit(stream.latestOffset(end, ALL))
    reported(store, RUNNING, 0)
    stream.stop()


def test_a_query_without_a_name_reports_nothing(store: Served) -> None:
    stream = reader(HeardOf([store]))
    stream.commit(everything(stream))
    stream.stop()
    assert [each.topic for each in store.log.partitions()] == ["t"]


@pytest.mark.parametrize("state", [RUNNING, FINISHED])
def test_an_idle_query_repeats_its_state(
    store: Served, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    monkeypatch.setattr(progress_publisher, "IDLE_S", 0.1)
    stream = named(HeardOf([store]))
    if state == FINISHED:
        stream.prepareForTriggerAvailableNow()
    end = everything(stream)
    assert stream.latestOffset(end, ALL) == end
    stream.commit(end)  # before a last batch without data, too
    before = store.log.end(REPORTS)
    wait_until(lambda: store.log.end(REPORTS) > before + 3, "reports without news")
    assert found(store) == {(state, 0)}
    stream.stop()


def test_a_query_that_ends_by_itself_reports_that_before_it_ends(
    store: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress_publisher, "EVERY_S", 3_600.0)
    stream = named(HeardOf([store]), maxOffsetsPerTrigger="3")
    stream.prepareForTriggerAvailableNow()
    at, limit = stream.initialOffset(), stream.getDefaultReadLimit()
    while (end := stream.latestOffset(at, limit)) != at:
        at = end
    assert found(store) == {(FINISHED, 0)}  # Spark may end the process now
    assert stream.latestOffset(at, limit) == at  # again, it has nothing to wait for
    assert store.log.end(REPORTS) <= 2  # the thread may start after the end
    stream.stop()
    again = named(HeardOf([store]))
    again.latestOffset(at, ALL)
    reported(store, RUNNING, 0)
    again.stop()


def test_a_query_ends_without_a_store_that_takes_reports(
    c_node: HeardOf, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(progress_publisher, "EVERY_S", 3_600.0)
    stream = named(c_node)
    stream.prepareForTriggerAvailableNow()
    at = everything(stream)
    began = time.monotonic()
    assert stream.latestOffset(at, ALL) == at
    assert time.monotonic() - began < timing.REQUEST_TIMEOUT_S
    assert WARNING in caplog.text


def test_a_failing_report_is_logged_once_and_the_query_continues(
    c_node: HeardOf, store: Served, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "dafka_spark")
    stream = named(c_node)
    end = everything(stream)
    wait_until(lambda: WARNING in caplog.text, "the first attempt")
    c_node.add(A, 1)
    end = stream.latestOffset(end, ALL)
    wait_until(lambda: caplog.text.count(WARNING) > 1, "the second one")
    levels = [each.levelno for each in caplog.records if WARNING in each.getMessage()]
    assert levels[0] == logging.WARNING
    assert logging.WARNING not in levels[1:]
    c_node.served.append(store)  # a store that appears is found
    store.add(A, 30)
    stream.latestOffset(end, ALL)
    reported(store, RUNNING, 4)
    stream.stop()


def test_two_runs_of_one_name_are_two_runs(store: Served) -> None:
    streams = [named(HeardOf([store])) for _ in range(2)]
    ends: list[Any] = [everything(each) for each in streams]

    def are_two() -> bool:
        for stream, end in zip(streams, ends, strict=True):
            stream.commit(end)
        store.add(A, 1)
        ends[:] = [each.latestOffset(end, ALL) for each, end in zip(streams, ends, strict=True)]
        return len(query_lags([store.client()], timeout_s=PATIENCE_S)) == 2

    wait_until(are_two, "reports of both in turn")
    for stream in streams:
        stream.stop()


def lag(stream: DafkaMicroBatchStream) -> Any:
    """Return the least, most and mean records behind, and the bytes."""
    report = stream.reportLatestOffset()
    assert report is not None
    names = "minOffsets", "maxOffsets", "avgOffsets", "estimatedTotalBytes"
    return tuple(report["lag"][f"{name}BehindLatest"] for name in names)


def test_lag_counts_from_the_end_of_the_batch_as_in_sparks_kafka_source(store: Served) -> None:
    store.add(A, 25, size_bytes=100)
    store.add(B, 10, size_bytes=100)
    stream = reader(HeardOf([store]))
    end = stream.latestOffset(stream.initialOffset(), ReadMaxRows(20))
    assert lag(stream) == (4, 16, 10.0, pytest.approx(2_200, abs=200))
    end = stream.latestOffset(end, ReadMaxRows(20))
    assert lag(stream) == (0, 0, 0.0, 0)
    assert stream.latestOffset(end, ReadMaxRows(20)) == end
    assert lag(stream) == (0, 0, 0.0, 0)
    report = stream.reportLatestOffset()
    assert report is not None
    assert report["topics"] == {"t": {"A": 30, "B": 10}}


def test_sizes_are_cached_and_may_be_unknown(
    c_node: HeardOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = reader(c_node)
    stream.latestOffset(stream.initialOffset(), ReadMaxRows(20))
    assert lag(stream) == (10, 10, 10.0, None)
    requests: list[Waiting] = []

    def sizes(waiting: Waiting) -> Sizes:
        requests.append(waiting)
        return {A: [5.0, 7.0]}

    measured = ReportedLag()
    for _ in range(3):
        assert measured.of({A: 4, B: 0}, sizes)["estimatedTotalBytesBehindLatest"] == 24
    assert requests == [{A: 4}]
    monkeypatch.setattr(progress_publisher, "SIZES_S", 0)
    measured.of({A: 4}, sizes)
    assert len(requests) == 2


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"subscribe": "b,a"}, "dafka: a, b at h:1:2"),
        ({"subscribe": "a,b,c,d,e,f,g"}, "dafka: a, b, c, d, e and 2 more at h:1:2"),
        ({"subscribePattern": "t.*"}, "dafka: pattern t.* at h:1:2"),
        ({"assign": '{"t": ["A", "B"]}'}, "dafka: t at h:1:2"),
        ({"subscribe": r"\x0a", "stores": "grpc://s:3"}, r"dafka: \x0a at grpc://s:3"),
    ],
)
def test_a_description_names_topics_and_cluster(given: dict[str, str], text: str) -> None:
    assert described(SourceOptions.of({"tower": "h:1:2", **given})) == text
