"""A topic copied to another topic."""

from __future__ import annotations

import json
from pathlib import Path

from demo.replay_flights import load_flights
from pyspark.sql import SparkSession

from dafka_core import EmbeddedCluster
from tests.spark.jobs.programs import FLIGHTS, job, read_topic, values_of


def test_topic_to_topic_copies_what_is_asked_for(
    session: SparkSession, cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    job(
        "topic_to_topic.py",
        f"--tower={cluster.tower}",
        "--topic=flights",
        "--to=late",
        f"--checkpoint={tmp_path / 'checkpoint'}",
        "--where=get_json_object(text, '$.dep_delay_min') > 60",
        "--value=get_json_object(text, '$.tailnum')",
        "--available-now",
    )
    flights = [json.loads(value) for value in load_flights(FLIGHTS).values]
    expected = [f["tailnum"].encode() for f in flights if (f["dep_delay_min"] or 0) > 60]
    assert len(expected) > 50
    assert values_of(read_topic(session, cluster, "late")) == sorted(expected)
