"""The options the jobs share, and the lines they print.  Needs no Spark."""

from __future__ import annotations

import argparse
import json
import os


def add_tower_argument(parser: argparse.ArgumentParser) -> None:
    """Adds ``--tower``."""
    parser.add_argument(
        "--tower",
        default=os.environ.get("DAFKA_TOWER", "127.0.0.1:5556:5557"),
        metavar="HOST[:SUB:PUB]",
        help="the tower, or several separated by commas (environment DAFKA_TOWER; "
        "default: %(default)s)",
    )


def add_query_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of every job that is a streaming query reading a topic."""
    add_tower_argument(parser)
    parser.add_argument(
        "--checkpoint",
        required=True,
        metavar="DIR",
        help="where the query keeps its progress; started again with the same one, it goes on",
    )
    parser.add_argument(
        "--starting-offsets",
        default="earliest",
        metavar="WHERE",
        help="earliest, latest or JSON, for a new checkpoint (default: %(default)s)",
    )
    parser.add_argument(
        "--max-offsets-per-trigger",
        type=positive,
        metavar="N",
        help="the most records one batch reads (default: all there are)",
    )
    parser.add_argument(
        "--available-now",
        action="store_true",
        help="stop when everything that was there at the start is done "
        "(default: run until SIGINT or SIGTERM)",
    )


def positive(text: str) -> int:
    """An argument that must be a whole number of at least 1."""
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, not {text!r}")
    return number


def print_json(facts: dict[str, object]) -> None:
    """One JSON object a line on standard output, at once."""
    print(json.dumps(facts), flush=True)
