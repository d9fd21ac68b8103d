"""Streaming reads by a real Spark from a real cluster, and the lag that a query reports."""

import json
import logging
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as sf

from benchmarks import processes
from dafka_core.testing import wait_until
from dafka_spark import LagListener
from tests.spark.topics import Topics, forget_last_commit, run, source_offsets, start, texts


def test_a_query_continues_from_its_checkpoint(topics: Topics, topic: str, tmp_path: Path) -> None:
    """Meanwhile a partition has grown, and a topic has begun which the pattern matches."""
    address = topics.produce(f"{topic}-a", range(10))
    topics.produce(f"{topic}-a-not", ["x"])
    frame = topics.stream(subscribePattern=f"{topic}-[ab]")
    seen: list[Row] = []
    run(frame, tmp_path, seen.extend)
    assert texts(seen) == [*map(str, range(10))]
    topics.produce(f"{topic}-a", range(10, 15), address)
    topics.produce(f"{topic}-b", ["new"])
    seen.clear()
    progress = run(frame, tmp_path, seen.extend).lastProgress
    assert texts(seen) == ["10", "11", "12", "13", "14", "new"]
    assert progress is not None
    source = progress["sources"][0]
    assert source["numInputRows"] == 6
    offset = json.loads(source_offsets(tmp_path)[-1])
    assert offset["topics"][f"{topic}-a"] == {address: 15}
    assert json.loads(source["latestOffset"])["topics"] == offset["topics"]


@pytest.mark.parametrize(
    ("starting", "count", "tasks"), [("latest", 0, set()), ("latest-25", 25, {0, 1})]
)
def test_the_first_batch_is_repeated_beside_new_records_and_partitions(
    topics: Topics, topic: str, tmp_path: Path, starting: str, count: int, tasks: set[int]
) -> None:
    """Trap: Spark keeps no initial offset of a Python source; a repetition requests it again."""
    address = topics.produce(topic, range(40))
    frame = topics.stream(topic, startingOffsets=starting, maxRecordsPerPartition=15)
    numbered = frame.select(sf.spark_partition_id().alias("task"), "partition", "offset", "value")
    batches: list[list[Row]] = []
    run(numbered, tmp_path, lambda rows: batches.append(sorted(rows)))
    [first] = batches
    assert len(first) == count
    assert {row["task"] for row in first} == tasks
    forget_last_commit(tmp_path)
    topics.produce(topic, range(40, 60), address)
    new = topics.produce(topic, range(5))
    batches.clear()
    run(numbered, tmp_path, lambda rows: batches.append(sorted(rows)))
    repeated, *others = batches
    assert repeated == first
    later = [row[1:3] for rows in others for row in rows]
    wanted = [(address, n) for n in range(40, 60)] + [(new, n) for n in range(5)]
    assert sorted(later) == sorted(wanted)


def test_available_now_has_a_fixed_end_and_a_fair_limit(
    topics: Topics, topic: str, tmp_path: Path
) -> None:
    """Trap: without a fixed end, the query might never end while records come."""
    big = topics.produce(topic, range(400))
    small = topics.produce(topic, range(4))
    batches: list[list[Row]] = []

    def grow(rows: list[Row]) -> None:
        batches.append(rows)
        topics.produce(topic, range(10), big)
        topics.produce(topic, range(10))

    frame = topics.stream(topic, maxOffsetsPerTrigger=101)
    run(frame, tmp_path, grow)
    assert [len(rows) for rows in batches] == [101, 101, 101, 101]
    assert [{row["partition"] for row in rows} for rows in batches[:2]] == [{small, big}] * 2
    batches.clear()
    # Trap: ``Trigger.Once`` requests all records, whatever the limit.
    run(topics.stream(topic, maxOffsetsPerTrigger=10), tmp_path, batches.append, once=True)
    assert [len(rows) for rows in batches] == [4 * 20]


def test_an_idle_query_reads_new_records_and_ends_with_its_process(
    topics: Topics, topic: str, tmp_path: Path
) -> None:
    """Its Python process waits at the store for records, and when the query stops.

    Trap: Spark compares offsets as text; another order of keys would be a batch without records.
    """

    def runners() -> set[int]:
        return set(processes.named("python_streaming_source_runner"))

    others = runners()
    address = topics.produce(topic, ["0"])
    topics.produce(topic, ["other"])
    batches: list[list[str]] = []

    def take(rows: DataFrame, _: int) -> None:
        batches.append(texts(rows.collect()))

    writer = topics.stream(topic).writeStream.foreachBatch(take)
    query = start(writer, tmp_path, processingTime="0 seconds")

    def produce(number: int) -> None:
        for _ in range(3):
            query.processAllAvailable()  # the query waits from now on
        topics.produce(topic, [number], address)
        wait_until(lambda: len(batches) == number + 1)

    try:
        for number in (1, 2, 3):
            produce(number)
        query.processAllAvailable()
    finally:
        query.stop()
    assert query.exception() is None
    assert batches == [["0", "other"], ["1"], ["2"], ["3"]]
    assert len(source_offsets(tmp_path)) == 4
    wait_until(lambda: runners() <= others)


def test_a_query_reports_its_lag_to_spark_a_listener_and_the_mesh(
    topics: Topics, topic: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    topics.produce(topic, range(10))
    listener = LagListener()
    topics.spark.streams.addListener(listener)
    name = f"of {topic}"
    try:
        with caplog.at_level(logging.INFO, "dafka_spark.lag"):
            frame = topics.stream(topic, maxOffsetsPerTrigger=4, queryName=name)
            query = run(frame, tmp_path, len)
            wait_until(lambda: caplog.text.count(f"query {query.id}, dafka: {topic}") >= 3)
    finally:
        topics.spark.streams.removeListener(listener)
    reports = [
        json.loads(source.latestOffset)
        for progress in query.recentProgress
        for source in progress.sources
        if progress.numInputRows
    ]
    assert [each["lag"]["maxOffsetsBehindLatest"] for each in reports] == [6, 2, 0]
    assert {each["source"] for each in reports} == {f"dafka: {topic} at {topics.cluster.tower}"}
    assert reports[0]["lag"]["estimatedTotalBytesBehindLatest"] > 0
    (last,) = listener.lags[str(query.id)]
    assert last["avgOffsetsBehindLatest"] == 0
    (row,) = topics.batch(metadata="queries").where(f"query = '{name}'").collect()
    assert (row["records_behind"], row["state"]) == (0, "finished")  # Spark has ended its process
