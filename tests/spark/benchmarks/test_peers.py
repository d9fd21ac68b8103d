"""The peers' benchmark with Dafka alone, growth, and their plots."""

import json
import sys
from pathlib import Path

import pytest

from tests.spark import drivers

ROOT = Path(__file__).parents[3]

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(300)]

TOY = ("--sizes", "100", "--partitions", "1", "--rounds", "1", "--bytes", "1000000")
ROWS = ("publish-many", "publish-each", "replay", "replay-each", "latency")


def run(module: str, *arguments: str) -> str:
    return drivers.done([sys.executable, "-m", module, *arguments], ROOT, timeout_s=240).stdout


def test_results_become_plots(tmp_path: Path) -> None:
    file = tmp_path / "results"
    peers = run("benchmarks.peers", *TOY, "--seconds", "1", "--systems", "dafka", "--rows", *ROWS)
    file.write_text(peers + run("benchmarks.growth", "--only", "stores", "--rounds", "1"))
    results = [json.loads(line) for line in file.read_text().splitlines()]
    rows = [result for result in results if "row" in result]
    assert len(rows) == len(ROWS) + 2  # three loads
    assert all(each["rate_low"] <= each["median"]["rate"] * 1.001 for each in rows)
    assert all(each["median"]["server_cpu_s"] > 0 for each in rows)
    latencies = [each["median"]["latencies_ms"] for each in rows[-3:]]
    assert all(0 < each["received p50"] <= each["received p99.9"] for each in latencies)
    assert [len(each["medians"]) for each in results if "axis" in each] == [4, 4]
    run("benchmarks.plots", str(tmp_path), str(file))
    drawn = {path.name for path in tmp_path.glob("*.svg")}
    assert drawn == {"throughput.svg", "latency.svg", "growth.svg"}
