"""What went in against what came out: every difference as a sentence, none if all is equal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

# A broken run differs everywhere; the first few places tell as much as all of them.
EXAMPLES = 3

PartitionRow = Mapping[str, object]


class PartitionSum(NamedTuple):
    """What one partition holds: offsets 0 to ``records`` - 1, and ``_flights.checksum`` of all."""

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
    """Where the partitions of a topic are not what was fed to it."""
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
    name: str, key: Sequence[str], expected: Iterable[PartitionRow], actual: Iterable[PartitionRow]
) -> list[str]:
    """Where the rows called ``name`` are not the expected ones; ``key`` names a row."""
    wanted = {_key(row, key): row for row in expected}
    found: dict[tuple[object, ...], PartitionRow] = {}
    store_locations: dict[str, list[str]] = {
        "twice": [],
        "unexpected": [],
        "different": [],
        "missing": [],
    }
    for row in actual:
        location = _key(row, key)
        if location in found:
            store_locations["twice"].append(str(row))
        elif location not in wanted:
            store_locations["unexpected"].append(str(row))
        elif dict(wanted[location]) != dict(row):
            store_locations["different"].append(f"{row}, must be {wanted[location]}")
        found[location] = row
    store_locations["missing"] = [
        str(row) for location, row in wanted.items() if location not in found
    ]
    return [
        f"{name}: {len(rows)} rows {what}, such as {'; '.join(rows[:EXAMPLES])}"
        for what, rows in store_locations.items()
        if rows
    ]


def _key(row: PartitionRow, key: Sequence[str]) -> tuple[object, ...]:
    return tuple(row[name] for name in key)
