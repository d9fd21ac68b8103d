"""A year of flights through Dafka and Spark, with a crash on the way: ``make demo``.

Starts a cluster of its own; three producers replay the flights as JSON; ``flight_delays.py`` reads
them and writes its results to a topic and to parquet.  Halfway it is killed (SIGKILL to its
process group, the JVM included), and started again from its checkpoint.  At the end everything
that went in is compared with everything that came out; any difference makes the exit status 1.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from rich.console import Console

from dafka_core import DafkaError, EmbeddedCluster
from dafka_spark.job_support import add_option, build_session, positive
from demo.compare import partition_differences, row_differences, sums_of
from demo.flight_delays import (
    RESULT_KEY,
    delays,
    from_records,
    latest_results,
    parse_flights,
)
from demo.pipeline import (
    RESULTS_TOPIC,
    SUBMIT_ARGUMENTS,
    TOPIC,
    Bar,
    Pipeline,
    StalledError,
    prepare,
    progress_bars,
)
from demo.plot import plot_delays
from demo.processes import JobFailedError
from demo.replay_flights import (
    FLIGHTS_OF_2013,
    ORIGINS,
    Flights,
    FlightsNotFoundError,
    load_airlines,
    load_flights,
)
from demo.report import delay_table

# The feed lasts long enough that the query is killed and comes back while flights still arrive.
FEED_TIME_S = 25
LEAST_RATE = 1000

# The query reads the year in at least this number of batches, for any number of flights: the crash
# then falls between two of them or into one.
BATCHES = 10

# With fewer, the query is through before anyone can stop it halfway.
LEAST_FLIGHTS = 1000


@dataclass(frozen=True, slots=True)
class Outcome:
    """The comparison: flights in and out, the results, and every difference as a sentence."""

    flights_in: int
    flights_out: int
    results: list[dict[str, Any]]
    differences: list[str]


class Demo(Pipeline):
    """One run; ``directory`` receives the plot, too."""

    def __init__(self, flights: Flights, tower: str, directory: Path, console: Console) -> None:
        super().__init__(tower, directory, len(flights))
        self._flights = flights
        self._counts = {origin: len(flights.from_origin(origin)) for origin in ORIGINS}
        self._console = console

    def stream(self) -> tuple[datetime, list[str]]:
        """Feed, read, kill and restart.

        Returns the event time that had been reached at the crash, and what went wrong.

        Raises:
            JobFailedError: a job ended with an error.
            StalledError: nothing moved for too long.
        """
        total, observed = self._total, self.observed
        rate, per_batch = max(total / FEED_TIME_S, LEAST_RATE), -(-total // BATCHES)
        bars = progress_bars(self._console, self._bars)
        with bars as show, self.start_feeder(rate) as feeder:
            with self.start_query(per_batch, "query-1.log") as query:
                self.watch([feeder, query], show, lambda: observed.read >= total // 2)
                query.kill()
            reached = observed.read
            before = len(observed.batches)
            self._console.print(
                f"[bold red]killed[/] the query (SIGKILL) after batch {observed.batches[-1]}, "
                f"{reached:,} flights read; starting it again from its checkpoint"
            )
            with self.start_query(per_batch, "query-2.log") as query:
                self.watch(
                    [feeder, query],
                    show,
                    lambda: bool(observed.partitions) and observed.read >= total,
                )
                query.stop()
        wrong = []
        if not observed.batches[before:] or observed.batches[before] == 0:
            wrong.append("the query began anew after the crash instead of going on")
        return _scheduled(self._flights.values[reached - 1]), [*wrong, *observed.losses]

    def compare(self) -> Outcome:
        """Compare the input with the output, by Spark batch reads of both topics."""
        with _stderr_to(self._directory / "comparison.log"):
            session = build_session("demo")
            try:
                return self._compare(session)
            finally:
                session.stop()

    def _compare(self, session: SparkSession) -> Outcome:
        path = self._directory / "expected"
        path.mkdir()
        values = pa.array(self._flights.values, pa.binary())
        pq.write_table(pa.table({"value": values}), path / "flights.parquet")
        expected = _rows(delays(parse_flights(session.read.parquet(str(path)))))

        differences = partition_differences(
            self.observed.partitions, sums_of(self._read_topic(session, TOPIC))
        )
        on_topic = from_records(self._read_topic(session, RESULTS_TOPIC))
        in_parquet = session.read.parquet(str(self._directory / "delays.parquet"))
        outputs = {
            f"topic {RESULTS_TOPIC}": _rows(latest_results(on_topic).drop("batch")),
            "parquet": _rows(latest_results(in_parquet).drop("batch")),
        }
        for name, rows in outputs.items():
            differences += row_differences(name, RESULT_KEY, expected, rows)
        results = outputs["parquet"]
        flights_in = sum(entry.records for entry in self.observed.partitions)
        flights_out = sum(row["flights"] for row in results)
        if flights_in != len(self._flights):
            differences.append(f"{flights_in} flights were fed, must be {len(self._flights)}")
        return Outcome(flights_in, flights_out, results, differences)

    def _read_topic(self, session: SparkSession, topic: str) -> DataFrame:
        reader = session.read.format("dafka").option("tower", self._tower)
        return reader.option("subscribe", topic).load()

    def _bars(self) -> list[Bar]:
        observed = self.observed
        batch = f" (batch {observed.batches[-1]})" if observed.batches else ""
        fed = [
            (f"{origin} -> topic {TOPIC}", observed.fed[origin], self._counts[origin])
            for origin in ORIGINS
        ]
        return [*fed, (f"topic {TOPIC} -> Spark{batch}", observed.read, self._total)]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo; return its exit status."""
    arguments = _parser().parse_args(argv)
    console = Console()
    try:
        return _run(arguments.limit, arguments.output, console)
    except (DafkaError, FlightsNotFoundError, JobFailedError, StalledError) as error:
        console.print(str(error), style="red", markup=False, highlight=False)
        return 1


def _run(limit: int | None, directory: Path, console: Console) -> int:
    started = time.monotonic()
    os.environ.setdefault("PYSPARK_SUBMIT_ARGS", SUBMIT_ARGUMENTS)
    prepare(directory, "expected", "delays.png")
    flights = load_flights(limit)
    with EmbeddedCluster() as cluster:
        demo = Demo(flights, cluster.tower, directory, console)
        reached, wrong = demo.stream()
        with console.status("comparing what went in with what came out"):
            outcome = demo.compare()
    airlines = load_airlines()
    plot = directory / "delays.png"
    plot_delays(outcome.results, airlines, plot, reached)
    console.print(delay_table(outcome.results, airlines))
    for difference in (*wrong, *outcome.differences):
        console.print(difference, style="red", markup=False, highlight=False)
    equal = not (wrong or outcome.differences)
    verdict = "checksums equal, restart survived" if equal else "DIFFERENCES FOUND"
    console.print(f"plot {plot}", soft_wrap=True, highlight=False)
    console.print(f"took {time.monotonic() - started:.0f} s", highlight=False)
    console.print(
        f"{outcome.flights_in} in, {outcome.flights_out} out, {verdict}",
        style="bold green" if equal else "bold red",
        highlight=False,
    )
    return 0 if equal else 1


def _rows(results: DataFrame) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = results.toArrow().to_pylist()
    return rows


def _scheduled(value: bytes) -> datetime:
    return datetime.fromisoformat(json.loads(value)["scheduled"]).replace(tzinfo=UTC)


@contextmanager
def _stderr_to(log: Path) -> Iterator[None]:
    """Send standard error to a file: Spark's JVM inherits it, and would write over the bars."""
    sys.stderr.flush()
    saved = os.dup(2)
    try:
        with log.open("wb") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        sys.stderr.flush()
        os.dup2(saved, 2)
        os.close(saved)


def _limit(text: str) -> int:
    number = positive(text)
    if number < LEAST_FLIGHTS:
        raise argparse.ArgumentTypeError(f"must be at least {LEAST_FLIGHTS}, not {number}")
    return number


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="A year of flights through Dafka and Spark, with a crash on the way."
    )
    first = f"only the first N of the {FLIGHTS_OF_2013} flights, at least {LEAST_FLIGHTS} "
    add_option(parser, "--limit", "N", f"{first}(default: all)", _limit)
    results = "where results, logs and the plot go"
    add_option(parser, "--output", "DIR", results, Path, Path("demo-output"))
    return parser
