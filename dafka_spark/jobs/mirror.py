r"""Copies topics to another cluster, as they are, every record exactly once.

    dafka job mirror --topic-pattern 'orders.*' --to-tower there.example --checkpoint DIR

A partition keeps its name, and each record its offset, key, value, headers and timestamp, so that a
reader's positions are right in both clusters.  The offsets also say what is there already: after a
crash, and with another checkpoint, that is compared and not written again.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from dafka_core import Reader
from dafka_core.archive.record_files import SCHEMA
from dafka_core.errors import ConfigError
from dafka_core.names import unescape
from dafka_core.node_options import NodeOptions
from dafka_core.records import TopicPartition
from dafka_core.security_options import keys_of_environment
from dafka_spark.jobs.support.grouped_batches import grouped
from dafka_spark.jobs.support.job_arguments import (
    JobParser,
    add_query_arguments,
    add_topic_arguments,
    duration_ms,
    positive,
    print_json,
)
from dafka_spark.jobs.support.job_exit import run_job
from dafka_spark.jobs.support.job_session import (
    build_session,
    check_options,
    read_topic,
    run_query,
)
from dafka_spark.jobs.support.mirrored_partition import MirroredPartition

ANSWER_S = 20.0
"""How long stores may take to be heard of."""

_DONE = pa.schema([("topic", pa.string()), ("partition", pa.string()), ("records", pa.int64())])
_DONE_SCHEMA = "topic string, partition string, records bigint"

Copy = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def copy_to(tower: str, topic: str | None, acks: int) -> Callable[[DataFrame, int], None]:
    """What to do with each micro-batch: one task adds to a partition's copy what is not there."""
    keys = keys_of_environment()  # the driver's: a task's may have none

    def copy(records: DataFrame, batch: int) -> None:
        partitions = records.select("topic", *SCHEMA.names).repartition("topic", "partition")
        ordered = partitions.sortWithinPartitions("topic", "partition", "offset")
        ordered.mapInArrow(_copier(tower, topic, acks, keys), _DONE_SCHEMA).collect()

    return copy


def _copier(tower: str, target: str | None, acks: int, keys: Mapping[str, str]) -> Copy:
    def copy(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for (topic, partition), found in grouped(batches, ("topic", "partition")):
            tp = TopicPartition(target or unescape(topic), unescape(partition))
            with MirroredPartition(tower, tp, acks, keys) as copied:
                for records in found:
                    copied.add(records)
                count = copied.finish()
            row = {"topic": [topic], "partition": [partition], "records": [count]}
            yield pa.RecordBatch.from_pydict(row, _DONE)

    return copy


def build_writer(session: SparkSession, arguments: argparse.Namespace) -> DataStreamWriter:
    """The query, not started yet."""
    records = read_topic(session, arguments.topic, arguments, includeHeaders="true")
    writer = records.writeStream.queryName("mirror")
    writer = writer.trigger(processingTime=f"{arguments.every} milliseconds")
    return writer.foreachBatch(copy_to(arguments.to_tower, arguments.to_topic, arguments.acks))


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the job; prints a line of JSON for every batch."""
    arguments = parse(argv)
    check_options(arguments)
    _check_other_cluster(arguments)
    session = build_session("mirror")
    run_query(build_writer(session, arguments), arguments, print_json)
    session.stop()


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The job's arguments.

    Raises:
        ConfigError: no tower can have such a name.
    """
    parser = JobParser("Copy topics to another cluster, as they are, every record exactly once.")
    add_topic_arguments(parser)
    parser.add_argument(
        "--to-tower",
        required=True,
        metavar="HOST[:SUB:PUB]",
        help="the other cluster's tower, or several separated by commas",
    )
    parser.add_argument(
        "--to-topic",
        metavar="TOPIC",
        help="the copy's name, of one topic (default: the same name)",
    )
    parser.add_argument(
        "--acks",
        type=positive,
        default=1,
        metavar="N",
        help="stores there that must have a record before it counts as written "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--every",
        type=duration_ms,
        default="10s",
        metavar="TIME",
        help="how often new records are copied (default: %(default)s)",
    )
    add_query_arguments(parser)
    arguments = parser.parse(argv)
    arguments.to_tower = ",".join(map(str, NodeOptions.build({"tower": arguments.to_tower}).tower))
    topics = (arguments.topic or "").split(",")
    if arguments.to_topic is not None and (arguments.topic is None or len(topics) > 1):
        parser.error("argument --to-topic: names the copy of one topic, which --topic names")
    return arguments


def _check_other_cluster(arguments: argparse.Namespace) -> None:
    """Refuses to mirror a topic to itself, however its towers are named.

    Raises:
        ConfigError: that was asked for.
        DafkaError: no tower or no store answers.
    """
    if arguments.to_topic not in (None, arguments.topic):
        return
    found = []
    for tower in (arguments.tower, arguments.to_tower):
        with Reader(tower=tower, **keys_of_environment()) as reader:
            reader.hear_stores(timeout_s=ANSWER_S)
            found.append(reader.stores())
    if both := set.intersection(*map(set, found)):
        why = (
            f"is the cluster that is read, as store {min(both)} is in both: name another one, or "
            "another topic (--to-topic)"
        )
        raise ConfigError("to-tower", arguments.to_tower, why, "argument")


if __name__ == "__main__":
    run_job(main)
