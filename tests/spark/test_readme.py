"""Examples of the pages run."""

import os
import re
import sys
import uuid
from pathlib import Path
from typing import Any

import duckdb
import pyspark
import pytest

from dafka_core import EmbeddedCluster
from scripts import options
from scripts.generated import replaced
from tests.forked import ForkedCluster
from tests.integration.archive.records import A, archived
from tests.pages import example
from tests.spark import drivers
from tests.spark.topics import Topics, finish, texts

PROGRAM = ("README.md", "One program")

Names = dict[str, Any]  # the globals of an example


@pytest.fixture
def names(topics: Topics, tmp_path: Path) -> Names:
    return {"spark": topics.spark, "tower": topics.cluster.tower, "checkpoint": str(tmp_path)}


def run(page: str, heading: str, names: Names, **replaced: str) -> Names:
    """Run an example, with texts in quotes replaced; return its globals."""
    text = example(f"docs/{page}.md", heading)
    for old, new in replaced.items():
        assert f'"{old}"' in text
        text = text.replace(f'"{old}"', repr(new))
    exec(text, names)
    return names


@pytest.mark.parametrize("page", options.PAGES)
def test_the_options_tables_are_those_declared(page: str) -> None:
    text = (options.DOCS / page).read_text(encoding="utf-8")
    assert replaced(text, options.BEGIN, options.PAGES[page]()) == text


def test_a_page_without_a_place_for_the_options_is_an_error() -> None:
    with pytest.raises(ValueError, match="once, not 0 times"):
        replaced("no tables here", options.BEGIN, "a table")


def test_the_program_prints_the_readmes_output_and_leaves_no_files(tmp_path: Path) -> None:
    here, temporary = tmp_path / "here", tmp_path / "temporary"
    for directory in (here, temporary):
        directory.mkdir()
    program = tmp_path / "program.py"
    unset = "import os\ndel os.environ['PYSPARK_PYTHON']  # the program sets it\n"
    program.write_text(unset + example(*PROGRAM))
    done = drivers.done([sys.executable, str(program)], here, {"TMPDIR": str(temporary)})
    assert done.stdout.split() == example(*PROGRAM, language="").split()
    # The addresses of stores remain, for queries that start without a tower.
    addresses = temporary / f"dafka-{os.getuid()}"
    assert [*here.iterdir(), *temporary.iterdir()] == [addresses]
    assert {path.suffix for path in addresses.iterdir()} == {".json"}


@pytest.mark.parametrize(
    ("page", "heading", "lines"),
    [
        ("python", "Programs in Python", [".* 0 b'hello'", ".* 1 b'brokerless'", ".* 2 b'world'"]),
        (
            "python",
            "Keys and headers",
            [
                r"b'ada' b'ada@example.org' \(\('source', b'web'\), \('trace', None\)\) 20.*",
                r"b'ada' None \(\) 20.*",
            ],
        ),
        ("python", "With asyncio, gevent or eventlet", ["0 b'hello'", "1 b'asyncio'"]),
        ("metrics", "Switching it on", ["ready"]),
    ],
)
def test_the_example_without_spark(
    page: str, heading: str, lines: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    run(page, heading, {})
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == len(lines)
    assert all(map(re.fullmatch, lines, printed))


def test_the_example_of_a_test(dafka_cluster: EmbeddedCluster, dafka_topic: str) -> None:
    names = run("python", "A test", {})
    names["test_what_is_published_is_consumed"](dafka_cluster, dafka_topic)


def test_the_example_of_flight(topics: Topics, capsys: pytest.CaptureFixture[str]) -> None:
    with ForkedCluster() as cluster:
        Topics(topics.spark, cluster).produce("greetings", ["hello", "brokerless", "world"])
        run("flight", "Stores over Arrow Flight", {"location": cluster.locations()[-1]})
    printed = capsys.readouterr().out
    assert "offset: [[0,1,2]]" in printed
    assert re.search(r"│ +3 │ +10 │", printed)


def test_the_example_of_reading(topics: Topics, names: Names) -> None:
    address = topics.produce("flights", range(2))
    run("spark", "Reading", names)["query"].awaitTermination()
    counts = {row["partition"]: row["count"] for row in topics.spark.table("counts").collect()}
    assert counts[address] == 2


def test_the_example_of_the_source(topics: Topics, names: Names, topic: str) -> None:
    address = topics.produce(topic, range(3))
    query = run("guarantees", "What a query reads", names, flights=topic)["query"]
    query.processAllAvailable()
    query.stop()
    rows = topics.spark.table("last_hour").collect()
    assert [(row["partition"], row["offset"]) for row in rows] == [(address, n) for n in range(3)]


def test_the_example_of_one_load(topics: Topics, names: Names, topic: str) -> None:
    rows = topics.spark.range(4).selectExpr("string(id) AS key", "string(id) AS value")
    topics.save(rows, topic=topic)
    run("spark", "One `load()` for each query", names, flights=topic)
    assert names["before"] == names["after"] == 4
    topics.save(rows, topic=topic)
    assert names["flights"]().count() == 8
    names["join"](rows, 0)
    assert topics.visible("joined") == [8]


def test_the_example_of_output_modes(topics: Topics, names: Names, topic: str) -> None:
    address = topics.produce(topic, range(3))
    names["counts"] = topics.stream(topic).groupBy("partition").count()
    run("spark", "Output modes", names)["query"].awaitTermination()
    (row,) = topics.batch("counts").collect()
    assert (bytes(row["key"]), bytes(row["value"])) == (address.encode(), b"3")


def test_the_example_of_an_archive(names: Names, tmp_path: Path) -> None:
    archived(tmp_path, A, 30)
    statement = example("docs/retention.md", "What is in the directory", "sql")
    with duckdb.connect() as database:
        days = database.execute(statement.replace("/data/archive", str(tmp_path))).fetchall()
    assert sum(number for _, number in days) == 30
    names = run("retention", "Both as one topic", names | {"archive": str(tmp_path)})
    assert names["together"].where(f"partition = '{A.partition}'").count() == 30
    assert names["alone"].count() == 30
    assert names["stream"].isStreaming


def test_the_example_of_writing(topics: Topics, names: Names) -> None:
    run("spark", "Writing", names)
    assert topics.visible("ids", "loud-ids") == [100_000, 100_000]


def test_the_example_of_delivery(topics: Topics, names: Names) -> None:
    address = topics.produce("orders", range(5))
    query = run("delivery", "What the sink guarantees", names)["query"]
    try:
        query.processAllAvailable()  # from the newest record on
        topics.produce("orders", range(5, 8), address)
        query.processAllAvailable()
    finally:
        query.stop()
    assert topics.visible("clean-orders") == [3]


def test_the_example_of_a_ported_job(topics: Topics, names: Names) -> None:
    topics.produce("flights", range(1))
    lines = example("docs/from_kafka.md", "A job, ported", "diff").splitlines()
    text = "\n".join(line[1:] for line in lines if not line.startswith("-"))
    rows = eval(text.replace('"host"', repr(topics.cluster.tower)), names)
    assert rows.isStreaming
    assert "headers" in rows.columns


def test_the_example_of_threads(topics: Topics, names: Names, topic: str, tmp_path: Path) -> None:
    topics.produce(topic, range(5))
    run("spark", "From threads", names)
    finish(topics.stream(topic).writeStream.foreachBatch(names["write_both"]), tmp_path)
    assert topics.visible("one-copy", "other-copy") == [5, 5]


def test_the_example_of_typed_values(
    names: Names, topic: str, capfd: pytest.CaptureFixture[str]
) -> None:
    run("spark", "Typed values", names, trades=topic)
    assert re.search(r"\|\s*1\|\s*ada\|", capfd.readouterr().out)


def test_the_example_of_sql(topics: Topics, names: Names) -> None:
    topic = f"sql_{uuid.uuid4().hex[:8]}"
    topics.produce(topic, ["row"])
    statement = example("docs/spark.md", "SQL", "sql").replace("flights", topic)
    topics.spark.sql(statement.replace("HOST:5556:5557", topics.cluster.tower))
    try:
        exec(example("docs/spark.md", "SQL").replace("flights", topic), names)
        assert texts(names["batch"].collect()) == ["frame", "hi", "row", "text"]
        assert names["stream"].isStreaming
        assert names["same"].isStreaming
    finally:
        topics.spark.sql(f"DROP TABLE {topic}")


@pytest.mark.nightly
def test_the_example_of_a_pipeline(topics: Topics, topic: str, tmp_path: Path) -> None:
    """A topic is a source of datasets and a sink of flows."""
    text = example("docs/spark.md", "Declarative pipelines")
    text = text.replace("TOWER", repr(topics.cluster.tower))
    text = text.replace('"topic": "copies"', f'"topic": "{topic}-copies"')
    (tmp_path / "definitions").mkdir()
    (tmp_path / "definitions" / "flights.py").write_text(
        text.replace('subscribe="flights"', f'subscribe="{topic}"')
    )
    (tmp_path / "spark-pipeline.yml").write_text(
        f"name: flights\nstorage: {(tmp_path / 'storage').as_uri()}\n"
        "libraries:\n  - glob:\n      include: definitions/**\n"
    )
    settings = "-Dspark.ui.enabled=false -Dspark.master=local[2] -Dspark.sql.shuffle.partitions=2"
    topics.produce(topic, range(100))
    drivers.done(
        [str(Path(pyspark.__file__).parent / "bin" / "spark-pipelines"), "run"],
        tmp_path,
        {
            "SPARK_SUBMIT_OPTS": f"{os.environ['SPARK_SUBMIT_OPTS']} {settings}",
            "SPARK_TESTING": "1",  # the server's port is one that the system chooses
        },
    )
    assert topics.numbers(f"{topic}-copies") == [*range(100)]
    (row,) = topics.spark.read.parquet(str(tmp_path / "spark-warehouse" / "totals")).collect()
    assert row["count"] == 100
