"""Compare Dafka with its peers: ``python -m benchmarks.peers [--rows ROW ...] [--sizes N ...]``.

Every system is measured in turns, on the same disk.  Each result is a line of JSON on standard
output: medians over the rounds, and the range of the rates.  A table follows on standard error.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from typing import Final

from rich.console import Console
from rich.table import Table

from benchmarks.figures import turns
from benchmarks.peers import situations, spark_rows
from benchmarks.peers.measures import Result, Rounds, new_topic, paced, run_client, served
from benchmarks.peers.systems import available

SIZES_BYTES: Final = (100, 1_000, 10_000, 100_000)
PARTITIONS: Final = (1, 4, 16)

FULL_BYTES: Final = 200_000_000
MAX_RECORDS: Final = 1_000_000
"""Records of a measurement: whichever is fewer."""

FEWER: Final = {"nats": 10, "nats-synced": 100}
"""Divisors of the records, for measurements of some seconds: nats-py is slower, and slowest with a
sync for each message."""

PACED_S: Final = 20.0
LOADS: Final = (0.1, 0.5, 0.9)
"""Shares of the highest rate at which latencies are measured."""

RATES: Final = (1_000.0, 10_000.0)
"""Records a second for latencies through a query, and under faults."""


def throughput(what: str, systems: list[str], given: argparse.Namespace) -> Iterator[Result]:
    """Measure publishing or consuming, for each size and number of partitions."""
    for size_bytes in given.sizes:
        for partitions in given.partitions:
            rounds = Rounds(size_bytes, partitions)
            for system in turns(systems, given.rounds):
                records = records_of(size_bytes, given, system)
                with served(system, partitions) as server:
                    arguments = (new_topic(), records, size_bytes, partitions)
                    if what in ("consume", "poll"):
                        run_client(system, "many", server, *arguments)
                    one = run_client(system, what, server, *arguments)
                rounds.add(NAMES[what], system, records, one)
            yield from rounds.results()


def latency(systems: list[str], given: argparse.Namespace) -> Iterator[Result]:
    """Measure producer to acknowledgement and to consumer, at shares of the highest rate."""
    for size_bytes in given.sizes:
        rounds, highest = Rounds(size_bytes, 1), dict[str, float]()
        for system in turns(systems, given.rounds):
            with served(system, 1) as server:
                if system not in highest:
                    records = records_of(size_bytes, given, system) // 4
                    arguments = (new_topic(), records, size_bytes, 1)
                    highest[system] = run_client(system, "paced", server, *arguments).rate
                for load in LOADS:
                    per_second = highest[system] * load
                    one = paced(system, server, per_second, given.seconds, size_bytes)
                    records = int(per_second * given.seconds)
                    rounds.add(f"latency at {load:.0%}", system, records, one)
        yield from rounds.results()


def spark(systems: list[str], given: argparse.Namespace) -> Iterator[Result]:
    """Measure queries of Spark, with more records: each query takes a second whatever it does."""

    def records(size_bytes: int) -> int:
        most: int = given.bytes
        return min(2 * most // size_bytes, 4 * MAX_RECORDS)

    yield from spark_rows.measure(systems, given.sizes, records, given.rounds)


def spark_latency(systems: list[str], given: argparse.Namespace) -> Iterator[Result]:
    """Measure the time from a producer through a query to a consumer."""
    yield from spark_rows.latency(systems, given.sizes, RATES, given.seconds, given.rounds)


def under_faults(systems: list[str], given: argparse.Namespace) -> Iterator[Result]:
    """Measure Dafka's latencies while its stores are away or busy."""
    if "dafka" in systems:
        yield from situations.measure(given.sizes, RATES, given.seconds, given.rounds)


def records_of(size_bytes: int, given: argparse.Namespace, system: str = "") -> int:
    """Return the number of records in a measurement."""
    most: int = given.bytes // size_bytes
    return max(min(most, MAX_RECORDS) // FEWER.get(system, 1), 1_000)


NAMES: Final = {
    "many": "publish many",
    "each": "publish one by one",
    "consume": "replay",
    "poll": "replay one by one",
}

ROWS: Final[dict[str, Callable[[list[str], argparse.Namespace], Iterator[Result]]]] = {
    "publish-many": partial(throughput, "many"),
    "publish-each": partial(throughput, "each"),
    "replay": partial(throughput, "consume"),
    "replay-each": partial(throughput, "poll"),
    "latency": latency,
    "spark": spark,
    "spark-latency": spark_latency,
    "faults": under_faults,
}


def main() -> None:
    """Print the results as they come, and a table."""
    parser = argparse.ArgumentParser(prog="benchmarks.peers", description=__doc__)
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS), metavar="ROW")
    found = available()
    parser.add_argument("--systems", nargs="+", choices=found, default=found, metavar="SYSTEM")
    parser.add_argument("--sizes", nargs="+", type=int, default=SIZES_BYTES, metavar="BYTES")
    parser.add_argument("--partitions", nargs="+", type=int, default=PARTITIONS, metavar="N")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each system (default: 5)")
    parser.add_argument("--bytes", type=int, default=FULL_BYTES, help="bytes of a measurement")
    parser.add_argument("--seconds", type=float, default=PACED_S, help="time of a latency")
    given = parser.parse_args()
    results = []
    for row in given.rows:
        for result in ROWS[row](given.systems, given):
            print(json.dumps(asdict(result)), flush=True)
            results.append(result)
    print_table(results)


def print_table(results: list[Result]) -> None:
    """Print results as a table on standard error."""
    table = Table(title="Dafka beside its peers")
    heads = ("row", "B", "part.", "system", "records/s", "range", "client s/M", "server s/M")
    for head in (*heads, "client MB", "server MB", "disk B/record", "latency ms"):
        table.add_column(head, justify="left" if head in ("row", "system") else "right")
    for each in results:
        of = each.median
        measures = (of.client_cpu_s, of.server_cpu_s, of.client_mb, of.server_mb, of.disk_bytes)
        table.add_row(
            each.row,
            str(each.size_bytes),
            str(each.partitions),
            each.system,
            f"{of.rate:,.0f}",
            f"{each.rate_low:,.0f} … {each.rate_high:,.0f}",
            *(f"{value:.4g}" for value in measures),
            ", ".join(f"{name} {value:g}" for name, value in of.latencies_ms.items()),
        )
    Console(stderr=True, width=200).print(table)


if __name__ == "__main__":
    main()
