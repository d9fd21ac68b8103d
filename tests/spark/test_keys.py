"""Spark in a cluster with keys: it reads and writes, and its plans contain no secret."""

import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from dafka_core.security.key_files import read_secret, tls_pair
from dafka_spark import DafkaDataSource
from tests.forked import ForkedCluster
from tests.spark import drivers
from tests.spark.topics import Topics


@pytest.fixture(scope="module")
def locked(spark: SparkSession) -> Iterator[Topics]:
    with ForkedCluster(2, keys=True) as running:
        keys = {f"dafka.{option}": value for option, value in running.key().items()}
        yield Topics(spark, running, **keys)


def write(topics: Topics, topic: str, start: int, end: int) -> None:
    rows = topics.spark.range(start, end, 1, 2).selectExpr("CAST(id AS STRING) AS value")
    topics.save(rows, topic=topic)


def test_a_query_continues_from_its_checkpoint_and_keeps_no_secret(
    locked: Topics, topic: str, tmp_path: Path
) -> None:
    shown: list[str] = []
    for start, end in ((0, 100), (100, 300)):
        write(locked, topic, start, end)
        rows = locked.stream(topic, queryName=f"q-{topic}").select("value")
        shown.append(rows._jdf.queryExecution().toString())
        reader = DafkaDataSource(locked.options | {"subscribe": topic}).reader(rows.schema)
        shown.append(repr(pickle.dumps((reader, reader.partitions()))))
        query = locked.send(rows, tmp_path, topic=f"{topic}-copy")
        shown.append(str(query.lastProgress))
    assert locked.numbers(f"{topic}-copy") == [*range(300)]
    kept = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    own = read_secret(locked.cluster.key()["secret_key_file"]).secret
    for secret in (own.decode(), tls_pair(own).private_key.decode()):
        assert secret.encode() not in kept
        assert not any(secret in each for each in shown)


@pytest.mark.nightly
def test_no_page_event_or_log_of_spark_has_a_secret(locked: Topics, tmp_path: Path) -> None:
    own = read_secret(locked.cluster.key()["secret_key_file"]).secret
    command = drivers.command(drivers.show, locked.cluster.tower, locked.cluster.keys, tmp_path)
    done = drivers.done(command, variables={"MY_KEY": own.decode()})
    assert "100 rows" in done.stdout
    assert "no store has topic" in done.stdout
    kept = {path.name: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert len([name for name in kept if name.startswith("page-")]) == len(drivers.UI_PAGES)
    assert any(b"SparkListenerSQLExecutionStart" in text for text in kept.values())
    shown = {**kept, "output": done.stdout.encode(), "log": done.stderr.encode()}
    for secret in (own, tls_pair(own).private_key):
        assert [name for name, text in shown.items() if secret in text] == []
