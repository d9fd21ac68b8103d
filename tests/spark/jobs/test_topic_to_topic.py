"""A topic copied to another topic."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
import topic_to_topic
from demo.replay_flights import load_flights
from pyspark.sql import SparkSession

from dafka_core import EmbeddedCluster
from tests.spark.jobs.programs import FLIGHTS, read_topic, values_of


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
