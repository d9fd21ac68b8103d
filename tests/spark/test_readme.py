"""Examples of the pages run, and their links and targets exist."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import duckdb
import pytest
from pyspark.sql import SparkSession

from dafka_core import EmbeddedCluster, Reader
from dafka_spark import read_dafka, write_dafka
from scripts import options
from tests.integration.archive.records import A, archived
from tests.pages import PAGES, ROOT, example
from tests.spark.topics import finish, produce, stream, texts

PROGRAM = ("README.md", "One program")
PIPELINE = ("docs/spark.md", "Declarative pipelines")

Names = dict[str, Any]
"""The globals of an example."""


@pytest.fixture
def names(spark: SparkSession, cluster: EmbeddedCluster, tmp_path: Path) -> Names:
    return {"spark": spark, "tower": cluster.tower, "checkpoint": str(tmp_path)}


def count(cluster: EmbeddedCluster, *topics: str) -> dict[str, int]:
    """Return the number of records of topics."""
    with Reader(tower=cluster.tower) as reader:
        held = reader.partitions([*topics], timeout_s=20)
    return {topic: sum(info.end for info in held if info.topic == topic) for topic in topics}


@pytest.mark.parametrize("page", options.PAGES)
def test_the_options_tables_are_those_declared(page: str) -> None:
    text = (options.DOCS / page).read_text(encoding="utf-8")
    assert options.updated(text, options.PAGES[page]()) == text


def test_a_page_without_a_place_for_the_options_is_an_error() -> None:
    with pytest.raises(ValueError, match="once, not 0 times"):
        options.updated("no tables here", "a table")


def test_the_program_prints_what_the_readme_says_and_leaves_nothing(tmp_path: Path) -> None:
    here, temporary = tmp_path / "here", tmp_path / "temporary"
    for directory in (here, temporary):
        directory.mkdir()
    program = tmp_path / "program.py"
    program.write_text(example(*PROGRAM))
    environment = os.environ | {"TMPDIR": str(temporary)}
    del environment["PYSPARK_PYTHON"]  # the program sets it
    done = subprocess.run(
        [sys.executable, program],
        cwd=here,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == example(*PROGRAM, language="").split()
    # The addresses of stores remain, for queries that start without a tower.
    addresses = temporary / f"dafka-{os.getuid()}"
    assert [*here.iterdir(), *temporary.iterdir()] == [addresses]
    assert {path.suffix for path in addresses.iterdir()} == {".json"}


def test_the_example_of_a_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    exec(example("docs/cluster.md", "From Python"), {})
    printed = [line.split()[2:] for line in capsys.readouterr().out.splitlines()]
    assert printed == [["0", "b'hello'"], ["1", "b'brokerless'"], ["2", "b'world'"]]


def test_the_example_of_keys_and_headers(capsys: pytest.CaptureFixture[str]) -> None:
    exec(example("docs/cluster.md", "Keys and headers"), {})
    first, last = capsys.readouterr().out.splitlines()
    headers = "(('source', b'web'), ('trace', None))"
    assert first.startswith(f"b'ada' b'ada@example.org' {headers} 20")
    assert last.startswith("b'ada' None () 20")


def test_the_example_of_a_coroutine(capsys: pytest.CaptureFixture[str]) -> None:
    exec(example("docs/cluster.md", "In a coroutine"), {})
    printed = capsys.readouterr().out.splitlines()
    assert printed == ["0 b'hello'", "1 b'asyncio'", "no more for now"]


def test_the_example_of_metrics(capsys: pytest.CaptureFixture[str]) -> None:
    exec(example("docs/metrics.md", "Switching it on"), {})
    assert capsys.readouterr().out.splitlines() == ["ready"]


def test_the_example_of_reading(names: Names, cluster: EmbeddedCluster) -> None:
    address = produce(cluster, "flights", range(2))
    exec(example("docs/spark.md", "Reading"), names)
    names["query"].awaitTermination()
    counts = {row["partition"]: row["count"] for row in names["spark"].table("counts").collect()}
    assert counts[address] == 2


def test_the_example_of_the_source(
    spark: SparkSession, cluster: EmbeddedCluster, topic: str, tmp_path: Path
) -> None:
    text = example("docs/source.md", "The source: what a query reads")
    address = produce(cluster, topic, range(3))
    names = {"spark": spark, "tower": cluster.tower, "checkpoint": str(tmp_path)}
    exec(text.replace('"flights"', repr(topic)), names)
    query: Any = names["query"]
    query.processAllAvailable()
    query.stop()
    rows = spark.table("last_hour").collect()
    assert [(row["partition"], row["offset"]) for row in rows] == [(address, n) for n in range(3)]


def test_the_example_of_one_load(names: Names, cluster: EmbeddedCluster, topic: str) -> None:
    text = example("docs/spark.md", "One `load()` for each query").replace('"flights"', repr(topic))
    rows = names["spark"].range(4).selectExpr("string(id) AS key", "string(id) AS value")
    write_dafka(rows, topic, tower=cluster.tower)
    exec(text, names)
    assert names["before"] == names["after"] == 4
    write_dafka(rows, topic, tower=cluster.tower)
    assert names["flights"]().count() == 8
    names["join"](rows, 0)
    assert count(cluster, "joined") == {"joined": 8}


def test_the_example_of_output_modes(names: Names, cluster: EmbeddedCluster, topic: str) -> None:
    address = produce(cluster, topic, range(3))
    frame = stream(names["spark"], cluster, subscribe=topic)
    names["counts"] = frame.groupBy("partition").count()
    exec(example("docs/spark.md", "Output modes"), names)
    names["query"].awaitTermination()
    (row,) = read_dafka(names["spark"], "counts", tower=cluster.tower).collect()
    assert (bytes(row["key"]), bytes(row["value"])) == (address.encode(), b"3")


def test_the_example_of_an_archive(names: Names, tmp_path: Path) -> None:
    archived(tmp_path, A, 30)
    statement = example("docs/archive.md", "What is in the directory", "sql")
    with duckdb.connect() as database:
        days = database.execute(statement.replace("/data/archive", str(tmp_path))).fetchall()
    assert sum(number for _, number in days) == 30
    names["archive"] = str(tmp_path)
    exec(example("docs/archive.md", "Both as one topic"), names)
    assert names["together"].where(f"partition = '{A.partition}'").count() == 30
    assert names["alone"].count() == 30
    assert names["stream"].isStreaming


def test_the_example_of_writing(names: Names, cluster: EmbeddedCluster) -> None:
    exec(example("docs/spark.md", "Writing"), names)
    assert count(cluster, "ids", "loud-ids") == {"ids": 100_000, "loud-ids": 100_000}


def test_the_example_of_delivery(
    spark: SparkSession, cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    address = produce(cluster, "orders", range(5))
    names: dict[str, Any] = {"spark": spark, "tower": cluster.tower, "checkpoint": str(tmp_path)}
    exec(example("docs/delivery.md", "What the sink guarantees"), names)
    query = names["query"]
    try:
        query.processAllAvailable()  # from the newest record on
        produce(cluster, "orders", range(5, 8), address)
        query.processAllAvailable()
    finally:
        query.stop()
    with Reader(tower=cluster.tower) as reader:
        held = reader.partitions(["clean-orders"], timeout_s=20)
    assert sum(info.end for info in held) == 3


def test_the_example_of_a_ported_job(names: Names, cluster: EmbeddedCluster) -> None:
    produce(cluster, "flights", range(1))
    lines = example("docs/from_kafka.md", "A job, ported", "diff").splitlines()
    text = "\n".join(line[1:] for line in lines if not line.startswith("-"))
    assert text.count('"host"') == 1
    rows = eval(text.replace('"host"', repr(cluster.tower)), names)
    assert rows.isStreaming
    assert "headers" in rows.columns


def test_the_example_of_threads(
    names: Names, cluster: EmbeddedCluster, topic: str, tmp_path: Path
) -> None:
    produce(cluster, topic, range(5))
    exec(example("docs/spark.md", "From threads"), names)
    frame = stream(names["spark"], cluster, subscribe=topic)
    finish(frame.writeStream.foreachBatch(names["write_both"]), tmp_path)
    assert count(cluster, "one-copy", "other-copy") == {"one-copy": 5, "other-copy": 5}


def test_the_example_of_flight(capsys: pytest.CaptureFixture[str]) -> None:
    with EmbeddedCluster() as cluster:
        produce(cluster, "greetings", ["hello", "brokerless", "world"])
        exec(
            example("docs/flight.md", "A client in ten lines"),
            {"location": cluster.locations()[-1]},
        )
    printed = capsys.readouterr().out
    assert "offset: [[0,1,2]]" in printed
    assert re.search(r"│ +3 │ +10 │", printed)


def test_the_example_of_a_test(dafka_cluster: EmbeddedCluster, dafka_topic: str) -> None:
    names: Names = {}
    exec(example("docs/testing.md", "A test"), names)
    names["test_what_is_published_is_consumed"](dafka_cluster, dafka_topic)


def test_the_example_of_a_store_that_is_killed() -> None:
    exec(example("docs/testing.md", "A store that is killed"), {})


def test_the_example_of_sql(names: Names, cluster: EmbeddedCluster) -> None:
    topic = f"sql_{uuid.uuid4().hex[:8]}"
    produce(cluster, topic, ["row"])
    statement = example("docs/spark.md", "SQL", "sql")
    assert statement.count("flights") == 2
    sql = names["spark"].sql
    sql(statement.replace("flights", topic).replace("HOST:5556:5557", cluster.tower))
    try:
        exec(example("docs/spark.md", "SQL").replace("flights", topic), names)
        assert texts(names["batch"].collect()) == ["frame", "hi", "row", "text"]
        assert names["stream"].isStreaming
        assert names["same"].isStreaming
    finally:
        sql(f"DROP TABLE {topic}")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_names_targets_of_the_makefile(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = re.findall(r"(?:`|^)make ([a-z-]+)\b", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert set(named) <= targets


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub makes of a page's headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_links_to_existing_pages_and_headings(page: Path) -> None:
    for link in re.findall(r"\]\((?!https?:)([^)\s]+)\)", page.read_text(encoding="utf-8")):
        name, _, anchor = link.partition("#")
        target = (page.parent / name) if name else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link
