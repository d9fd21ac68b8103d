"""A benchmark's figures, and how pairs of measurements become one figure."""

from __future__ import annotations

import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate

from rich.console import Console
from rich.table import Table

Side = Callable[[], float]  # runs one side of a comparison and returns its measure
SURE = 0.9  # confidence of a figure's interval
LEAST_OF_RELEASED = 0.85  # a smaller share of the last release's least ratio is a regression


@dataclass(frozen=True, slots=True)
class Figure:
    """One comparison.

    ``ratio`` is larger if ours is better: ours over reference for rates, reference over ours for
    times and memory. It is the median of the pairs' ratios, so a disturbance of one pair does not
    decide; ``ours`` and ``reference`` are medians, too. ``low`` and ``high`` bound the median of
    very many pairs with confidence ``SURE``, whatever their distribution; with fewer than five
    pairs, with less.
    """

    name: str
    ours: float
    reference: float
    unit: str
    ratio: float
    low: float
    high: float
    goal: float
    pairs: int

    @property
    def met(self) -> str:
        """Whether the goal is reached, within the machine's noise."""
        if self.ratio >= self.goal:
            return "yes"
        return "noise" if self.high >= self.goal else "NO"


def turns(sides: Iterable[str], rounds: int) -> Iterator[str]:
    """Yield the sides round by round, in alternating order: the first is not always the same."""
    ordered = list(sides)
    for number in range(rounds):
        yield from ordered[:: -1 if number % 2 else 1]


def in_turns(
    name: str,
    sides: Mapping[str, Side],
    pairs: int,
    *,
    warm_ups: int = 0,
    rest_s: float = 0,
) -> dict[str, list[float]]:
    """Measure all sides ``pairs`` times; return a list of results by side.

    ``warm_ups``: dropped runs of each side at first. ``rest_s``: pause before each measurement.
    """
    for _ in range(warm_ups):
        for side, measure in sides.items():
            tell(f"{name}: warm-up of {side}: {measure():.4g}")
    measured: dict[str, list[float]] = {side: [] for side in sides}
    for side in turns(sides, pairs):
        time.sleep(rest_s)
        measured[side].append(sides[side]())
        tell(f"{name}: {side}, {len(measured[side])} of {pairs}: {measured[side][-1]:.4g}")
    return measured


def compared(
    name: str, ours: Sequence[float], reference: Sequence[float], unit: str, goal: float
) -> Figure:
    """Make a figure of two sides that were measured in turns.

    If the unit ends with ``/s``, larger values are better; otherwise smaller ones are.
    """
    pairs = list(zip(ours, reference, strict=True))
    ratios = [mine / theirs if unit.endswith("/s") else theirs / mine for mine, theirs in pairs]
    low, high = interval(ratios)
    return Figure(
        name,
        _rounded(statistics.median(ours)),
        _rounded(statistics.median(reference)),
        unit,
        _rounded(statistics.median(ratios)),
        _rounded(low),
        _rounded(high),
        goal,
        len(pairs),
    )


def limited(
    name: str, found: Sequence[float], limit: float, unit: str, goal: float = 1.0
) -> Figure:
    """Make a figure with a limit as its reference."""
    return compared(name, found, [limit] * len(found), unit, goal)


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the values that bound the median of the distribution.

    As many are left out at each end as possible: the chance of the median beyond them is that of
    throwing that number of coins with one side that seldom.
    """
    count = len(values)
    tails = accumulate(math.comb(count, fewer) for fewer in range(count))
    left_out = max(sum(2 * tail <= (1 - SURE) * 2**count for tail in tails) - 1, 0)
    ordered = sorted(values)
    return ordered[left_out], ordered[-1 - left_out]


def regressions(figures: Iterable[Figure], released: Mapping[str, float]) -> list[str]:
    """Return a sentence for each figure that is worse than at the last release in every pair."""
    return [
        f"{each.name}: {each.ratio:g} of its reference (at most {each.high:g}); "
        f"the last release had at least {released[each.name]:g}"
        for each in figures
        if each.name in released and each.high < LEAST_OF_RELEASED * released[each.name]
    ]


def slower(*sides: Iterable[float]) -> list[float]:
    """Return the lowest rate of each pair."""
    return [min(rates) for rates in zip(*sides, strict=True)]


def tell(line: str) -> None:
    """Report progress on standard error."""
    print(line, file=sys.stderr, flush=True)


def print_line(figure: Figure) -> None:
    """Print the figure as a JSON line."""
    print(json.dumps(asdict(figure)), flush=True)


def print_table(figures: list[Figure]) -> None:
    """Print the figures as a table, on standard error, so that standard output stays JSON lines."""
    table = Table(title="dafka-spark benchmarks (ratio: larger is better)")
    for column in ("name", "ours", "reference", "unit", "ratio", "from … to", "goal", "met"):
        table.add_column(column, justify="left" if column in ("name", "unit") else "right")
    for f in figures:
        measured = (f.name, f"{f.ours:g}", f"{f.reference:g}", f.unit, f"{f.ratio:g}")
        table.add_row(*measured, f"{f.low:.2f} … {f.high:.2f}", f"{f.goal:g}", f.met)
    Console(stderr=True, width=135).print(table)


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")
