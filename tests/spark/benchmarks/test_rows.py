"""All rows run at toy size, as a program of their own with its own Spark session."""

import json
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from benchmarks import kafka_broker
from benchmarks.__main__ import BESIDE_A_BROKER, ROWS
from tests.spark import drivers

ROOT = Path(__file__).parents[3]

TIMEOUT_S = 560  # all rows take two minutes, and several times that on a busy machine

pytestmark = pytest.mark.timeout(TIMEOUT_S + 20)

FIGURES = {
    "read": 6, "write": 1, "drain": 2, "trigger": 4, "replay": 2, "mesh": 2, "memory": 5,
    "trickle": 4, "partitions": 1, "space": 2, "idle": 8, "many": 15, "envelopes": 6, "typed": 2,
    "where": 4, "kafka": 6, "kafka_latency": 14, "metrics": 2, "retention": 2, "archive": 2,
    "compression": 16, "console": 1, "links": 3, "keys": 5, "greedy": 3, "mesh_growth": 4,
}  # fmt: skip
"""The number of figures of each row."""

QUICK = ["mesh"]  # the one without Spark

OTHERS = [row for row in ROWS if row not in (*QUICK, *BESIDE_A_BROKER)]


def run(*arguments: str) -> list[str]:
    command = [sys.executable, "-m", "tests.spark.benchmarks.forked_rows", *arguments]
    return drivers.done(command, ROOT, timeout_s=TIMEOUT_S).stdout.splitlines()


def check_rows(*rows: str) -> None:
    """Run rows, and check that each figure has two sides."""
    toy = ("--pairs", "1", "--records", "20000", "--sizes", "100", "--cold")
    figures: list[dict[str, Any]] = [json.loads(line) for line in run(*toy, "--only", *rows)]
    assert len({figure["name"] for figure in figures}) == sum(FIGURES[row] for row in rows)
    for figure in figures:
        assert figure["ours"] > 0, figure
        assert figure["reference"] > 0, figure
        assert figure["pairs"] == 1, figure


def test_the_rows_are_listed() -> None:
    assert [line.split()[0] for line in run("--list")] == list(ROWS) == list(FIGURES)


@pytest.mark.parametrize(
    "rows", [QUICK, pytest.param(OTHERS, marks=pytest.mark.nightly)], ids=["quick", "others"]
)
def test_every_row_gives_its_figures(rows: list[str]) -> None:
    check_rows(*rows)


@pytest.mark.nightly
def test_the_rows_beside_a_broker_give_their_figures() -> None:
    try:
        kafka_broker.jars()
    except RuntimeError as error:
        pytest.skip(str(error))
    check_rows(*BESIDE_A_BROKER)


TWO_SESSIONS = """
import sys
import zipfile
from benchmarks import spark_sessions
for jars in [], sys.argv[1:]:
    with spark_sessions.session(jars) as spark:
        loader = spark._jvm.Thread.currentThread().getContextClassLoader()
        print(loader.getResource("row.txt") is not None)
"""


@pytest.mark.nightly
def test_a_row_loads_its_jars_after_a_row_without_jars(tmp_path: Path) -> None:
    jar = tmp_path / "row.jar"
    with zipfile.ZipFile(jar, "w") as content:
        content.writestr("row.txt", "")
    command = [sys.executable, "-c", TWO_SESSIONS, str(jar)]
    assert drivers.done(command, ROOT, timeout_s=TIMEOUT_S).stdout.split() == ["False", "True"]
