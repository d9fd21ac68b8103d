"""The same code as batch and as stream."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from dafka_core import EmbeddedCluster
from dafka_spark import read_dafka, write_dafka
from tests.spark.topics import TIMEOUT_S, texts


def test_one_call_reads_and_one_writes_batches_and_streams(
    spark: SparkSession, cluster: EmbeddedCluster, topic: str, tmp_path: Path
) -> None:
    tower = cluster.tower
    numbers = spark.range(5).selectExpr("cast(id as string) as value")
    assert write_dafka(numbers, topic, tower=tower) is None
    for stream in (False, True):
        copy = f"{topic}, {stream}"  # names are taken as they are
        frame = read_dafka(spark, topic, stream=stream, tower=tower, starting_offsets="earliest")
        query = write_dafka(
            frame.select("value"),
            copy,
            tower=tower,
            checkpoint=str(tmp_path),
            trigger={"availableNow": True},
            query_name="copying",
        )
        assert (query is not None) == stream
        if query is not None:
            assert query.name == "copying"
            assert query.awaitTermination(TIMEOUT_S)
        assert texts(read_dafka(spark, copy, tower=tower).collect()) == list("01234")
    with pytest.raises(PySparkException, match="did you mean 'startingOffsets'"):
        read_dafka(spark, topic, starting_offset="earliest")
