"""What a benchmark reports, and how pairs of measurements become one figure."""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

from rich.console import Console
from rich.table import Table

Side = Callable[[], float]
"""Runs one side of a comparison and gives what was measured."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One comparison.

    ``ratio`` is larger where ours is better: ours over reference for rates, reference over ours
    for times and memory.  It is the median of the pairs' ratios, so a disturbance that hits one
    pair does not decide; ``ours`` and ``reference`` are medians, too.
    """

    name: str
    ours: float
    reference: float
    unit: str
    ratio: float
    goal: float
    pairs: int


def in_turns(
    name: str,
    sides: Mapping[str, Side],
    pairs: int,
    *,
    warm_ups: int = 0,
    rest_s: float = 0,
) -> dict[str, list[float]]:
    """Measures all sides ``pairs`` times; a list of results by side.

    ``warm_ups``: how often each side runs before, which is dropped.  ``rest_s``: how long the
    machine has nothing to do before each measurement.
    """
    for _ in range(warm_ups):
        for side, measure in sides.items():
            tell(f"{name}: warm-up of {side}: {measure():.4g}")
    measured: dict[str, list[float]] = {side: [] for side in sides}
    for index in range(pairs):
        # Each goes first in half of the pairs: none always finds the machine as another left it.
        for side in list(sides)[:: -1 if index % 2 else 1]:
            time.sleep(rest_s)
            measured[side].append(sides[side]())
        last = ", ".join(f"{side} {values[-1]:.4g}" for side, values in measured.items())
        tell(f"{name}: pair {index + 1} of {pairs}: {last}")
    return measured


def compared(
    name: str,
    ours: Sequence[float],
    reference: Sequence[float],
    *,
    unit: str,
    goal: float,
    smaller_is_better: bool = False,
) -> Figure:
    """The figure of two sides that were measured in turns."""
    pairs = list(zip(ours, reference, strict=True))
    ratios = [theirs / mine if smaller_is_better else mine / theirs for mine, theirs in pairs]
    return Figure(
        name,
        _rounded(statistics.median(ours)),
        _rounded(statistics.median(reference)),
        unit,
        _rounded(statistics.median(ratios)),
        goal,
        len(pairs),
    )


def slower(*sides: Iterable[float]) -> list[float]:
    """The lowest rate of each pair."""
    return [min(rates) for rates in zip(*sides, strict=True)]


def tell(line: str) -> None:
    """Says how far it is, on standard error."""
    print(line, file=sys.stderr, flush=True)


def print_line(figure: Figure) -> None:
    """The figure as a JSON line."""
    print(json.dumps(asdict(figure)), flush=True)


def print_table(figures: list[Figure]) -> None:
    """The figures as a table, on standard error, so that standard output stays JSON lines."""
    table = Table(title="dafka-spark benchmarks (ratio: larger is better)")
    for column in ("name", "ours", "reference", "unit", "ratio", "goal", "met"):
        table.add_column(column, justify="left" if column in ("name", "unit") else "right")
    for f in figures:
        met = "yes" if f.ratio >= f.goal else "NO"
        cells = (f.name, f"{f.ours:g}", f"{f.reference:g}", f.unit, f"{f.ratio:g}", f"{f.goal:g}")
        table.add_row(*cells, met)
    Console(stderr=True, width=120).print(table)


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")
