"""What ``dafka top`` shows."""

import io
import json
import re

import pytest
from rich.console import Console

from dafka_console import top_view
from dafka_console.snapshot import PartitionTable, Snapshot, StoreState, TimeSeries
from dafka_console.top_view import TopChoice
from dafka_core.queries.query_progress import FINISHED, LATE, RUNNING, QueryLag
from tests.unit.console.snapshots import GONE, ONE, US, A, info, snapshot


def shown(made: Snapshot, choice: TopChoice) -> str:
    out = io.StringIO()
    Console(file=out, width=160, markup=False).print(top_view.rendered(made, choice))
    return out.getvalue()


def test_topics_stores_and_totals() -> None:
    text = shown(snapshot(), TopChoice())
    assert "2 of 3 stores" in text
    assert f"{ONE[:12]}  up" in text
    assert re.search(rf"{GONE[:12]}  away since 2023-11-1\d .*: other stores know it", text)
    assert "no store answers" not in text
    assert "__dafka" not in text
    (line,) = [line for line in text.splitlines() if line.startswith("t ")]
    assert line.split()[:5] == ["t", "2", "120", "2.1", "KiB"]


def test_where_no_store_answers_the_last_known_numbers_are_shown_as_such() -> None:
    table = PartitionTable()
    table.hear(ONE, [info("t", A, 120)], complete=True)
    table.drop(ONE)
    store = StoreState(ONE, ("grpc://h:1",), False, "no answer", since_us=US)
    text = shown(Snapshot(1, 0.0, 0.0, table.columns(), (store,)), TopChoice())
    assert "no store answers: this is what was known last" in text
    assert "away since 2023-11-1" in text
    (line,) = [line for line in text.splitlines() if line.startswith("t ")]
    assert line.split()[:3] == ["t", "1", "120"]


def test_keys_choose_what_is_shown() -> None:
    choice = TopChoice()
    for key, expected in (("p", "110"), ("n", "127.0.0.1:5556:5557"), ("i", "tower"), ("t", "__d")):
        choice.press(key)
        assert expected in shown(snapshot(), choice)
    choice.press("b")
    choice.press("?")
    assert (choice.view, choice.sort, choice.internal) == ("topics", "bytes", True)
    assert choice.window.down
    choice.press("a")
    assert not choice.window.down


def test_one_topic_lists_its_partitions_and_json_has_all() -> None:
    (line,) = [s for s in shown(snapshot(), TopChoice(topic="t")).splitlines() if s.startswith(A)]
    assert line.split()[:3] == [A, "host-7:4711", "t"]
    made = json.loads(json.dumps(top_view.as_json(snapshot(), TopChoice(topic="t"))))
    assert made["cluster"]["records"] == 127
    assert [row["name"] for row in made["topics"]] == ["t"]
    assert len(made["partitions"]) == 2
    assert made["nodes"][0] == {"node": "127.0.0.1:5556:5557", "kind": "tower"}
    assert len(made["stores"]) == 3
    assert "partitions" not in top_view.as_json(snapshot(), TopChoice())


@pytest.mark.parametrize("state", [RUNNING, FINISHED, LATE])
def test_queries_and_their_lag(state: str) -> None:
    lag = QueryLag("hourly", "r", state, 1, 1_500, 3_000_000, 12.34, 99.9, [])
    lags = TimeSeries()
    for time_s, records in ((0, 0), (3, 1_500)):
        lags.add(time_s, [("hourly", "r")], [records])
    made = Snapshot(1, 0.0, 0.0, snapshot().partitions, queries=[lag], lags=lags)
    text = shown(made, TopChoice())
    (line,) = [line for line in text.splitlines() if line.startswith("hourly")]
    assert line.split() == ["hourly", state, "1.5k", "2.9", "MiB", "12.3", "▁█"]
    assert top_view.query_row(lag)["seconds_behind"] == 12.3


def test_a_name_is_no_markup_and_ends_no_line() -> None:
    table = PartitionTable()
    table.hear(ONE, [info("[red]x\n\x1b[2J", A, 3)], complete=True)
    text = shown(Snapshot(1, 0.0, 0.0, table.columns()), TopChoice())
    assert "[red]x\\x0a\\x1b[2J" in text


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (0, "0"),
        (0.4, "0.4"),
        (7, "7"),
        (999, "999"),
        (1_234, "1.2k"),
        (45_678, "46k"),
        (2e16, "20P"),
    ],
)
def test_numbers_have_units(number: float, expected: str) -> None:
    assert top_view.count(number) == expected


def test_sizes_and_bars() -> None:
    sizes = [top_view.size(each) for each in (None, 0, 1_023, 1_536, 5 << 30)]
    assert sizes == ["", "0 B", "1023 B", "1.5 KiB", "5 GiB"]
    assert top_view.bars([0, 1, 4, 8]) == "▁▂▅█"
    assert top_view.bars([0, 0]) == "··"
