"""The lag of queries over time."""

from __future__ import annotations

import pytest

from dafka_console import cluster_view
from dafka_console.cluster_view import QueryWatch
from dafka_console.snapshot import LagMoment
from dafka_core.queries.query_lag import RUNNING, QueryLag


def lag(run: str, records: int) -> QueryLag:
    return QueryLag("q", run, RUNNING, 1, records, None, 1.5, 0.1, [])


def test_each_run_has_a_history_and_one_that_is_over_has_none() -> None:
    watch = QueryWatch()
    watch.keep([lag("1", 5), lag("2", 7)], 100.0)
    watch.keep([lag("2", 6)], 101.0)
    (state,) = watch.states
    assert state.lag.records_behind == 6
    assert state.history == (LagMoment(100.0, 7, 1.5), LagMoment(101.0, 6, 1.5))


def test_histories_and_runs_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_view, "MOST_RUNS", 3)
    watch = QueryWatch()
    for moment in range(cluster_view.MAX_LAG_MOMENTS + 5):
        watch.keep([lag(str(run), moment) for run in range(5)], float(moment))
    assert len(watch.states) == 3
    assert len(watch.states[0].history) == cluster_view.MAX_LAG_MOMENTS


def test_without_stores_there_is_nothing_and_the_next_look_is_later() -> None:
    watch = QueryWatch()
    assert watch.is_due
    watch.look([])
    assert watch.states == ()
    assert not watch.is_due
