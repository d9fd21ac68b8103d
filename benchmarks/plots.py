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
from matplotlib.ticker import EngFormatter, LogLocator

COLORS: Final = {
    "dafka": "#0b6e4f",
    "kafka": "#8a8d91",
    "kafka-synced": "#3f4347",
    "nats": "#7fb2e5",
    "nats-synced": "#2f6fb0",
    "c-dafka": "#d9a441",
}

KAFKA: Final = "kafka"

Lines = Sequence[Mapping[str, Any]]


def main() -> None:
    """Draw what the files have."""
    directory, *files = map(Path, sys.argv[1:])
    mpl.use("svg")
    mpl.rc("svg", hashsalt="dafka", fonttype="none")  # text as text, not as paths
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
    """Draw a panel for each row: rates as multiples of Kafka's, or of the first system's."""
    beside = KAFKA if any(e["system"] == KAFKA for e in lines) else lines[0]["system"]
    of = {(e["row"], e["size_bytes"], e["partitions"], e["system"]): e for e in lines}
    fewest = {e["row"]: min(o["partitions"] for o in lines if o["row"] == e["row"]) for e in lines}
    rows = [row for row in fewest if any(e["system"] == beside for e in lines if e["row"] == row)]
    figure, axes = _panels(len(rows))
    for ax, row in zip(axes, rows, strict=True):
        sizes = _unique(each["size_bytes"] for each in lines if each["row"] == row)
        systems = _unique(each["system"] for each in lines if each["row"] == row)
        width = 0.8 / len(systems)
        for number, system in enumerate(systems):
            at, ratios = [], []
            bars: tuple[list[float], list[float]] = ([], [])
            for index, size in enumerate(sizes):
                if (each := of.get((row, size, fewest[row], system))) is not None:
                    unit = of[row, size, fewest[row], beside]["median"]["rate"]
                    rate = each["median"]["rate"]
                    at.append(index + (number - (len(systems) - 1) / 2) * width)
                    ratios.append(rate / unit)
                    bars[0].append(max(rate - each["rate_low"], 0.0) / unit)
                    bars[1].append(max(each["rate_high"] - rate, 0.0) / unit)
            look = {"color": COLORS[system], "ecolor": "#00000060", "label": system}
            ax.bar(at, ratios, width, yerr=bars, **look)
        ax.axhline(1, color=COLORS[beside], linewidth=0.8)
        ax.set_xticks(range(len(sizes)), [_bytes(size) for size in sizes])
        ax.set_title(row)
    axes[0].set_ylabel(f"times as fast as {beside}")
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
        ax.set_yscale("log")
        ax.minorticks_off()
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
        ax.minorticks_off()
        ax.set_xticks(sizes)
        ax.xaxis.set_major_formatter(EngFormatter(sep=""))
        if ax.get_ylim()[1] < 10:
            ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            ax.yaxis.set_major_formatter(EngFormatter())
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
    across = min(count, 4)
    down = -(-count // across)
    figure, axes = plt.subplots(
        down, across, figsize=(3.6 * across, 3.2 * down), squeeze=False, layout="constrained"
    )
    for extra in axes.flat[count:]:
        extra.remove()
    return figure, list(axes.flat)[:count]


def _bytes(size: int) -> str:
    return f"{size} B" if size < 1_000 else f"{size // 1_000} kB"


def _saved(figure: Any, first: Any, path: Path) -> None:
    handles, labels = first.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=5)
    figure.savefig(path, metadata={"Date": None}, bbox_inches="tight")


def _unique(values: Iterable[Any]) -> list[Any]:
    return list(dict.fromkeys(values))


if __name__ == "__main__":
    main()
