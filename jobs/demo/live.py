"""A live pipeline, one of whose stores is killed: ``make demo-live``.

It starts a tower, two stores and the console, and prints its address.  ``replay_flights.py`` feeds
flights at the given rate, ``flight_delays.py`` counts them by day and carrier, and a consumer
reads both topics.  A store is killed (SIGKILL) and restarted.  The run stops by itself, leaves
pictures, and compares the input with each output: a missing, doubled or changed record makes the
exit code 1.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console as Terminal

from dafka_core import ConfigError, DafkaError, EmbeddedCluster
from dafka_spark.job_support import add_option, positive
from demo.live_pipeline import AWAY_PICTURE, MAP_PICTURE, QUERY_PICTURE, Live, Plan
from demo.pictures import MISSING, NONE, Page, browser_named, draw_console, find_browser
from demo.pipeline import SUBMIT_ARGUMENTS, StalledError, prepare
from demo.processes import JobFailedError
from demo.replay_flights import FLIGHTS_OF_2013, FlightsNotFoundError
from demo.timeline import plot_timeline

EXIT_USAGE = 2
EXIT_STOPPED = 128

TIMELINE = "timeline.png"
PICTURES = (AWAY_PICTURE, MAP_PICTURE, QUERY_PICTURE, TIMELINE)

NO_CONSOLE = "the console needs starlette and uvicorn: pip install 'dafka-spark[console]'"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo; return its exit status."""
    arguments = _parser().parse_args(argv)
    terminal = Terminal()
    try:
        return _run(arguments, terminal)
    except (DafkaError, FlightsNotFoundError, JobFailedError, StalledError) as error:
        terminal.print(str(error), style="red", markup=False, highlight=False)
        return EXIT_USAGE if isinstance(error, ConfigError) else 1


def _run(arguments: argparse.Namespace, terminal: Terminal) -> int:
    try:
        from dafka_console.options import ConsoleOptions
        from dafka_console.server import Console
    except ModuleNotFoundError as error:
        raise ConfigError("console", error.name, NO_CONSOLE) from None
    ConsoleOptions.build(
        {"listen": arguments.listen}
    )  # invalid arguments are reported before work begins
    os.environ.setdefault("PYSPARK_SUBMIT_ARGS", SUBMIT_ARGUMENTS)
    directory, plan = arguments.output, Plan(arguments.rate, arguments.seconds)
    prepare(directory, *PICTURES)
    browser = find_browser(arguments.browser)
    drawn: list[Future[None]] = []
    with (
        EmbeddedCluster(2) as cluster,
        Console({"tower": cluster.tower}, listen=arguments.listen) as console,
        ThreadPoolExecutor(1) as painter,
    ):
        terminal.print(f"look at it: [bold]{console.url}[/]", highlight=False)

        def draw(pages: dict[str, Page]) -> Future[None]:
            if browser is None:
                return painter.submit(lambda: None)
            paths = {directory / name: page for name, page in pages.items()}
            drawn.append(painter.submit(draw_console, browser, console.url, paths))
            return drawn[-1]

        live = Live(plan, cluster, directory, terminal)
        differences = live.run(draw)
    timeline = directory / TIMELINE
    title = f"{plan.flights:,} flights, {plan.rate:,} a second, and the death of a store"
    plot_timeline(live.samples, live.outage, title, timeline)
    for path in filter(Path.exists, map(directory.joinpath, PICTURES)):
        terminal.print(f"picture {path}", soft_wrap=True, highlight=False)
    for failure in filter(None, (future.exception() for future in drawn)):
        terminal.print(f"a picture of the console is missing: {failure}", style="yellow")
    if browser is None and arguments.browser != NONE:
        terminal.print(MISSING.format(timeline=timeline), style="yellow", highlight=False)
    return _verdict(live, plan, differences, terminal)


def _verdict(live: Live, plan: Plan, differences: list[str], terminal: Terminal) -> int:
    for difference in differences:
        terminal.print(difference, style="red", markup=False, highlight=False)
    noticed, away_s = live.noticed, live.outage.end_s - live.outage.begin_s
    terminal.print(
        f"a store was away for {away_s:.0f} s; the reader got {noticed.flights:,} flights "
        f"meanwhile, and waited {noticed.wait_s:.1f} s at most for the next one "
        f"({noticed.wait_before_s:.1f} s before)",
        highlight=False,
        soft_wrap=True,
    )
    verdict = "nothing lost, nothing doubled" if not differences else "DIFFERENCES FOUND"
    terminal.print(
        f"{plan.flights:,} flights fed, read and counted: {verdict}",
        style="bold red" if differences else "bold green",
        highlight=False,
    )
    return 1 if differences else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="A live pipeline, one of whose stores is killed.",
        epilog="Exit codes: 0 nothing was lost or doubled; 1 something was, or it failed; 2 an "
        "option is wrong; 130 or 143 stopped.",
    )
    add = partial(add_option, parser)
    add("--rate", "N", "flights a second", positive, 1000)
    feeding = f"time of feeding, at most until all {FLIGHTS_OF_2013:,} are fed; the run takes half "
    add("--seconds", "N", f"{feeding}a minute longer", positive, 60)
    listen = "where the console is; port 0 lets the system choose"
    add("--listen", "HOST:PORT", listen, default="127.0.0.1:0")
    browser = "the Chromium that draws pictures of the console, or none for no such pictures "
    add("--browser", "PROGRAM", f"{browser}(default: the one on the path)", browser_named)
    add("--output", "DIR", "where results, logs and pictures go", Path, Path("demo-output/live"))
    return parser


def _end_in_order() -> None:
    """Let Ctrl-C and SIGTERM also end what was started."""

    def stop(number: int, frame: Any) -> None:
        sys.exit(EXIT_STOPPED + number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)


if __name__ == "__main__":
    _end_in_order()
    sys.exit(main())
