"""Lag, as rows, as files and in print."""

import json
import re
from pathlib import Path

import lag_report
import pytest
from pyspark.sql import SparkSession

from dafka_core import EmbeddedCluster
from dafka_core.testing import wait_until
from dafka_spark.job_support import JobError


def test_the_lag_of_queries_is_told_and_kept(
    session: SparkSession,
    cluster: EmbeddedCluster,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def told(*arguments: str) -> str:
        given = lag_report.parse([f"--tower={cluster.tower}", *arguments])
        lag_report.report(lag_report.lags(session, given), given)
        return capsys.readouterr().out

    reader = session.readStream.format("dafka").option("tower", cluster.tower)
    reader = reader.option("subscribe", "flights").option("queryName", "behind")
    query = (
        reader.option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 1_000)
        .load()
        .writeStream.format("noop")
        .trigger(processingTime="1 hour")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    try:
        files = f"--output={tmp_path / 'lag'}"
        wait_until(lambda: '"behind"' in told("--json"))
        (row,) = map(json.loads, told("--json", "--query=behind", files).splitlines())
        assert (row["state"], row["partitions"]) == ("running", 3)
        partitions = [*map(json.loads, told("--json", "--partitions").splitlines())]
        assert sum(each["records_behind"] for each in partitions) == row["records_behind"]
        assert re.search(r"\| *behind *\|", told(files))
        kept = session.read.parquet(str(tmp_path / "lag")).where("query = 'behind'").collect()
        assert [each.records_behind for each in kept] == [row["records_behind"]] * 2
        assert kept[0]["at"] != kept[1]["at"]
        with pytest.raises(JobError, match=r"'behnid' has not reported .* mean 'behind'"):
            told("--query=behnid")
    finally:
        query.stop()
