"""The plot: an airport's carriers by weeks, in the colour of their delay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure

from demo.replay_flights import ORIGINS
from demo.report import Results, Tally

AIRPORTS = {"EWR": "Newark (EWR)", "JFK": "Kennedy (JFK)", "LGA": "LaGuardia (LGA)"}

# A year is shown by weeks, less than a quarter by days: cells stay wide enough to be seen.
DAYS_SHOWN_SINGLY = 90

MOST_DAYS_NAMED = 12

# The scale ends at an hour, as a few worse weeks would make all others pale.
COLOR_CAP_MIN = 60

# Carriers with fewer of an airport's flights leave more holes than cells.
LEAST_SHARE_SHOWN = 0.002

# From calm to alarming; dark enough at the end to be read in grey.
_COLORS = LinearSegmentedColormap.from_list(
    "delay", ["#f4f1e6", "#f6d78b", "#ef9a4d", "#d1495b", "#7a1f5c", "#2d0b3a"]
)
INK = "#22252b"
QUIET = "#6b7078"


class _Grid(NamedTuple):
    """An airport: its carriers, busiest first; ``means_min[carrier, column]``; their totals."""

    flights: int
    carriers: list[str]
    means_min: np.ndarray[Any, np.dtype[np.float64]]
    totals: list[Tally]


def plot_delays(
    results: Results, airlines: Mapping[str, str], path: Path, restarted_at: datetime | None
) -> None:
    """Write a heat map per airport, carriers by weeks (or days), as PNG.

    ``restarted_at`` is the event time that had been reached when the query was killed.
    """
    edges = _edges(results)
    grids = [_grid(results, origin, edges) for origin in ORIGINS]
    heights = [max(1, len(grid.carriers)) for grid in grids]
    # Inches: rows of one height in all panels, and room around them for the titles.
    height = 0.29 * sum(heights) + 3.0
    figure = Figure(figsize=(12, height), dpi=160, facecolor="white")
    axes = figure.subplots(
        len(ORIGINS), 2, squeeze=False, height_ratios=heights, width_ratios=[8, 1.5]
    )
    figure.subplots_adjust(
        left=0.125,
        right=0.965,
        top=1 - 1.35 / height,
        bottom=0.55 / height,
        wspace=0.04,
        hspace=2.64 / height,
    )
    norm = Normalize(0, COLOR_CAP_MIN)
    for (left, right), origin, grid in zip(axes, ORIGINS, grids, strict=True):
        _draw_heat_map(left, grid, edges, airlines, norm)
        _draw_bars(right, grid, norm)
        _draw_panel_title(left, origin, grid)
        if restarted_at is not None:
            left.axvline(_days(restarted_at), color=INK, lw=1.2, ls=(0, (4, 3)))
    if restarted_at is not None:
        _draw_restart(axes[0][0], restarted_at)
    lowest = min(0.0, *(right.get_xlim()[0] for _, right in axes))
    highest = max(right.get_xlim()[1] for _, right in axes)
    for _, right in axes:
        right.set_xlim(lowest, highest)
    axes[0][1].set_title("over the whole time", loc="left", fontsize=9, color=QUIET, pad=8)
    axes[-1][1].set_xlabel("mean departure delay, min", fontsize=9, color=QUIET)
    _draw_titles(figure, height, results, edges)
    _draw_color_bar(figure, height, norm)
    figure.savefig(path)


def _edges(results: Results) -> list[datetime]:
    first = min(row["window_start"] for row in results)
    last = max(row["window_end"] for row in results)
    step = timedelta(days=7 if (last - first).days > DAYS_SHOWN_SINGLY else 1)
    edges = [first]
    while last - edges[-1] > 1.5 * step:
        edges.append(edges[-1] + step)
    return [*edges, last]


def _grid(results: Results, origin: str, edges: Sequence[datetime]) -> _Grid:
    step = edges[1] - edges[0]
    last_column = len(edges) - 2
    totals: dict[str, Tally] = {}
    cells: dict[tuple[str, int], Tally] = {}
    for row in results:
        if row["origin"] == origin:
            column = min(last_column, (row["window_start"] - edges[0]) // step)
            totals.setdefault(row["carrier"], Tally()).add(row)
            cells.setdefault((row["carrier"], column), Tally()).add(row)
    flights = sum(tally.flights for tally in totals.values())
    least = LEAST_SHARE_SHOWN * flights
    shown = [carrier for carrier, tally in totals.items() if tally.flights >= least]
    shown.sort(key=lambda carrier: -totals[carrier].flights)
    means = np.full((len(shown), len(edges) - 1), np.nan)
    for (carrier, column), tally in cells.items():
        if carrier in shown:
            means[shown.index(carrier), column] = tally.mean_min
    return _Grid(flights, shown, means, [totals[carrier] for carrier in shown])


def _draw_heat_map(
    axes: Axes,
    grid: _Grid,
    edges: Sequence[datetime],
    airlines: Mapping[str, str],
    norm: Normalize,
) -> None:
    rows = np.arange(len(grid.carriers) + 1)
    axes.pcolormesh(
        np.array([_days(edge) for edge in edges]),
        rows,
        np.ma.masked_invalid(grid.means_min),
        cmap=_COLORS,
        norm=norm,
        edgecolors="white",
        linewidth=0.6,
    )
    axes.set_ylim(max(1, len(grid.carriers)), 0)
    names = [airlines.get(carrier, carrier) for carrier in grid.carriers]
    axes.set_yticks(rows[:-1] + 0.5, names, fontsize=9, color=INK)
    ticks = _ticks(edges[0], edges[-1])
    axes.set_xticks([_days(time) for time in ticks.values()], list(ticks))
    axes.set_xlim(_days(edges[0]), _days(edges[-1]))
    quiet(axes)


def _draw_bars(axes: Axes, grid: _Grid, norm: Normalize) -> None:
    means = np.nan_to_num([tally.mean_min for tally in grid.totals])
    heights = np.arange(len(means)) + 0.5
    axes.barh(heights, means, height=0.72, color=_COLORS(norm(means)), ec=QUIET, lw=0.4)
    for height, mean in zip(heights, means, strict=True):
        axes.text(max(mean, 0) + 0.5, height, f"{mean:.0f}", va="center", fontsize=8, color=INK)
    axes.set_ylim(max(1, len(means)), 0)
    axes.set_xlim(min(0, means.min(initial=0)), max(25, means.max(initial=0) + 4))
    axes.set_yticks([])
    quiet(axes)


def _draw_panel_title(axes: Axes, origin: str, grid: _Grid) -> None:
    axes.set_title(AIRPORTS[origin], loc="left", fontsize=12, weight="bold", color=INK, pad=8)
    axes.set_title(f"{grid.flights:,} flights", loc="right", fontsize=9, color=QUIET, pad=8)


def _draw_restart(axes: Axes, restarted_at: datetime) -> None:
    axes.annotate(
        "query killed and restarted here",
        (_days(restarted_at), 1),
        xycoords=("data", "axes fraction"),
        xytext=(0, 7),
        textcoords="offset points",
        ha="center",
        fontsize=9,
        style="italic",
        color=INK,
    )


def _draw_titles(figure: Figure, height: float, results: Results, edges: list[datetime]) -> None:
    flights = sum(row["flights"] for row in results)
    span = "week" if edges[1] - edges[0] > timedelta(days=1) else "day"
    figure.text(
        0.02,
        1 - 0.42 / height,
        "Departure delays out of New York, 2013",
        fontsize=18,
        weight="bold",
        color=INK,
    )
    figure.text(
        0.02,
        1 - 0.72 / height,
        f"Means by {span} and carrier, the busiest carrier first; white: no flights. "
        f"{flights:,} flights streamed through Dafka and Spark.",
        fontsize=10,
        color=QUIET,
    )


def _draw_color_bar(figure: Figure, height: float, norm: Normalize) -> None:
    axes = figure.add_axes((0.745, 1 - 0.46 / height, 0.22, 0.14 / height))
    bar = figure.colorbar(
        ScalarMappable(norm, _COLORS), cax=axes, orientation="horizontal", extend="max"
    )
    bar.set_ticks([0, 15, 30, 45, 60], labels=["0", "15", "30", "45", "60 min"])
    bar.outline.set_visible(False)
    axes.tick_params(length=0, labelsize=8, labelcolor=QUIET)
    axes.set_title("mean departure delay", loc="left", fontsize=9, color=QUIET, pad=4)


def quiet(axes: Axes) -> None:
    """Leave out the frame and the marks of a plot."""
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.tick_params(length=0, labelcolor=INK, labelsize=9)


def _ticks(first: datetime, last: datetime) -> dict[str, datetime]:
    """The months that begin in a long time, the days of a short one, by their names."""
    days = [first + timedelta(days=n) for n in range((last - first).days)]
    if len(days) > DAYS_SHOWN_SINGLY:
        return {f"{day:%b}": day for day in days if day.day == 1}
    return {f"{day.day} {day:%b}": day for day in days[:: 1 + len(days) // MOST_DAYS_NAMED]}


def _days(time: datetime) -> float:
    return time.timestamp() / timedelta(days=1).total_seconds()
