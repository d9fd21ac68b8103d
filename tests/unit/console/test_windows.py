"""Parts of long lists."""

import dataclasses
import json

import pytest

from dafka_console import windows
from dafka_console.snapshot import NO_FLIGHT, NOTHING, PartitionTable, Snapshot, StoreState
from dafka_console.windows import Window
from dafka_core.errors import InvalidRequestError
from tests.unit.console.snapshots import GONE, ONE, TWO, US, A, B, info, snapshot


def many(count: int) -> Snapshot:
    table = PartitionTable()
    heads = [info(f"topic-{number:04d}", A, number) for number in range(count)]
    table.hear(ONE, heads, complete=True)
    return Snapshot(1, 0.0, 0.0, table.columns())


def test_topics_are_found_sorted_and_cut() -> None:
    made = many(1_000)
    found = windows.topic_window(made, Window("PIC-00", "records", True, 10, 5))
    assert found["total"] == 100
    assert [row["records"] for row in found["rows"]] == [89, 88, 87, 86, 85]
    names = [row["name"] for row in windows.topic_window(made, Window(down=True, most=2))["rows"]]
    assert names == ["topic-0999", "topic-0998"]
    assert windows.topic_window(made, Window(start=-5, most=10**9))["rows"][0]["records"] == 0
    assert len(windows.topic_window(made, Window(most=10**9))["rows"]) == windows.MOST_ROWS
    assert windows.topic_window(made, Window(start=2_000))["rows"] == []


def test_internal_topics_can_be_left_out() -> None:
    both = windows.topic_window(snapshot(), Window())
    assert [row["name"] for row in both["rows"]] == ["__dafka.q", "t"]
    assert windows.topic_window(snapshot(), Window(), internal=False)["total"] == 1


def test_partitions_of_a_topic_and_of_all() -> None:
    made = snapshot()
    found = windows.partition_window(made, "t", Window(sort="end", down=True))
    first, second = found["rows"]
    assert (first["name"], first["end"], first["producing"]) == (A, 110, True)
    assert first["holders"] == {ONE: 110, TWO: 50}
    assert (second["name"], second["holders"], second["first_us"]) == (B, {ONE: 10}, US)
    assert (first["client"], second["client"]) == ("host-7:4711", "")
    assert windows.partition_window(made, "t", Window(find="HOST-7"))["rows"] == [first]
    assert windows.partition_window(made, None, Window())["total"] == 3
    assert windows.partition_window(made, "none", Window()) == {"total": 0, "rows": []}


def test_a_column_that_is_none_is_refused_by_name() -> None:
    with pytest.raises(InvalidRequestError, match="did you mean 'records'"):
        windows.topic_window(snapshot(), Window(sort="recrods"))
    with pytest.raises(InvalidRequestError, match="must be one of name, records"):
        windows.partition_window(snapshot(), "t", Window(sort="x" * 1_000))


def test_one_topic_and_none() -> None:
    found = windows.topic_row(snapshot(), "t")
    assert found is not None
    assert (found["records"], found["spark"]) == (120, [10])
    assert windows.topic_row(snapshot(), "none") is None


def test_what_records_take_is_not_known_before_a_store_has_said_it() -> None:
    (first, *_) = windows.topic_window(many(3), Window(sort="records", down=True))["rows"]
    assert (first["records"], first["bytes"], first["first_us"]) == (2, None, None)
    (empty,) = windows.topic_window(many(1), Window())["rows"]
    assert (empty["records"], empty["bytes"]) == (0, 0)


def test_what_stores_keep_of_a_topic() -> None:
    made = snapshot()
    one, two = made.stores
    assert windows.kept(made, "t") == []
    for first, second, expected in (
        (("t*=7d,10GiB",), ("t=7d,10GiB", "*=1d"), ["1w,10GiB"]),
        (("u=1d",), None, ["forever"]),
        (("t=7d",), (), ["1w", "forever"]),
        (("t=a rule of a later version",), None, ["forever"]),
    ):
        stores = (one._replace(rules=first), two._replace(rules=second))
        found = dataclasses.replace(made, stores=stores)
        assert windows.kept(found, "t") == expected
        row = windows.topic_row(found, "t")
        assert row is not None
        assert row["kept"] == expected


def test_totals_count_who_is_there_and_who_is_missing() -> None:
    found = windows.totals(snapshot())
    assert (found["stores"], found["stores_known"], found["nodes"]) == (2, 3, 2)
    assert found["records"] == 127
    assert windows.totals(NOTHING)["records"] == 0


def test_stores_that_are_missing_are_listed_too() -> None:
    first, second, gone = windows.store_rows(snapshot())
    assert (first["store"], first["file_bytes"], first["behind"]) == (ONE, 4096, 0)
    assert (second["behind"], second["file_bytes"]) == (77, None)
    assert (gone["store"], gone["here"], gone["since_us"]) == (GONE, False, US)


def test_it_is_told_which_stores_are_away_since_when_and_what_only_they_have() -> None:
    made, table = snapshot(), PartitionTable()
    table.hear(ONE, [info("t", A, 9), info("u", A, 5)], complete=True)
    table.hear(TWO, [info("t", A, 9), info("t", B, 3)], complete=True)
    table.drop(ONE)
    stores = (
        StoreState(ONE, ("grpc://h:1",), False, "no answer", since_us=US),
        StoreState(TWO, ("grpc://h:2",), True),
        StoreState("4" * 32, failure=NO_FLIGHT),
    )
    found = Snapshot(1, 0.0, 0.0, table.columns(), stores, missing=made.missing)
    told = windows.availability(found)
    assert told["live"]
    assert [(each["store"], each["since_us"]) for each in told["away"]] == [(ONE, US), (GONE, US)]
    rows = windows.topic_window(found, Window())["rows"]
    assert [(row["name"], row["records"], row["stale"]) for row in rows] == [
        ("t", 12, 0),
        ("u", 5, 1),
    ]
    rows = windows.partition_window(found, "u", Window())["rows"]
    assert [(row["stale"], row["holders"]) for row in rows] == [(True, {})]
    assert not windows.availability(NOTHING)["live"]


def test_names_of_any_octets_are_escaped_and_all_of_it_is_json() -> None:
    table = PartitionTable()
    table.hear(ONE, [info("a\udcff\n<b>", "p\x00", 3)], complete=True)
    made = Snapshot(1, 0.0, 0.0, table.columns())
    (topic,) = windows.topic_window(made, Window())["rows"]
    (partition,) = windows.partition_window(made, None, Window())["rows"]
    assert (topic["name"], partition["name"]) == ("a\\xff\\x0a<b>", "p\\x00")
    json.dumps([topic, partition]).encode("ascii")
