"""Declarative pipelines: a topic is a source of datasets, and a sink of flows."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession

from dafka_core import EmbeddedCluster
from tests.pages import example
from tests.spark.test_connect import environment
from tests.spark.test_readme import PIPELINE
from tests.spark.topics import batch, produce, texts

RUN = Path(pyspark.__file__).parent / "bin" / "spark-pipelines"
CONF = " -Dspark.ui.enabled=false -Dspark.master=local[2] -Dspark.sql.shuffle.partitions=2"
SPEC = """
name: flights
storage: {storage}
libraries:
  - glob:
      include: definitions/**
"""


@pytest.mark.nightly
def test_the_example_of_a_pipeline(
    spark: SparkSession, cluster: EmbeddedCluster, topic: str, tmp_path: Path
) -> None:
    (tmp_path / "definitions").mkdir()
    text = example(*PIPELINE).replace("TOWER", repr(cluster.tower))
    text = text.replace('"topic": "copies"', f'"topic": "{topic}-copies"')
    text = text.replace('subscribe="flights"', f'subscribe="{topic}"')
    (tmp_path / "definitions" / "flights.py").write_text(text)
    spec = tmp_path / "spark-pipeline.yml"
    spec.write_text(SPEC.format(storage=(tmp_path / "storage").as_uri()))
    given = environment()
    given["SPARK_SUBMIT_OPTS"] = os.environ["SPARK_SUBMIT_OPTS"] + CONF
    produce(cluster, topic, range(100))
    done = subprocess.run(
        [str(RUN), "run"],
        cwd=tmp_path,
        env=given,
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    copied = texts(batch(spark, cluster, subscribe=f"{topic}-copies").collect())
    assert sorted(map(int, copied)) == list(range(100))
    (row,) = spark.read.parquet(str(tmp_path / "spark-warehouse" / "totals")).collect()
    assert row["count"] == 100
