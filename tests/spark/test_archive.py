"""Spark reads an archive: its files alone, and with the stores as one topic."""

from __future__ import annotations

from pathlib import Path

from chispa import assert_df_equality
from pyspark.sql import DataFrame, SparkSession

from dafka_core.archive.archive_writer import ArchiveWriter, Wanted
from dafka_core.model.envelope import closed
from dafka_core.model.names import text_of
from dafka_core.model.records import TopicPartition
from dafka_core.testing import StoreDouble
from tests.integration.archive.records import batch

A = TopicPartition(text_of(b"a/\xff=b"), "A" * 32)


def test_files_alone_and_as_one_topic(spark: SparkSession, tmp_path: Path) -> None:
    """The archive has offsets 0 to 50, and the store 40 to 60."""
    archive = str(tmp_path / "archive")
    with StoreDouble(tmp_path / "store") as store:
        store.log.append([batch(A, 0, 55)])
        store.append(A, [closed(b"v", b"k", [("h", b"1")]), *[closed(None, b"k")] * 4])
        writer = ArchiveWriter(tmp_path / "archive", A.topic)
        writer.archive([Wanted(A, 0, 50)], lambda each: store.log.read(*each[:3]))

        def read(**options: str) -> DataFrame:
            reader = spark.read.format("dafka").option("stores", store.location.locations[0])
            reader = reader.options(subscribe=r"a/\xff=b", includeHeaders="true", **options)
            return reader.load().orderBy("offset")

        before = read().localCheckpoint()
        store.log.trim(A, 40)
        assert read().count() == 20
        assert_df_equality(read(archive=archive), before)
    alone = spark.read.parquet(archive).orderBy("offset")
    days = {row[0].isoformat() for row in alone.select("day").distinct().collect()}
    assert days == {"2026-01-01", "2026-01-02", "2026-01-03"}
    archived = before.where("offset < 50")
    assert_df_equality(alone.select(before.columns), archived, ignore_nullable=True)
