"""Figures from measurements, and the CPU time of a process."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.figures import (
    Figure,
    compared,
    in_turns,
    interval,
    limited,
    print_line,
    regressions,
    slower,
)
from benchmarks.harness import FULL_RECORDS, Bench, fill
from benchmarks.processes import cpu_s
from dafka_core.storage import Log


def test_the_ratio_is_the_median_of_the_pairs_ratios() -> None:
    figure = compared("f", [1.0, 8.0, 3.0], [2.0, 2.0, 4.0], "u/s", goal=0.5)
    assert figure == Figure("f", 3.0, 2.0, "u/s", 0.75, 0.5, 4.0, 0.5, 3)


@pytest.mark.parametrize(
    ("pairs", "left_out"), [(1, 0), (4, 0), (5, 0), (7, 0), (8, 1), (9, 1), (11, 2), (31, 10)]
)
def test_the_interval_is_what_pairs_in_any_order_leave_open(pairs: int, left_out: int) -> None:
    """Of nine, the second to the eighth have the median between them in 96 of 100 samples."""
    values = [float(value) for value in range(pairs)]
    assert interval(values[::-1]) == (values[left_out], values[-1 - left_out])


@pytest.mark.parametrize(
    ("ours", "met"), [([1.0, 1.0], "yes"), ([0.8, 1.0], "noise"), ([0.8, 0.9], "NO")]
)
def test_a_goal_within_the_noise_is_told_from_one_that_is_missed(
    ours: list[float], met: str
) -> None:
    assert compared("f", ours, [1.0, 1.0], "u/s", goal=0.95).met == met


@pytest.mark.parametrize(
    ("ours", "is_worse"), [([0.86, 0.2], False), ([0.84, 0.83], True), ([2.0, 2.0], False)]
)
def test_a_regression_is_beyond_the_noise(ours: list[float], is_worse: bool) -> None:
    figure = compared("f", ours, [1.0, 1.0], "u/s", goal=0.5)
    assert bool(regressions([figure], {"f": 1.0})) is is_worse
    assert regressions([figure], {"another": 9.0}) == []


@pytest.mark.parametrize("unit", ["ms", "MB", "s/M records", "% core"])
def test_less_is_better_of_what_is_no_rate(unit: str) -> None:
    figure = limited("f", [200.0, 200.0], 100.0, unit)
    assert (figure.ours, figure.reference, figure.ratio, figure.met) == (200.0, 100.0, 0.5, "NO")


def test_the_slower_side_of_each_pair() -> None:
    assert slower([1.0, 5.0], [2.0, 3.0]) == [1.0, 3.0]


def test_sides_alternate_in_who_is_first() -> None:
    calls: list[str] = []

    def side(name: str) -> float:
        calls.append(name)
        return float(len(calls))

    sides = {name: lambda name=name: side(name) for name in "ab"}
    measured = in_turns("t", sides, 2, warm_ups=1)
    assert "".join(calls) == "ababba"
    assert measured == {"a": [3.0, 6.0], "b": [4.0, 5.0]}


def test_a_figure_is_a_line_of_json(capsys: pytest.CaptureFixture[str]) -> None:
    print_line(compared("f", [1.0], [3.0], "u/s", goal=0.5))
    assert json.loads(capsys.readouterr().out) == {
        "name": "f",
        "ours": 1.0,
        "reference": 3.0,
        "unit": "u/s",
        "ratio": 0.3333,
        "low": 0.3333,
        "high": 0.3333,
        "goal": 0.5,
        "pairs": 1,
    }


def test_fewer_records_make_all_rows_smaller(tmp_path: Path) -> None:
    bench = Bench(5, FULL_RECORDS // 100, (100,), tmp_path)
    assert bench.part(5_000_000) == 50_000
    assert bench.part(20, least=2) == 2


def test_a_store_is_filled_in_whole_blocks(tmp_path: Path) -> None:
    fill(tmp_path, 40_001, 1_000, partitions=2)
    with Log(tmp_path) as log:
        infos = log.partitions("bench")
        assert sorted(info.end for info in infos) == [20_000, 20_001]
        batches = log.read(infos[0].tp, 0, infos[0].end, max_bytes=1 << 30)
        assert len(batches) == 2


WORKS = """
import threading, time
thread = threading.Thread(target=lambda: sum(range(10**6)))
thread.start()
thread.join()
print(time.process_time(), flush=True)
input()
"""


def test_threads_that_have_ended_count_and_all_of_less_than_a_hundredth_of_a_second() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", WORKS], text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        said_s = float(process.stdout.readline())
        assert said_s <= cpu_s(process.pid) < said_s + 0.05  # what it does to wait for more
        process.communicate("\n")
    assert cpu_s(process.pid) == 0.0
