"""What a benchmark reports, and how pairs of measurements become one figure."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass

from rich.console import Console
from rich.table import Table


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


def compare_rates(
    name: str,
    ours: Callable[[], float],
    reference: Callable[[], float],
    *,
    unit: str,
    goal: float,
    pairs: int,
) -> Figure:
    """Measures both in turns; each call returns a rate."""
    measured: list[tuple[float, float]] = []
    for index in range(pairs):
        # Each goes first in half of the pairs: neither always finds the machine warm.
        if index % 2:
            theirs = reference()
            measured.append((ours(), theirs))
        else:
            mine = ours()
            measured.append((mine, reference()))
        print(f"{name}: pair {index + 1} of {pairs}: {measured[-1]}", file=sys.stderr)
    return Figure(
        name,
        round(statistics.median(mine for mine, _ in measured), 3),
        round(statistics.median(theirs for _, theirs in measured), 3),
        unit,
        round(statistics.median(mine / theirs for mine, theirs in measured), 3),
        goal,
        pairs,
    )


def print_lines(figure: Figure) -> None:
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
    Console(stderr=True, width=110).print(table)
