"""Batch reads by a real Spark from a real cluster."""

from __future__ import annotations

import datetime as dt
import json

from chispa import assert_df_equality

from tests.spark.topics import Topics, texts


def test_every_column(topics: Topics, topic: str) -> None:
    before = dt.datetime.now()  # noqa: DTZ005 -- Spark returns local times, too
    address = topics.produce(topic, range(3))
    frame = topics.batch(topic)
    expected = topics.spark.createDataFrame(
        [(None, str(n).encode(), topic, address, n) for n in range(3)],
        "key binary, value binary, topic string, partition string, offset bigint",
    )
    assert_df_equality(frame.drop("timestamp", "timestampType"), expected)
    for row in frame.select("timestampType", "timestamp").collect():
        assert row["timestampType"] is None
        assert before <= row["timestamp"] <= dt.datetime.now()  # noqa: DTZ005
    chosen = frame.select("timestamp", "partition")
    reader = topics.spark.read.format("dafka").options(**topics.options, subscribe=topic)
    assert_df_equality(reader.schema(chosen.schema).load(), chosen)


def test_bounds(topics: Topics, topic: str) -> None:
    address = topics.produce(topic, range(10))
    first, last, end = (json.dumps({topic: {address: offset}}) for offset in (3, 7, -1))
    frame = topics.batch(topic, startingOffsets=first, endingOffsets=last)
    assert texts(frame.collect()) == ["3", "4", "5", "6"]
    assert topics.batch(topic, startingOffsets=first, endingOffsets=end).count() == 7
    # Trap: Spark makes ``InputPartition(None)`` of a batch without partitions.
    assert topics.batch(f"{topic}-missing", failOnMissingTopic=False).count() == 0


def test_ranges_are_split(topics: Topics, topic: str) -> None:
    topics.produce(topic, range(1000))
    topics.produce(topic, range(1000, 1010))
    for options, tasks in (
        ({}, 2),
        ({"minPartitions": 6}, 6),
        ({"maxRecordsPerPartition": 100}, 11),
    ):
        frame = topics.batch(topic, **options)
        assert frame.rdd.getNumPartitions() == tasks
        assert sorted(int(row["value"]) for row in frame.collect()) == [*range(1010)]


def test_choices_of_topics(topics: Topics, topic: str) -> None:
    first = topics.produce(topic, ["a"])
    topics.produce(topic, ["b"])
    topics.produce(topic + "2", ["c"])  # the other topic's name is a prefix of this one
    for options, values in {
        ("subscribe", topic): ["a", "b"],
        ("subscribe", f"{topic}, {topic}2"): ["a", "b", "c"],
        ("subscribePattern", f"{topic}."): ["c"],
        ("assign", json.dumps({topic: [first]})): ["a"],
    }.items():
        assert texts(topics.batch(**dict([options])).collect()) == values


def test_where_selects_the_same_rows_as_spark(topics: Topics, topic: str) -> None:
    rows = [
        (None, b"plain"),
        ("a", b"one"),
        ("b", b"two\nlines"),
        ("b", None),
        ("é", "naïve, 100%".encode()),
        ("", b"\xff"),
    ]
    topics.save(
        topics.spark.createDataFrame(rows, "key string, value binary").coalesce(1), topic=topic
    )
    every = topics.batch(topic)
    for text in (
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
    ):
        wanted, found = (
            sorted(row["offset"] for row in frame.select("offset").collect())
            for frame in (every.where(text), topics.batch(topic, where=text))
        )
        assert found == wanted, text


def test_metadata_are_frames_like_others(topics: Topics, topic: str) -> None:
    addresses = {topics.produce(topic, range(count)): count for count in (3, 4)}
    frame = topics.batch(topic, metadata="partitions").where("records > 2")
    rows = frame.select("partition", "end", "size_bytes").collect()
    assert {row["partition"]: row["end"] for row in rows} == addresses
    assert all(row["size_bytes"] > 0 for row in rows)
