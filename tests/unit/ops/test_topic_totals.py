"""Metrics by topic take a limited share of time, and limited memory."""

from pathlib import Path

import pytest

from dafka_core.model.records import RecordBatch, TopicPartition
from dafka_core.nodes.store_loop import OTHER
from dafka_core.ops import node_metrics
from dafka_core.ops.node_metrics import ShownTopics, TopicTotals, Total
from dafka_core.storage import Log


def test_totals_are_of_what_is_held_and_looked_up_when_something_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_metrics, "SUM_PARTITIONS", 2)
    monkeypatch.setattr(node_metrics, "SUM_SHARE", float("inf"))
    with Log(tmp_path) as log:
        totals = TopicTotals(log)
        assert totals.current() == {}
        batches = [
            RecordBatch.of(TopicPartition(topic, partition), 0, [b"v"] * count)
            for topic, partition, count in (("t", "p", 3), ("t", "q", 4), ("u", "p", 5))
        ]
        log.append(batches)
        found = totals.current()
        assert found == {"t": Total(2, 7), "u": Total(1, 5)}
        assert totals.current() is found
        log.trim(TopicPartition("t", "p"), 2)
        assert totals.current() == {"t": Total(2, 5), "u": Total(1, 5)}


def test_looking_costs_a_limited_share_of_the_time(tmp_path: Path) -> None:
    clock = iter([100.0, 101.0, 150.0, 201.5, 201.6])  # the first look takes one second
    with Log(tmp_path) as log:
        totals = TopicTotals(log, lambda: next(clock))
        totals.current()
        log.append([RecordBatch.of(TopicPartition("t", "p"), 0, [b"v"])])
        assert totals.current() == {}
        assert totals.current() == {"t": Total(1, 1)}


def test_the_largest_topics_are_shown_and_stay(tmp_path: Path) -> None:
    shown = ShownTopics(2)
    totals = {"small": Total(1, 1), "large": Total(1, 9), "middle": Total(1, 5)}
    shown.choose(totals)
    assert [shown.label(each) for each in totals] == [OTHER, "large", "middle"]
    totals["small"] = Total(1, 100)
    shown.choose(totals)
    assert [shown.label(each) for each in totals] == [OTHER, "large", "middle"]
    del totals["large"]
    shown.choose(totals)
    assert [shown.label(each) for each in totals] == ["small", "middle"]


def test_what_is_not_shown_is_summed_up() -> None:
    shown = ShownTopics(1)
    totals = {"a": Total(1, 10), "b": Total(2, 3), OTHER: Total(1, 4)}
    shown.choose(totals)
    counts = ((topic, total.records) for topic, total in totals.items())
    assert shown.summed(counts) == {"a": 10, OTHER: 7}
    assert not ShownTopics(0).summed([])


def test_a_name_that_cannot_be_written_is_escaped() -> None:
    shown = ShownTopics(1)
    shown.choose({"a\nb": Total(1, 1)})
    assert "\n" not in shown.label("a\nb")
