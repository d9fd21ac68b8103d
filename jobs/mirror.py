r"""Copy topics to another cluster, every record exactly once.

    dafka job mirror --topic-pattern 'orders.*' --to-tower there.example --checkpoint DIR

A partition keeps its name, and each record its offset, key, value, headers and timestamp, so the
offsets of a consumer are valid in both clusters.  After a crash, and with another checkpoint, the
records that the copy already has are compared and not written again.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from dafka_core import Producer, Reader
from dafka_core.archive.archive import SCHEMA
from dafka_core.config.node_options import NodeOptions, keys_of_environment
from dafka_core.errors import ConfigError
from dafka_core.model.envelope_columns import close_columns
from dafka_core.model.name_limits import parse_topic
from dafka_core.model.names import unescape
from dafka_core.model.records import TopicPartition
from dafka_spark.job_support import (
    JobError,
    JobParser,
    Key,
    add_option,
    add_query_arguments,
    add_topic_arguments,
    build_session,
    check_options,
    duration_ms,
    for_each_group,
    positive,
    read_topics,
    run_job,
    run_query,
)
from dafka_spark.option_types import parse_names

ANSWER_S = 20.0  # the timeout for the discovery of stores

TIMEOUT_S: Final = 120.0
"""For acknowledgements of stores on a busy machine, or on the other side of the world."""

_OTHER: Final = (
    "its copy has other records from offset {} on: another program has written it, or the topic "
    "was created again. Mirror it to a topic of another name"
)
_UNKNOWN: Final = (
    "its copy has {} records already, and no reachable store there has them. Start the stores "
    "that have them"
)
_ADDRESS: Final = re.compile("[0-9A-F]{32}")


class MirroredPartition:
    """A partition's copy in the other cluster, open for one task.

    Records that the copy already has are compared, not written.

    Args:
        tower: the tower of the other cluster.
        tp: the topic and partition of the copy.
        acks: the number of stores there that must have a record.
        keys: the options of the key for the other cluster; empty without keys.

    Raises:
        JobError: no producer can have the partition's name.
        DafkaError: the other cluster does not answer.
    """

    def __init__(self, tower: str, tp: TopicPartition, acks: int, keys: Mapping[str, str]) -> None:
        if not _ADDRESS.fullmatch(tp.partition):
            raise _refused(tp, "a C producer writes it, and no other producer can use its name")
        self._cluster = {"tower": tower, **keys}
        self._tp = tp
        # The contents already have their envelopes.
        options: dict[str, Any] = {**self._cluster, "acks": acks, "envelope": "none"}
        # The name of the topic is already valid in the first cluster.
        options["allow_control_characters"] = True
        self._producer = Producer(tp.topic, address=tp.partition, **options)
        self._first = self._producer.next_offset
        self.count = 0

    def __enter__(self) -> Self:
        self._producer.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._producer.__exit__(*error)

    def add(self, records: pa.RecordBatch) -> None:
        """Add records in the order of their offsets, with the columns of ``SCHEMA``.

        Raises:
            JobError: the copy would have a gap, or has other records.
            DafkaError: the other cluster refuses them.
        """
        table = pa.Table.from_batches([records]).select(SCHEMA.names).cast(SCHEMA)
        known = int(pc.sum(pc.less(table["offset"], self._first)).as_py() or 0)
        if known:
            self._check_known(table.slice(0, known))
        new = table.slice(known)
        wanted = self._producer.next_offset + np.arange(new.num_rows)
        [gaps] = np.nonzero(new["offset"].to_numpy() != wanted)
        whole = new.slice(0, int(gaps[0]) if len(gaps) else None)
        times = whole["timestamp"].combine_chunks()
        self._producer.publish_many(_contents(whole), timestamp=times)
        self.count += whole.num_rows
        if len(gaps):
            why = (
                f"its next record is of offset {new['offset'][gaps[0]]}, and the copy ends at "
                f"{self._producer.next_offset}: it would have a gap, as the records between are "
                "deleted, or not read. Mirror a topic before its first records are deleted"
            )
            raise _refused(self._tp, why)

    def finish(self) -> int:
        """Wait for all acknowledgements; return the number of new records.

        Raises:
            NotAcknowledgedError: stores did not answer.
        """
        self._producer.flush(TIMEOUT_S)
        return self.count

    def _check_known(self, table: pa.Table) -> None:
        first, last = (table["offset"][at].as_py() for at in (0, -1))
        with Reader(**self._cluster) as reader:
            found = reader.partitions([self._tp.topic], timeout_s=TIMEOUT_S)
            held = next((info for info in found if info.tp == self._tp), None)
            if held is None:
                raise _refused(self._tp, _UNKNOWN.format(self._first))
            start = max(first, held.earliest)
            for batch in reader.read(self._tp, start, last + 1, timeout_s=TIMEOUT_S):
                part = table.slice(batch.offset - first, len(batch.values))
                if not batch.values.to_arrow().equals(_contents(part)):
                    raise _refused(self._tp, _OTHER.format(batch.offset))


def _contents(table: pa.Table) -> pa.Array:
    value, key, headers = (table[name].combine_chunks() for name in ("value", "key", "headers"))
    return close_columns(value, key, headers)


def _refused(tp: TopicPartition, why: str) -> JobError:
    return JobError(f"{tp} cannot be mirrored: {why}")


def copy_to(tower: str, topic: str | None, acks: int) -> Callable[[DataFrame, int], None]:
    """Return the function for each micro-batch, in which one task extends a partition's copy."""
    keys = keys_of_environment()  # of the driver, as a task may have none

    def add(key: Key, found: Iterator[pa.RecordBatch]) -> None:
        source, partition = map(unescape, key)
        tp = TopicPartition(topic or source, partition)
        with MirroredPartition(tower, tp, acks, keys) as copied:
            for records in found:
                copied.add(records)
            copied.finish()

    def copy(records: DataFrame, batch: int) -> None:
        rows = records.select("topic", *SCHEMA.names)
        for_each_group(rows, ("topic", "partition"), ("offset",), add)

    return copy


def build_writer(session: SparkSession, arguments: argparse.Namespace) -> DataStreamWriter:
    """Return the query, before its start."""
    records = read_topics(session, arguments, includeHeaders="true")
    writer = records.writeStream.queryName("mirror")
    writer = writer.trigger(processingTime=f"{arguments.every} milliseconds")
    return writer.foreachBatch(copy_to(arguments.to_tower, arguments.to_topic, arguments.acks))


def main(argv: Sequence[str] | None = None) -> None:
    """Run the job; print a line of JSON for every batch."""
    arguments = parse(argv)
    check_options(arguments)
    _check_other_cluster(arguments)
    session = build_session("mirror")
    run_query(build_writer(session, arguments), arguments)
    session.stop()


def topic_name(text: str) -> str:
    """Parse the name of a topic."""
    try:
        return parse_topic(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{error}, not {text!r}") from None


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the job's arguments."""
    parser = JobParser("Copy topics to another cluster, as they are, every record exactly once.")
    add_topic_arguments(parser)
    add = partial(add_option, parser)
    other = "the other cluster's tower, or several separated by commas"
    add("--to-tower", "HOST[:SUB:PUB]", other, required=True)
    name = "the copy's name, of one topic (default: the same name)"
    add("--to-topic", "TOPIC", name, topic_name)
    acks = "stores there that must have a record before it counts as written"
    add("--acks", "N", acks, positive, 1)
    add("--every", "TIME", "how often new records are copied", duration_ms, "10s")
    add_query_arguments(parser)
    arguments = parser.parse(argv)
    arguments.to_tower = ",".join(map(str, NodeOptions.build({"tower": arguments.to_tower}).tower))
    topics = (arguments.topic or "").split(",")
    if arguments.to_topic is not None and (arguments.topic is None or len(topics) > 1):
        parser.error("argument --to-topic: names the copy of one topic, which --topic names")
    return arguments


def _check_other_cluster(arguments: argparse.Namespace) -> None:
    """Refuse to mirror a topic to itself, whatever the names of its towers.

    Raises:
        ConfigError: both towers are of one cluster.
        DafkaError: no tower or no store answers.
    """
    if arguments.to_topic and arguments.to_topic not in parse_names(arguments.topic):
        return
    found = []
    for tower in (arguments.tower, arguments.to_tower):
        with Reader(tower=tower, **keys_of_environment()) as reader:
            reader.wait_for_stores(timeout_s=ANSWER_S)
            found.append(reader.stores())
    if both := set.intersection(*map(set, found)):
        why = (
            f"is the cluster that is read, as store {min(both)} is in both: use another cluster "
            "or another topic (--to-topic)"
        )
        raise ConfigError("to-tower", arguments.to_tower, why, "argument")


if __name__ == "__main__":
    run_job(main)
