"""Compare the input with the output: a sentence for every difference."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

# A broken run differs everywhere; the first few differences are enough.
EXAMPLES = 3

Row = Mapping[str, object]


class PartitionSum(NamedTuple):
    """The records of one partition: offsets 0 to ``records`` - 1, and their checksum."""

    partition: str
    records: int
    sha256: str


def sums_of(records: DataFrame) -> dict[str, PartitionSum]:
    """The sums of a topic read as a batch, by partition.

    ``records`` has columns partition, offset and value.

    Raises:
        ValueError: a partition has a gap or an offset twice.
    """
    digests = records.select(
        "partition", sf.struct("offset", sf.sha2("value", 256).alias("digest")).alias("record")
    )
    ordered = sf.array_sort(sf.collect_list("record"))
    per_partition = digests.groupBy("partition").agg(
        sf.count("*").alias("records"),
        sf.min("record.offset").alias("first"),
        sf.max("record.offset").alias("last"),
        sf.count_distinct("record.offset").alias("distinct"),
        sf.sha2(sf.array_join(ordered.getField("digest"), ""), 256).alias("sha256"),
    )
    sums = {}
    for row in per_partition.collect():
        if row.first != 0 or row.last != row.records - 1 or row.distinct != row.records:
            raise ValueError(
                f"partition {row.partition}: {row.records} records, {row.distinct} different "
                f"offsets from {row.first} to {row.last}; must be each offset from 0 on, once"
            )
        sums[row.partition] = PartitionSum(row.partition, row.records, row.sha256)
    return sums


def partition_differences(
    fed: Iterable[PartitionSum], read: Mapping[str, PartitionSum]
) -> list[str]:
    """Yield the differences between the partitions of a topic and its input."""
    expected = {entry.partition: entry for entry in fed}
    differences = []
    for partition in sorted(expected.keys() | read.keys()):
        put = expected.get(partition)
        got = read.get(partition)
        if put is None:
            differences.append(f"partition {partition} was not fed, but is there")
        elif got is None:
            differences.append(f"partition {partition} was fed {put.records} records, has none")
        elif put.records != got.records:
            differences.append(
                f"partition {partition} was fed {put.records} records, has {got.records}"
            )
        elif put.sha256 != got.sha256:
            differences.append(f"partition {partition} has other values than were fed to it")
    return differences


def row_differences(
    name: str, key: Sequence[str], expected: Iterable[Row], actual: Iterable[Row]
) -> list[str]:
    """Yield the differences between rows and the expected ones; ``key`` identifies a row."""
    wanted = {_key(row, key): row for row in expected}
    found: dict[tuple[object, ...], Row] = {}
    kinds = ("twice", "unexpected", "different", "missing")
    differences: dict[str, list[str]] = {kind: [] for kind in kinds}
    for row in actual:
        row_key = _key(row, key)
        if row_key in found:
            differences["twice"].append(str(row))
        elif row_key not in wanted:
            differences["unexpected"].append(str(row))
        elif dict(wanted[row_key]) != dict(row):
            differences["different"].append(f"{row}, must be {wanted[row_key]}")
        found[row_key] = row
    differences["missing"] = [str(row) for row_key, row in wanted.items() if row_key not in found]
    return [
        f"{name}: {len(rows)} rows {what}, such as {'; '.join(rows[:EXAMPLES])}"
        for what, rows in differences.items()
        if rows
    ]


def _key(row: Row, key: Sequence[str]) -> tuple[object, ...]:
    return tuple(row[name] for name in key)
