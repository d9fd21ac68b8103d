"""Progress reports of streaming queries, written and read."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import ExitStack
from typing import Any

import pyarrow as pa
import pytest

from dafka_core.errors import DafkaError, StoreUnreachableError
from dafka_core.flight.store_client import StoreClient
from dafka_core.model.names import QUERIES_TOPIC
from dafka_core.model.records import TopicPartition
from dafka_core.queries.query_progress import QueryProgress, partition_of, publish, reports
from dafka_core.testing import PATIENCE_S
from tests.integration.cluster.stores import Serve, Served

A = TopicPartition("t", "A")
ODD = TopicPartition("\udcff", "B")


def report(query: str, run: str, end: int = 1, every_s: float = 60) -> QueryProgress:
    return QueryProgress(query, run, every_s, ("t",)).at({A: end, ODD: 7})


def clients(stack: ExitStack, *stores: Served) -> list[StoreClient]:
    return [stack.enter_context(StoreClient(store.location)) for store in stores]


def found_by(asked: list[StoreClient]) -> list[tuple[str, str, dict[TopicPartition, int]]]:
    found = reports(asked, QUERIES_TOPIC, timeout_s=PATIENCE_S)
    return [(each.progress.query, each.progress.run, each.progress.offsets()) for each in found]


def add(asked: list[StoreClient], progress: QueryProgress) -> None:
    publish(asked, QUERIES_TOPIC, progress, timeout_s=PATIENCE_S)


def test_reports_are_the_last_of_each_query(serve: Serve) -> None:
    with ExitStack() as stack:
        asked = clients(stack, serve("one"))
        assert found_by(asked) == []
        for end in range(40):
            add(asked, report("a", "run", end))
        add(asked, report("b\udcff", "other"))
        assert found_by(asked) == [
            ("a", "run", {A: 39, ODD: 7}),
            ("b\udcff", "other", {A: 1, ODD: 7}),
        ]
        (first, _) = reports(asked, QUERIES_TOPIC, timeout_s=PATIENCE_S)
        assert 0 <= first.age_s < PATIENCE_S
        assert not first.is_late
        add(asked, report("late", "run", every_s=1e-9))
        assert reports(asked, QUERIES_TOPIC, timeout_s=PATIENCE_S)[-1].is_late


def test_all_queries_are_read_with_one_request(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Counter[str]()
    for name in ("read", "read_many"):
        own = getattr(StoreClient, name)

        def counted(*given: Any, name: str = name, own: Any = own, **named: Any) -> Any:
            asked[name] += 1
            return own(*given, **named)

        monkeypatch.setattr(StoreClient, name, counted)
    with ExitStack() as stack:
        at = clients(stack, serve("one"))
        for number in range(5):
            add(at, report(f"q{number}", "run", number))
        assert [query for query, _, _ in found_by(at)] == [f"q{number}" for number in range(5)]
    assert asked == {"read_many": 1}


def test_a_new_run_replaces_the_previous_one(serve: Serve) -> None:
    with ExitStack() as stack:
        asked = clients(stack, serve("one"))
        for run in ("first", "first", "second"):
            add(asked, report("q", run))
        assert [run for _, run, _ in found_by(asked)] == ["second"]
        # Two that report in turn are two.
        for run in ("third", "second", "third"):
            add(asked, report("q", run))
        assert {run for _, run, _ in found_by(asked)} == {"second", "third"}


def test_positions_of_many_partitions_are_packed() -> None:
    many = {TopicPartition("t", f"{number:032X}"): number for number in range(10_000)}
    progress = QueryProgress("q", "r", 60).at(many)
    assert progress.positions == {}
    assert len(progress.packed()) < 250_000
    assert QueryProgress.parse(progress.packed()).offsets() == many


def test_a_report_goes_to_the_store_with_most_reports_that_answers(
    serve: Serve,
) -> None:
    first, second = serve("first"), serve("second")
    tp = partition_of("q")
    with ExitStack() as stack:
        asked = clients(stack, first, second)
        add(asked[1:], report("q", "r"))
        add(asked, report("q", "r"))
        assert (first.log.end(tp), second.log.end(tp)) == (0, 2)
        second.stop()
        add(asked, report("q", "r"))
        assert first.log.end(tp) == 1
        first.stop()
        with pytest.raises(StoreUnreachableError):
            add(asked, report("q", "r"))
        with pytest.raises(DafkaError, match="no store"):
            add([], report("q", "r"))


def test_invalid_reports_are_skipped(serve: Serve) -> None:
    store = serve("one")
    good = report("q", "r").packed()
    foreign = report("another", "r").packed()
    facts = json.loads(good)
    wrong = [
        b"",
        b"\xff",
        b"[]",
        json.dumps({**facts, "v": 2}).encode(),
        json.dumps({**facts, "positions": {"t": {"A": -1}}}).encode(),
        json.dumps({**facts, "packed_positions": "c-n"}).encode(),
        json.dumps({**facts, "every_s": 0}).encode(),
        foreign,
    ]
    with ExitStack() as stack:
        (client,) = clients(stack, store)
        with client.put(partition_of("q"), 0, timeout_s=PATIENCE_S) as put:
            put.write(pa.array([good, *wrong], pa.binary()))
            put.finish(PATIENCE_S)
        assert [query for query, _, _ in found_by([client])] == ["q"]
