"""Streaming reads by a real Spark from a real cluster, through restarts and replays."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession

from benchmarks import processes
from dafka_core import EmbeddedCluster
from dafka_core.queries.source_offset import SourceOffset
from dafka_core.testing import wait_until
from tests.forked import ForkedCluster
from tests.spark.topics import TIMEOUT_S, produce, produce_many, run, stream, texts


def committed(checkpoint: Path) -> list[dict[str, Any]]:
    """The source's offsets of each batch."""
    files = sorted(
        (path for path in (checkpoint / "offsets").iterdir() if path.name.isdigit()),
        key=lambda path: int(path.name),
    )
    return [json.loads(path.read_text().splitlines()[2]) for path in files]


def test_a_query_goes_on_where_it_stopped(
    spark: SparkSession, cluster: EmbeddedCluster, topic: str, tmp_path: Path
) -> None:
    seen: list[Row] = []
    address = produce(cluster, topic, range(10))
    run(stream(spark, cluster, subscribe=topic), tmp_path, seen.extend)
    assert texts(seen) == sorted(map(str, range(10)))
    produce(cluster, topic, range(10, 15), address)
    produce(cluster, topic, ["new"])
    seen.clear()
    query = run(stream(spark, cluster, subscribe=topic), tmp_path, seen.extend)
    assert texts(seen) == ["10", "11", "12", "13", "14", "new"]
    progress = query.lastProgress
    assert progress is not None
    assert progress["sources"][0]["numInputRows"] == 6
    offset = committed(tmp_path)[-1]
    assert offset["topics"][topic][address] == 15
    assert json.loads(progress["sources"][0]["latestOffset"])["topics"] == (offset["topics"])


def test_a_query_of_many_partitions_goes_on_where_it_stopped(
    spark: SparkSession, cluster: EmbeddedCluster, topic: str, tmp_path: Path
) -> None:
    """Their offsets are packed, and a few tasks read them all."""
    produce_many(cluster, topic, 300, 2)
    seen: list[Row] = []
    run(stream(spark, cluster, subscribe=topic), tmp_path, seen.extend)
    assert texts(seen) == ["0"] * 300 + ["1"] * 300
    seen.clear()
    produce(cluster, topic, ["new"], seen_in(committed(tmp_path)[-1])[0])
    produce_many(cluster, topic, 1, 1)
    query = run(stream(spark, cluster, subscribe=topic), tmp_path, seen.extend)
    assert texts(seen) == ["0", "new"]
    offset = committed(tmp_path)[-1]
    assert (offset["partitions"], offset["records"]) == (301, 602)
    assert len(json.dumps(offset)) < 301 * 35
    progress = query.lastProgress
    assert progress is not None
    reported = json.loads(progress["sources"][0]["latestOffset"])
    assert (reported["partitions"], reported["records"]) == (301, 602)
    assert reported["lag"]["maxOffsetsBehindLatest"] == 0


def seen_in(offset: dict[str, Any]) -> list[str]:
    """The partitions of an offset."""
    return [tp.partition for tp in SourceOffset.parse(offset).positions]


def test_a_limit_is_shared_fairly(
    spark: SparkSession, cluster: EmbeddedCluster, topic: str, tmp_path: Path
) -> None:
    big = produce(cluster, topic, range(400))
    small = produce(cluster, topic, range(4))
    batches: list[list[Row]] = []
    frame = stream(spark, cluster, subscribe=topic, maxOffsetsPerTrigger=101)
    run(frame, tmp_path, batches.append)
    assert [len(rows) for rows in batches] == [101, 101, 101, 101]
    for rows in batches[:2]:
        assert {row["partition"] for row in rows} == {small, big}


def test_everything_available_is_obeyed(
    spark: SparkSession, cluster: EmbeddedCluster, topic: str, tmp_path: Path
) -> None:
    """Trap: ``Trigger.Once`` asks for everything, whatever the limit."""
    produce(cluster, topic, range(50))
    batches: list[list[Row]] = []
    frame = stream(spark, cluster, subscribe=topic, maxOffsetsPerTrigger=10)
    run(frame, tmp_path, batches.append, once=True)
    assert [len(rows) for rows in batches] == [50]


def test_available_now_ends_though_partitions_appear(
    spark: SparkSession, cluster: EmbeddedCluster, topic: str, tmp_path: Path
) -> None:
    """Trap: heads and partitions are frozen, or the query might never end."""
    first = produce(cluster, topic, range(30))
    batches: list[list[Row]] = []

    def grow(rows: list[Row]) -> None:
        batches.append(rows)
        produce(cluster, topic, range(30), first)
        produce(cluster, topic, range(30))

    frame = stream(spark, cluster, subscribe=topic, maxOffsetsPerTrigger=10)
    run(frame, tmp_path / "c", grow)
    assert [len(rows) for rows in batches] == [10, 10, 10]
    assert {row["partition"] for rows in batches for row in rows} == {first}
    seen: list[Row] = []
    run(stream(spark, cluster, subscribe=topic), tmp_path / "c", seen.extend)
    assert len(seen) == 6 * 30
    assert len({row["partition"] for row in seen}) == 4


def test_batch_zero_is_replayed_as_it_was_with_latest(
    spark: SparkSession, cluster: EmbeddedCluster, topic: str, tmp_path: Path
) -> None:
    """Trap: Spark keeps no initial offset of a Python source; a replay asks for it again."""
    address = produce(cluster, topic, range(10))
    frame = stream(spark, cluster, subscribe=topic, startingOffsets="latest")

    def fail(rows: DataFrame, _: int) -> None:
        if rows.count():
            raise RuntimeError("on purpose")

    query = frame.writeStream.foreachBatch(fail).option("checkpointLocation", str(tmp_path)).start()
    try:
        query.processAllAvailable()  # batch 0 is empty or not begun: "latest" is fixed
        produce(cluster, topic, range(10, 15), address)
        with pytest.raises(PySparkException, match=r"on purpose"):
            query.awaitTermination(TIMEOUT_S)
    finally:
        query.stop()
    # Make the failed batch the first one, as after a crash in it.
    last = committed(tmp_path)[-1]
    assert last["topics"] == {topic: {address: 15}}
    offsets = tmp_path / "offsets"
    name = str(len(committed(tmp_path)) - 1)
    if name != "0":
        (offsets / name).replace(offsets / "0")
        for leftover in [*offsets.glob(f".{name}.crc"), *offsets.glob(".0.crc")]:
            leftover.unlink()
        for commit in (tmp_path / "commits").iterdir():
            commit.unlink()
    produce(cluster, topic, range(15, 35), address)
    seen: list[Row] = []
    frame = stream(spark, cluster, subscribe=topic, startingOffsets="latest")
    run(frame, tmp_path, seen.extend)
    assert texts(seen) == sorted(map(str, range(10, 35)))


def test_an_idle_query_makes_no_batches(
    spark: SparkSession, cluster: EmbeddedCluster, topic: str, tmp_path: Path
) -> None:
    """Trap: offsets are compared as text; another order of keys looks like new data."""
    for number in range(4):
        produce(cluster, topic, [number])
    looks: list[int] = []
    query = (
        stream(spark, cluster, subscribe=topic)
        .writeStream.foreachBatch(lambda rows, _: looks.append(rows.count()))
        .option("checkpointLocation", str(tmp_path))
        .trigger(processingTime="50 milliseconds")
        .start()
    )
    try:
        query.processAllAvailable()
        for _ in range(3):
            query.processAllAvailable()
        produce(cluster, topic, ["later"])
        query.processAllAvailable()
    finally:
        query.stop()
    assert [count for count in looks if count] == [4, 1]
    assert len(looks) == 2
    assert [list(offset) for offset in committed(tmp_path)] == [
        ["lives", "start", "topics", "version"]
    ] * 2


def test_an_idle_query_hears_of_records_and_ends_with_its_process(
    spark: SparkSession, cluster: EmbeddedCluster, topic: str, tmp_path: Path
) -> None:
    """Its Python process waits at the store when the record comes, and when the query stops."""
    others = source_runners()
    address = produce(cluster, topic, ["0"])
    seen: list[str] = []
    query = (
        stream(spark, cluster, subscribe=topic)
        .writeStream.foreachBatch(lambda rows, _: seen.extend(texts(rows.collect())))
        .option("checkpointLocation", str(tmp_path))
        .start()
    )

    def send_to_idle_query(number: int) -> None:
        query.processAllAvailable()  # there is nothing new, and it waits from now on
        produce(cluster, topic, [number], address)
        wait_until(lambda: len(seen) == number + 1)

    try:
        query.processAllAvailable()
        for number in (1, 2, 3):
            send_to_idle_query(number)
        query.processAllAvailable()
    finally:
        query.stop()
    assert seen == list("0123")
    assert query.exception() is None
    wait_until(lambda: source_runners() <= others)


def source_runners() -> set[int]:
    """The processes of streaming sources."""
    return set(processes.named("python_streaming_source_runner"))


def test_a_pattern_finds_new_topics(
    spark: SparkSession, cluster: EmbeddedCluster, topic: str, tmp_path: Path
) -> None:
    produce(cluster, topic + "-a", ["a"])
    produce(cluster, topic + "-a-not", ["x"])
    frame = stream(spark, cluster, subscribePattern=f"{topic}-[ab]")
    seen: list[Row] = []
    run(frame, tmp_path, seen.extend)
    produce(cluster, topic + "-b", ["b"])
    run(frame, tmp_path, seen.extend)
    assert texts(seen) == ["a", "b"]


def test_large_partitions_are_split(
    spark: SparkSession, cluster: EmbeddedCluster, topic: str, tmp_path: Path
) -> None:
    produce(cluster, topic, range(100))
    frame = stream(spark, cluster, subscribe=topic, maxRecordsPerPartition=30)
    seen: list[Row] = []
    tasks: list[int] = []

    def look(rows: DataFrame, _: int) -> None:
        tasks.append(rows.rdd.getNumPartitions())
        seen.extend(rows.collect())

    query = (
        frame.writeStream.foreachBatch(look)
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(TIMEOUT_S)
    assert tasks == [4]
    assert texts(seen) == sorted(map(str, range(100)))


def test_wrong_options_are_refused(
    spark: SparkSession, cluster: EmbeddedCluster, topic: str, tmp_path: Path
) -> None:
    with pytest.raises(PySparkException, match=r"did you mean 'maxOffsetsPerTrigger'"):
        stream(spark, cluster, subscribe=topic, maxOffsetPerTrigger=3)
    says = r"'endingOffsets'.*is for batch queries only"
    with pytest.raises(PySparkException, match=says) as refused:
        run(stream(spark, cluster, subscribe=topic, endingOffsets="latest"), tmp_path, print)
    assert "UnboundLocalError" not in str(refused.value)


@pytest.fixture
def lost(spark: SparkSession, topic: str, tmp_path: Path) -> Any:
    """A query has read 10 records; the stores it goes on with have 3 of that partition."""
    seen: list[Row] = []
    with ForkedCluster() as before:
        address = produce(before, topic, range(10))
        run(stream(spark, before, subscribe=topic), tmp_path / "c", seen.extend)
    with ForkedCluster() as after:
        produce(after, topic, range(3), address)
        produce(after, topic, ["other"])
        yield after


def test_lost_records_fail_the_query(
    spark: SparkSession, lost: EmbeddedCluster, topic: str, tmp_path: Path
) -> None:
    frame = stream(spark, lost, subscribe=topic, fetchTimeoutMs=3000)
    says = r"\[DAFKA_STORE_LOST_DATA\] .*it ends at 3 now.*set option failOnDataLoss"
    with pytest.raises(PySparkException, match=says):
        run(frame, tmp_path / "c", print)


def test_lost_records_are_left_out_on_demand(
    spark: SparkSession, lost: EmbeddedCluster, topic: str, tmp_path: Path
) -> None:
    seen: list[Row] = []
    frame = stream(spark, lost, subscribe=topic, fetchTimeoutMs=3000, failOnDataLoss=False)
    run(frame, tmp_path / "c", seen.extend)
    assert texts(seen) == ["other"]
