"""A topic as files, and copied to another topic."""

from __future__ import annotations

import json
import os
import signal
import zipfile
from itertools import chain
from pathlib import Path

import pyspark
import pytest
import topic_to_topic
from chispa import assert_df_equality
from demo.replay_flights import load_flights
from pyspark.sql import SparkSession
from topic_to_parquet import as_text

from dafka_core import EmbeddedCluster, Producer
from tests.spark.jobs.programs import FLIGHTS, JOBS, ROOT, read_topic, run, values_of

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


def test_topic_to_topic_keeps_keys_headers_and_null_values(
    session: SparkSession,
    cluster: EmbeddedCluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(SparkSession, "stop", lambda _: None)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    with Producer("with_keys", tower=cluster.tower) as producer:
        producer.publish(b"v", b"k", [("h", b"1"), ("n", None)])
        producer.publish(None, b"gone")
        producer.publish(b"plain")
    topic_to_topic.main(
        [
            *(f"--tower={cluster.tower}", "--topic=with_keys", "--to=keys_kept", "--available-now"),
            f"--checkpoint={tmp_path / 'checkpoint'}",
        ]
    )
    reader = session.read.format("dafka").option("tower", cluster.tower)
    keyed, copied = (
        reader.option("includeHeaders", "true")
        .option("subscribe", topic)
        .load()
        .select("key", "value", "headers")
        for topic in ("with_keys", "keys_kept")
    )
    assert_df_equality(copied, keyed, ignore_row_order=True)


def test_topic_to_topic_copies_what_is_asked_for(
    session: SparkSession,
    cluster: EmbeddedCluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(SparkSession, "stop", lambda _: None)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    topic_to_topic.main(
        [
            *(f"--tower={cluster.tower}", "--topic=flights", "--to=late", "--available-now"),
            f"--checkpoint={tmp_path / 'checkpoint'}",
            "--where=get_json_object(text, '$.dep_delay_min') > 60",
            "--value=get_json_object(text, '$.tailnum')",
        ]
    )
    flights = [json.loads(value) for value in load_flights(FLIGHTS).values]
    expected = [f["tailnum"].encode() for f in flights if (f["dep_delay_min"] or 0) > 60]
    assert len(expected) > 50
    assert values_of(read_topic(session, cluster, "late")) == sorted(expected)
