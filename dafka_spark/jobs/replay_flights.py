"""Feeds a topic with the flights of 2013 as JSON: one producer, so one partition, per airport.

    dafka job replay_flights --limit 5000

Flights go in the order of their scheduled departure, all airports side by side.  With ``--resume``
each airport has a fixed address and the replay goes on after the last flight that is in the topic,
so it may be stopped and started again, or fed in pieces with a growing ``--limit``.

Prints lines of JSON: how far it is, and at the end what each partition holds, with a checksum.
It starts no Spark; spark-submit runs it as well.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack

from dafka_core import Producer
from dafka_core.security_options import keys_of_environment
from dafka_spark.jobs.support.flight_records import (
    ORIGINS,
    Flights,
    address_of,
    checksum,
    load_flights,
)
from dafka_spark.jobs.support.job_arguments import JobParser, positive, print_json, rate
from dafka_spark.jobs.support.job_exit import on_stop_signals, raise_stopped, run_job

# Flights between two looks at the clock: 3 producers share them, and a slice takes a few
# milliseconds, so the pace is even to the eye.  At a low rate a slice is a tenth of a second.
SLICE_SIZE = 1000
SLICES_PER_S = 10

REPORT_INTERVAL_S = 0.25

# A store on a busy machine answers within a second; this only bounds a replay without a store.
FLUSH_TIMEOUT_S = 120.0

Report = Callable[[dict[str, int]], None]


def replay(
    flights: Flights,
    *,
    tower: str,
    topic: str,
    rate: float,
    resume: bool,
    report: Report,
) -> list[dict[str, object]]:
    """Feeds the flights and waits until a store has them all.

    ``rate`` is in flights per second, 0 for as fast as it goes.  ``report`` is told how many
    flights of each airport have been given to its producer.  Returns a dictionary per partition:
    partition, origin, records, sha256 (of ``_flights.checksum``).

    Raises:
        NotAcknowledgedError: no store acknowledged in time.
        TowerNotFoundError: there is no tower.
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
        summaries: list[dict[str, object]] = []
        for origin, producer in producers.items():
            values = flights.from_origin(origin)
            summary: dict[str, object] = {
                "partition": producer.address,
                "origin": origin,
                "records": len(values),
                "sha256": checksum(values),
            }
            summaries.append(summary)
    return summaries


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
    """Runs the replay; prints lines of JSON."""
    arguments = _parser().parse(argv)
    flights = load_flights(arguments.limit)
    on_stop_signals(raise_stopped)
    summaries = replay(
        flights,
        tower=arguments.tower,
        topic=arguments.topic,
        rate=arguments.rate,
        resume=arguments.resume,
        report=lambda fed: print_json({"event": "fed", "records": fed}),
    )
    print_json({"event": "done", "topic": arguments.topic, "partitions": summaries})


def _parser() -> JobParser:
    parser = JobParser("Feed a topic with the flights of 2013 as JSON, one partition per airport.")
    parser.add_argument("--topic", default="flights", help="default: %(default)s")
    parser.add_argument(
        "--limit", type=positive, metavar="N", help="only the first N flights (default: all)"
    )
    parser.add_argument(
        "--rate",
        type=rate,
        default=0.0,
        metavar="N",
        help="flights per second, 0 for as fast as it goes (default: %(default)s)",
    )
    parser.add_argument(
        "--resume",
        action="store_true",
        help="fixed addresses; go on after the last flight that is in the topic",
    )
    return parser


if __name__ == "__main__":
    run_job(main)
