"""Format ``dafka`` is found by its name, costs other sessions nothing and reports users' errors."""

import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from dafka_spark import DafkaDataSource
from tests.spark.topics import Topics, finish


def output(code: str) -> str:
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(code)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return done.stdout.strip()


def test_the_import_needs_only_spark() -> None:
    """Spark imports it in every session that uses any Python source."""
    heavy = ("zmq", "pyarrow", "numpy", "pandas", "lmdb", "dafka_core")
    loaded = output(f"import sys, pyspark_dafka; print([m for m in {heavy} if m in sys.modules])")
    assert loaded == "[]"


def test_the_import_never_fails() -> None:
    """An exception would break every other Python source of the session."""
    printed = output(
        """
        import sys, warnings
        sys.modules["dafka_spark"] = None
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            import pyspark_dafka
        print(hasattr(pyspark_dafka, "DefaultSource"), caught[0].message)
        """
    )
    assert printed.startswith("False format 'dafka' is not available")


def test_planning_a_query_does_not_load_pandas(topics: Topics, topic: str) -> None:
    """It takes a quarter of a second in each Python that Spark starts for that."""
    topics.produce(topic, range(3))
    printed = output(
        f"""
        import sys
        from pyspark.sql.datasource import CaseInsensitiveDict
        from dafka_spark import DafkaDataSource
        source = DafkaDataSource(CaseInsensitiveDict({topics.options | {"subscribe": topic}}))
        schema = source.schema()
        stream = source.streamReader(schema)
        start = stream.initialOffset()
        stream.partitions(start, stream.latestOffset(start, stream.getDefaultReadLimit()))
        print(len(source.reader(schema).partitions()), "pandas" in sys.modules)
        """
    )
    assert printed == "1 False"


def test_a_registered_source(topics: Topics, topic: str) -> None:
    topics.spark.dataSource.register(DafkaDataSource)
    topics.produce(topic, range(3))
    assert topics.batch(topic).count() == 3


def read(spark: SparkSession, _: Path, **given: str) -> None:
    spark.read.format("dafka").options(**given).load()


def read_column(spark: SparkSession, _: Path, **given: str) -> None:
    spark.read.format("dafka").schema("subscribes int").options(**given).load().collect()


def write(spark: SparkSession, _: Path, **given: str) -> None:
    frame = spark.sql("SELECT 'v' AS value")
    frame.write.format("dafka").mode("append").options(**given).save()


def read_stream(spark: SparkSession, directory: Path, **given: str) -> None:
    frame = spark.readStream.format("dafka").schema("value binary").options(**given).load()
    finish(frame.writeStream.format("noop"), directory)


def write_stream(spark: SparkSession, directory: Path, **given: str) -> None:
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
    values = rows.selectExpr("cast(value as string) as value").writeStream.format("dafka")
    finish(values.options(**given), directory)


WRONG = {"subscribes": "t"}, "'subscribes'"
TO_AN_END = {"subscribe": "t", "endingOffsets": "latest"}


@pytest.mark.parametrize(
    ("query", "given", "error"),
    [
        (read, *WRONG),
        (read_column, {"subscribe": "t"}, "'subscribes'"),
        (write, *WRONG),
        (read_stream, *WRONG),
        (read_stream, TO_AN_END, "'endingOffsets'.*is for batch queries only"),
        (write_stream, *WRONG),
    ],
)
def test_an_error_of_the_user_shows_no_frames_of_this_package(
    spark: SparkSession, tmp_path: Path, query: Any, given: dict[str, str], error: str
) -> None:
    with pytest.raises(PySparkException, match=error) as raised:
        query(spark, tmp_path, **given)
    assert re.findall(r"dafka_(?:spark|core)/\S+|UnboundLocalError", str(raised.value)) == []


@pytest.mark.parametrize(
    "text", ["{} COLLATE UTF8_LCASE", "CAST({} AS VARCHAR(99))", "CAST({} AS CHAR({length}))"]
)
def test_strings_with_a_collation_or_a_length_are_text(
    topics: Topics, topic: str, text: str
) -> None:
    value, key, header, to = (
        text.format(f"'{each}'", length=len(each)) for each in ("v", "k", "h", topic)
    )
    headers = f"array(struct({header} AS key, X'62' AS value))"
    setting = "spark.sql.preserveCharVarcharTypeInfo"
    topics.spark.conf.set(setting, "true")
    try:
        frame = topics.spark.sql(
            f"SELECT {value} AS value, {to} AS topic, {key} AS key, {headers} AS headers"
        )
        assert len(re.findall(r"collate|char\(", frame.schema.simpleString())) == 4
        topics.save(frame)
    finally:
        topics.spark.conf.unset(setting)
    (row,) = topics.batch(topic, includeHeaders=True).collect()
    assert (bytes(row.value), bytes(row.key), row.headers[0].key) == (b"v", b"k", "h")
