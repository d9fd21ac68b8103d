"""The results added up, and the table of them that the terminal shows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.table import Table

from demo.replay_flights import ORIGINS

# Results of delays(): one dictionary per window, airport and carrier.
Results = Sequence[Mapping[str, Any]]


@dataclass(slots=True)
class Tally:
    """Sums over any number of windows."""

    flights: int = 0
    cancelled: int = 0
    delayed: int = 0
    delay_min: float = 0.0
    worst_min: int = 0

    def add(self, row: Mapping[str, Any]) -> None:
        """Add one window's result."""
        self.flights += row["flights"]
        self.cancelled += row["cancelled"]
        self.delayed += row["delayed"]
        if row["mean_delay_min"] is not None:
            self.delay_min += row["mean_delay_min"] * (row["flights"] - row["cancelled"])
            self.worst_min = max(self.worst_min, row["max_delay_min"])

    @property
    def departed(self) -> int:
        """Flights that left."""
        return self.flights - self.cancelled

    @property
    def mean_min(self) -> float:
        """The mean delay in minutes; not a number when none left."""
        return self.delay_min / self.departed if self.departed else float("nan")


def delay_table(results: Results, airlines: Mapping[str, str]) -> Table:
    """The year by carrier and airport, the busiest carrier first."""
    totals: dict[str, Tally] = {}
    per_airport: dict[tuple[str, str], Tally] = {}
    for row in results:
        totals.setdefault(row["carrier"], Tally()).add(row)
        per_airport.setdefault((row["carrier"], row["origin"]), Tally()).add(row)
    table = Table(
        title="Departure delays by carrier, minutes",
        title_justify="left",
        caption="late: by 15 minutes or more",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    table.add_column("carrier", no_wrap=True)
    for name in ("flights", "mean", *ORIGINS, "late", "cancelled", "worst"):
        table.add_column(name, justify="right")
    for carrier in sorted(totals, key=lambda carrier: -totals[carrier].flights):
        tally = totals[carrier]
        means = [per_airport.get((carrier, origin), Tally()).mean_min for origin in ORIGINS]
        table.add_row(
            airlines.get(carrier, carrier),
            f"{tally.flights:,}",
            *(_minutes(mean) for mean in (tally.mean_min, *means)),
            _share(tally.delayed, tally.departed),
            _share(tally.cancelled, tally.flights),
            f"{tally.worst_min}",
        )
    return table


def _minutes(mean: float) -> str:
    return "" if math.isnan(mean) else f"{mean:.1f}"


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else ""
