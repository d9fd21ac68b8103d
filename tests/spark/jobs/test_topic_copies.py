"""A topic as files, and copied to another topic."""

import json
import os
import signal
import zipfile
from collections.abc import Callable
from itertools import chain
from pathlib import Path

import pyspark
import pytest
import topic_to_parquet
import topic_to_topic
from chispa import assert_df_equality
from demo.replay_flights import load_flights
from pyspark.sql import SparkSession

from dafka_core import ConfigError, EmbeddedCluster, Producer
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
    rows = topic_to_parquet.as_text(source).select(kept.columns)
    assert_df_equality(kept, rows, ignore_row_order=True, ignore_nullable=True)
    # Spark would take this checkpoint's first batch for written.
    another = [*command[4:-2], f"--checkpoint={tmp_path / 'another'}", command[-1]]
    with pytest.raises(ConfigError, match=r"'output' .* has batches up to 0 that this checkpoint"):
        topic_to_parquet.main(another)


@pytest.fixture
def copy(
    session: SparkSession, cluster: EmbeddedCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., None]:
    """Run ``topic_to_topic`` in this process."""
    monkeypatch.setattr(SparkSession, "stop", lambda _: None)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    given = f"--tower={cluster.tower}", "--available-now", f"--checkpoint={tmp_path / 'checkpoint'}"
    return lambda *arguments: topic_to_topic.main([*given, *arguments])


def test_topic_to_topic_keeps_keys_headers_and_null_values(
    session: SparkSession,
    cluster: EmbeddedCluster,
    copy: Callable[..., None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    with Producer("with_keys", tower=cluster.tower) as producer:
        producer.publish(b"v", b"k", [("h", b"1"), ("n", None)])
        producer.publish(None, b"gone")
        producer.publish(b"plain")
    copy("--topic=with_keys", "--to=keys_kept")
    reader = session.read.format("dafka").option("tower", cluster.tower)
    keyed, copied = (
        reader.option("includeHeaders", "true")
        .option("subscribe", topic)
        .load()
        .select("key", "value", "headers")
        for topic in ("with_keys", "keys_kept")
    )
    assert_df_equality(copied, keyed, ignore_row_order=True)
    assert "no record left" not in capsys.readouterr().err
    copy("--topic=with_keys", "--to=never_written")
    assert "checkpoint has no record left to read; another output needs" in capsys.readouterr().err


def test_topic_to_topic_copies_what_is_asked_for(
    session: SparkSession, cluster: EmbeddedCluster, copy: Callable[..., None]
) -> None:
    copy(
        *("--topic=flights", "--to=late", "--where=get_json_object(text, '$.dep_delay_min') > 60"),
        "--value=get_json_object(text, '$.tailnum')",
    )
    flights = [json.loads(value) for value in load_flights(FLIGHTS).values]
    expected = [f["tailnum"].encode() for f in flights if (f["dep_delay_min"] or 0) > 60]
    assert len(expected) > 50
    assert values_of(read_topic(session, cluster, "late")) == sorted(expected)
