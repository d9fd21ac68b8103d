"""Run the benchmarks: ``python -m benchmarks [--only ROW ...] [--records N]``."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

from benchmarks.figures import (
    LEAST_OF_RELEASED,
    Figure,
    print_line,
    print_table,
    regressions,
)
from benchmarks.harness import FULL_RECORDS, SIZES_BYTES, prepared

ROWS = {
    "read": "bench_read",
    "write": "bench_write",
    "drain": "bench_drain",
    "trigger": "bench_micro_batch",
    "replay": "bench_replay",
    "mesh": "bench_ingest",
    "memory": "bench_memory",
    "trickle": "bench_trickle",
    "partitions": "bench_partitions",
    "space": "bench_space",
    "idle": "bench_idle",
    "many": "bench_many",
    "envelopes": "bench_envelopes",
    "typed": "bench_typed",
    "where": "bench_where",
    "kafka": "bench_kafka",
    "kafka_latency": "bench_kafka_latency",
    "metrics": "bench_metrics",
    "retention": "bench_retention",
    "archive": "bench_archive",
    "compression": "bench_compression",
    "console": "bench_console",
    "links": "bench_links",
    "keys": "bench_keys",
    "greedy": "bench_greedy",
    "mesh_growth": "bench_growth",
}
"""Modules by row. Imported when they run: the rows' processes import this module, and need no
Spark."""

RELEASED = Path(__file__).with_name("released.json")
"""The least ratios of the last release's pairs, by the figure's name."""

BESIDE_A_BROKER = ("kafka", "kafka_latency")
"""Rows that need Apache Kafka, and so Maven."""

QUICK_PAIRS = 3
QUICK_RECORDS = 500_000
NOT_QUICK = ("drain", "trigger", "idle", "many", "mesh_growth")
"""Rows that take minutes, however few records there are."""


def main() -> None:
    """Print each figure as soon as it is measured, and a table of all at the end."""
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    parser.add_argument(
        "--only", nargs="+", choices=ROWS, default=list(ROWS), metavar="ROW", help="rows to run"
    )
    parser.add_argument("--list", action="store_true", help="list the rows")
    parser.add_argument("--pairs", type=int, default=5, help="pairs per figure (default: 5)")
    parser.add_argument(
        "--records",
        type=int,
        default=FULL_RECORDS,
        help=f"records of the first row (default: {FULL_RECORDS}); fewer make all rows smaller",
    )
    parser.add_argument(
        "--sizes",
        nargs="+",
        type=int,
        choices=SIZES_BYTES,
        default=list(SIZES_BYTES),
        metavar="BYTES",
        help=f"sizes of a value (default: {' and '.join(map(str, SIZES_BYTES))})",
    )
    parser.add_argument(
        "--cold",
        dest="warm",
        action="store_false",
        help="run nothing before it is measured, and all in one session: only to see that it runs",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help=f"one figure of a small row each, beside {RELEASED.name}; fails if one is "
        f"{1 - LEAST_OF_RELEASED:.0%}% worse",
    )
    parser.add_argument("--release", action="store_true", help=f"write {RELEASED.name} by --quick")
    arguments = parser.parse_args()
    if arguments.quick and not arguments.release and not RELEASED.exists():
        parser.error(f"{RELEASED.name} is missing: write it by --release")
    if arguments.quick or arguments.release:
        arguments.pairs, arguments.records, arguments.sizes = QUICK_PAIRS, QUICK_RECORDS, [100]
        if arguments.only == list(ROWS):
            arguments.only = [name for name in ROWS if name not in NOT_QUICK]
    rows = {name: importlib.import_module(f"benchmarks.{ROWS[name]}") for name in arguments.only}
    if arguments.list:
        for name, module in rows.items():
            print(f"{name:10} {(module.__doc__ or '').splitlines()[0]}")
        return
    figures: list[Figure] = []
    sizes_bytes = tuple(arguments.sizes)
    with (
        prepared(arguments.pairs, arguments.records, sizes_bytes, arguments.warm) as bench,
        contextlib.nullcontext()
        if arguments.warm or len(rows) == 1
        else shared_session(arguments.only),
    ):
        for module in rows.values():
            with contextlib.closing(module.run(bench)) as found:
                most = 1 if arguments.quick or arguments.release else None
                for figure in islice(found, most):
                    print_line(figure)
                    figures.append(figure)
    print_table(figures)
    if arguments.release:
        ratios = {figure.name: figure.low for figure in figures}
        RELEASED.write_text(json.dumps(ratios, indent=1) + "\n")
    elif arguments.quick and (worse := regressions(figures, json.loads(RELEASED.read_text()))):
        sys.exit("\n".join(worse))


@contextlib.contextmanager
def shared_session(rows: Iterable[str]) -> Iterator[None]:
    """Run rows in one Spark session: starting one takes longer than a small row."""
    from benchmarks import kafka_broker, spark_sessions

    jars = [] if {*BESIDE_A_BROKER}.isdisjoint(rows) else kafka_broker.sparks_jars()
    with spark_sessions.session(jars):
        yield


if __name__ == "__main__":
    main()
