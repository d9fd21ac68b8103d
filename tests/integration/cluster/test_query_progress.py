"""Progress that a streaming query reports to stores and to Spark, and the lag that follows."""

import json
import logging
import time
from collections.abc import Mapping
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from dafka_core.errors import DafkaError, StoreUnreachableError
from dafka_core.flight.store_client import StoreClient
from dafka_core.model.names import QUERIES_TOPIC
from dafka_core.model.records import TopicPartition
from dafka_core.queries.query_progress import (
    FINISHED,
    LATE,
    RUNNING,
    QueryLag,
    QueryProgress,
    Report,
    partition_of,
    publish,
    query_lags,
    reports,
)
from dafka_core.testing import PATIENCE_S, wait_until
from dafka_spark.cluster import timing
from dafka_spark.options import SourceOptions
from dafka_spark.source import progress_publisher
from dafka_spark.source.micro_batch_stream import DafkaMicroBatchStream
from dafka_spark.source.offset_ranges import Sizes, Waiting
from dafka_spark.source.progress_publisher import ReportedLag, described
from tests.integration.cluster.stores import A, B, Logged, Mesh, Patch, Serve, Served, fail
from tests.unit.dafka_spark.streams import ALL, everything, reader

NEW, OTHER = TopicPartition("t", "\udcff"), TopicPartition("u", "A")
REPORTS = partition_of("q")
WARNING = "the progress of query 'q' cannot be reported; the query continues"
SHORT_S = 1e-9


@pytest.fixture(autouse=True)
def soon(patch: Patch) -> None:
    """Publish reports without the usual interval."""
    patch.setattr(progress_publisher, "EVERY_S", 0.05)


@pytest.fixture
def store(serve: Serve) -> Served:
    return serve("store")


def lags(*stores: Served) -> list[QueryLag]:
    return query_lags([store.client() for store in stores], timeout_s=PATIENCE_S)


# -- reports of a stream ---------------------------------------------------------------------------


def named(mesh: Mesh, **given: str) -> DafkaMicroBatchStream:
    return reader(mesh, queryName="q", **given)


@pytest.fixture
def c_node() -> Mesh:
    """A mesh without a store that takes reports."""
    mesh = Mesh((), ["C node"])
    mesh.add(A, 30)
    return mesh


def runs(store: Served) -> set[tuple[str, int | None]]:
    """Return the state of each run, and its lag."""
    return {(each.state, each.records_behind) for each in lags(store)}


def reported(store: Served, state: str, lag: int) -> None:
    wait_until(lambda: runs(store) == {(state, lag)}, f"{state} with lag {lag}")


def test_the_first_trigger_reports_lag(one: Served, mesh: Mesh) -> None:
    unnamed = reader(mesh)
    unnamed.commit(everything(unnamed))
    unnamed.stop()
    assert [each.topic for each in one.log.partitions()] == ["t"]
    stream = named(mesh)
    end = everything(stream)
    reported(one, RUNNING, 5)
    one.add(A, 2)
    assert stream.latestOffset(end, ALL) != end
    reported(one, RUNNING, 2)
    stream.commit(stream.latestOffset(end, ALL))
    reported(one, RUNNING, 0)
    stream.stop()


def test_a_query_that_reads_over_the_mesh_reports_lag(one: Served, mesh: Mesh) -> None:
    mesh.add(A, 5)
    stream = named(mesh, fetch="mesh")
    everything(stream)
    reported(one, RUNNING, 5)
    stream.stop()


@pytest.mark.parametrize("state", [RUNNING, FINISHED])
def test_an_idle_query_repeats_its_state(one: Served, mesh: Mesh, patch: Patch, state: str) -> None:
    patch.setattr(progress_publisher, "IDLE_S", 0.1)
    stream = named(mesh)
    if state == FINISHED:
        stream.prepareForTriggerAvailableNow()
    end = everything(stream)
    assert stream.latestOffset(end, ALL) == end
    stream.commit(end)  # before a last batch without data, too
    before = one.log.end(REPORTS)
    wait_until(lambda: one.log.end(REPORTS) > before + 3, "reports without news")
    assert runs(one) == {(state, 0)}
    stream.stop()


def test_a_query_that_ends_by_itself_reports_that_before_it_ends(
    one: Served, mesh: Mesh, patch: Patch
) -> None:
    patch.setattr(progress_publisher, "EVERY_S", 3_600.0)
    stream = named(mesh, maxOffsetsPerTrigger="3")
    stream.prepareForTriggerAvailableNow()
    at, limit = stream.initialOffset(), stream.getDefaultReadLimit()
    while (end := stream.latestOffset(at, limit)) != at:
        at = end
    assert runs(one) == {(FINISHED, 0)}  # Spark may end the process now
    assert stream.latestOffset(at, limit) == at  # again, it has nothing to wait for
    assert one.log.end(REPORTS) <= 2  # the thread may start after the end
    stream.stop()
    again = named(mesh)
    again.latestOffset(at, ALL)
    reported(one, RUNNING, 0)
    again.stop()


def test_a_query_ends_without_a_store_that_takes_reports(
    c_node: Mesh, patch: Patch, logged: Logged
) -> None:
    patch.setattr(progress_publisher, "EVERY_S", 3_600.0)
    patch.setattr(timing, "REQUEST_TIMEOUT_S", 3_600.0)  # which it does not wait
    stream = named(c_node)
    stream.prepareForTriggerAvailableNow()
    at = everything(stream)
    assert stream.latestOffset(at, ALL) == at
    assert f"{WARNING}: no store with Arrow Flight answers; start one" in logged.text


def test_a_failing_report_is_logged_once_and_the_query_continues(
    c_node: Mesh, one: Served, caplog: pytest.LogCaptureFixture
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
    c_node.served.append(one)  # a store that appears is found
    one.add(A, 30)
    stream.latestOffset(end, ALL)
    reported(one, RUNNING, 4)
    stream.stop()


def test_two_runs_of_one_name_are_two_runs(one: Served, mesh: Mesh) -> None:
    streams = [named(mesh) for _ in range(2)]
    ends: list[Any] = [everything(each) for each in streams]

    def are_two() -> bool:
        for stream, end in zip(streams, ends, strict=True):
            stream.commit(end)
        one.add(A, 1)
        ends[:] = [each.latestOffset(end, ALL) for each, end in zip(streams, ends, strict=True)]
        return len(lags(one)) == 2

    wait_until(are_two, "reports of both in turn")
    for stream in streams:
        stream.stop()


# -- reports to Spark ------------------------------------------------------------------------------


def spark_report(stream: DafkaMicroBatchStream) -> tuple[Any, Any]:
    """Return the ends, and the least, most and mean records behind, and the bytes."""
    report = stream.reportLatestOffset()
    assert report is not None
    names = "minOffsets", "maxOffsets", "avgOffsets", "estimatedTotalBytes"
    return report["topics"], tuple(report["lag"][f"{name}BehindLatest"] for name in names)


def test_lag_counts_from_the_end_of_the_batch_as_in_sparks_kafka_source(store: Served) -> None:
    stream = reader(Mesh([store.add(A, 30, size_bytes=100).add(B, 10, size_bytes=100)]))
    ends = {"t": {"A": 30, "B": 10}}
    end = stream.latestOffset(stream.initialOffset(), ReadMaxRows(20))
    lag = (4, 16, 10.0, pytest.approx(2_200, abs=200))
    assert spark_report(stream) == (ends, lag)
    for _ in range(2):
        end = stream.latestOffset(end, ReadMaxRows(20))
        assert spark_report(stream) == (ends, (0, 0, 0.0, 0))


def test_sizes_are_cached_and_may_be_unknown(c_node: Mesh, patch: Patch) -> None:
    stream = reader(c_node)
    stream.latestOffset(stream.initialOffset(), ReadMaxRows(20))
    assert spark_report(stream) == ({"t": {"A": 30}}, (10, 10, 10.0, None))
    requests: list[Waiting] = []

    def sizes(waiting: Waiting) -> Sizes:
        requests.append(waiting)
        return {A: [5.0, 7.0]}

    measured = ReportedLag()
    for _ in range(3):
        assert measured.of({A: 4, B: 0}, sizes)["estimatedTotalBytesBehindLatest"] == 24
    assert requests == [{A: 4}]
    patch.setattr(progress_publisher, "SIZES_S", 0)
    measured.of({A: 4}, sizes)
    assert len(requests) == 2


def test_a_description_names_topics_and_cluster() -> None:
    for given, text in (
        ({"subscribe": "b,a"}, "dafka: a, b at h:1:2"),
        ({"subscribe": "a,b,c,d,e,f,g"}, "dafka: a, b, c, d, e and 2 more at h:1:2"),
        ({"subscribePattern": "t.*"}, "dafka: pattern t.* at h:1:2"),
        ({"assign": '{"t": ["A", "B"]}'}, "dafka: t at h:1:2"),
        ({"subscribe": r"\x0a", "stores": "grpc://s:3"}, r"dafka: \x0a at grpc://s:3"),
    ):
        assert described(SourceOptions.of({"tower": "h:1:2", **given})) == text


# -- reports at stores -----------------------------------------------------------------------------


def add(*stores: Served, ends: Mapping[TopicPartition, int] | None = None, **given: Any) -> None:
    fields = {"query": "q", "run": "r", "every_s": 60, "topics": ("t",), **given}
    report = QueryProgress(**fields).at(ends or {A: 0})
    clients = [store.client() for store in stores]
    publish(clients, QUERIES_TOPIC, report, timeout_s=PATIENCE_S)


def found(store: Served) -> list[Report]:
    return reports([store.client()], QUERIES_TOPIC, timeout_s=PATIENCE_S)


def test_reports_are_the_last_of_each_query(store: Served, patch: Patch) -> None:
    assert found(store) == []
    for end in range(40):
        add(store, query="a", ends={A: end, NEW: 7})
    add(store, query="b\udcff", every_s=SHORT_S)
    with patch.context() as patched:
        patched.delattr(StoreClient, "read")  # all reports come with one request
        first, second = found(store)
    assert (first.progress.offsets(), first.is_late) == ({A: 39, NEW: 7}, False)
    assert 0 <= first.age_s < PATIENCE_S
    assert (second.progress.query, second.is_late) == ("b\udcff", True)
    for run, expected in (
        *(("first", {"first"}),) * 2,
        ("second", {"second"}),  # a new run replaces the previous one
        ("third", {"third"}),
        ("second", {"second", "third"}),  # two that report in turn are two
        ("third", {"second", "third"}),
    ):
        add(store, run=run)
        assert {
            each.progress.run for each in found(store) if each.progress.query == "q"
        } == expected


def test_positions_of_many_partitions_are_packed() -> None:
    many = {TopicPartition("t", f"{number:032X}"): number for number in range(10_000)}
    progress = QueryProgress("q", "r", 60).at(many)
    assert progress.positions == {}
    assert len(progress.packed()) < 250_000
    assert QueryProgress.parse(progress.packed()).offsets() == many


def test_a_report_goes_to_the_store_with_most_reports_that_takes_it(
    serve: Serve, patch: Patch
) -> None:
    first, second = serve("first"), serve("second")
    add(second)
    add(first, second)
    assert (first.log.end(REPORTS), second.log.end(REPORTS)) == (0, 2)
    with patch.context() as patched:
        fail(patched, "put", "second")  # as one with a full disk
        add(first, second)
    assert first.log.end(REPORTS) == 1
    second.stop()
    add(first, second)
    assert first.log.end(REPORTS) == 2
    first.stop()
    with pytest.raises(StoreUnreachableError):
        add(first, second)
    with pytest.raises(DafkaError, match="no store"):
        add()


def test_invalid_reports_are_skipped(store: Served) -> None:
    good, foreign = (QueryProgress(query, "r", 60).at({A: 1}).packed() for query in "qx")
    members: list[dict[str, object]] = [
        {"v": 2},
        {"positions": {"t": {"A": -1}}},
        {"packed_positions": "c-n"},
        {"every_s": 0},
    ]
    invalid = [json.dumps({**json.loads(good), **each}).encode() for each in members]
    with store.client().put(REPORTS, 0, timeout_s=PATIENCE_S) as put:
        put.write(pa.array([good, b"", b"\xff", b"[]", *invalid, foreign], pa.binary()))
        put.finish(PATIENCE_S)
    assert [each.progress.query for each in found(store)] == ["q"]


# -- lag -------------------------------------------------------------------------------------------


def test_records_bytes_and_seconds_behind(store: Served) -> None:
    for tp, count in ((A, 10), (B, 5), (OTHER, 9)):
        store.add(tp, count, size_bytes=100)
    add(store, ends={A: 4, B: 5})
    (lag,) = lags(store)
    assert (lag.query, lag.run, lag.state, lag.partitions) == ("q", "r", RUNNING, 2)
    assert lag.records_behind == 6
    assert lag.bytes_behind == pytest.approx(700, abs=100)
    assert lag.seconds_behind is not None
    assert 0 < lag.seconds_behind < PATIENCE_S
    first, second = lag.lags
    assert (first.topic, first.partition, first.position, first.end) == ("t", "A", 4, 10)
    assert (second.records_behind, second.bytes_behind, second.seconds_behind) == (0, 0, 0)
    add(store, ends={A: 10, B: 5})
    (lag,) = lags(store)
    assert (lag.records_behind, lag.bytes_behind, lag.seconds_behind) == (0, 0, 0)
    store.log.trim(A, 8)  # trimmed records do not count
    add(store, ends={A: 1, B: 5})
    (lag,) = lags(store)
    assert (lag.records_behind, lag.lags[0].position) == (2, 8)


def test_lag_counts_new_partitions_of_its_topics_at_any_store(serve: Serve) -> None:
    ahead, behind = serve("ahead").add(A, 10), serve("behind").add(A, 4).add(NEW, 3).add(OTHER, 3)
    add(behind, query="by topic", ends={A: 2})
    add(behind, query="assigned", topics=(), ends={A: 9})
    found = lags(behind, ahead)
    assert {each.query: each.records_behind for each in found} == {"by topic": 11, "assigned": 1}
    assert all(each.seconds_behind is not None for each in found)


@pytest.mark.parametrize(("finished", "state"), [(False, LATE), (True, FINISHED)])
def test_a_query_that_ended_is_finished_or_late_and_its_lag_grows(
    store: Served, *, finished: bool, state: str
) -> None:
    store.add(A, 1)
    add(store, every_s=SHORT_S, finished=finished)
    (before,) = lags(store)
    store.add(A, 4)
    (after,) = lags(store)
    assert (before.state, after.state) == (state, state)
    assert (before.records_behind, after.records_behind) == (1, 5)
    assert 0 < before.reported_s < after.reported_s
    add(store, run="started again")
    assert [(each.run, each.state) for each in lags(store)] == [("started again", RUNNING)]


def test_lag_ignores_the_clock_of_this_machine(store: Served, patch: Patch) -> None:
    """The stores of this process keep the right clock."""
    store.add(A, 3)
    add(store)
    hours = Mock(wraps=time, time_ns=lambda: time.time_ns() + 5 * 3_600 * 10**9)
    for module in ("queries.query_progress", "flight.store_client"):
        patch.setattr(f"dafka_core.{module}.time", hours, raising=False)
    (lag,) = lags(store)
    assert lag.state == RUNNING
    assert lag.seconds_behind is not None
    assert max(lag.seconds_behind, lag.reported_s) < PATIENCE_S
