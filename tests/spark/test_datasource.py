"""Format ``dafka`` is found by its name, and costs other sessions nothing."""

from __future__ import annotations

import subprocess
import sys
import textwrap

from pyspark.sql import SparkSession

from dafka_core import EmbeddedCluster
from dafka_spark import DafkaDataSource
from tests.spark.topics import batch, produce


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
