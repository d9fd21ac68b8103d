"""Row 12: JSON and Arrow decoded by the source, beside ``from_json`` on the same rows."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from benchmarks import spark_sessions
from benchmarks.bench_read import UNIT, WARM_UPS
from benchmarks.figures import Figure, compared
from benchmarks.harness import Bench
from dafka_core import EmbeddedCluster

FULL_RECORDS = 2_000_000

STREAM_ROWS = 1_000  # rows in an Arrow value; a JSON record is one row

DDL = "id BIGINT, name STRING, price DOUBLE, tags ARRAY<STRING>, at STRUCT<x: INT, y: INT>"
ROW = (
    "struct(id, concat('name-', id) AS name, id * 1.5D AS price, array('a', 'b') AS tags, "
    "struct(cast(id % 100 AS INT) AS x, 2 AS y) AS at)"
)
"""About 100 bytes as JSON."""

GOAL = 1.0


def run(bench: Bench) -> Iterator[Figure]:
    """Measure both formats beside the reference."""
    records = bench.part(FULL_RECORDS)
    with spark_sessions.session() as spark, EmbeddedCluster() as cluster:
        fill(spark, cluster, records)
        frames = {
            "json": typed(spark, cluster, "json"),
            "arrow": typed(spark, cluster, "arrow").selectExpr("inline(value)"),
            "from_json": parsed(spark, cluster),
        }
        sides = {
            side: partial(spark_sessions.rate, records, frame, "noop", {})
            for side, frame in frames.items()
        }
        name = "batch read of typed values"
        rates = bench.in_turns(name, sides, warm_ups=WARM_UPS)
    for side in "json", "arrow":
        figure = f"{name}, {side} beside from_json"
        yield compared(figure, rates[side], rates["from_json"], UNIT, GOAL)


def fill(spark: SparkSession, cluster: EmbeddedCluster, records: int) -> None:
    """Write the rows as JSON, and as Arrow streams."""
    rows = spark.range(0, records, 1, spark_sessions.SLOTS).selectExpr(f"{ROW} AS value", "id")
    streams = rows.groupBy(F.expr(f"id div {STREAM_ROWS}")).agg(
        F.collect_list("value").alias("value")
    )
    for form, frame in ("json", rows), ("arrow", streams):
        writer = frame.select("value").write.format("dafka").mode("append")
        writer.options(tower=cluster.tower, topic=form, valueFormat=form).save()


def typed(spark: SparkSession, cluster: EmbeddedCluster, form: str) -> DataFrame:
    """Return column ``value`` as the source decodes it."""
    reader = spark.read.format("dafka").options(tower=cluster.tower, subscribe=form)
    return reader.options(valueFormat=form, valueSchema=DDL).load().select("value")


def parsed(spark: SparkSession, cluster: EmbeddedCluster) -> DataFrame:
    """Return it as Spark decodes it."""
    frame = spark.read.format("dafka").options(tower=cluster.tower, subscribe="json").load()
    return frame.select(F.from_json(frame["value"].cast("string"), DDL).alias("value"))
