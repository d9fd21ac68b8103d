"""The options the jobs share, and the lines they print."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from dafka_core.node_options import NodeOptions
from dafka_spark.positions import parse_duration_ms

EXIT_CODES = (
    "Exit codes: 0 done, or told to stop; 1 failed; 2 cannot be done as it was asked for; 130 or "
    "143 stopped before it was done."
)


class JobParser(argparse.ArgumentParser):
    """Says what is wrong in one sentence."""

    def __init__(self, description: str) -> None:
        super().__init__(description=description, epilog=EXIT_CODES)
        self.add_argument(
            "--tower",
            metavar="HOST[:SUB:PUB]",
            help="the tower, or several separated by commas (default: environment DAFKA_TOWER, or "
            "else 127.0.0.1:5556:5557)",
        )

    def error(self, message: str) -> NoReturn:
        """Ends the process."""
        self.exit(2, f"{self.prog}: {message} (see '{self.prog} --help')\n")

    def parse(self, argv: Sequence[str] | None) -> argparse.Namespace:
        """The arguments; ``tower`` is written out, wherever it comes from.

        Raises:
            ConfigError: no tower can have such a name.
        """
        arguments = self.parse_args(argv)
        given = {} if arguments.tower is None else {"tower": arguments.tower}
        arguments.tower = ",".join(map(str, NodeOptions.build(given).tower))
        topics = (getattr(arguments, "topic", None) or "").split(",")
        if "to" in arguments and arguments.to in topics:
            self.error(
                f"--to {arguments.to}: the job would read what it writes; name another topic"
            )
        return arguments


def add_query_arguments(parser: argparse.ArgumentParser, query_name: str | None = None) -> None:
    """Adds the options of every job that is a streaming query reading a topic.

    ``query_name`` is the default under which it reports how far it is.
    """
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
        help="earliest, latest, latest-100, a time, so long ago (--starting-offsets=-10m) or JSON, "
        "for a new checkpoint (default: %(default)s)",
    )
    parser.add_argument(
        "--max-offsets-per-trigger",
        type=positive,
        metavar="N",
        help="the most records one batch reads (default: what 4 GiB have)",
    )
    parser.add_argument(
        "--query-name",
        default=query_name,
        metavar="NAME",
        help="report under this name how far the query is, to dafka lag and the console "
        f"(default: {query_name or 'it does not report'})",
    )
    parser.add_argument(
        "--available-now",
        action="store_true",
        help="stop when everything that was there at the start is done "
        "(default: run until SIGINT or SIGTERM)",
    )


def add_topic_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of a job that reads topics by their names, or by a pattern."""
    topics = parser.add_mutually_exclusive_group(required=True)
    topics.add_argument("--topic", help="the topic to read, or several separated by commas")
    topics.add_argument(
        "--topic-pattern",
        metavar="REGEX",
        help="all topics whose names match, also those that come later",
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


def directory(text: str) -> Path:
    """An argument that must be a directory, whether it is there or not; its whole path."""
    path = Path(text).absolute()
    if not text or "://" in text or (path.exists() and not path.is_dir()):
        raise argparse.ArgumentTypeError(f"must be a directory of this machine, not {text!r}")
    return path


def duration_ms(text: str) -> int:
    """An argument that must be a length of time, such as 30m; in milliseconds."""
    length_ms = delay_ms(text)
    if length_ms < 1:
        raise argparse.ArgumentTypeError(f"must be longer than nothing, not {text!r}")
    return length_ms


def delay_ms(text: str) -> int:
    """An argument that must be a length of time, or 0s; in milliseconds."""
    try:
        return parse_duration_ms(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{error}, not {text!r}") from None


def rate(text: str) -> float:
    """An argument that must be a number of 0 or more."""
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < math.inf:
        raise argparse.ArgumentTypeError(f"must be a number, 0 or more, not {text!r}")
    return number


def print_json(facts: dict[str, object]) -> None:
    """One JSON object a line on standard output, at once."""
    print(json.dumps(facts), flush=True)
