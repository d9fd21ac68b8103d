"""The live demo: it survives a store that is killed, and fails on any difference."""

import json
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from demo import live
from demo.live import _verdict
from demo.live_pipeline import Live, Plan
from demo.received import Received
from demo.replay_flights import checksum, load_flights
from demo.results import expected_results, of_parquet, of_topic
from rich.console import Console

from dafka_core import EmbeddedCluster
from dafka_core.model.records import Record
from tests.spark.jobs.programs import JOBS, finished

PARTITION = "A" * 32


def taken(*offsets: int) -> Received:
    received = Received("delays")
    for now, offset in enumerate(offsets):
        received.take(Record("flights", PARTITION, offset, b"%d" % offset), float(now))
    return received


@pytest.mark.nightly
def test_a_killed_store_returns_and_no_record_is_lost_or_duplicated(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "demo.live", "--rate=80", "--seconds=15", "--browser=none"]
    (tmp_path / "mine.png").touch()
    done = finished(*command, f"--output={tmp_path}", cwd=JOBS)
    assert done.returncode == 0, done.stdout + done.stderr
    assert ": http://127.0.0.1:" in done.stdout
    assert done.stdout.index("killed a store") < done.stdout.index("started the store again")
    assert "1,200 flights fed, read and counted: nothing lost, nothing doubled" in done.stdout
    assert (tmp_path / "timeline.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "mine.png").exists()


@pytest.mark.parametrize("wrong", [[], ["the reader got 99 flights, must be 100"]])
def test_a_difference_is_printed_and_makes_it_fail(
    wrong: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = Plan(10, 10)
    with EmbeddedCluster(0) as cluster:
        run = Live(plan, cluster, tmp_path, Console())
    assert _verdict(run, plan, wrong, Console()) == len(wrong)
    printed = capsys.readouterr().out
    assert [each for each in ("nothing lost", "got 99 flights") if each in printed] == (
        ["got 99 flights"] if wrong else ["nothing lost"]
    )


def test_records_in_order_are_summed_up() -> None:
    received = taken(0, 1, 2)
    [found] = received.sums().values()
    assert found == (PARTITION, 3, checksum([b"0", b"1", b"2"]))
    assert (received.records["flights"], received.wrong()) == (3, [])
    assert received.forget_waits() == 1.0
    assert received.forget_waits() == 0.0


@pytest.mark.parametrize(
    ("offsets", "error"),
    [
        ((0, 1, 1, 2), "got offset 1"),
        ((0, 2), "got offset 2"),
        ((1, 2), "got offset 1"),
        ((0, 2, 1, 3), "got offset 2"),
    ],
)
def test_lost_duplicate_and_moved_records_are_reported(
    offsets: tuple[int, ...], error: str
) -> None:
    assert error in taken(*offsets).wrong()[0]
    *few, rest = taken(*[0] * 100).wrong()
    assert len(few) == 3
    assert rest == "and 96 more like these"


def result(batch: int, flights: int, check: int) -> dict[str, object]:
    row = {"window_start": "2013-01-01T00:00:00.000Z", "origin": "JFK", "carrier": "AA"}
    return row | {"flights": flights, "checksum": check, "batch": batch}


def test_the_last_result_of_each_day_counts(tmp_path: Path) -> None:
    rows = [result(1, 20, 7), result(0, 10, 5), result(1, 20, 7)]
    counted = [
        {"day": "2013-01-01", "origin": "JFK", "carrier": "AA", "flights": 20, "checksum": 7}
    ]
    assert of_topic([json.dumps(row).encode() for row in rows]) == counted
    for number in range(2):
        (tmp_path / f"batch={number}").mkdir()
        table = pa.Table.from_pylist([row for row in rows if row["batch"] == number])
        times = table["window_start"].cast(pa.timestamp("us", "UTC"))
        table = table.drop_columns("batch").set_column(0, "window_start", times)
        pq.write_table(table, tmp_path / f"batch={number}" / "part.parquet")
    assert of_parquet(tmp_path) == counted


def test_a_flight_counted_twice_or_not_at_all_has_another_sum() -> None:
    values = load_flights(300).values
    expected = expected_results(values)
    assert sum(row["flights"] for row in expected) == 300
    assert all(-(1 << 63) <= row["checksum"] < 1 << 63 for row in expected)
    for wrong in (values[1:], [*values, values[0]], [values[1], *values[1:]]):
        assert expected_results(wrong) != expected


def test_invalid_arguments(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for argument, error in (
        ("--rate=0", "whole number of at least 1"),
        ("--seconds=x", "whole number of at least 1"),
        ("--browser=not-a-browser", "there is no program 'not-a-browser'"),
    ):
        with pytest.raises(SystemExit) as ended:
            live.main([argument])
        assert ended.value.code == 2
        assert error in capsys.readouterr().err
    assert live.main([f"--output={tmp_path}", "--listen=here:99999"]) == 2
    assert "option 'listen' = 'here:99999'" in capsys.readouterr().out
