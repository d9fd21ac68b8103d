"""Run the tables one after the other, with a JSON line for each: ``python -m tests.chaos``."""

import argparse
import random
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tests.chaos import (
    cluster_kills,
    damage,
    gateway_kills,
    lives,
    lost_stores,
    pipeline_kills,
    query_kills,
    retention_kills,
    separations,
    slow_consumers,
    store_kills,
    tower_kills,
)
from tests.chaos.harness import Chaos, Outcome, Round


class Table(NamedTuple):
    """A table: its number of rounds in full and in short runs."""

    name: str
    kind: type[Round]
    rounds: int
    short_rounds: int


MODULES = (
    store_kills,
    query_kills,
    lost_stores,
    tower_kills,
    separations,
    damage,
    slow_consumers,
    lives,
    cluster_kills,
    pipeline_kills,
    gateway_kills,
    retention_kills,
)
TABLES = {
    number: Table(each.__name__.split(".")[-1], each.TableRound, each.ROUNDS, each.SHORT_ROUNDS)
    for number, each in enumerate(MODULES, start=1)
}


def run_table(
    number: int, seed: int, rounds: int, directory: Path, *, first: int = 0, short: bool = False
) -> Outcome:
    """Run one table; ``short`` selects quick rounds."""
    table = TABLES[number]
    chaos = Chaos(number, table.name, seed, directory, first=first, short=short)
    chaos.play(rounds, table.kind)
    return chaos.end()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the requested tables; return 1 after a loss, a double or a hang."""
    arguments = _parser().parse_args(argv)
    print(f"seed {arguments.seed}", file=sys.stderr, flush=True)
    good = True
    for number in arguments.table or sorted(TABLES):
        # Kept after a failure, with the files of the failed rounds.
        directory = Path(tempfile.mkdtemp(prefix=f"dafka-chaos-{number}-"))
        rounds = arguments.rounds or TABLES[number].rounds
        outcome = run_table(number, arguments.seed, rounds, directory, first=arguments.first)
        print(outcome.line(), flush=True)
        good = good and outcome.good
        if outcome.good:
            directory.rmdir()
        else:
            again = (
                f"python -m tests.chaos --seed {arguments.seed} --table {number} "
                f"--first {arguments.first} --rounds {rounds}"
            )
            print(f"to run it again: {again}", file=sys.stderr, flush=True)
    return 0 if good else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1_000_000))
    parser.add_argument("--rounds", type=int, help="of each table (default: each table's own)")
    parser.add_argument("--first", type=int, default=0, help="number of the first round")
    parser.add_argument(
        "--table", type=int, action="append", choices=sorted(TABLES), help="may be repeated"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
