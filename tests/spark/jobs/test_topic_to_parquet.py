"""A topic as files."""

from __future__ import annotations

import os
import zipfile
from itertools import chain
from pathlib import Path

import pyspark
from chispa import assert_df_equality
from pyspark.sql import SparkSession
from topic_to_parquet import as_text

from dafka_core import EmbeddedCluster
from tests.spark.jobs.programs import FLIGHTS, JOBS, ROOT, read_topic, run

SPARK_SUBMIT = str(Path(pyspark.__file__).parent / "bin" / "spark-submit")


def test_topic_to_parquet_keeps_every_record_once(
    session: SparkSession, cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    """By spark-submit, with the packages as a zip."""
    packages = tmp_path / "packages.zip"
    with zipfile.ZipFile(packages, "w") as archive:
        for path in chain(ROOT.glob("dafka_*/**/*.py"), ROOT.glob("pyspark_dafka/*.py")):
            archive.write(path, path.relative_to(ROOT))
    command = [
        *(SPARK_SUBMIT, "--conf=spark.ui.enabled=false", f"--py-files={packages}"),
        *(str(JOBS / "topic_to_parquet.py"), "--topic=flights", "--text", "--available-now"),
        *(f"--tower={cluster.tower}", f"--checkpoint={tmp_path / 'checkpoint'}"),
        f"--output={tmp_path / 'files'}",
    ]
    environment = {**os.environ, "PYTHONPATH": str(packages)}
    (batch,) = run(*command, cwd=tmp_path, env=environment)
    assert batch["records"] == FLIGHTS
    kept = session.read.parquet(str(tmp_path / "files"))
    assert kept.where("timestamp is null").count() == 0
    source = read_topic(session, cluster, "flights")
    rows = as_text(source).select(kept.columns)
    assert_df_equality(kept, rows, ignore_row_order=True, ignore_nullable=True)
