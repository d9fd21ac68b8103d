"""The commands ``dafka console`` and ``dafka top``: a cluster in a browser, or a terminal."""

from __future__ import annotations

import json
import os
import select
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any, Final

import click

from dafka_console.options import ConsoleOptions
from dafka_core.cli import flags, output, store_clients
from dafka_core.cli.process import Stopped, serve_until_stopped
from dafka_core.cli.store_clients import StoreFinder, located
from dafka_core.config.node_options import ReaderOptions, keys_in
from dafka_core.errors import ConfigError, NodeFailedError, NoStoreError

if TYPE_CHECKING:
    from dafka_console.cluster_view import ClusterView
    from dafka_console.snapshot import Snapshot
    from dafka_console.top_view import TopChoice


RATED: Final = 3  # the first snapshot with rates
KEY_S: Final = 0.1  # polling interval of the keyboard


@flags.option("--topic", type=flags.TOPIC, metavar="TOPIC", help="Show this topic's partitions.")
@flags.option("--sort", default="rate", metavar="COLUMN", help="name, rate, records or bytes.")
@flags.option(
    "--rows", type=click.IntRange(1, 500), default=20, metavar="N", help="How many to list."
)
@flags.option(
    "--interval-s",
    type=click.FloatRange(0.1, 3600),
    default=1.0,
    metavar="NUMBER",
    help="How often to look.",
)
@flags.option("--internal", is_flag=True, help="List Dafka's own topics, too.")
@flags.option("--once", is_flag=True, help="Print the state once, and exit.")
@flags.reads_stores
def top(
    *,
    topic: str | None,
    sort: str,
    rows: int,
    interval_s: float,
    internal: bool,
    once: bool,
    finder: StoreFinder,
) -> None:
    """Watch a cluster: nodes, stores, topics, partitions, rates, sizes, and lag of queries.

    If standard output is no terminal, it prints each update; with --json as one JSON object. Keys:
    q ends it, t p n choose topics, partitions or nodes, r b c a the order, i internal topics.
    """
    from dafka_console.cluster_view import ANSWER_S, ClusterView
    from dafka_console.top_view import SORTS, TopChoice

    if sort not in SORTS.values():
        raise ConfigError("sort", sort, f"must be one of {', '.join(sorted(SORTS.values()))}")
    choice = TopChoice(sort=sort, topic=topic, internal=internal, rows=rows)
    named = located(finder.uris, keys_in(finder.options), ANSWER_S)
    ends = nullcontext() if once else suppress(Stopped)  # it has no other end
    with ends, ClusterView(finder.options, named, interval_s=interval_s) as view:
        snapshot = _first(view, finder.timeout_s, interval_s)
        if once or output.settings.json or not sys.stdout.isatty():
            if once and topic is not None and topic not in snapshot.partitions.topics:
                raise store_clients.unknown_topic(topic, snapshot.partitions.topics)
            while True:
                _print(snapshot, choice)
                if once:
                    return
                snapshot = view.wait(snapshot.number + 1)
                _check_open(view)
        _watch(view, choice)


def _check_open(view: ClusterView) -> None:
    if view.closed:
        raise NodeFailedError("view of the cluster", "it has ended; the log names the cause")


def _first(view: ClusterView, timeout_s: float, interval_s: float) -> Snapshot:
    deadline = time.monotonic() + timeout_s
    snapshot = view.wait(1, timeout_s)
    while not any(each.here for each in snapshot.stores):
        if (left_s := deadline - time.monotonic()) <= 0:
            raise NoStoreError([str(each) for each in snapshot.towers], timeout_s)
        snapshot = view.wait(snapshot.number + 1, left_s)
    return view.wait(max(snapshot.number, RATED), max(timeout_s, 3 * interval_s))


def _print(snapshot: Snapshot, choice: TopChoice) -> None:
    from dafka_console import top_view

    if output.settings.json:
        output.write(f"{json.dumps(top_view.as_json(snapshot, choice))}\n".encode())
        return
    from rich.console import Console

    width = None if sys.stdout.isatty() else 160
    Console(markup=False, emoji=False, width=width).print(top_view.rendered(snapshot, choice))


def _watch(view: ClusterView, choice: TopChoice) -> None:
    from rich.console import Console, Group
    from rich.live import Live
    from rich.text import Text

    from dafka_console.top_view import KEYS_HELP, rendered

    console = Console(markup=False, emoji=False)
    with _keys() as keyboard, Live(console=console, screen=True, auto_refresh=False) as live:
        shown = None
        while True:
            snapshot = view.snapshot
            key = _pressed(keyboard)
            if key == "q":
                return
            _check_open(view)
            choice.press(key)
            if key or shown is not snapshot:
                choice.rows = max(5, console.height - 10 - len(snapshot.stores))
                live.update(
                    Group(rendered(snapshot, choice), Text(), Text(KEYS_HELP, "dim")), refresh=True
                )
                shown = snapshot


@contextmanager
def _keys() -> Iterator[int | None]:
    """Yield the keyboard's descriptor in unbuffered mode; None without a terminal."""
    if not sys.stdin.isatty():
        yield None
        return
    import termios
    import tty

    keyboard = sys.stdin.fileno()
    before = termios.tcgetattr(keyboard)
    try:
        tty.setcbreak(keyboard)
        yield keyboard
    finally:
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)


def _pressed(keyboard: int | None) -> str:
    """Return the key that is pressed within a moment, or an empty string."""
    if keyboard is None:
        time.sleep(KEY_S)
        return ""
    ready, _, _ = select.select([keyboard], [], [], KEY_S)
    return os.read(keyboard, 1).decode("latin-1") if ready else ""


EXTRA: Final = "its packages are missing: pip install 'dafka-spark[console]'"


@flags.stores_option
@flags.exit_with_parent_option
@flags.table_options(ConsoleOptions, ReaderOptions)
def console(*, uris: str, **options: Any) -> None:
    """Serve the console (extra 'console'): the live cluster, its records, queries and health.

    It prints READY and its address as JSON once it serves. Ctrl-C stops it.
    """
    own = ConsoleOptions.declared_in(options)
    ConsoleOptions.build(own)
    try:
        from dafka_console.server import Console
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in ("starlette", "uvicorn", "prometheus_client"):
            raise
        raise ConfigError("console", error.name, EXTRA) from None
    from dafka_console.cluster_view import ANSWER_S

    named = located(uris, keys_in(options), ANSWER_S)
    with Console(ReaderOptions.declared_in(options), named, **own) as node:
        output.info(f"console at {node.url}; Ctrl-C stops it")
        if node.token:
            output.info(f"the page asks for this token: {node.url}?token={node.token}")
        elif node.admits_all:
            may = "read every record" if own.get("read_only") else "read and write records"
            output.info(f"whoever reaches {node.url} from another machine may {may}: no password")
        serve_until_stopped(node, url=node.url, port=node.port)
