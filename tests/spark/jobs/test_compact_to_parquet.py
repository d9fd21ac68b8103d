"""Topics as one file for each day."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

from chispa import assert_df_equality
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from dafka_core import EmbeddedCluster, Producer
from dafka_spark.jobs import compact_to_parquet
from tests.spark.jobs.programs import until_done

DAY = dt.datetime(2025, 11, 23, 23, 59, tzinfo=dt.UTC)


def test_each_day_has_one_file_with_each_record_once(
    session: SparkSession, cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    def publish(*minutes: int) -> None:
        with Producer("daily", tower=cluster.tower) as producer:
            for each in minutes:
                time = DAY + dt.timedelta(minutes=each)
                producer.publish(b"%d" % each, key=b"k", headers=[("h", b"1")], timestamp=time)
            producer.flush(30)

    def compact(checkpoint: str) -> None:
        places = (f"--output={tmp_path / 'days'}", f"--checkpoint={tmp_path / checkpoint}")
        limit = "--max-offsets-per-trigger=3"
        arguments = compact_to_parquet.parse(
            [f"--tower={cluster.tower}", "--topic=daily", limit, *places, "--available-now"]
        )
        until_done(compact_to_parquet.build_writer(session, arguments), arguments)

    publish(0, 1, 2, 3)  # the first is the day's last
    compact("checkpoint")
    publish(-1, 4)  # the first is late
    compact("another")  # it reads all again

    files = sorted((tmp_path / "days").rglob("*.parquet"))
    assert [path.parent.name for path in files] == ["day=2025-11-23", "day=2025-11-24"]
    kept = session.read.parquet(str(tmp_path / "days"))
    assert {row.day.day: row["count"] for row in kept.groupBy("day").count().collect()} == {
        23: 2,
        24: 4,
    }
    reader = session.read.format("dafka").option("tower", cluster.tower)
    source = reader.option("subscribe", "daily").option("includeHeaders", "true").load()
    columns = [sf.col(name) for name in source.columns]
    assert_df_equality(kept.select(columns), source, ignore_row_order=True, ignore_nullable=True)
