"""Rows of micro-batches, made anew as batches."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import lit

from dafka_core import EmbeddedCluster
from dafka_core.audit.verification import verified
from dafka_core.cli.checkpoint_commands import verify
from dafka_core.errors import DafkaError
from dafka_core.queries.checkpoint import Checkpoint
from dafka_spark.recompute import recomputed
from tests.spark.topics import TIMEOUT_S, produce, send, store_client, stream


def query(rows: DataFrame, word: str = "even") -> DataFrame:
    """What a job does with its rows, in batches and streams."""
    kept = rows.where(rows["value"].cast("string").cast("int") % 2 == 0)
    return kept.select("value", lit(word.encode()).alias("key"))


def test_rows_are_made_anew_by_what_the_query_does(
    spark: SparkSession,
    cluster: EmbeddedCluster,
    topic: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    produce(cluster, topic, range(10))
    frame = query(stream(spark, cluster, subscribe=topic, maxOffsetsPerTrigger=4))
    send(frame, cluster, tmp_path / "c", topic=f"{topic}-out", audit=True)
    own = Checkpoint.read(str(tmp_path / "c"))
    for made_by, states in (
        (query, ["proved"] * 3),
        (partial(query, word="odd"), ["wrong"]),
    ):
        recompute = recomputed(spark, own, made_by, {"tower": cluster.tower}, {})
        with store_client(cluster) as client:
            found = [*verified([client], own, recompute, timeout_s=TIMEOUT_S)]
        assert [each.state for each in found] == states
    assert found[0].why == "made anew from the source it has 2 rows, and stores have 2 others"
    lost = recomputed(spark, own, query, {"tower": cluster.tower, "fetch": "no"}, {})
    with pytest.raises(DafkaError, match="the rows of batch 1 cannot be made anew"):
        lost(1)
    verify(str(tmp_path / "c"), query=f"{__name__}:query", tower=cluster.tower)
    assert "5 rows of 3 batches are as they were written" in capfd.readouterr().err
