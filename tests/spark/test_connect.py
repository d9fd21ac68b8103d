"""A client of Spark Connect, without a JVM, reads and writes as any session."""

from pathlib import Path

from tests.spark import drivers
from tests.spark.topics import Topics


def test_a_client_reads_and_writes_batches_and_streams(
    topics: Topics, topic: str, tmp_path: Path
) -> None:
    topics.produce(topic, range(100))
    found = drivers.printed(
        drivers.connect,
        topics.cluster.tower,
        topic,
        tmp_path,
        directory=tmp_path,
        variables={"SPARK_TESTING": "1"},  # the server's port is one that the system chooses
    )
    assert "did you mean 'startingOffsets'" in found.pop("refusal")
    assert found == {
        "client": "pyspark.sql.connect.session",
        "query": "copy",
        "stream": 200,
        "each": 200,
    }
