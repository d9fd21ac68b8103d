"""Sessions: pieces put together, and a query that writes each once."""

import json
from pathlib import Path

import sessionize
from pyspark.sql import SparkSession
from sessionize import merged

from dafka_core import EmbeddedCluster, Producer
from tests.spark.jobs.programs import read_topic, until_done

CLICK = "get_json_object(text, '$.{}')"


def test_pieces_less_than_the_gap_apart_are_one_session() -> None:
    assert merged([], 10) == []
    assert merged([(30, 30, 1), (0, 5, 2), (14, 14, 1)], 10) == [(0, 14, 3), (30, 30, 1)]
    assert merged([(0, 0, 1), (10, 10, 1)], 10) == [(0, 0, 1), (10, 10, 1)]
    assert merged([(0, 20, 2), (5, 5, 1), (29, 29, 1)], 10) == [(0, 29, 4)]


def test_each_session_is_written_once_and_late_records_are_counted(
    session: SparkSession, cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    clicks = [
        *(("ada", 110), ("ada", 100), ("bob", 105), ("ada", 200)),
        *(("cyd", 200), (None, 220), ("ada", 210), ("cyd", 220)),
        *(("ada", 120), ("cyd", 1_000)),  # the first is late, and begins no session
    ]
    with Producer("clicks", tower=cluster.tower) as producer:
        producer.publish_many([json.dumps({"who": who, "at": at}).encode() for who, at in clicks])
        producer.flush(30)
    arguments = sessionize.parse(
        [
            *(f"--tower={cluster.tower}", "--topic=clicks", "--to=sessions", "--available-now"),
            *(f"--checkpoint={tmp_path}", "--gap=30s", "--watermark=10s"),
            *("--max-offsets-per-trigger=4", f"--key={CLICK.format('who')}"),
            f"--time=timestamp_seconds(cast({CLICK.format('at')} as bigint))",
        ]
    )
    session.conf.set("spark.sql.shuffle.partitions", 1)  # each costs a Python for each batch
    batches = until_done(sessionize.build_writer(session, arguments), arguments)
    assert sum(each["late"] for each in batches) == 1
    assert sum(each["unusable"] or 0 for each in batches) == 1

    rows = read_topic(session, cluster, "sessions").collect()
    assert {bytes(row.key) for row in rows} == {b"ada", b"bob", b"cyd"}
    found = sorted((json.loads(row.value) for row in rows), key=lambda each: str(each["end"]))
    second = "1970-01-01T00:{:02}:{:02}.000Z".format
    assert found == [
        {"key": "bob", "start": second(1, 45), "end": second(1, 45), "records": 1},
        {"key": "ada", "start": second(1, 40), "end": second(1, 50), "records": 2},
        {"key": "ada", "start": second(3, 20), "end": second(3, 30), "records": 2},
        {"key": "cyd", "start": second(3, 20), "end": second(3, 40), "records": 2},
    ]
