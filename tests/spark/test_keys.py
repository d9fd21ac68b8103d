"""Spark in a cluster with keys: it reads and writes as without, and its plans have no secret."""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from dafka_core import EmbeddedCluster, Tower
from dafka_core.security.credentials import token
from dafka_core.security.key_files import new_key, read_public, read_secret
from dafka_spark import DafkaDataSource
from tests.forked import ForkedCluster


@pytest.fixture(scope="module")
def locked() -> Iterator[EmbeddedCluster]:
    with ForkedCluster(2, keys=True) as running:
        running.key("logs", ("consume",), consume=("logs.*",))
        yield running


def options(cluster: EmbeddedCluster, name: str = "client") -> dict[str, str]:
    keys = {f"dafka.{option}": value for option, value in cluster.key(name).items()}
    return {"tower": cluster.tower, **keys}


def write(spark: SparkSession, cluster: EmbeddedCluster, topic: str, start: int, end: int) -> None:
    rows = spark.range(start, end, 1, 2).selectExpr("CAST(id AS STRING) AS value")
    rows.write.format("dafka").mode("append").options(**options(cluster)).option(
        "topic", topic
    ).save()


def numbers(rows: DataFrame) -> list[int]:
    return sorted(int(row.value) for row in rows.select("value").collect())


@pytest.mark.parametrize(
    "how", [{}, {"fetch": "flight"}, {"fetch": "mesh"}, {"where": "offset >= 0"}]
)
def test_a_topic_is_written_and_read(
    how: dict[str, str], spark: SparkSession, locked: EmbeddedCluster, topic: str
) -> None:
    write(spark, locked, topic, 0, 500)
    rows = spark.read.format("dafka").options(**options(locked), **how, subscribe=topic).load()
    assert numbers(rows) == list(range(500))


def test_option_stores(spark: SparkSession, locked: EmbeddedCluster, topic: str) -> None:
    write(spark, locked, topic, 0, 20)
    stores = ",".join(locked.locations(index)[-1] for index in range(2))
    given = options(locked) | {"stores": stores, "subscribe": topic}
    del given["tower"]
    assert numbers(spark.read.format("dafka").options(**given).load()) == list(range(20))


def test_a_query_continues_from_its_checkpoint_and_keeps_no_secret(
    spark: SparkSession, locked: EmbeddedCluster, topic: str, tmp_path: Path
) -> None:
    own = read_secret(locked.key()["secret_key_file"]).secret
    shown: list[str] = []

    def copy() -> None:
        rows = (
            spark.readStream.format("dafka")
            .options(**options(locked))
            .option("startingOffsets", "earliest")
            .option("subscribe", topic)
            .option("queryName", f"q-{topic}")
            .load()
            .select("value")
        )
        shown.append(rows._jdf.queryExecution().toString())
        source = DafkaDataSource({**options(locked), "subscribe": topic})
        shown.append(repr(pickle.dumps(source.reader(source.schema()).partitions())))
        shown.append(repr(pickle.dumps(source.reader(source.schema()))))
        writing = (
            rows.writeStream.format("dafka")
            .options(**options(locked))
            .option("topic", f"{topic}-copy")
            .option("checkpointLocation", str(tmp_path))
            .trigger(availableNow=True)
        )
        query = writing.start()
        assert query.awaitTermination(120)
        shown.append(str(query.lastProgress))

    for start, end in ((0, 100), (100, 300)):
        write(spark, locked, topic, start, end)
        copy()
    copied = spark.read.format("dafka").options(**options(locked), subscribe=f"{topic}-copy").load()
    assert numbers(copied) == list(range(300))
    kept = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    for secret in (own, token(own).encode()):
        assert secret not in kept
        assert not any(secret.decode() in each for each in shown)


@pytest.mark.nightly
def test_no_page_event_or_log_of_spark_has_a_secret(
    locked: EmbeddedCluster, tmp_path: Path
) -> None:
    own = read_secret(locked.key()["secret_key_file"]).secret
    job = [sys.executable, str(Path(__file__).with_name("secrets_job.py"))]
    done = subprocess.run(
        [*job, str(tmp_path), locked.tower, str(locked.keys)],
        env={**os.environ, "MY_KEY": own.decode()},
        capture_output=True,
        check=False,
    )
    assert not done.returncode, done.stderr[-2_000:]
    assert b"100 rows" in done.stdout
    assert b"no store has topic" in done.stdout
    kept = {path.name: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    shown = {**kept, "output": done.stdout, "log": done.stderr}
    assert len([text for name, text in kept.items() if name.startswith("page-")]) == 6
    assert any(b"SparkListenerSQLExecutionStart" in text for text in kept.values())
    for secret in (own, token(own).encode()):
        assert [name for name, text in shown.items() if secret in text] == []


@pytest.mark.parametrize("fetch", ["auto", "flight"])
def test_a_key_reads_its_topics_only(
    fetch: str, spark: SparkSession, locked: EmbeddedCluster, topic: str
) -> None:
    write(spark, locked, f"logs.{topic}", 0, 10)
    write(spark, locked, topic, 0, 10)
    given: dict[str, Any] = options(locked, "logs") | {"fetch": fetch}
    pattern = given | {"subscribePattern": f".*{topic}"}
    found = spark.read.format("dafka").options(**pattern).load()
    assert numbers(found) == list(range(10))
    reading = spark.read.format("dafka").options(**given)
    with pytest.raises(Exception, match="key logs may consume 'logs\\.\\*', and not know of"):
        reading.option("subscribe", topic).load().collect()


def test_without_a_key_the_query_fails(
    spark: SparkSession, locked: EmbeddedCluster, topic: str
) -> None:
    given = {"stores": locked.locations()[-1], "fetchTimeoutMs": "2000"}
    reading = spark.read.format("dafka").options(**given, subscribe=topic)
    with pytest.raises(Exception, match="lets in owners of keys only"):
        reading.load().collect()


def test_a_false_store_receives_no_key(
    spark: SparkSession, locked: EmbeddedCluster, topic: str, tmp_path: Path
) -> None:
    given = options(locked) | {"subscribe": topic, "fetchTimeoutMs": "2000"}
    for path in locked.keys.glob("*.key"):
        if not read_public(path).permissions.is_store:
            shutil.copy(path, tmp_path)
    new_key(tmp_path, "another", ("store",))
    given["dafka.allowed_keys"] = str(tmp_path)
    given["stores"] = next(each for each in locked.locations() if each.startswith("grpc+tls"))
    del given["tower"]
    with pytest.raises(Exception, match="it is none of the stores in this client's dir") as refused:
        spark.read.format("dafka").options(**given).load().collect()
    assert "lets in owners of keys only" not in str(refused.value)  # this one has a key


def test_a_false_tower_receives_no_key(
    spark: SparkSession, locked: EmbeddedCluster, topic: str, tmp_path: Path
) -> None:
    """The false tower accepts this query's key, and has another key than the cluster's."""
    _, false = new_key(tmp_path, "tower", ("tower",))
    shutil.copy(locked.keys / "client.key", tmp_path)
    with Tower(
        sub_address="tcp://127.0.0.1:*",
        pub_address="tcp://127.0.0.1:*",
        secret_key_file=str(false),
        allowed_keys=str(tmp_path),
    ) as tower:
        given = options(locked) | {"tower": tower.tower, "subscribe": topic}
        given["fetchTimeoutMs"] = "2000"
        with pytest.raises(Exception, match="tower"):
            spark.read.format("dafka").options(**given).load().collect()
        assert tower.beacon_count == 0
