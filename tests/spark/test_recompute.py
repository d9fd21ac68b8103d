"""Rows of micro-batches that Spark recomputes."""

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
    kept = rows.where(rows["value"].cast("string").cast("int") % 2 == 0)
    return kept.select("value", lit(word.encode()).alias("key"))


def test_rows_are_compared_with_those_that_the_query_makes_now(
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
    other = "recomputed from its source are 2 rows, and stores have 2 others"
    for function, whys in ((query, [""] * 3), (partial(query, word="odd"), [other])):
        recompute = recomputed(spark, own, function, {"tower": cluster.tower}, {})
        with store_client(cluster) as client:
            found = verified([client], own, recompute, timeout_s=TIMEOUT_S)
            assert [each.why for each in found] == whys
    failing = recomputed(spark, own, query, {"tower": cluster.tower, "fetch": "no"}, {})
    with pytest.raises(DafkaError, match="the rows of batch 1 cannot be recomputed"):
        failing(1)
    verify(str(tmp_path / "c"), query=f"{__name__}:query", tower=cluster.tower)
    assert "5 rows of 3 batches are as they were written" in capfd.readouterr().err
