"""Format ``dafka`` in SQL."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import Row, SparkSession

from tests.spark.topics import Topics, run, texts


@pytest.fixture
def table(spark: SparkSession, topic: str) -> Iterator[str]:
    """The name of a table or a view that is dropped after the test."""
    name = topic.replace("-", "_")
    yield name
    spark.sql(f"DROP {'VIEW' if spark.catalog.getTable(name).isTemporary else 'TABLE'} {name}")


def create(topics: Topics, name: str, kind: str = "TABLE", **options: str) -> None:
    given = ", ".join(f"{key} '{value}'" for key, value in (topics.options | options).items())
    topics.spark.sql(f"CREATE {kind} {name} USING dafka OPTIONS ({given})")


def test_a_table(topics: Topics, topic: str, table: str, tmp_path: Path) -> None:
    """Spark does not pass a table's options to a Python source; they travel in the schema."""
    topics.produce(topic, range(5))
    create(topics, table, subscribe=topic)
    sql = topics.spark.sql
    assert sql(f"SELECT offset FROM {table} WHERE offset > 2").count() == 2
    assert sql(f"SELECT * FROM {table} WITH (minPartitions = 5)").count() == 5
    topics.produce(topic, range(5, 7))
    from_start = "WITH (startingOffsets = 'earliest')"
    for number, frame in enumerate(
        [
            topics.spark.readStream.option("startingOffsets", "earliest").table(table),
            sql(f"SELECT VALUE AS value FROM STREAM {table} {from_start}"),
        ]
    ):
        seen: list[Row] = []
        run(frame, tmp_path / str(number), seen.extend)
        assert texts(seen) == ["0", "1", "2", "3", "4", "5", "6"]


def test_rows_are_inserted_into_a_table(topics: Topics, topic: str, table: str) -> None:
    topics.produce(topic, range(2))
    create(topics, table, subscribe=topic, includeHeaders="true", deliveryTimeoutMs="60000")
    sql = topics.spark.sql
    sql(f"INSERT INTO {table} (value) VALUES (X'61'), (X'62')")
    sql(f"INSERT INTO {table} (value) SELECT value FROM {table} WHERE value > X'61'")
    topics.spark.createDataFrame([(b"c",)], "value binary").writeTo(table).append()
    found = sql(f"SELECT value FROM {table} WHERE value > X'39'").collect()
    assert texts(found) == ["a", "b", "b", "c"]
    headers = "array(named_struct('key', 'h', 'value', X'31'))"
    sql(f"INSERT INTO {table} (key, value, headers) VALUES (X'6b', NULL, {headers})")
    found = sql(f"SELECT key, value FROM {table} WHERE headers[0].key = 'h'").collect()
    assert [tuple(row) for row in found] == [(b"k", None)]
    for error, insert in {
        "'partition': cannot be written": f"INTO {table} SELECT * FROM {table}",
        f"'other', and the table is written to topic '{topic}'": (
            f"INTO {table} (value, topic) VALUES (X'61', 'other')"
        ),
        "a topic only grows; .*INSERT INTO": f"OVERWRITE {table} SELECT * FROM {table}",
    }.items():
        with pytest.raises(PySparkException, match=error):
            sql(f"INSERT {insert}")


def test_a_view_of_metadata(topics: Topics, topic: str, table: str) -> None:
    topics.produce(topic, range(5))
    create(topics, table, "TEMPORARY VIEW", metadata="topics")
    (row,) = topics.spark.sql(f"SELECT records FROM {table} WHERE topic = '{topic}'").collect()
    assert row["records"] == 5


def test_a_table_with_columns_explains_why_it_has_no_options(topics: Topics, table: str) -> None:
    create(topics, f"{table} (value BINARY)", subscribe="t")
    with pytest.raises(PySparkException, match=r"when CREATE TABLE lists columns"):
        topics.spark.sql(f"SELECT * FROM {table}").collect()
