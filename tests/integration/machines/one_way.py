"""A driver and its tasks on a machine that accepts no connections.

one_way.py OPTIONS...       options as NAME=VALUE; prints the rows written and read, or the error of
                            each way of reading
"""

import json
import sys

import pyarrow as pa
from pyspark.sql.streaming.datasource import ReadAllAvailable

from dafka_core.errors import DafkaError
from dafka_core.model.records import TopicPartition
from dafka_spark.cluster.timing import Deadline
from dafka_spark.options import SinkOptions, SourceOptions
from dafka_spark.schema import full
from dafka_spark.sink.commit_coordinator import Application, commit, pick_store
from dafka_spark.sink.staging import WriterFactory
from dafka_spark.source.batch_reader import DafkaBatchReader
from dafka_spark.source.micro_batch_stream import DafkaMicroBatchStream

TP = TopicPartition("numbers", "A" * 32)
COUNT = 10
TIMEOUT_S = 30


def write(given: dict[str, str]) -> int:
    options = SinkOptions.of({**given, "topic": TP.topic})
    picked = pick_store(options)
    with WriterFactory(options, picked) as factory, factory.open(TP) as writer:
        writer.write(pa.array([b"1"] * COUNT))
        staged = writer.finish(Deadline(TIMEOUT_S))
        commit(options, picked, [staged], Application.of(options))
        return staged.end


def read(given: dict[str, str], **others: str) -> int:
    options = SourceOptions.of({**given, "subscribe": TP.topic, **others})
    reader = DafkaBatchReader(full(), options.for_batch())
    return sum(batch.num_rows for task in reader.partitions() for batch in reader.read(task))


def stream(given: dict[str, str]) -> int:
    """Return the number of rows in the first batch of a streaming query."""
    options = SourceOptions.of({**given, "subscribe": TP.topic, "startingOffsets": "earliest"})
    reader = DafkaMicroBatchStream(full(), options.for_stream())
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    tasks = reader.partitions(start, end)
    return sum(batch.num_rows for task in tasks for batch in reader.read(task))


def main(*words: str) -> None:
    given = dict(word.split("=", 1) for word in words)
    outcomes: dict[str, object] = {"written": write(given)}
    outcomes["streamed"] = stream(given)
    for how, others in {"read": {}, "mesh": {"fetch": "mesh", "fetchTimeoutMs": "3000"}}.items():
        try:
            outcomes[how] = read(given, **others)
        except DafkaError as error:
            outcomes[how] = str(error)
    print(json.dumps(outcomes), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
