"""Many seeds, or one step by step: ``make soak SEEDS=10000``, ``make soak SEED=7``."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field

from tests.simulation.checkers import DOUBLED, LOST
from tests.simulation.cluster import simulate
from tests.simulation.world import SimulationError

BATCH = 50  # seeds of one progress report
MAX_FAILURES = 20  # failing seeds after which a soak ends: they have one cause


@dataclass
class Report:
    """The sum of many simulations."""

    seeds: int = 0
    records: int = 0
    delivered: int = 0
    virtual_s: float = 0.0
    cpu_s: float = 0.0
    slowest: tuple[float, int] = (0.0, -1)
    longest_catch_up: tuple[float, int] = (0.0, -1)
    faults: Counter[str] = field(default_factory=Counter)
    sent: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    """Messages of byzantine peers, and the refused ones among them."""
    failures: dict[int, str] = field(default_factory=dict)

    def add(self, other: Report) -> None:
        self.seeds += other.seeds
        self.records += other.records
        self.delivered += other.delivered
        self.virtual_s += other.virtual_s
        self.cpu_s += other.cpu_s
        self.slowest = max(self.slowest, other.slowest)
        self.longest_catch_up = max(self.longest_catch_up, other.longest_catch_up)
        self.faults += other.faults
        self.sent += other.sent
        self.refused += other.refused
        self.failures |= other.failures

    def failure_lines(self) -> list[str]:
        """Each failing seed and why; how to see more."""
        lines = [f"seed {seed}: {why}" for seed, why in self.failures.items()]
        return [*lines, f"replay with: make soak SEED={next(iter(self.failures), 0)}"]

    def of_kind(self, kind: str) -> int:
        """Return the number of failures with lost or doubled records."""
        return sum(kind in why for why in self.failures.values())


def simulate_batch(first: int, count: int) -> Report:
    """The seeds from ``first`` on, as many as are asked for."""
    report = Report()
    for seed in range(first, first + count):
        started = time.process_time()
        try:
            result = simulate(seed)
        except SimulationError as error:
            report.failures[seed] = str(error)
        except Exception:  # noqa: BLE001 -- a role must not raise, whatever it is
            report.failures[seed] = traceback.format_exc()
        else:
            report.records += result.records
            report.delivered += result.delivered
            report.virtual_s += result.virtual_s
            report.faults += result.faults
            report.sent += result.sent
            report.refused += result.refused
            caught_up = (result.caught_up_s, seed)
            report.longest_catch_up = max(report.longest_catch_up, caught_up)
        cpu_s = time.process_time() - started
        report.seeds += 1
        report.cpu_s += cpu_s
        report.slowest = max(report.slowest, (cpu_s, seed))
    return report


def soak(first: int, seeds: int, workers: int) -> Report:
    total = Report()
    starts = range(first, first + seeds, BATCH)
    counts = [min(BATCH, first + seeds - start) for start in starts]
    started = time.monotonic()
    with ProcessPoolExecutor(workers) as pool:
        for report in _in_order(pool, starts, counts):
            total.add(report)
            for seed, why in report.failures.items():
                print(f"seed {seed}: {why}", flush=True)
            elapsed_s = time.monotonic() - started
            print(
                f"{total.seeds:>7} of {seeds} seeds, {elapsed_s:6.0f} s, "
                f"{sum(total.faults.values()):,} faults, {len(total.failures)} failures",
                flush=True,
            )
            if len(total.failures) >= MAX_FAILURES:
                pool.shutdown(cancel_futures=True)
                break
    return total


def _in_order(
    pool: ProcessPoolExecutor, starts: Sequence[int], counts: Sequence[int]
) -> Iterator[Report]:
    return pool.map(simulate_batch, starts, counts)


def print_report(total: Report) -> None:
    print("\nfaults injected")
    for kind, count in sorted(total.faults.items(), key=lambda item: -item[1]):
        print(f"  {kind:<28}{count:>12,}")
    for title, counts in (
        ("sent by byzantine peers", total.sent),
        ("refused of it", total.refused),
    ):
        print(f"\n{title}, by kind: {sum(counts.values()):,}")
        for kind, count in sorted(counts.items(), key=lambda item: -item[1]):
            print(f"  {kind:<28}{count:>12,}")
    print(f"\nseeds {total.seeds:,}, {total.cpu_s / max(total.seeds, 1):.3f} s of CPU each")
    print(f"slowest seed {total.slowest[1]}: {total.slowest[0]:.2f} s")
    print(f"simulated {total.virtual_s / 3600:,.1f} hours")
    print(f"records published {total.records:,}, delivered {total.delivered:,}")
    longest_s, seed = total.longest_catch_up
    print(f"longest catching up {longest_s:.1f} s after the last fault, seed {seed}")
    print(f"losses {total.of_kind(LOST)}, doubles {total.of_kind(DOUBLED)}", end=", ")
    print(f"failures {len(total.failures)}")
    if total.failures:
        print("\n" + "\n".join(total.failure_lines()))


def replay(seed: int) -> bool:
    """Simulates one seed and prints each step; False if it fails."""
    try:
        result = simulate(seed, write=print)
    except Exception as error:  # noqa: BLE001 -- a role must not raise, whatever it is
        if not isinstance(error, SimulationError):
            traceback.print_exc()
        print(f"\nseed {seed} fails: {error}")
        return False
    faults = ", ".join(f"{count} {kind}" for kind, count in sorted(result.faults.items()))
    print(
        f"\nseed {seed} is well: {result.records} records, {result.delivered} delivered; {faults}"
    )
    print(f"trace {result.trace_hash}")
    return True


def main(arguments: Sequence[str] | None = None) -> int:
    """What ``make soak`` runs; 1 if a seed fails."""
    # The log messages of simulated machines are in the trace.
    logging.getLogger("dafka").addHandler(logging.NullHandler())
    parser = argparse.ArgumentParser(prog="soak", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1_000, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first one")
    parser.add_argument("--seed", type=int, help="only this one, step by step")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="processes")
    asked = parser.parse_args(arguments)
    if asked.seed is not None:
        return 0 if replay(asked.seed) else 1
    total = soak(asked.first, asked.seeds, asked.workers)
    print_report(total)
    return 1 if total.failures else 0


if __name__ == "__main__":
    sys.exit(main())
