"""A topic in two clusters."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest
from chispa import assert_df_equality
from pyspark.sql import DataFrame, SparkSession

from dafka_core import ConfigError, EmbeddedCluster, Producer
from dafka_spark.jobs import mirror
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
    ("arguments", "expected"),
    [
        (("--topic=a,b", "--to-topic=c"), "argument --to-topic: names the copy of one topic"),
        (("--topic-pattern=a.*", "--to-topic=c"), "argument --to-topic: names the copy of one"),
        (("--topic=a", "--topic-pattern=a"), "not allowed with argument --topic"),
    ],
)
def test_a_mirror_that_cannot_be_is_refused(
    arguments: tuple[str, ...], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        mirror.parse(["--to-tower=there", "--checkpoint=c", *arguments])
    assert expected in capsys.readouterr().err


@pytest.mark.parametrize("chosen", ["--topic=a", "--topic-pattern=.*"])
def test_a_topic_is_not_mirrored_to_itself(cluster: EmbeddedCluster, chosen: str) -> None:
    other = cluster.tower.replace("127.0.0.1", "localhost")  # the same one by another name
    arguments = [f"--tower={cluster.tower}", f"--to-tower={other}", "--checkpoint=c", chosen]
    with pytest.raises(ConfigError, match=r"'to-tower' .* is the cluster that is read"):
        mirror.main(arguments)
