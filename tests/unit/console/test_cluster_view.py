"""The lag of queries over time."""

import pytest

from dafka_console import cluster_view
from dafka_console.cluster_view import QueryWatch
from dafka_core.queries.query_progress import RUNNING, QueryLag


def lag(run: str, records: int) -> QueryLag:
    return QueryLag("q", run, RUNNING, 1, records, None, 1.5, 0.1, [])


def test_each_run_has_a_series_and_runs_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_view, "MOST_RUNS", 2)
    watch = QueryWatch()
    watch.keep([lag("1", 5), lag("2", 7), lag("3", 9)], 99.0)
    watch.keep([lag("2", 6)], 102.0)
    assert [each.records_behind for each in watch.runs] == [6]
    assert watch.lags.points(("q", "2"), "10m") == [(99, 7), (102, 6)]
    assert watch.lags.points(("q", "1"), "10m") == watch.lags.points(("q", "3"), "10m") == []


def test_without_stores_there_is_nothing_and_the_next_look_is_later() -> None:
    watch = QueryWatch()
    assert watch.is_due
    watch.look([])
    assert not watch.runs
    assert not watch.is_due
