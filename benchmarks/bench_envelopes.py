"""Row 11: batch queries of values with keys and headers, beside bare values."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from pyspark.sql import DataFrame, SparkSession

from benchmarks import spark_sessions
from benchmarks.bench_read import UNIT, WARM_UPS, source_options, stub_options
from benchmarks.bench_write import REST_S, rows, write_rate
from benchmarks.figures import Figure, compared
from benchmarks.harness import Bench, filled
from benchmarks.stub_source import FORM, HEADERS, keys_and_headers
from dafka_core import EmbeddedCluster
from dafka_core.model.envelope_columns import close_columns
from dafka_core.model.values import Values

FULL_READ = 5_000_000
FULL_WRITTEN = 2_000_000

SIZE_BYTES = 100

GOAL = 0.6


def run(bench: Bench) -> Iterator[Figure]:
    """Measure reading and writing."""
    with spark_sessions.session() as spark:
        yield from read(spark, bench)
        yield from write(spark, bench)


def read(spark: SparkSession, bench: Bench) -> Iterator[Figure]:
    """Measure rows a second of all columns, with headers.

    Also beside precomputed batches with the same columns: headers cost Spark more than bare rows as
    a whole.
    """
    records = bench.part(FULL_READ)
    place = partial(filled, records=records, size_bytes=SIZE_BYTES, partitions=2)
    with (
        place(bench.directory / "keyed", content=keyed) as full,
        place(bench.directory / f"bare-{SIZE_BYTES}") as bare,
    ):
        sides = {
            side: partial(read_rate, spark, cluster, records)
            for side, cluster in (("keyed", full), ("bare", bare))
        }
        stub = {**stub_options(source_options(full), records, SIZE_BYTES), "keyed": True}
        sides["made"] = partial(spark_sessions.read_rate, spark, FORM, records, stub)
        name = f"batch read, key and {len(HEADERS)} headers, {SIZE_BYTES} B"
        rates = bench.in_turns(name, sides, warm_ups=WARM_UPS)
    for side, reference, more in (
        ("keyed", "bare", ""),
        ("keyed", "made", ", beside prepared batches"),
        ("made", "bare", ", prepared batches beside bare"),
    ):
        yield compared(name + more, rates[side], rates[reference], UNIT, GOAL)


def read_rate(spark: SparkSession, cluster: EmbeddedCluster, records: int) -> float:
    """Return millions of rows a second."""
    options = source_options(cluster, includeHeaders=True)
    return spark_sessions.read_rate(spark, "dafka", records, options)


def write(spark: SparkSession, bench: Bench) -> Iterator[Figure]:
    """Measure acknowledged rows a second.

    Also beside the parts of the work without envelopes: Spark makes and hands over such rows (a
    sink that only counts), and a store keeps as many bytes (bare values of that size, less the time
    of a counting sink).
    """
    records = bench.part(FULL_WRITTEN)
    bare, large = (
        rows(spark, records, size_bytes, tasks=spark_sessions.SLOTS)
        for size_bytes in (SIZE_BYTES, closed_bytes())
    )
    frames = {"keyed": with_keys(bare), "bare": bare, "large": large}
    sides = {side: partial(write_rate, frame, records) for side, frame in frames.items()}
    for side in ("keyed", "large"):
        counted = partial(spark_sessions.rate, records, frames[side], FORM, {})
        sides[f"{side}, counted"] = counted
    name = f"batch write, key and {len(HEADERS)} headers, {SIZE_BYTES} B"
    rest_s = bench.part(REST_S, least=0)
    rates = bench.in_turns(name, sides, warm_ups=1, rest_s=rest_s)
    parts = zip(rates["keyed, counted"], rates["large"], rates["large, counted"], strict=True)
    rates["parts"] = [
        1 / (1 / made + max(1 / kept - 1 / counted, 0)) for made, kept, counted in parts
    ]
    for side, reference, more in (
        ("keyed", "bare", ""),
        ("keyed", "parts", ", beside what their parts take"),
        ("parts", "bare", ", what their parts take beside bare"),
    ):
        yield compared(name + more, rates[side], rates[reference], UNIT, GOAL)


def closed_bytes() -> int:
    """Return the size of such records' contents."""
    return keyed(Values.of([bytes(SIZE_BYTES)])).size_bytes


def with_keys(frame: DataFrame) -> DataFrame:
    """Return the rows, each with its own key."""
    headers = ", ".join(
        f"struct('{name}' AS key, CAST('{value.decode()}' AS binary) AS value)"
        for name, value in HEADERS
    )
    return frame.selectExpr("value", "substr(value, 1, 20) AS key", f"array({headers}) AS headers")


def keyed(values: Values) -> Values:
    """Return the values with keys and headers."""
    return Values.from_arrow(close_columns(values.to_arrow(), *keys_and_headers(len(values))))
