"""Draw results: ``python -m benchmarks.plots DIRECTORY FILE...``.

The files have lines of JSON from ``benchmarks.peers`` and ``benchmarks.growth``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
from matplotlib import pyplot as plt

COLORS: Final = {
    "dafka": "#0b6e4f",
    "kafka": "#8a8d91",
    "kafka-synced": "#3f4347",
    "nats": "#7fb2e5",
    "nats-synced": "#2f6fb0",
    "c-dafka": "#d9a441",
}

Lines = Sequence[Mapping[str, Any]]


def main() -> None:
    """Draw what the files have."""
    directory, *files = map(Path, sys.argv[1:])
    mpl.use("svg")
    mpl.rc("svg", hashsalt="dafka")
    mpl.rc("font", size=9)
    mpl.rc("legend", frameon=False)
    mpl.rc("axes.spines", top=False, right=False)
    lines = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    rows = [each for each in lines if "row" in each]
    drawings = {
        "throughput": (throughput, [each for each in rows if not _latencies(each)]),
        "latency": (latency, [each for each in rows if _latencies(each) and not _situation(each)]),
        "faults": (latency, [each for each in rows if _latencies(each) and _situation(each)]),
        "growth": (growth, [each for each in lines if "axis" in each]),
    }
    for name, (draw, found) in drawings.items():
        if found:
            draw(directory / f"{name}.svg", found)


def throughput(path: Path, lines: Lines) -> None:
    """Draw a panel for each row: records a second by size, with one partition if measured."""
    rows = _unique(each["row"] for each in lines)
    figure, axes = _panels(len(rows))
    for ax, row in zip(axes, rows, strict=True):
        fewest = min(each["partitions"] for each in lines if each["row"] == row)
        found = [each for each in lines if (each["row"], each["partitions"]) == (row, fewest)]
        sizes = _unique(each["size_bytes"] for each in found)
        systems = _unique(each["system"] for each in found)
        width = 0.8 / len(systems)
        for number, system in enumerate(systems):
            of = {each["size_bytes"]: each for each in found if each["system"] == system}
            at = [sizes.index(size) + (number - (len(systems) - 1) / 2) * width for size in of]
            rates = [each["median"]["rate"] for each in of.values()]
            ranges = [
                [rate - each["rate_low"] for rate, each in zip(rates, of.values(), strict=True)],
                [each["rate_high"] - rate for rate, each in zip(rates, of.values(), strict=True)],
            ]
            errors = [[max(value, 0.0) for value in side] for side in ranges]
            color = COLORS[system]
            ax.bar(at, rates, width, yerr=errors, color=color, label=system, ecolor="#00000060")
        ax.set_yscale("log")
        ax.set_xticks(range(len(sizes)), [f"{size:,} B" for size in sizes])
        ax.set_title(row)
    axes[0].set_ylabel("records a second")
    _saved(figure, axes[0], path)


def latency(path: Path, lines: Lines) -> None:
    """Draw a panel for each load: percentiles to the acknowledgement and to a consumer."""
    smallest = min(each["size_bytes"] for each in lines)
    lines = [each for each in lines if each["size_bytes"] == smallest]
    loads = _unique(each["row"].partition(", ")[0] for each in lines)
    figure, axes = _panels(len(loads))
    for ax, load in zip(axes, loads, strict=True):
        for each in lines:
            if each["row"].partition(", ")[0] == load:
                names = list(each["median"]["latencies_ms"])
                values = [each["median"]["latencies_ms"][name] for name in names]
                situation = _situation(each)
                color = None if situation else COLORS[each["system"]]
                ax.plot(names, values, "o-", color=color, label=situation or each["system"])
                if not situation:
                    rate = f"{each['median']['rate']:,.0f}/s"
                    ax.annotate(rate, (len(names) - 1, values[-1]))
        ax.set_yscale("log")
        ax.tick_params(axis="x", rotation=60)
        ax.set_title(load)
    axes[0].set_ylabel("ms")
    _saved(figure, axes[0], path)


def growth(path: Path, lines: Lines) -> None:
    """Draw a panel for each axis: costs beside the smallest size's, as lines with exponents."""
    names = _unique(each["axis"] for each in lines)
    figure, axes = _panels(len(names))
    for ax, name in zip(axes, names, strict=True):
        found = [each for each in lines if each["axis"] == name]
        for each in found:
            sizes = [int(size) for size in each["medians"]]
            costs = list(each["medians"].values())
            label = f"{each['cost']}: {each['exponent']:g}"
            ax.loglog(sizes, [cost / costs[0] for cost in costs], "o-", label=label)
        ax.loglog(sizes, [size / sizes[0] for size in sizes], ":", color="#00000080")
        ax.set_xlabel(found[0]["unit"])
        ax.set_title(name)
        ax.legend(fontsize=7)
    axes[0].set_ylabel("cost beside the smallest size's")
    figure.savefig(path, metadata={"Date": None}, bbox_inches="tight")


def _latencies(line: Mapping[str, Any]) -> bool:
    return bool(line["median"]["latencies_ms"])


def _situation(line: Mapping[str, Any]) -> str:
    return str(line["row"].partition(", ")[2])


def _panels(count: int) -> tuple[Any, list[Any]]:
    figure, axes = plt.subplots(1, max(count, 1), figsize=(4.2 * max(count, 1), 3.6), squeeze=False)
    return figure, list(axes[0])[:count]


def _saved(figure: Any, first: Any, path: Path) -> None:
    handles, labels = first.get_legend_handles_labels()
    figure.legend(handles, labels, loc="upper center", ncols=4, bbox_to_anchor=(0.5, 1.12))
    figure.savefig(path, metadata={"Date": None}, bbox_inches="tight")


def _unique(values: Iterable[Any]) -> list[Any]:
    return list(dict.fromkeys(values))


if __name__ == "__main__":
    main()
