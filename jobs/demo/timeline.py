"""The picture of a run: progress over time, and records per second."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from matplotlib.figure import Figure

from demo.plot import INK, QUIET, quiet

# Samples between two values of a rate: flights come in slices.
SAMPLES_A_STEP = 5

_FED, _READ, _QUERY = "#b9bec7", "#1b7f79", "#d1495b"


class Sample(NamedTuple):
    """The number of flights fed, and read by consumer and query, ``at_s`` into the run."""

    at_s: float
    fed: int
    read: int
    queried: int


class Outage(NamedTuple):
    """From when to when a store was away, in seconds into the run."""

    begin_s: float
    end_s: float


def plot_timeline(samples: Sequence[Sample], outage: Outage, title: str, path: Path) -> None:
    """Write the picture as PNG."""
    figure = Figure(figsize=(11, 6.4), dpi=150, facecolor="white", layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=[2, 1])
    figure.suptitle(title, x=0.012, ha="left", fontsize=14, weight="bold", color=INK)
    times = [sample.at_s for sample in samples]
    above.plot(times, [sample.fed for sample in samples], color=_FED, lw=5, label="fed")
    above.plot(
        times, [sample.read for sample in samples], color=_READ, lw=1.6, label="read by a consumer"
    )
    above.step(
        times,
        [sample.queried for sample in samples],
        where="post",
        color=_QUERY,
        lw=1.6,
        label="counted by the query",
    )
    above.legend(loc="upper left", frameon=False, fontsize=9, labelcolor=INK)
    above.set_ylabel("flights", color=QUIET, fontsize=9)
    steps = [(a, b) for a, b in pairwise(samples[::SAMPLES_A_STEP]) if b.at_s > a.at_s]
    rates = [(b.read - a.read) / (b.at_s - a.at_s) for a, b in steps]
    ends = [b.at_s for _, b in steps]
    below.fill_between(ends, rates, step="pre", color=_READ, alpha=0.35, lw=0)
    below.set_ylabel("read each second", color=QUIET, fontsize=9)
    below.set_xlabel("seconds since the cluster began", color=QUIET, fontsize=9)
    for axes in (above, below):
        axes.set_ylim(bottom=0)
        axes.axvspan(outage.begin_s, outage.end_s, color="#f6d78b", alpha=0.45, lw=0)
        quiet(axes)
        axes.grid(axis="y", color="#e7e9ec", lw=0.8)
        axes.set_axisbelow(True)
    above.annotate(
        "one of two stores is away",
        ((outage.begin_s + outage.end_s) / 2, 1),
        xycoords=("data", "axes fraction"),
        xytext=(0, 5),
        textcoords="offset points",
        ha="center",
        fontsize=9,
        style="italic",
        color=INK,
    )
    figure.savefig(path)
