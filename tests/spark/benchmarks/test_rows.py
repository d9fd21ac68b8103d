"""All rows run, at toy size, as a program of their own: it has a Spark of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import kafka_broker
from benchmarks.__main__ import ROWS

ROOT = Path(__file__).parents[3]

TIMEOUT_S = 560
"""All rows take two minutes, and several times that on a machine with more to do."""

pytestmark = pytest.mark.timeout(TIMEOUT_S + 20)

NAMES = {
    "read": [
        "batch read, {}, flight",
        "batch read, {}, bare Flight server",
        "batch read, {}, bare Flight server that copies and checks",
        "batch read, {}, local",
        "batch read, {}, bare mapped file",
        "batch read, {}, bare file that is copied and checked",
    ],
    "write": ["batch write, acknowledged, {}"],
    "drain": ["backlog drained, {}", "backlog drained, {}, micro-batches alone"],
    "trigger": [
        "one micro-batch, {}, 1 task",
        "one micro-batch, {}, 8 tasks",
        "one micro-batch, {}, 64 tasks",
        "one micro-batch, {}, acks=all of two stores",
    ],
    "replay": ["replay, {}, record by record", "replay, {}, as Arrow"],
    "mesh": ["ingest, acknowledged, {}", "live delivery, {}"],
    "memory": [
        "memory of a worker that writes, {}",
        "memory of a store that is written to, {}",
        "memory of a worker that reads, {}, flight",
        "memory of a store that is read from, {}, flight",
        "memory of a worker that reads, {}, local",
    ],
    "trickle": [
        "trickle, one partition, {}, written",
        "trickle, one partition, {}, file",
        "trickle, 1,000 partitions, {}, written",
        "trickle, 1,000 partitions, {}, file",
    ],
    "partitions": ["a new consumer of many partitions"],
    "space": ["growth of a store's file by its readers", "a store's file after as much again"],
    "idle": [
        f"idle query, {partitions}, {what}"
        for partitions in ("1 partition", "1,000 partitions")
        for what in ("JVM", "Python", "store", "a record")
    ],
    "many": [
        "batch read of 1,000 partitions",
        "batch read of 10,000 partitions",
        "metadata of 10,000 partitions",
        *(
            figure.format(partitions)
            for partitions in ("10", "100", "1,000", "10,000")
            for figure in (
                "latestOffset of {} partitions, nothing changed",
                "latestOffset of {} partitions, one changed",
                "checkpointed offset of {} partitions",
            )
        ),
    ],
    "envelopes": [
        "batch read, key and 3 headers, {}",
        "batch read, key and 3 headers, {}, beside batches that are there",
        "batch read, key and 3 headers, {}, batches that are there beside bare",
        "batch write, key and 3 headers, {}",
        "batch write, key and 3 headers, {}, beside what their parts take",
        "batch write, key and 3 headers, {}, what their parts take beside bare",
    ],
    "typed": [
        "batch read of typed values, json beside from_json",
        "batch read of typed values, arrow beside from_json",
    ],
    "where": [
        "batch read of the last 1 % by time, pushFilters",
        "batch read of the last 1 % by time, where",
        "batch read of 1 % by value, local",
        "batch read of 1 % by value, flight",
    ],
    "kafka": [
        "librdkafka, produce, {}",
        "librdkafka, consume, {}",
        "Spark's connector for Kafka, batch read, {}",
        "Spark's connector for Kafka, batch write, {}",
        "Spark's connector for Kafka, batch write, {}, beside a broker that syncs",
        "Spark's connector for Kafka, batch write, {}, the least a gateway does",
    ],
    "metrics": [
        "ingest, scraped each second, {}",
        "ingest, scraped each second, {}, processor",
    ],
    "retention": [
        "ingest, retain *=32MiB, {}",
        "ingest, retain *=32MiB, {}, processor",
    ],
    "archive": ["archive: writing", "archive: reading"],
    "compression": [
        f"{what} of {kind}, {codec}"
        for kind in ("text", "noise")
        for what in ("blocks", "local read", "Flight read", "ingest")
        for codec in ("zstd", "lz4")
    ],
    "console": ["an answer of the console of 1,000 partitions"],
    "links": [
        "ingest, tamper evidence, {}",
        "ingest, tamper evidence, {}, processor",
        "links, {}",
    ],
    "keys": [
        "ingest with keys, {}",
        "live delivery with keys, {}",
        "batch read with keys, {}, flight",
        "batch read with keys, {}, local",
        "one micro-batch with keys, {}",
    ],
    "greedy": [f"ingest beside greedy {kind}, {{}}" for kind in ("records", "requests", "beacons")],
    "mesh_growth": [
        "mesh growth, files",
        "mesh growth, memory",
        "mesh growth, idle processor",
        "mesh growth, processor time to join",
    ],
}

TOY = ("--pairs", "1", "--records", "20000", "--sizes", "100", "--cold")

BESIDE_A_BROKER = "kafka"
"""It needs Apache Kafka, and so Maven."""

QUICK = ["read", "mesh"]
"""Of each kind one: with Spark, and without."""

OTHERS = [row for row in ROWS if row not in (*QUICK, BESIDE_A_BROKER)]


def run(*arguments: str) -> str:
    # The session of other tests tells its children where its own JVM is.
    environment = {
        name: value for name, value in os.environ.items() if "PYSPARK_GATEWAY" not in name
    }
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.benchmarks.forked_rows", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
        cwd=ROOT,
        env=environment,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_the_rows_are_listed() -> None:
    listed = [line.split()[0] for line in run("--list").splitlines()]
    assert listed == list(ROWS) == list(NAMES)


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(QUICK, id="quick"),
        pytest.param(OTHERS, id="others", marks=pytest.mark.nightly),
    ],
)
def figures(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run(*TOY, "--only", *request.param).splitlines()]


def test_every_row_gives_its_figures(
    figures: list[dict[str, Any]], request: pytest.FixtureRequest
) -> None:
    rows = request.node.callspec.params["figures"]
    names = [name.format("100 B") for row in NAMES if row in rows for name in NAMES[row]]
    assert [figure["name"] for figure in figures] == names


@pytest.mark.nightly
def test_the_row_beside_a_broker_gives_its_figures() -> None:
    try:
        kafka_broker.jars()
    except RuntimeError as error:
        pytest.skip(str(error))
    figures = [json.loads(line) for line in run(*TOY, "--only", BESIDE_A_BROKER).splitlines()]
    names = [name.format("100 B") for name in NAMES[BESIDE_A_BROKER]]
    assert [figure["name"] for figure in figures] == names


def test_every_figure_has_two_sides(figures: list[dict[str, Any]]) -> None:
    for figure in figures:
        assert figure["ours"] > 0, figure
        assert figure["reference"] > 0, figure
        assert figure["pairs"] == 1, figure
