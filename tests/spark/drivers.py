"""Spark drivers as processes: ``python -m tests.spark.drivers FUNCTION ARGUMENT...``."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pyarrow as pa
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from dafka_core.testing import wait_until
from dafka_spark import read_dafka, write_dafka
from tests.spark.faults import changed, failing_at_first
from tests.spark.jvm import start_options

TIMEOUT_S = 240

UI_PAGES = ("jobs/", "stages/", "environment/", "executors/", "SQL/", "SQL/execution/?id=0")


def command(function: Callable[..., None], *arguments: object) -> list[str]:
    """Return the command that runs a function of this module."""
    return [sys.executable, "-m", __name__, function.__name__, *map(str, arguments)]


def done(
    arguments: list[str],
    directory: Path | None = None,
    variables: Mapping[str, str] | None = None,
    timeout_s: float = TIMEOUT_S,
) -> subprocess.CompletedProcess[str]:
    """Run a program that starts its own JVM to its end; fail unless it succeeds."""
    shared = "PYSPARK_GATEWAY"  # else the program uses the JVM of this process
    environment = {name: value for name, value in os.environ.items() if shared not in name}
    ended = subprocess.run(
        arguments,
        cwd=directory,
        env={**environment, **(variables or {})},
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout_s,
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
    return ended


def printed(function: Callable[..., None], *arguments: object, **settings: Any) -> Any:
    """Run a function of this module in a process and return the JSON that it printed last."""
    return json.loads(done(command(function, *arguments), **settings).stdout.splitlines()[-1])


def session(master: str, settings: Mapping[str, str] | None = None) -> SparkSession:
    """Start a session whose ports are open to this machine only."""
    given: dict[str, Any] = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.pyspark.python": sys.executable,
        "spark.python.daemon.module": "tests.spark.daemon",
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        **(settings or {}),
    }
    return SparkSession.builder.master(master).config(map=given).getOrCreate()


def executor(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the process of the task's executor, which has started the daemon of its workers."""
    for _ in batches:
        yield pa.record_batch({"process": [os.getppid()]})


def copy_with_failures(master: str, topic: str, directory: str) -> None:
    """Copy a topic as a stream and as a batch, while each task fails twice.

    The tower is that of the environment.
    """
    options = {"subscribe": topic, "maxRecordsPerPartition": "2000"}
    spark = session(
        master,
        {
            "spark.executor.memory": "512m",
            "spark.executor.extraJavaOptions": " ".join(start_options()),
            "spark.scheduler.minRegisteredResourcesRatio": "1.0",
            "spark.sql.warehouse.dir": f"{directory}/warehouse",
        },
    )
    reading = spark.readStream.format("dafka").options(**options, maxOffsetsPerTrigger=4000)
    frame = reading.option("startingOffsets", "earliest").load()
    sink = f"concat('{topic}-out-', cast(cast(value AS string) AS int) % 3) AS topic"
    query = (
        changed(frame.selectExpr("value", sink), failing_at_first)
        .writeStream.format("dafka")
        .options(checkpointLocation=f"{directory}/checkpoint", audit=True)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    rows = spark.read.format("dafka").options(**options).load().select("value")
    write_dafka(changed(rows.repartition(3), failing_at_first), f"{topic}-batch")
    executors = rows.mapInArrow(executor, "process bigint").distinct().count()
    print(json.dumps({"batches": len(query.recentProgress), "executors": executors}))
    spark.stop()


def speculate(tower: str, topic: str) -> None:
    """Write a row while Spark may run two attempts of a task at a time."""
    spark = session("local[2]", {"spark.speculation": "true"})
    try:
        write_dafka(spark.sql("SELECT 'x' AS value"), topic, tower=tower)
    except PySparkException as error:
        print(json.dumps("set it false" in str(error)))


def repartition(tower: str, topic: str, directory: str, cores: str) -> None:
    """Copy a topic by a shuffle whose first task waits while the directory has file ``hold``.

    Adaptive execution cuts the batches by size and by the number of cores.
    """
    hold, held = Path(directory, "hold"), Path(directory, "held")

    def holding(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task = TaskContext.get()
        assert task is not None
        if task.partitionId() == 0 and hold.exists():
            held.touch()
            wait_until(lambda: not hold.exists(), timeout_s=TIMEOUT_S)
        yield from batches

    spark = session(f"local[{cores}]", {"spark.sql.shuffle.partitions": "200"})
    rows = read_dafka(spark, topic, stream=True, tower=tower, starting_offsets="earliest")
    frame = rows.selectExpr("value", "substring(value, 1, 4) AS key").repartition("key")
    query = write_dafka(
        changed(frame, holding),
        f"{topic}-out",
        tower=tower,
        checkpoint=f"{directory}/checkpoint",
        trigger={"availableNow": True},
    )
    assert query is not None
    query.awaitTermination()


def connect(tower: str, topic: str, directory: str) -> None:
    """Read and write topics in each way as a client of Spark Connect, and print the counts."""
    spark = SparkSession.builder.remote("local[2]").getOrCreate()
    found: dict[str, Any] = {"client": type(spark).__module__}
    given = {"tower": tower, "starting_offsets": "earliest"}
    batch = f"{topic}, batch"  # a name that needs escapes in a list of topics
    rows = read_dafka(spark, topic, tower=tower).select("value")
    assert write_dafka(rows, batch, tower=tower) is None

    def write(rows: DataFrame, batch_id: int) -> None:
        once: dict[str, Any] = {"txn_app_id": "each", "txn_version": batch_id}
        write_dafka(rows.select("value"), f"{topic}-each", tower=tower, **once)

    copy = write_dafka(
        read_dafka(spark, batch, stream=True, **given).select("value"),
        f"{topic}-stream",
        tower=tower,
        checkpoint=f"{directory}/stream",
        trigger={"availableNow": True},
        query_name="copy",
    )
    in_two = read_dafka(spark, topic, stream=True, max_offsets_per_trigger=60, **given)
    each = (
        in_two.writeStream.foreachBatch(write)
        .option("checkpointLocation", f"{directory}/each")
        .trigger(availableNow=True)
        .start()
    )
    assert copy is not None
    for query in (copy, each):
        assert query.awaitTermination(TIMEOUT_S)
    found["query"] = str(copy.name)
    try:
        read_dafka(spark, topic, tower=tower, starting_offset="earliest").count()
    except PySparkException as error:
        found["refusal"] = str(error)
    for name in ("stream", "each"):
        found[name] = read_dafka(spark, batch, f"{topic}-{name}", tower=tower).count()
    print(json.dumps(found))
    spark.stop()


def show(tower: str, keys: str, directory: str) -> None:
    """Write and read with the key in variable ``MY_KEY``; save the UI's pages and the events."""
    spark = session(
        "local[1]",
        {
            "spark.ui.enabled": "true",
            "spark.ui.port": "0",
            "spark.eventLog.enabled": "true",
            "spark.eventLog.dir": Path(directory).as_uri(),
            "spark.eventLog.compress": "false",
            "spark.sql.warehouse.dir": f"{directory}/warehouse",
        },
    )
    spark.sparkContext.setLogLevel("INFO")
    given = {"tower": tower, "dafka.secret_key_file": "env:MY_KEY", "dafka.allowed_keys": keys}
    rows = spark.range(100).selectExpr("CAST(id AS STRING) AS value")
    rows.write.format("dafka").mode("append").options(**given, topic="shown").save()
    rows = spark.read.format("dafka").options(**given, subscribe="shown").load()
    rows.explain("extended")
    print(rows.count(), "rows")
    try:
        spark.read.format("dafka").options(**given, subscribe="showm").load().collect()
    except PySparkException as error:
        print(error)
    for number, page in enumerate(UI_PAGES):
        with urlopen(f"{spark.sparkContext.uiWebUrl}/{page}") as found:
            Path(directory, f"page-{number}.html").write_bytes(found.read())
    spark.stop()


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
