"""Spark reads an archive: its files alone, and with the stores as one topic."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from chispa import assert_df_equality
from pyspark.sql import DataFrame, SparkSession

from dafka_core.archive.archive_writer import ArchiveWriter, Wanted
from dafka_core.model.envelope import closed
from dafka_core.model.names import text_of
from dafka_core.model.records import TopicPartition
from dafka_core.testing import StoreDouble
from tests.integration.archive.records import batch

A = TopicPartition(text_of(b"a/\xff=b"), "A" * 32)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[StoreDouble]:
    """A store with offsets 40 to 60; the archive has 0 to 50."""
    with StoreDouble(tmp_path / "store") as running:
        running.log.append([batch(A, 0, 55)])
        running.append(A, [closed(b"v", b"k", [("h", b"1")]), *[closed(None, b"k")] * 4])
        writer = ArchiveWriter(tmp_path / "archive", A.topic)
        writer.archive([Wanted(A, 0, 50)], lambda each: running.log.read(*each[:3]))
        yield running


def read(spark: SparkSession, store: StoreDouble, **options: str) -> DataFrame:
    reader = spark.read.format("dafka").options(subscribe=r"a/\xff=b", includeHeaders="true")
    return reader.options(stores=store.location.locations[0], **options).load()


def test_files_alone_and_as_one_topic(spark: SparkSession, store: StoreDouble) -> None:
    archive = str(store.directory.parent / "archive")
    before = read(spark, store).orderBy("offset").localCheckpoint()
    store.log.trim(A, 40)
    assert read(spark, store).count() == 20
    together = read(spark, store, archive=archive).orderBy("offset")
    assert_df_equality(together, before)
    alone = spark.read.parquet(archive).orderBy("offset")
    assert {row[0].isoformat() for row in alone.select("day").distinct().collect()} == {
        f"2026-01-0{day}" for day in (1, 2, 3)
    }
    assert_df_equality(
        alone.select(before.columns), before.where("offset < 50"), ignore_nullable=True
    )


def test_a_stream_begins_in_the_archive(
    spark: SparkSession, store: StoreDouble, tmp_path: Path
) -> None:
    store.log.trim(A, 50)
    options = {"subscribe": r"a/\xff=b", "startingOffsets": "earliest"}
    options |= {"archive": str(tmp_path / "archive"), "maxOffsetsPerTrigger": "35"}
    stream = spark.readStream.format("dafka").options(stores=store.location.locations[0], **options)
    query = (
        stream.load()
        .writeStream.format("parquet")
        .option("path", str(tmp_path / "out"))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    found = spark.read.parquet(str(tmp_path / "out")).select("offset").collect()
    assert sorted(row[0] for row in found) == list(range(60))
