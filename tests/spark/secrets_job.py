"""A query with a key in a session of its own: ``secrets_job.py DIR TOWER KEYS``.

Its key is in variable ``MY_KEY``.  DIR gets the pages of Spark's UI and its events; the log is on
standard error.
"""

from __future__ import annotations

import sys
from pathlib import Path
from urllib.request import urlopen

from pyspark.sql import SparkSession

PAGES = ("jobs/", "stages/", "environment/", "executors/", "SQL/", "SQL/execution/?id=0")


def run(spark: SparkSession, tower: str, keys: str) -> None:
    """Write a topic, and fail to read a missing one."""
    how = {
        "tower": tower,
        "dafka.secret_key_file": "env:MY_KEY",
        "dafka.allowed_keys": keys,
    }
    rows = spark.range(100).selectExpr("CAST(id AS STRING) AS value")
    rows.write.format("dafka").mode("append").options(**how, topic="shown").save()
    rows = spark.read.format("dafka").options(**how, subscribe="shown").load()
    rows.explain("extended")
    print(rows.count(), "rows")
    try:
        spark.read.format("dafka").options(**how, subscribe="showm").load().collect()
    except Exception as error:  # noqa: BLE001 -- any error may show a secret
        print(error)


def main() -> None:
    """Run the query, and save the pages."""
    directory, tower, keys = Path(sys.argv[1]), *sys.argv[2:]
    spark = (
        SparkSession.builder.master("local[1]")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.pyspark.python", sys.executable)
        .config("spark.ui.port", "0")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.eventLog.enabled", "true")
        .config("spark.eventLog.dir", directory.as_uri())
        .config("spark.eventLog.compress", "false")
        .config("spark.sql.warehouse.dir", str(directory / "warehouse"))
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("INFO")
    run(spark, tower, keys)
    url = spark.sparkContext.uiWebUrl
    for number, page in enumerate(PAGES):
        with urlopen(f"{url}/{page}") as found:
            (directory / f"page-{number}.html").write_bytes(found.read())
    spark.stop()


if __name__ == "__main__":
    main()
