"""What the sink refuses before a row is written, and what travels between driver and tasks."""

from __future__ import annotations

import pickle

import pytest
from pyspark.sql.types import (
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from dafka_core.errors import ConfigError
from dafka_core.flight.store_location import StoreLocation
from dafka_core.model.records import TopicPartition
from dafka_spark.errors import ColumnError
from dafka_spark.options import SinkOptions
from dafka_spark.sink.staging import WrittenRange
from dafka_spark.sink.store_session import PickedStore
from dafka_spark.sink.writer import (
    BATCH_ID,
    QUERY_ID,
    SPECULATION,
    DafkaBatchWriter,
    DafkaStreamWriter,
    TaskCommit,
)
from tests.unit.dafka_spark.tasks import Task

Writer = type[DafkaBatchWriter] | type[DafkaStreamWriter]

TO_T = SinkOptions.of({"topic": "t"})
BOTH = pytest.mark.parametrize("writer", [DafkaBatchWriter, DafkaStreamWriter])


def columns(**kinds: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in kinds.items()])


VALUES = columns(value=StringType())


@BOTH
@pytest.mark.parametrize(
    ("schema", "says"),
    [
        (columns(value=IntegerType()), "column 'value': is int, must be binary or string"),
        (columns(topic=StringType()), "column 'value': is missing"),
        (
            columns(value=StringType(), topic=IntegerType()),
            "column 'topic': is int, must be string",
        ),
        (columns(value=StringType(), key=LongType()), "column 'key': is bigint, must be"),
        (columns(value=StringType(), offset=LongType()), "column 'offset': cannot be written"),
    ],
)
def test_columns_are_checked_when_the_writer_is_made(
    writer: Writer, schema: StructType, says: str
) -> None:
    with pytest.raises(ColumnError, match=says):
        writer(schema, TO_T)


@BOTH
def test_a_topic_is_needed(writer: Writer) -> None:
    with pytest.raises(ConfigError, match=r"each row's with a column 'topic'"):
        writer(VALUES, SinkOptions.of({}))


def test_overwriting_is_refused() -> None:
    with pytest.raises(ConfigError, match="mode\\('append'\\)"):
        DafkaBatchWriter(VALUES, TO_T, overwrite=True)


@BOTH
@pytest.mark.parametrize("given", ["true", "TRUE"])
def test_speculation_is_refused(
    writer: Writer, given: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Task(0, {SPECULATION: given, QUERY_ID: "q", BATCH_ID: "0"}).begin(monkeypatch)
    with pytest.raises(ConfigError, match="set it false"):
        writer(VALUES, TO_T).write(iter([]))


@BOTH
def test_nothing_is_written_outside_of_tasks(writer: Writer) -> None:
    with pytest.raises(RuntimeError, match="by Spark's tasks only"):
        writer(VALUES, TO_T).write(iter([]))


@pytest.mark.parametrize("missing", [QUERY_ID, BATCH_ID])
def test_a_micro_batch_that_has_no_name_is_refused(
    missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = {QUERY_ID: "q", BATCH_ID: "0", missing: ""}
    Task(0, told).begin(monkeypatch)
    with pytest.raises(RuntimeError, match="no query id or no batch id"):
        DafkaStreamWriter(VALUES, TO_T).write(iter([]))


def test_what_a_task_has_written_travels_to_the_driver() -> None:
    picked = PickedStore("A" * 32, (StoreLocation("A" * 32, ("grpc://127.0.0.1:1",)),))
    message = TaskCommit((WrittenRange(TopicPartition("t", "A"), 0, 1),), picked, "q")
    assert vars(pickle.loads(pickle.dumps(message))) == vars(message)
