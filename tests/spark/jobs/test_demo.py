"""The demo: it ends well on a week of flights, and badly on any difference; its table."""

import io
import math
import sys
from collections.abc import Callable
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from demo import demo
from demo.compare import PartitionSum, partition_differences, row_differences, sums_of
from demo.demo import Demo, Outcome
from demo.processes import JobFailedError
from demo.replay_flights import checksum
from demo.report import Tally, delay_table
from pyspark.sql import SparkSession
from rich.console import Console

from tests.spark.jobs.programs import JOBS, finished

_DAYS = {
    "window_start": datetime(2013, 1, 1, tzinfo=UTC),
    "window_end": datetime(2013, 1, 2, tzinfo=UTC),
}
_COUNTS = {"flights": 20, "cancelled": 1, "delayed": 2, "mean_delay_min": 4.5, "max_delay_min": 71}
_RESULT = {**_DAYS, **_COUNTS, "origin": "JFK", "carrier": "AA"}


@pytest.mark.nightly
def test_the_demo_survives_its_crash_and_finds_no_difference(tmp_path: Path) -> None:
    output = tmp_path / "out"
    command = [sys.executable, "-m", "demo", "--limit=4000", f"--output={output}"]
    done = finished(*command, cwd=JOBS)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "killed the query (SIGKILL) after batch" in done.stdout
    assert "4000 in, 4000 out, checksums equal, restart survived" in done.stdout
    assert "JetBlue Airways" in done.stdout
    assert (output / "delays.png").read_bytes().startswith(b"\x89PNG")


def test_a_difference_or_a_failing_job_makes_the_demo_fail(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def run(wrong: list[str], differences: list[str], log: Path | None = None) -> tuple[int, str]:
        def stream(self: Demo) -> tuple[datetime, list[str]]:
            if log is not None:
                raise JobFailedError("flight_delays.py", 1, log)
            return datetime(2013, 1, 1, 12, tzinfo=UTC), wrong

        outcome = Outcome(20, 20, [_RESULT], differences)
        monkeypatch.setattr(Demo, "stream", stream)
        monkeypatch.setattr(Demo, "compare", lambda self: outcome)
        code = demo.main(["--limit=1000", f"--output={tmp_path}"])
        return code, capsys.readouterr().out

    monkeypatch.setattr(demo, "EmbeddedCluster", lambda: nullcontext(SimpleNamespace(tower="")))
    survived, why = "checksums equal, restart survived", "parquet: 1 rows missing"
    code, printed = run([], [])
    assert (code, survived in printed) == (0, True)
    for wrong, differences in ([why], []), ([], [why]):
        code, printed = run(wrong, differences)
        assert (code, survived in printed, why in printed) == (1, False, True)
    log = tmp_path / "query.log"
    log.write_text("the reason\n")
    code, printed = run([], [], log)
    assert (code, "the reason" in printed) == (1, True)


START = datetime(2013, 1, 1, tzinfo=UTC)


def _row(day: int, origin: str, carrier: str, mean: float | None, **more: int) -> dict[str, Any]:
    departed = {"cancelled": 2, "delayed": 4, "mean_delay_min": mean, "max_delay_min": 50}
    none = {"cancelled": 10, "delayed": 0, "mean_delay_min": None, "max_delay_min": None}
    start = START + timedelta(days=day)
    window = {"window_start": start, "window_end": start + timedelta(days=1)}
    counts = none if mean is None else departed
    return {**window, "origin": origin, "carrier": carrier, "flights": 10, **counts, **more}


def _results() -> list[dict[str, Any]]:
    rows = [
        _row(day, origin, carrier, float(day))
        for day in range(7)
        for origin, carrier in (("EWR", "UA"), ("JFK", "B6"), ("LGA", "DL"))
    ]
    return [*rows, _row(0, "EWR", "AA", None), _row(6, "JFK", "XX", -4.0)]


def test_a_tally_weighs_means_by_departed_flights() -> None:
    tally = Tally()
    tally.add(_row(0, "EWR", "UA", 10.0, flights=12))
    tally.add(_row(1, "EWR", "UA", None))
    tally.add(_row(2, "EWR", "UA", -2.0, flights=4))
    assert (tally.flights, tally.cancelled, tally.departed) == (26, 14, 12)
    assert tally.mean_min == pytest.approx((10 * 10.0 + 2 * -2.0) / 12)
    assert tally.worst_min == 50
    assert math.isnan(Tally().mean_min)


def test_the_table_lists_carriers_by_their_names_and_fits_a_terminal() -> None:
    screen = io.StringIO()
    Console(width=80, file=screen).print(delay_table(_results(), {"UA": "United"}))
    text = screen.getvalue()
    united = next(line for line in text.splitlines() if "United" in line)
    assert united.split() == ["United", "70", "3.0", "3.0", "50.0%", "20.0%", "50"]
    assert "XX" in text
    assert "…" not in text


Rows = list[dict[str, object]]

_KEY = ("origin", "carrier")
_ROWS: Rows = [
    {"origin": "JFK", "carrier": "AA", "flights": 3, "mean": None},
    {"origin": "JFK", "carrier": "UA", "flights": 4, "mean": 1.5},
    {"origin": "LGA", "carrier": "UA", "flights": 5, "mean": 2.5},
]


def test_the_sums_of_a_topic_are_those_of_what_was_fed(session: SparkSession) -> None:
    partitions = {"A": [b"3", b"1", b"2"], "B": [b"", b"\xff\x00"]}
    rows = [
        (partition, offset, bytearray(value))
        for partition, values in partitions.items()
        for offset, value in reversed(list(enumerate(values)))
    ]
    records = session.createDataFrame(rows, "partition string, offset bigint, value binary")
    assert sums_of(records.repartition(3)) == {
        name: PartitionSum(name, len(values), checksum(values))
        for name, values in partitions.items()
    }


@pytest.mark.parametrize("offsets", [(0, 2), (1, 2), (0, 1, 1), (0, 0, 2)])
def test_a_gap_or_a_double_is_an_error(session: SparkSession, offsets: tuple[int, ...]) -> None:
    rows = [("A", offset, bytearray(b"x")) for offset in offsets]
    records = session.createDataFrame(rows, "partition string, offset bigint, value binary")
    with pytest.raises(ValueError, match="partition A"):
        sums_of(records)


@pytest.mark.parametrize(
    ("read", "sentence"),
    [
        ({}, "was fed 2 records, has none"),
        ({"A": PartitionSum("A", 1, "ab")}, "was fed 2 records, has 1"),
        ({"A": PartitionSum("A", 2, "cd")}, "has other values"),
        ({"A": PartitionSum("A", 2, "ab"), "B": PartitionSum("B", 1, "x")}, "B was not fed"),
    ],
)
def test_partitions_that_differ_are_named(read: dict[str, PartitionSum], sentence: str) -> None:
    fed = PartitionSum("A", 2, "ab")
    assert partition_differences([fed], {"A": fed}) == []
    (difference,) = partition_differences([fed], read)
    assert sentence in difference


@pytest.mark.parametrize(
    ("tamper", "sentence"),
    [
        (lambda rows: rows[:-1], "1 rows missing"),
        (lambda rows: [*rows, rows[0]], "1 rows twice"),
        (lambda rows: [*rows, {**rows[0], "carrier": "XX"}], "1 rows unexpected"),
        (lambda rows: [{**rows[0], "flights": 2}, *rows[1:]], "1 rows different"),
        (lambda rows: [{**rows[0], "mean": 0.0}, *rows[1:]], "1 rows different"),
    ],
)
def test_rows_that_differ_are_shown(tamper: Callable[[Rows], Rows], sentence: str) -> None:
    assert row_differences("parquet", _KEY, _ROWS, reversed(_ROWS)) == []
    (difference,) = row_differences("parquet", _KEY, _ROWS, tamper(_ROWS))
    assert difference.startswith(f"parquet: {sentence}, such as ")
