"""Runs the benchmarks: ``python -m benchmarks [--pairs N] [--quick]``."""

from __future__ import annotations

import argparse

from benchmarks import mesh
from benchmarks.figures import Figure, print_lines, print_table


def main() -> None:
    """Prints each figure when it is there, and a table of all at the end."""
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    parser.add_argument("--pairs", type=int, default=5, help="pairs per figure (default: 5)")
    parser.add_argument(
        "--records", type=int, default=1_000_000, help="records per measurement (default: 1000000)"
    )
    arguments = parser.parse_args()
    figures: list[Figure] = []
    for figure in mesh.run(pairs=arguments.pairs, count=arguments.records):
        print_lines(figure)
        figures.append(figure)
    print_table(figures)


if __name__ == "__main__":
    main()
