"""A topic in two clusters."""

import datetime as dt
from functools import partial
from pathlib import Path

import mirror
import pyarrow as pa
import pytest
from chispa import assert_df_equality
from mirror import MirroredPartition
from pyspark.sql import DataFrame, SparkSession

from dafka_core import ConfigError, EmbeddedCluster, Producer, Reader
from dafka_core.archive.archive import SCHEMA
from dafka_core.config.node_options import SecurityOptions
from dafka_core.flight.requests import TrimRequest
from dafka_core.flight.store_client import StoreClient
from dafka_core.flight.store_location import StoreLocation
from dafka_core.model.records import TopicPartition
from dafka_core.security.key_files import own_prefix
from dafka_spark.job_support import JobError
from tests.forked import ForkedCluster
from tests.spark.jobs.programs import until_done


def test_a_mirror_has_each_record_once_as_it_is(
    session: SparkSession, cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    def run(tower: str, checkpoint: str) -> None:
        arguments = mirror.parse(
            [
                *(f"--tower={cluster.tower}", f"--to-tower={tower}", "--available-now"),
                *("--topic-pattern=mirrored-.*", f"--checkpoint={tmp_path / checkpoint}"),
                "--max-offsets-per-trigger=4",
            ]
        )
        until_done(mirror.build_writer(session, arguments), arguments)

    def records(tower: str) -> DataFrame:
        reader = session.read.format("dafka").option("tower", tower)
        return reader.options(subscribePattern="mirrored-.*", includeHeaders="true").load()

    time = dt.datetime(2025, 11, 24, 12, tzinfo=dt.UTC)
    with ForkedCluster() as there, Producer("mirrored-a", tower=cluster.tower) as producer:
        for number in range(6):
            producer.publish(b"%d" % number, timestamp=time + dt.timedelta(seconds=number // 2))
        producer.publish(None, key=b"k", headers=[("h", b"1"), ("h", b"2")])
        producer.flush(30)
        with Producer("mirrored-b", tower=cluster.tower) as other:
            other.publish(b"b")
        run(there.tower, "checkpoint")
        producer.publish(b"more")
        producer.flush(30)
        run(there.tower, "another")  # it reads all again
        assert records(there.tower).count() == 9
        assert_df_equality(records(there.tower), records(cluster.tower), ignore_row_order=True)


@pytest.mark.parametrize(
    "chosen", ["--topic=a", "--topic-pattern=.*", r"--topic=a --to-topic=\x61"]
)
def test_a_topic_is_not_mirrored_to_itself(cluster: EmbeddedCluster, chosen: str) -> None:
    other = cluster.tower.replace("127.0.0.1", "localhost")  # the same tower by another name
    arguments = [f"--tower={cluster.tower}", f"--to-tower={other}", "--checkpoint=c"]
    with pytest.raises(ConfigError, match=r"'to-tower' .* is the cluster that is read"):
        mirror.main([*arguments, *chosen.split()])


def mirrored(tower: str, tp: TopicPartition, start: int, *values: bytes, **keys: str) -> int:
    """Add records to a copy; return the number of new ones."""
    rows = [
        {"value": value, "partition": "", "offset": start + number, "timestamp": 1_000_000}
        for number, value in enumerate(values)
    ]
    with MirroredPartition(tower, tp, 1, keys) as copied:
        copied.add(pa.RecordBatch.from_pylist(rows, SCHEMA))
        return copied.finish()


def test_records_that_do_not_continue_the_copy_are_refused(
    cluster: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    tp = TopicPartition("copied", "A" * 32)
    add = partial(mirrored, cluster.tower, tp)
    with pytest.raises(JobError, match="next record is of offset 5, and the copy ends at 0"):
        add(5, b"x")
    assert add(0, b"0", b"1", b"2") == 3
    assert add(1, b"1", b"2", b"3") == 1
    with pytest.raises(JobError, match="has other records from offset 1"):
        add(1, b"1", b"other")
    assert add(4, b"4") == 1
    with StoreClient(StoreLocation("", cluster.locations(0))) as store:
        store.ask(20, TrimRequest(((*tp, 2),)))
    assert add(0, b"gone", b"gone", b"2", b"3", b"4", b"5") == 1
    assert add(0, b"gone") == 0
    monkeypatch.setattr(Reader, "partitions", lambda *_, **__: [])  # its stores are unreachable now
    with pytest.raises(JobError, match="has 6 records already, and no reachable store there has"):
        add(0, b"gone")
    with pytest.raises(JobError, match="a C producer writes it"):
        mirrored(cluster.tower, TopicPartition("copied", "c-name"), 0)


def test_a_copy_in_a_cluster_with_keys_is_continued() -> None:
    with ForkedCluster(keys=True) as there:
        keys = there.key()
        tp = TopicPartition("copied", own_prefix(SecurityOptions.build(keys)).ljust(32, "A"))
        assert mirrored(there.tower, tp, 0, b"0", b"1", **keys) == 2
        assert mirrored(there.tower, tp, 0, b"0", b"1", b"2", **keys) == 1
