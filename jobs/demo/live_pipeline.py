"""The pipeline of ``demo.live``: feeder, query, consumer, and the store that is killed."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from rich.console import Console as Terminal

from dafka_core import EmbeddedCluster
from dafka_core.flight.store_client import StoreClient
from dafka_core.flight.store_location import StoreLocation
from demo.compare import partition_differences, row_differences
from demo.pictures import MAP, QUERIES, Page
from demo.pipeline import POLL_INTERVAL_S, RESULTS_TOPIC, TOPIC, Bar, Pipeline, progress_bars
from demo.received import Reading
from demo.replay_flights import FLIGHTS_OF_2013, load_flights
from demo.results import KEY, Row, expected_results, of_parquet, of_topic
from demo.timeline import Outage, Sample

# Of the time for which flights are fed: when a store is killed, and for how long it is away.
KILLED_AT = 0.4
AWAY = 0.25

# A batch of the query has at most the records of this number of seconds, backlog included.
BATCH_S = 5

# The timeout of stores and reader for the last records.
SETTLE_S = 60.0

ASK_TIMEOUT_S = 10.0

AWAY_PICTURE, MAP_PICTURE, QUERY_PICTURE = (
    f"console{page}.png" for page in ("-store-away", "", "-query")
)

# Draws pages of the console into files of these names; done when they are drawn.
Draw = Callable[[dict[str, Page]], Future[None]]


class Plan(NamedTuple):
    """The rate of the feed, in flights per second, and its duration."""

    rate: int
    seconds: int

    @property
    def flights(self) -> int:
        """The total number of flights."""
        return min(FLIGHTS_OF_2013, self.rate * self.seconds)

    @property
    def kill_at_s(self) -> float:
        """When a store is killed, in seconds after the start of the feed, or later with Spark."""
        return KILLED_AT * self.flights / self.rate

    @property
    def away_s(self) -> float:
        """For how long it is away at least."""
        return AWAY * self.flights / self.rate


@dataclass(slots=True)
class Noticed:
    """The flights that the reader got while a store was away, and its longest waits for one."""

    flights: int = 0
    wait_s: float = 0.0
    wait_before_s: float = 0.0


class Live(Pipeline):
    """One run; ``directory`` receives pictures, too."""

    def __init__(
        self, plan: Plan, cluster: EmbeddedCluster, directory: Path, terminal: Terminal
    ) -> None:
        super().__init__(cluster.tower, directory, plan.flights)
        self._plan = plan
        self._cluster = cluster
        self._terminal = terminal
        self._began = time.monotonic()
        self.samples: list[Sample] = []
        self.outage = Outage(0.0, 0.0)
        self.noticed = Noticed()

    def run(self, draw: Draw) -> list[str]:
        """Feed, read, kill a store and start it again.

        Returns every difference as a sentence.

        Raises:
            DafkaError: the reader has ended with it, or the store did not start.
            JobFailedError: a job ended with an error.
            StalledError: nothing moved for too long.
        """
        topics = (TOPIC, RESULTS_TOPIC)
        with (
            progress_bars(self._terminal, self._bars) as draw_bars,
            ThreadPoolExecutor(1) as beside,
            Reading(self._tower, topics, RESULTS_TOPIC) as reader,
            self.start_query(BATCH_S * self._plan.rate) as query,
            self.start_feeder(self._plan.rate) as feeder,
        ):
            observed, plan, fed_from = self.observed, self._plan, time.monotonic()

            def show() -> None:
                if reader.failure is not None:
                    raise reader.failure
                self._note(reader)
                draw_bars()

            def watch(done: Callable[[], bool]) -> None:
                self.watch([feeder, query], show, done)

            self._say("flights are fed; Spark starts, and then takes what has waited for it")
            watch(lambda: bool(observed.batches) and self._since(fed_from) >= plan.kill_at_s)
            noticed, received = self.noticed, reader.received
            noticed.wait_before_s = received.forget_waits()
            read = received.records[TOPIC]
            self._cluster.kill_store(1)
            killed_at = time.monotonic()
            self._say("[bold red]killed[/] a store (SIGKILL); who writes and who reads go on")
            drawn = draw({AWAY_PICTURE: MAP})
            watch(lambda: drawn.done() and self._since(killed_at) >= plan.away_s)
            noticed.flights = received.records[TOPIC] - read
            noticed.wait_s = received.forget_waits()
            started = beside.submit(self._cluster.start_store, 1)
            watch(started.done)
            started.result()
            self.outage = Outage(killed_at - self._began, self._since(self._began))
            self._say("[bold green]started[/] the store again; it takes what it has missed")
            drawn = draw({MAP_PICTURE: MAP, QUERY_PICTURE: QUERIES})
            watch(
                lambda: bool(observed.partitions) and observed.read >= plan.flights and drawn.done()
            )
            query.stop()
            return self._settle(reader, draw_bars)

    def _settle(self, reader: Reading, draw_bars: Callable[[], None]) -> list[str]:
        """Return the differences after the last record."""
        expected = expected_results(load_flights(self._plan.flights).values)
        deadline = time.monotonic() + SETTLE_S
        while True:
            self._note(reader)
            draw_bars()
            differences = self._differences(reader, expected)
            if not differences or reader.failure or time.monotonic() > deadline:
                return differences
            time.sleep(POLL_INTERVAL_S)

    def _differences(self, reader: Reading, expected: list[Row]) -> list[str]:
        total, received = self._plan.flights, reader.received
        wrong = received.wrong()
        if reader.failure is not None:
            wrong.append(f"the reader was refused: {reader.failure}")
        wrong += self.observed.losses
        wrong += partition_differences(self.observed.partitions, received.sums())
        if received.records[TOPIC] != total:
            wrong.append(f"the reader got {received.records[TOPIC]} flights, must be {total}")
        outputs = {
            f"topic {RESULTS_TOPIC}": of_topic(received.values[:]),
            "parquet": of_parquet(self._directory / "delays.parquet"),
        }
        for name, rows in outputs.items():
            wrong += row_differences(name, KEY, expected, rows)
        for index in range(2):
            for topic in (TOPIC, RESULTS_TOPIC):
                kept, came = self._kept(index, topic), received.records[topic]
                if kept != came:
                    wrong.append(f"store {index + 1} has {kept} of {came} records of {topic}")
        return wrong

    def _kept(self, index: int, topic: str) -> int:
        with StoreClient(StoreLocation("", self._cluster.locations(index))) as client:
            heads = client.heads([topic], timeout_s=ASK_TIMEOUT_S)
        return sum(head.end - head.earliest for head in heads)

    def _note(self, reader: Reading) -> None:
        observed = self.observed
        fed, read = sum(observed.fed.values()), reader.received.records[TOPIC]
        self.samples.append(Sample(self._since(self._began), fed, read, observed.read))

    def _since(self, moment: float) -> float:
        return time.monotonic() - moment

    def _say(self, text: str) -> None:
        self._terminal.print(f"{self._since(self._began):5.1f} s  {text}", highlight=False)

    def _bars(self) -> list[Bar]:
        names = (f"fed to topic {TOPIC}", "read by a consumer", "counted by Spark")
        counts = self.samples[-1][1:] if self.samples else (0, 0, 0)
        return [(name, count, self._total) for name, count in zip(names, counts, strict=True)]
