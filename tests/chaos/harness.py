"""Shared by all tables: rounds from a seed, faults by kind, and the outcome."""

from __future__ import annotations

import abc
import contextlib
import json
import random
import shutil
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import ClassVar

from tests.chaos.counting import compare

PATIENCE_S = 90.0  # timeout of every condition: on a busy machine nodes start slowly

_POLL_S = 0.01


class ChaosError(Exception):
    """An expected event has not happened, or a forbidden one has."""


@dataclass
class Outcome:
    table: int
    name: str
    seed: int
    rounds: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    records: int = 0
    losses: int = 0
    doubles: int = 0
    strangers: int = 0
    figures: dict[str, float] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def good(self) -> bool:
        """Whether nothing was lost or doubled, and every round ended."""
        return not (self.losses or self.doubles or self.strangers or self.failures)

    def line(self) -> str:
        return json.dumps(asdict(self) | {"faults": dict(sorted(self.faults.items()))})


class Chaos:
    """A running table.

    Each round has its own random numbers, from the seed, the table and the round's number: so it is
    the same whichever rounds run before it.
    """

    def __init__(
        self,
        table: int,
        name: str,
        seed: int,
        directory: Path,
        *,
        first: int = 0,
        short: bool = False,
    ) -> None:
        self.outcome = Outcome(table, name, seed)
        self.directory = directory
        self.first = first
        self.short = short
        self._started_s = time.monotonic()

    def chance(self, number: int) -> random.Random:
        return random.Random(f"{self.outcome.seed}/{self.outcome.table}/{number}")

    def fault(self, kind: str) -> None:
        self.outcome.faults[kind] += 1

    def compare(
        self,
        where: str,
        required: Iterable[Hashable],
        found: Iterable[Hashable],
        allowed: Iterable[Hashable] | None = None,
    ) -> None:
        """Count losses, doubles and strangers, which also fail the round."""
        difference = compare(required, found, allowed)
        self.outcome.losses += difference.losses
        self.outcome.doubles += difference.doubles
        self.outcome.strangers += difference.strangers
        if difference:
            raise ChaosError(f"{where}: {difference}")

    def add(self, figure: str, count: int = 1) -> None:
        """Count something that is neither a fault nor a failure."""
        self.outcome.figures[figure] = self.outcome.figures.get(figure, 0) + count

    def most(self, figure: str, value: float) -> None:
        self.outcome.figures[figure] = max(value, self.outcome.figures.get(figure, 0.0))

    @contextlib.contextmanager
    def round(self, number: int) -> Iterator[Path]:
        """Yield a round with a directory of its own, kept if the round fails."""
        directory = self.directory / f"{self.outcome.name}-{number}"
        directory.mkdir(parents=True)
        try:
            yield directory
        except Exception as error:  # noqa: BLE001 -- the other rounds, and the line, are to come
            location = traceback.extract_tb(error.__traceback__)[-1]
            at = f"{Path(location.filename).name}:{location.lineno}"
            self.outcome.failures.append(
                f"round {number} ({at}, files in {directory}): {type(error).__name__}: {error}"
            )
        else:
            shutil.rmtree(directory, ignore_errors=True)
        self.outcome.rounds += 1

    def play(self, rounds: int, kind: type[Round]) -> None:
        """Run rounds in series; each series closes what it has entered into its stack."""
        end = self.first + rounds
        for number in range(self.first, end, kind.series):
            count = min(kind.series, end - number)
            with self.round(number) as directory, ExitStack() as stack:
                kind(self, number, directory, stack, count).run()
            self.outcome.rounds += count - 1

    def end(self) -> Outcome:
        self.outcome.seconds = round(time.monotonic() - self._started_s, 1)
        return self.outcome


@dataclass
class Round(abc.ABC):
    """A round of a table, or a series of rounds on one directory, with its resources."""

    series: ClassVar[int] = 1
    """The most rounds of a series."""

    chaos: Chaos
    number: int  # of the first round
    directory: Path
    stack: ExitStack
    count: int

    def __post_init__(self) -> None:
        self.chance = self.chaos.chance(self.number)

    @abc.abstractmethod
    def run(self) -> None:
        """Inject faults, and check what they have left."""


class Worker(abc.ABC):
    """Work in a thread of its own, until it is stopped."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.failure: Exception | None = None
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop at once."""
        self._done.set()
        self._thread.join(PATIENCE_S)

    def finish(self) -> None:
        """Stop after unfinished work; raise its errors."""
        self.stop()
        self.check()
        if self._thread.is_alive():
            raise ChaosError(f"{self.name} does not end")

    def check(self) -> None:
        """Raise the error with which the work has ended."""
        if self.failure is not None:
            raise ChaosError(f"{self.name}: {self.failure}") from self.failure

    def _run(self) -> None:
        try:
            self._work()
        except Exception as error:  # noqa: BLE001 -- told by ``check``
            self.failure = error

    @abc.abstractmethod
    def _work(self) -> None:
        """Run in the thread."""


def wait_until(
    condition: Callable[[], object], what: str | Callable[[], str], timeout_s: float = PATIENCE_S
) -> None:
    """Wait for a condition; ``what`` describes it, possibly by a function.

    Raises:
        ChaosError: it was false until the timeout.
    """
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            awaited = what if isinstance(what, str) else what()
            raise ChaosError(f"waited {timeout_s:g} s in vain until {awaited}")
        time.sleep(_POLL_S)
