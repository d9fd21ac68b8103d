"""The demo's comparison finds records and rows that are changed, lost, duplicated or moved."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from demo.compare import PartitionSum, partition_differences, row_differences, sums_of
from demo.replay_flights import checksum
from pyspark.sql import SparkSession

Rows = list[dict[str, object]]

_KEY = ("origin", "carrier")
_ROWS: Rows = [
    {"origin": "JFK", "carrier": "AA", "flights": 3, "mean": None},
    {"origin": "JFK", "carrier": "UA", "flights": 4, "mean": 1.5},
    {"origin": "LGA", "carrier": "UA", "flights": 5, "mean": 2.5},
]


def test_the_sums_of_a_topic_are_those_of_what_was_fed(session: SparkSession) -> None:
    partitions = {"A": [b"3", b"1", b"2"], "B": [b"", b"\xff\x00"]}
    rows = [
        (partition, offset, bytearray(value))
        for partition, values in partitions.items()
        for offset, value in reversed(list(enumerate(values)))
    ]
    records = session.createDataFrame(rows, "partition string, offset bigint, value binary")
    assert sums_of(records.repartition(3)) == {
        name: PartitionSum(name, len(values), checksum(values))
        for name, values in partitions.items()
    }


@pytest.mark.parametrize("offsets", [(0, 2), (1, 2), (0, 1, 1), (0, 0, 2)])
def test_a_gap_or_a_double_is_an_error(session: SparkSession, offsets: tuple[int, ...]) -> None:
    rows = [("A", offset, bytearray(b"x")) for offset in offsets]
    records = session.createDataFrame(rows, "partition string, offset bigint, value binary")
    with pytest.raises(ValueError, match="partition A"):
        sums_of(records)


@pytest.mark.parametrize(
    ("read", "sentence"),
    [
        ({}, "was fed 2 records, has none"),
        ({"A": PartitionSum("A", 1, "ab")}, "was fed 2 records, has 1"),
        ({"A": PartitionSum("A", 2, "cd")}, "has other values"),
        ({"A": PartitionSum("A", 2, "ab"), "B": PartitionSum("B", 1, "x")}, "B was not fed"),
    ],
)
def test_partitions_that_differ_are_named(read: dict[str, PartitionSum], sentence: str) -> None:
    fed = PartitionSum("A", 2, "ab")
    assert partition_differences([fed], {"A": fed}) == []
    (difference,) = partition_differences([fed], read)
    assert sentence in difference


@pytest.mark.parametrize(
    ("tamper", "sentence"),
    [
        (lambda rows: rows[:-1], "1 rows missing"),
        (lambda rows: [*rows, rows[0]], "1 rows twice"),
        (lambda rows: [*rows, {**rows[0], "carrier": "XX"}], "1 rows unexpected"),
        (lambda rows: [{**rows[0], "flights": 2}, *rows[1:]], "1 rows different"),
        (lambda rows: [{**rows[0], "mean": 0.0}, *rows[1:]], "1 rows different"),
    ],
)
def test_rows_that_differ_are_shown(tamper: Callable[[Rows], Rows], sentence: str) -> None:
    assert row_differences("parquet", _KEY, _ROWS, reversed(_ROWS)) == []
    (difference,) = row_differences("parquet", _KEY, _ROWS, tamper(_ROWS))
    assert difference.startswith(f"parquet: {sentence}, such as ")
