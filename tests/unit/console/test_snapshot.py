"""Topics as sums of their partitions, and means over three windows."""

import pytest

from dafka_console import snapshot as module
from dafka_console.snapshot import NOTHING, POINTS, WINDOWS, PartitionTable, TimeSeries
from dafka_core.errors import InvalidRequestError
from dafka_core.model.records import TopicPartition
from tests.unit.console.snapshots import GONE, ONE, TWO, US, A, B, fact, info, snapshot, table


def test_topics_are_the_sums_of_their_partitions() -> None:
    made = snapshot()
    topics, row = made.topics, made.partitions.topics.index("t")
    assert topics.partitions[row] == 2
    assert topics.records[row] == 120
    assert topics.bytes[row] == 1_100 + 1_000
    assert topics.first_us[row] == US
    assert topics.last_us[row] == US + 1_000_000
    assert 0 < topics.rate[row] < 10
    assert topics.byte_rate[row] == topics.rate[row] * 10
    other = 1 - row
    assert (topics.records[other], topics.first_us[other]) == (7, 0)


def test_an_empty_cluster_has_no_topics() -> None:
    assert [len(column) for column in NOTHING.topics] == [0] * 8


def test_stores_are_merged_and_who_is_behind_is_counted() -> None:
    found = table().columns()
    assert found.tps == [("__dafka.q", A), ("t", A), ("t", B)]
    assert found.end.tolist() == [7, 100, 10]
    assert found.stores[TWO].tolist() == [-1, 50, -1]
    assert found.holders().tolist() == [1, 2, 1]
    assert (found.behind(ONE), found.behind(TWO)) == (0, 67)
    assert found.bytes.tolist() == [0, 1_000, 1_000]


def test_rates_follow_what_is_written_and_what_was_there_before_is_none() -> None:
    made = table()
    assert made.tick(1.0, US) == (0, 0)
    for number in range(1, 40):
        made.hear(ONE, [info("t", A, 100 + 20 * number)], complete=False)
        records, octets = made.tick(1.0, US + number)
    assert records == 20
    assert octets == pytest.approx(200)
    found = made.columns()
    row = found.tps.index(TopicPartition("t", A))
    assert found.rate[row] == pytest.approx(20, rel=0.01)
    assert found.byte_rate[row] == pytest.approx(200, rel=0.01)
    assert found.last_us[row] == US + 39
    assert dict(zip(found.topics, found.topic_rates, strict=True)) == {"t": 20, "__dafka.q": 0}
    for number in range(60):
        made.tick(1.0, US + number)
    assert made.columns().rate[row] == 0


def test_a_partition_that_is_new_counts_and_one_of_a_store_that_came_back_does_not() -> None:
    made = table()
    made.tick(1.0, US)
    made.hear(ONE, [info("new", B, 5)], complete=False)
    assert made.tick(1.0, US) == (5, 0)
    made.drop(ONE)
    made.drop(TWO)
    made.hear(TWO, [info("t", A, 190)], complete=True)
    made.hear(ONE, [info("t", A, 195)], complete=True)
    assert made.tick(1.0, US) == (0, 0)
    made.hear(ONE, [info("t", A, 198)], complete=False)
    assert made.tick(1.0, US) == (3, 30)


def test_what_a_silent_store_said_last_stays_and_cannot_be_read() -> None:
    made = table()
    made.drop(ONE)
    found = made.columns()
    assert found.tps == [("__dafka.q", A), ("t", A), ("t", B)]
    assert (found.end.tolist(), found.readable.tolist()) == ([7, 100, 10], [-1, 50, -1])
    assert (found.holders().tolist(), list(found.stores)) == ([0, 1, 0], [TWO])
    assert (made.held(ONE), made.held(TWO), made.held("none")) == (3, 1, 0)
    made.drop(TWO)
    made.drop(TWO)
    found = made.columns()
    assert (found.end.tolist(), found.readable.tolist()) == ([7, 100, 10], [-1, -1, -1])
    made.hear(ONE, [info("t", A, 100), info("t", B, 10), info("__dafka.q", A, 7)], complete=True)
    found = made.columns()
    assert found.end.tolist() == found.readable.tolist() == [7, 100, 10]


def test_only_a_store_that_answers_says_where_a_partition_begins() -> None:
    made = table()
    made.hear(TWO, [info("t", A, 100), info("t", B, 10)], complete=True)
    made.drop(ONE)
    made.hear(TWO, [info("t", A, 105, 60), info("t", B, 10)], complete=True)
    found = made.columns()
    row = found.tps.index(TopicPartition("t", A))
    assert (found.earliest[row], found.end[row], found.readable[row]) == (60, 105, 105)
    made.drop(TWO)
    found = made.columns()
    assert (found.earliest[row], found.end[row], found.readable[row]) == (60, 105, -1)


def test_what_is_gone_is_shown_no_more_and_the_rest_is_as_it_was() -> None:
    made = table()
    made.hear(ONE, [info("t", B, 10), info("t", A, 100)], complete=True)
    found = made.columns()
    assert (found.topics, found.tps) == (["t"], [("t", A), ("t", B)])
    assert (found.clients, found.topic_rates.tolist()) == ({("t", A): "host-7:4711"}, [0])
    assert found.bytes.tolist() == [1_000, 1_000]
    made.hear(ONE, [info("t", A, 100)], complete=True)
    made.hear(TWO, [info("t", A, 100), info("t", B, 9)], complete=True)
    found = made.columns()
    row = found.tps.index(TopicPartition("t", B))
    assert (found.end[row], found.stores[ONE][row], found.stores[TWO][row]) == (9, -1, 9)
    made.hear(ONE, [], complete=True)
    made.hear(TWO, [], complete=True)
    assert (made.columns().topics, made.columns().clients) == ([], {})
    assert made.tick(1.0, US) == (0, 0)


def test_a_snapshot_has_the_rows_of_its_moment() -> None:
    made = table()
    before = made.columns()
    added = TopicPartition("t", "C" * 32)
    made.hear(TWO, [info(*added, 5)], complete=False)
    assert (before.row_of(added), made.columns().row_of(added)) == (None, 3)
    made.hear(ONE, [info("t", B, 10)], complete=True)
    after = made.columns()
    for found in (before, after):
        assert [found.row_of(tp) for tp in found.tps] == [*range(len(found.tps))]
    assert after.row_of(TopicPartition("__dafka.q", A)) is None
    assert before.row_of(TopicPartition("__dafka.q", A)) == 0


def test_facts_of_partitions_that_nobody_has_heard_of_are_passed_over() -> None:
    made = PartitionTable()
    made.learn([fact("t", A, 5, 50)])
    assert made.columns().tps == []


def test_it_is_told_of_which_partitions_nothing_is_known() -> None:
    made = PartitionTable()
    assert not made.lacks_facts()
    made.hear(ONE, [info("t", A, 100)], complete=True)
    assert made.lacks_facts()
    made.learn([fact("t", A, 100, 5_000)])
    assert not made.lacks_facts()
    made.hear(ONE, [info("t", B, 9)], complete=False)
    assert made.lacks_facts()


START = 562_172 * 3_024  # a multiple of each window's step


def test_each_window_has_the_means_of_its_steps() -> None:
    made = TimeSeries()
    for second in range(1_200):
        made.add(START + second, ["a", "b"], [second, 2 * second])
    recent = made.points("a", "10m")
    assert (recent[0], recent[-1]) == ((START + 600, 601), (START + 1_197, 1_198))
    assert len(recent) == POINTS
    hours = made.points("b", "6h")
    assert (hours[0], len(hours)) == ((START, sum(range(0, 216, 2)) / 108), 12)
    ((at, mean),) = made.points("b", "7d")
    assert (at, round(mean)) == (START, 1_199)
    assert made.last("a", 2) == [1_195, 1_198]
    assert (made.slope("a"), made.slope("b"), made.slope("none")) == (1, 2, 0)


def test_memory_does_not_grow_with_time_and_old_means_go() -> None:
    made = TimeSeries()
    for day in range(30):
        made.add(START + day * 86_400, ["a"], [day])
    for window in WINDOWS:
        assert [value for _, value in made.points("a", window)][-1] == 29
    assert [value for _, value in made.points("a", "7d")] == [*range(23, 30)]
    assert made.points("a", "10m") == [(START + 29 * 86_400, 29)]
    assert made._rings.shape == (3, 1, POINTS)


def test_series_come_and_go_and_keep_their_means(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_SERIES", 3)
    made = TimeSeries()
    made.add(START, ["a", "b"], [1, 2])
    made.add(START + 3, ["c", "b", "a", "beyond"], [5, 4, 3, 9])
    assert made.points("a", "10m") == [(START, 1), (START + 3, 3)]
    assert made.points("b", "10m") == [(START, 2), (START + 3, 4)]
    assert made.points("c", "10m") == [(START + 3, 5)]
    assert made.points("beyond", "10m") == []
    made.add(START + 6, [], [])
    made.add(START + 6, ["a"], [7])
    assert made.points("a", "10m") == [(START + 6, 7)]


def test_a_clock_that_is_set_back_or_stands_still_for_days_shows_no_wrong_time() -> None:
    made = TimeSeries()
    made.add(START, ["a"], [1])
    made.add(START - 1_000, ["a"], [3])
    assert made.points("a", "10m") == [(START, 2)]
    made.add(START + 10**7, ["a"], [5])
    assert made.points("a", "7d")[-1][1] == 5
    assert len(made.points("a", "7d")) == 1


def test_an_unknown_window_is_refused_by_name() -> None:
    with pytest.raises(InvalidRequestError, match="must be one of 10m, 6h, 7d"):
        TimeSeries().points("a", "1h")


def test_a_clock_that_was_wrong_for_once_leaves_a_gap_and_no_standstill() -> None:
    made = TimeSeries()
    for second in range(300):
        made.add(START + second, ["a"], [1])
    made.add(START + 10**7, ["a"], [5])
    for second in range(301, 700):
        made.add(START + second, ["a"], [2])
    found = made.points("a", "10m")
    begun = [at - START for at, _ in found]
    assert (begun[-1], begun == sorted(set(begun))) == (699, True)
    assert {value for _, value in found} == {2}
    assert made.points("a", "7d") == [(START, 2)]


def test_a_mean_of_a_new_series_is_that_of_its_own_values() -> None:
    made = TimeSeries()
    for second in range(90):
        made.add(START + second, ["a"], [0])
    for second in range(90, 100):
        made.add(START + second, ["b", "a"], [second, 0])
    assert made.points("b", "6h") == [(START, 94.5)]


def test_a_store_that_is_forgotten_takes_what_only_it_had() -> None:
    made = table()
    made.hear(GONE, [info("t", A, 100), info("gone", B, 5)], complete=True)
    made.drop(GONE)
    assert "gone" in made.columns().topics
    made.forget(GONE)
    columns = made.columns()
    assert (sorted(columns.topics), made.held(GONE)) == (["__dafka.q", "t"], 0)
    assert set(columns.stores) == {ONE, TWO}
    assert int(columns.end[columns.tps.index(TopicPartition("t", A))]) == 100
