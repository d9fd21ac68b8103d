"""Batch reads by a real Spark from a real cluster."""

from __future__ import annotations

import datetime as dt
import json
from typing import Any

import pytest
from chispa import assert_df_equality
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from dafka_core import EmbeddedCluster
from dafka_spark.source.batch_reader import SHARES_PLANS
from tests.spark.topics import batch, produce, texts


def test_every_column(spark: SparkSession, cluster: EmbeddedCluster, topic: str) -> None:
    before = dt.datetime.now()  # noqa: DTZ005 -- Spark gives local times, too
    address = produce(cluster, topic, range(3))
    frame = batch(spark, cluster, subscribe=topic)
    expected = spark.createDataFrame(
        [(None, str(n).encode(), topic, address, n) for n in range(3)],
        "key binary, value binary, topic string, partition string, offset bigint",
    )
    assert_df_equality(frame.drop("timestamp", "timestampType"), expected)
    assert [row[0] for row in frame.select("timestampType").collect()] == [None] * 3
    times = [row["timestamp"] for row in frame.select("timestamp").collect()]
    assert all(before <= time <= dt.datetime.now() for time in times)  # noqa: DTZ005


@pytest.mark.parametrize("names", [("offset", "value"), ("topic",), ("timestamp", "partition")])
def test_any_columns_in_any_order(
    spark: SparkSession, cluster: EmbeddedCluster, topic: str, names: Any
) -> None:
    produce(cluster, topic, range(5))
    full = batch(spark, cluster, subscribe=topic)
    schema = full.select(*names).schema
    reader = spark.read.format("dafka").options(tower=cluster.tower, subscribe=topic)
    assert_df_equality(reader.schema(schema).load(), full.select(*names))


def test_wrong_columns_are_refused(
    spark: SparkSession, cluster: EmbeddedCluster, topic: str
) -> None:
    reader = spark.read.format("dafka").options(tower=cluster.tower, subscribe=topic)
    with pytest.raises(PySparkException, match=r"column 'offset': is bigint, not string"):
        reader.schema("offset string").load().collect()
    with pytest.raises(PySparkException, match=r"column 'vlaue'.*did you mean 'value'"):
        reader.schema("vlaue binary").load().collect()


def test_nothing_is_an_empty_frame(
    spark: SparkSession, cluster: EmbeddedCluster, topic: str
) -> None:
    """Trap: Spark makes ``InputPartition(None)`` of a batch without partitions."""
    produce(cluster, topic, range(3))
    with pytest.raises(PySparkException, match=f"no store has topic '{topic}s' .did you mean"):
        batch(spark, cluster, subscribe=topic + "s").count()
    assert batch(spark, cluster, subscribe=topic + "s", failOnMissingTopic="false").count() == 0
    bounds = json.dumps({topic: {produce(cluster, topic, range(4)): 4}})
    frame = batch(spark, cluster, subscribe=topic, startingOffsets=bounds)
    assert texts(frame.collect()) == ["0", "1", "2"]


def test_filters_are_sparks_work(spark: SparkSession, cluster: EmbeddedCluster, topic: str) -> None:
    """Trap: planning fails for a reader that defines ``pushFilters`` while pushdown is off."""
    produce(cluster, topic, range(10))
    frame = batch(spark, cluster, subscribe=topic)
    assert spark.conf.get("spark.sql.python.filterPushdown.enabled") == "false"
    assert frame.where("offset >= 8 and topic is not null").count() == 2
    with pytest.raises(PySparkException, match=r"spark.sql.python.filterPushdown.enabled"):
        batch(spark, cluster, subscribe=topic, pushFilters=True).where("offset >= 8").count()


def test_pushed_filters_narrow_what_is_read(
    spark: SparkSession, cluster: EmbeddedCluster, topic: str
) -> None:
    """A task for each record shows which ones are read; each filter has a DataFrame of its own."""
    produce(cluster, topic, range(10))
    filters = {
        "offset >= 8": 2,
        "offset in (1, 2) and value <> '1'": 1,
        "timestamp < '2026-01-01T00:00:00Z'": 0,
        "timestamp > now() - INTERVAL 10 MINUTES and offset % 2 = 0": 5,
        f"topic <> '{topic}' or offset = 3": 1,
    }
    tasks = {}
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        for text, count in filters.items():
            frame = batch(
                spark, cluster, subscribe=topic, pushFilters=True, maxRecordsPerPartition=1
            ).where(text)
            assert frame.count() == count
            tasks[text] = frame.rdd.getNumPartitions()
        frame = batch(spark, cluster, subscribe=topic, pushFilters=True)
        assert frame.where("offset >= 8").count() == 2
        # Trap: it is the plan of other queries of the DataFrame, too, of which we can but warn.
        assert (frame.count() != 10) == SHARES_PLANS
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")
    # One task of none is Spark's way to read nothing.
    assert list(tasks.values()) == [2, 2, 1, 10, 10]


def test_where_means_what_the_same_text_means_to_spark(
    spark: SparkSession, cluster: EmbeddedCluster, topic: str
) -> None:
    rows = [
        (None, b"plain"),
        ("a", b"one"),
        ("b", b"two\nlines"),
        ("b", None),
        ("é", "naïve, 100%".encode()),
        ("", b"\xff"),
    ]
    writer = spark.createDataFrame(rows, "key string, value binary").coalesce(1).write
    writer.format("dafka").mode("append").options(tower=cluster.tower, topic=topic).save()
    texts = [
        "key = 'a' OR value = 'plain'",
        "NOT key = 'a'",
        "key <> 'b' AND offset >= 1",
        "key IN ('a', 'é')",
        "key NOT IN ('a', '')",
        "NOT (key IN ('a') OR value IS NULL)",
        "key IS NULL AND value IS NOT NULL",
        "key BETWEEN 'a' AND 'b'",
        "value LIKE '%ne%'",
        "value LIKE 'two%lines' OR value LIKE '%100%'",
        "value NOT LIKE '%n%'",
        "value LIKE 'na_ve%'",
        "value = X'ff'",
        "value > 'o'",
        "offset NOT BETWEEN 1 AND 3 OR offset = 2",
        "timestamp >= '2026-01-01T00:00:00Z' AND offset IN (0, 5)",
        "timestamp < TIMESTAMP '2026-01-01T00:00:00Z'",
        f"topic = '{topic}' AND partition LIKE '%'",
    ]
    every = batch(spark, cluster, subscribe=topic)
    for text in texts:
        wanted = sorted(row.offset for row in every.where(text).select("offset").collect())
        found = batch(spark, cluster, subscribe=topic, where=text).select("offset").collect()
        assert sorted(row.offset for row in found) == wanted, text
    with pytest.raises(PySparkException, match=r"'where' = 'vaule.*did you mean 'value'"):
        batch(spark, cluster, subscribe=topic, where="vaule = 'a'")


def test_ranges_are_split_and_none_is_lost(
    spark: SparkSession, cluster: EmbeddedCluster, topic: str
) -> None:
    produce(cluster, topic, range(1000))
    produce(cluster, topic, range(1000, 1010))
    whole = batch(spark, cluster, subscribe=topic)
    assert whole.rdd.getNumPartitions() == 2
    split = batch(spark, cluster, subscribe=topic, minPartitions=6)
    assert split.rdd.getNumPartitions() == 6
    assert texts(split.collect()) == sorted(map(str, range(1010)))
    cut = batch(spark, cluster, subscribe=topic, maxRecordsPerPartition=100)
    assert cut.rdd.getNumPartitions() == 11
    assert cut.count() == 1010


def test_bounds(spark: SparkSession, cluster: EmbeddedCluster, topic: str) -> None:
    address = produce(cluster, topic, range(10))
    start = json.dumps({topic: {address: 3}})
    end = json.dumps({topic: {address: 7}})
    frame = batch(spark, cluster, subscribe=topic, startingOffsets=start, endingOffsets=end)
    assert texts(frame.collect()) == ["3", "4", "5", "6"]
    latest = json.dumps({topic: {address: -1}})
    frame = batch(spark, cluster, subscribe=topic, startingOffsets=start, endingOffsets=latest)
    assert frame.count() == 7


@pytest.mark.parametrize(
    ("start", "end", "says"),
    [
        (11, -1, r"offsets 0 up to, not including, 10"),
        (0, 11, r"offsets 0 up to, not including, 10"),
        (7, 3, r"starts after it, at 7"),
    ],
)
def test_bounds_outside_of_the_partition(
    spark: SparkSession, cluster: EmbeddedCluster, topic: str, start: Any, end: Any, says: str
) -> None:
    address = produce(cluster, topic, range(10))
    start, end = (json.dumps({topic: {address: offset}}) for offset in (start, end))
    frame = batch(spark, cluster, subscribe=topic, startingOffsets=start, endingOffsets=end)
    with pytest.raises(PySparkException, match=says):
        frame.collect()


def test_choices_of_topics(spark: SparkSession, cluster: EmbeddedCluster, topic: str) -> None:
    first = produce(cluster, topic, ["a"])
    produce(cluster, topic, ["b"])
    produce(cluster, topic + "2", ["c"])  # the topic is a prefix of this one
    assert texts(batch(spark, cluster, subscribe=topic).collect()) == ["a", "b"]
    both = batch(spark, cluster, subscribe=f"{topic}, {topic}2")
    assert texts(both.collect()) == ["a", "b", "c"]
    assert texts(batch(spark, cluster, subscribePattern=f"{topic}.").collect()) == ["c"]
    assigned = batch(spark, cluster, assign=json.dumps({topic: [first]}))
    assert texts(assigned.collect()) == ["a"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "exactly one of subscribe, subscribePattern and assign"),
        ({"subscribe": "t", "fetchTimeout": 5}, "did you mean 'fetchTimeoutMs'"),
        ({"subscribe": "t", "acks": 1}, "is an option of writing"),
        ({"subscribe": "t", "startingOffsets": "first"}, "must be earliest, latest or JSON"),
    ],
)
def test_wrong_options_are_refused_by_load(
    spark: SparkSession, cluster: EmbeddedCluster, options: Any, says: str
) -> None:
    with pytest.raises(PySparkException, match=says):
        batch(spark, cluster, **options)


def test_a_batch_cannot_start_at_the_latest(
    spark: SparkSession, cluster: EmbeddedCluster, topic: str
) -> None:
    with pytest.raises(PySparkException, match=r"reads nothing"):
        batch(spark, cluster, subscribe=topic, startingOffsets="latest").collect()


def test_a_tower_that_is_not_there(spark: SparkSession, topic: str) -> None:
    frame = spark.read.format("dafka").options(tower="127.0.0.1:1:1", subscribe=topic).load()
    why = r"no tower answered at 127.0.0.1:1:1 within .* s: nothing listens at 127.0.0.1:1:1; start"
    with pytest.raises(PySparkException, match=why):
        frame.collect()


def test_a_towers_ports_the_other_way_round(
    spark: SparkSession, cluster: EmbeddedCluster, topic: str
) -> None:
    host, sub, pub = cluster.tower.split(":")
    frame = spark.read.format("dafka").options(tower=f"{host}:{pub}:{sub}", subscribe=topic).load()
    with pytest.raises(PySparkException, match=f"the other way round; name it as {cluster.tower}"):
        frame.collect()


def test_metadata_are_frames_like_others(
    spark: SparkSession, cluster: EmbeddedCluster, topic: str
) -> None:
    """All of one topic's partitions, by DataFrame and by SQL."""
    addresses = {produce(cluster, topic, range(count)): count for count in (3, 4)}
    frame = batch(spark, cluster, subscribe=topic, metadata="partitions")
    rows = frame.where("records > 2").select("partition", "end", "size_bytes").collect()
    assert {row["partition"]: row["end"] for row in rows} == addresses
    assert all(row["size_bytes"] > 0 for row in rows)
    table = f"metadata_{topic.replace('-', '_')}"
    given = f"tower '{cluster.tower}', metadata 'topics'"
    spark.sql(f"CREATE TABLE {table} USING dafka OPTIONS ({given})")
    try:
        (row,) = spark.sql(f"SELECT records FROM {table} WHERE topic = '{topic}'").collect()
        assert row["records"] == 7
    finally:
        spark.sql(f"DROP TABLE {table}")
