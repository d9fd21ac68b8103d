"""The pipeline of both demos: a feeder, a query, and what they have done up to now."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from demo.compare import PartitionSum
from demo.processes import Job
from demo.replay_flights import ORIGINS

TOPIC = "flights"
RESULTS_TOPIC = "delays"

# Two Spark drivers start in this time many times over, even on a busy machine.
STALLED_AFTER_S = 120.0

POLL_INTERVAL_S = 0.2

# Three Spark drivers live for less than a minute each: too short for the JVM's second compiler to
# earn what it costs, which is half of all the time they take.  Without it Java has room for 48 MB
# of code, and Spark makes new code for each batch: that is full within a minute of them.
SUBMIT_ARGUMENTS = (
    '--driver-java-options "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m" pyspark-shell'
)


def prepare(directory: Path, *others: str) -> None:
    """Make the output directory, and remove an earlier run's results from it."""
    directory.mkdir(parents=True, exist_ok=True)
    for path in (directory / name for name in ("checkpoint", "delays.parquet", *others)):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


Bar = tuple[str, int, int]
"""A description, the count up to now, and the final count."""


class StalledError(Exception):
    """Nothing has moved for too long."""


@dataclass(slots=True)
class Observed:
    """The output of the jobs up to now."""

    fed: dict[str, int] = field(default_factory=lambda: dict.fromkeys(ORIGINS, 0))
    partitions: list[PartitionSum] = field(default_factory=list)
    read: int = 0
    batches: list[int] = field(default_factory=list)
    lost: int = 0

    def note(self, event: dict[str, Any]) -> None:
        """Add one line of a job."""
        if event["event"] == "fed":
            self.fed = event["records"]
        elif event["event"] == "done":
            names = PartitionSum._fields
            self.partitions = [PartitionSum(*map(each.get, names)) for each in event["partitions"]]
        elif event["event"] == "batch":
            self.read = sum(event["offsets"].get(TOPIC, {}).values())
            self.batches.append(event["batch"])
            self.lost += event["late"] + event["malformed"]

    @property
    def losses(self) -> list[str]:
        """A sentence if the query has dropped flights."""
        lost = f"the query dropped {self.lost} flights as late or malformed"
        return [lost] if self.lost else []


class Pipeline:
    """The jobs of one run; ``directory`` receives results, checkpoint and logs."""

    def __init__(self, tower: str, directory: Path, total: int) -> None:
        self.observed = Observed()
        self._tower = tower
        self._directory = directory
        self._total = total

    def start_feeder(self, rate: float) -> Job:
        """Start to feed all flights, ``rate`` of them a second."""
        arguments = [f"--tower={self._tower}", f"--topic={TOPIC}"]
        arguments += [f"--limit={self._total}", f"--rate={rate:.0f}"]
        return Job("replay_flights.py", arguments, self._directory / "replay.log")

    def start_query(self, per_batch: int, log: str = "query.log") -> Job:
        """Start the query, which reads at most ``per_batch`` flights at once."""
        arguments = [
            f"--tower={self._tower}",
            f"--topic={TOPIC}",
            f"--to={RESULTS_TOPIC}",
            f"--output={self._directory / 'delays.parquet'}",
            f"--checkpoint={self._directory / 'checkpoint'}",
            f"--max-offsets-per-trigger={per_batch}",
        ]
        return Job("flight_delays.py", arguments, self._directory / log)

    def watch(
        self, jobs: Sequence[Job], show: Callable[[], None], done: Callable[[], bool]
    ) -> None:
        """Note what the jobs print, and show it, until all is done.

        Raises:
            JobFailedError: a job ended with an error.
            StalledError: nothing moved for too long.
        """
        moved = time.monotonic()
        while not done():
            for job in jobs:
                for event in job.events():
                    self.observed.note(event)
                    moved = time.monotonic()
            show()
            if time.monotonic() - moved > STALLED_AFTER_S:
                why = f"nothing has moved for {STALLED_AFTER_S:g} s"
                raise StalledError(f"{why}; see the logs in {self._directory}")
            time.sleep(POLL_INTERVAL_S)


@contextmanager
def progress_bars(
    terminal: Console, bars: Callable[[], Sequence[Bar]]
) -> Iterator[Callable[[], None]]:
    """Show bars; yield the function that draws their present state."""
    columns = (
        TextColumn("{task.description:<32}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=terminal) as progress:
        tasks = [progress.add_task(name, total=total) for name, _, total in bars()]

        def show() -> None:
            for task, (name, count, _) in zip(tasks, bars(), strict=True):
                progress.update(task, description=name, completed=count)

        yield show
        show()
