"""Format ``dafka`` is found by its name, and costs other sessions nothing."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from dafka_core import EmbeddedCluster
from dafka_spark import DafkaDataSource
from tests.pages import example
from tests.spark.topics import batch, finish, produce


def run(code: str) -> str:
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(code)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return done.stdout.strip()


def test_the_name() -> None:
    import pyspark_dafka

    assert pyspark_dafka.DefaultSource is DafkaDataSource
    assert DafkaDataSource.name() == "dafka"


def test_the_import_needs_nothing_but_spark() -> None:
    """Spark imports it in every session that uses any Python source."""
    heavy = ("zmq", "pyarrow", "numpy", "pandas", "lmdb", "dafka_core")
    loaded = run(f"import sys, pyspark_dafka; print([m for m in {heavy} if m in sys.modules])")
    assert loaded == "[]"


def test_no_pandas_is_loaded_to_plan_a_query(cluster: EmbeddedCluster, topic: str) -> None:
    """It takes a quarter of a second in each Python that Spark starts for that."""
    produce(cluster, topic, range(3))
    said = run(
        f"""
        import sys
        from pyspark.sql.datasource import CaseInsensitiveDict
        from dafka_spark import DafkaDataSource
        given = {{"tower": {cluster.tower!r}, "subscribe": {topic!r}}}
        source = DafkaDataSource(CaseInsensitiveDict(given))
        schema = source.schema()
        stream = source.streamReader(schema)
        start = stream.initialOffset()
        stream.partitions(start, stream.latestOffset(start, stream.getDefaultReadLimit()))
        print(len(source.reader(schema).partitions()), "pandas" in sys.modules)
        """
    )
    assert said == "1 False"


def test_the_import_never_fails() -> None:
    """An exception would break every other Python source of the session."""
    said = run(
        """
        import sys, warnings
        sys.modules["dafka_spark"] = None
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            import pyspark_dafka
        print(hasattr(pyspark_dafka, "DefaultSource"), caught[0].message)
        """
    )
    assert said.startswith("False format 'dafka' is not available")


def test_a_registered_source(spark: SparkSession, cluster: EmbeddedCluster, topic: str) -> None:
    spark.dataSource.register(DafkaDataSource)
    produce(cluster, topic, range(3))
    assert batch(spark, cluster, subscribe=topic).count() == 3


def read(spark: SparkSession, frame: DataFrame, directory: Path) -> Any:
    return spark.read.format("dafka").option("subscribes", "t").load()


def read_column(spark: SparkSession, frame: DataFrame, directory: Path) -> Any:
    reader = spark.read.format("dafka").schema("subscribes int")
    return reader.option("subscribe", "t").load().collect()


def write(spark: SparkSession, frame: DataFrame, directory: Path) -> Any:
    frame.write.format("dafka").mode("append").option("subscribes", "t").save()


def read_stream(spark: SparkSession, frame: DataFrame, directory: Path) -> Any:
    reader = spark.readStream.format("dafka").schema("value binary").option("subscribes", "t")
    finish(reader.load().writeStream.format("noop"), directory)


def write_stream(spark: SparkSession, frame: DataFrame, directory: Path) -> Any:
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
    values = rows.selectExpr("cast(value as string) as value")
    finish(values.writeStream.format("dafka").option("subscribes", "t"), directory)


@pytest.mark.parametrize("query", [read, read_column, write, read_stream, write_stream])
def test_an_error_of_the_user_shows_no_frames_of_this_package(
    spark: SparkSession, tmp_path: Path, query: Callable[[SparkSession, DataFrame, Path], Any]
) -> None:
    frame = spark.range(1).selectExpr("cast(id as string) as value")
    with pytest.raises(PySparkException, match="'subscribes'") as error:
        query(spark, frame, tmp_path)
    assert re.findall(r"dafka_(?:spark|core)/\S+", str(error.value)) == []


PLAIN = {"value": "'v'", "topic": "'{topic}'", "key": "'k'", "header": "'h'"}


@pytest.mark.parametrize("column", PLAIN)
@pytest.mark.parametrize(
    "text", ["{} COLLATE UTF8_LCASE", "CAST({} AS VARCHAR(99))", "CAST({} AS CHAR({length}))"]
)
def test_strings_with_a_collation_or_a_length_are_text(
    spark: SparkSession, cluster: EmbeddedCluster, topic: str, column: str, text: str
) -> None:
    given = {name: each.format(topic=topic) for name, each in PLAIN.items()}
    given[column] = text.format(given[column], length=len(given[column]) - 2)
    query = (
        "SELECT {value} AS value, {topic} AS topic, {key} AS key, "
        "array(struct({header} AS key, X'62' AS value)) AS headers"
    )
    spark.conf.set("spark.sql.preserveCharVarcharTypeInfo", "true")
    try:
        frame = spark.sql(query.format(**given))
        assert re.search(r"collate|char\(", frame.schema.simpleString())
        frame.write.format("dafka").mode("append").option("tower", cluster.tower).save()
    finally:
        spark.conf.unset("spark.sql.preserveCharVarcharTypeInfo")
    (row,) = batch(spark, cluster, subscribe=topic, includeHeaders="true").collect()
    assert (bytes(row.value), bytes(row.key), row.headers[0].key) == (b"v", b"k", "h")


def test_the_example_of_typed_values(
    spark: SparkSession, cluster: EmbeddedCluster, topic: str, capfd: pytest.CaptureFixture[str]
) -> None:
    text = example("docs/typed_values.md", "Typed values").replace('"trades"', repr(topic))
    exec(text, {"spark": spark, "tower": cluster.tower})
    assert re.search(r"\|\s*1\|\s*ada\|", capfd.readouterr().out)
