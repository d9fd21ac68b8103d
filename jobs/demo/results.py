"""What ``flight_delays.py`` must make of flights, counted without Spark."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import xxhash

KEY = ("day", "origin", "carrier")

# Spark's xxhash64.
_SEED = 42

Row = Mapping[str, Any]


def expected_results(values: Iterable[bytes]) -> list[Row]:
    """The number of flights of each day, airport and carrier, and their checksum.

    The checksum is the exclusive or of the values' hashes: with the number of flights it shows that
    each was counted once.
    """
    found: dict[tuple[str, str, str], tuple[int, int]] = {}
    for value in values:
        flight = json.loads(value)
        key = (flight["scheduled"][:10], flight["origin"], flight["carrier"])
        flights, checksum = found.get(key, (0, 0))
        found[key] = (flights + 1, checksum ^ xxhash.xxh64_intdigest(value, _SEED))
    return [
        dict(zip((*KEY, "flights", "checksum"), (*key, flights, _signed(checksum)), strict=True))
        for key, (flights, checksum) in found.items()
    ]


def of_topic(values: Iterable[bytes]) -> list[Row]:
    """The results that hold, of what the query wrote to its topic."""
    return _latest(map(json.loads, values))


def of_parquet(directory: Path) -> list[Row]:
    """Return the results of its Parquet files."""
    table = ds.dataset(directory, format="parquet", partitioning="hive").to_table()
    rows: list[dict[str, Any]] = table.to_pylist()
    return _latest({**row, "window_start": row["window_start"].isoformat()} for row in rows)


def _latest(rows: Iterable[dict[str, Any]]) -> list[Row]:
    """Of each window, airport and carrier the row that was written last."""
    found: dict[tuple[str, str, str], dict[str, Any]] = {}
    for row in rows:
        key = (row["window_start"][:10], row["origin"], row["carrier"])
        if key not in found or found[key]["batch"] <= row["batch"]:
            found[key] = row
    return [
        dict(zip(KEY, key, strict=True)) | {"flights": row["flights"], "checksum": row["checksum"]}
        for key, row in found.items()
    ]


def _signed(number: int) -> int:
    """A number of 64 bits as Java has it."""
    return number - (1 << 64) if number >> 63 else number
