"""How tables of what is known of a cluster reach Spark."""

from __future__ import annotations

import pickle

from dafka_core.records import TopicPartition
from dafka_spark import metadata
from dafka_spark.options import SourceOptions
from dafka_spark.source.metadata_reader import MetadataReader
from tests.integration.cluster.stores import HeardOf, Serve

A = TopicPartition("t", "A")


def test_columns_are_chosen_in_any_case(serve: Serve) -> None:
    store = serve("one")
    store.add(A, 4)
    options = SourceOptions.of({"metadata": "topics"})
    schema = metadata.full("topics")
    schema.fields = [schema["records"], schema["topic"]]
    schema.fields[0].name = "Records"
    reader = MetadataReader(schema, options, HeardOf([store]).connect)
    (task,) = reader.partitions()
    assert [row for batch in reader.read(task) for row in batch.to_pylist()] == [
        {"Records": 4, "topic": "t"}
    ]


def test_nothing_is_an_empty_table_and_rows_travel_with_their_task(serve: Serve) -> None:
    store = serve("one")
    reader = MetadataReader(
        metadata.full("topics"), SourceOptions.of({"metadata": "topics"}), HeardOf([store]).connect
    )
    (task,) = pickle.loads(pickle.dumps(reader.partitions()))
    assert sum(batch.num_rows for batch in reader.read(task)) == 0
    store.add(A, 1)
    (task,) = pickle.loads(pickle.dumps(reader.partitions()))
    store.stop()
    assert sum(batch.num_rows for batch in reader.read(task)) == 1
