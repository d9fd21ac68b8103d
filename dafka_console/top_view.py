"""The display of ``dafka top``: tables of ``rich`` for people, JSON for programs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from dafka_console.cluster_view import behind
from dafka_console.snapshot import Snapshot
from dafka_console.windows import (
    SPARK_POINTS,
    Window,
    partition_window,
    store_rows,
    topic_window,
    totals,
)
from dafka_core.model.names import escape, printable
from dafka_core.queries.query_progress import FINISHED, LATE, RUNNING, QueryLag

TOPICS: Final = "topics"
PARTITIONS: Final = "partitions"
NODES: Final = "nodes"
VIEWS: Final = {"t": TOPICS, "p": PARTITIONS, "n": NODES}
SORTS: Final = {"r": "rate", "b": "bytes", "c": "records", "a": "name"}
KEYS_HELP: Final = (
    "q end   t topics   p partitions   n nodes   "
    "order: r rate  b bytes  c records  a name   i internal"
)

BARS: Final = "▁▂▃▄▅▆▇█"
_QUERY_COLORS: Final = {RUNNING: "green", FINISHED: "dim", LATE: "yellow"}
_UNITS: Final = ("", "k", "M", "G", "T", "P")
_BYTE_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


@dataclass
class TopChoice:
    """The user's choices."""

    view: str = TOPICS  # one of ``VIEWS``
    sort: str = "rate"  # one of ``SORTS``
    topic: str | None = None  # only this one, or all
    internal: bool = False  # whether Dafka's own topics are shown
    rows: int = 20  # the largest number of rows

    def press(self, key: str) -> None:
        """Apply a key; unknown ones change nothing."""
        self.view = VIEWS.get(key, self.view)
        self.sort = SORTS.get(key, self.sort)
        self.internal ^= key == "i"

    @property
    def window(self) -> Window:
        """Return the chosen rows."""
        return Window("", self.sort, self.sort != "name", 0, self.rows)


def as_json(snapshot: Snapshot, choice: TopChoice) -> dict[str, Any]:
    """Return a snapshot as JSON; partitions are those of the chosen topic, if any."""
    found = {
        "cluster": totals(snapshot),
        "stores": store_rows(snapshot),
        "nodes": node_rows(snapshot),
        "topics": topic_window(snapshot, choice.window, internal=choice.internal)["rows"],
        "queries": [query_row(each) for each in snapshot.queries],
    }
    if choice.topic is not None:
        found["partitions"] = partition_window(snapshot, choice.topic, choice.window)["rows"]
    return found


def node_rows(snapshot: Snapshot) -> list[dict[str, Any]]:
    """Return the nodes of the mesh, towers first."""
    return [{"node": tower, "kind": "tower"} for tower in snapshot.towers] + [
        {
            "node": escape(each.node),
            "kind": each.kind or "node",
            "endpoint": each.endpoint,
            "connected": each.connected,
            "topics": [escape(topic) for topic in each.topics if topic],
        }
        for each in snapshot.nodes
    ]


def query_row(lag: QueryLag) -> dict[str, Any]:
    """Return a run of a query."""
    return {
        "query": escape(lag.query),
        "run": escape(lag.run),
        "state": lag.state,
        "partitions": lag.partitions,
        **behind(lag),
        "reported_s": round(lag.reported_s, 1),
    }


def rendered(snapshot: Snapshot, choice: TopChoice) -> RenderableType:
    """Return a snapshot for a terminal."""
    parts: list[RenderableType] = [_headline(snapshot), Text(), _stores(snapshot), Text()]
    if choice.view == NODES:
        parts.append(_nodes(snapshot, choice.rows))
    elif choice.view == PARTITIONS or choice.topic is not None:
        parts.append(_partitions(snapshot, choice))
    else:
        parts.append(_topics(snapshot, choice))
    if snapshot.queries:
        parts += [Text(), _queries(snapshot, choice.rows)]
    return Group(*parts)


def count(number: float) -> str:
    """Format a number with about three digits and a unit: 1.2k, 34M."""
    return _scaled(number, 1000, _UNITS)


def size(number: float | None) -> str:
    """Format bytes in units of 1,024."""
    return "" if number is None else _scaled(number, 1024, _BYTE_UNITS, " ")


def bars(rates: Sequence[float]) -> str:
    """Draw rates as bars, scaled to the highest."""
    most = max(rates, default=0)
    if not most:
        return "·" * len(rates)
    return "".join(BARS[min(int(each / most * len(BARS)), len(BARS) - 1)] for each in rates)


def _scaled(number: float, step: int, units: Sequence[str], gap: str = "") -> str:
    place = 0
    while abs(number) >= step and place < len(units) - 1:
        number /= step
        place += 1
    digits = f"{number:.1f}" if number and abs(number) < 10 and number != int(number) else ""
    return f"{digits or format(number, '.0f')}{gap}{units[place]}"


def _headline(snapshot: Snapshot) -> Text:
    found = totals(snapshot)
    text = Text()
    text.append("dafka", "bold")
    text.append(f"   {found['stores']}")
    known = found["stores_known"]
    if known > found["stores"]:
        text.append(f" of {known}", "bold red")
    text.append(" stores" if known != 1 else " store", "dim")
    for name in ("nodes", "topics", "partitions", "records"):
        text.append(f"   {count(found[name])}").append(f" {name}", "dim")
    text.append(f"   {size(found['bytes'])}")
    text.append(f"   {count(found['rate'])}", "bold cyan").append(" records/s", "dim")
    text.append(f"   {size(found['byte_rate'])}/s", "cyan")
    if not found["live"]:
        text.append("\nno store answers: this is what was known last", "bold red")
    return text


def _table(*columns: str, left: int = 1) -> Table:
    table = Table(box=None, header_style="dim", pad_edge=False, expand=False)
    for number, name in enumerate(columns):
        table.add_column(name, justify="left" if number < left else "right", no_wrap=True)
    return table


def _stores(snapshot: Snapshot) -> Table:
    table = _table("STORE", "", "PARTITIONS", "BEHIND", "FILE", "FREE", "LEASES", "ANSWERS", left=2)
    for each in store_rows(snapshot):
        if each["here"]:
            behind = each["behind"]
            table.add_row(
                each["store"][:12],
                Text("up", "green"),
                count(each["partitions"]),
                Text(count(behind), "yellow" if behind else ""),
                size(each["file_bytes"]),
                size(each["free_bytes"]),
                str(each["leases"] or 0),
                f"{each['answered_ms']:.0f} ms",
            )
        else:
            at = time.localtime((each["since_us"] or 0) / 1e6)
            since = time.strftime(" since %F %T", at) if each["since_us"] else ""
            why = Text(f"away{since}: {printable(each['failure'])}", "red")
            table.add_row(each["store"][:12], why)
    return table


def _topics(snapshot: Snapshot, choice: TopChoice) -> Table:
    table = _table("TOPIC", "PARTITIONS", "RECORDS", "SIZE", "RECORDS/S", "BYTES/S", "")
    for each in topic_window(snapshot, choice.window, internal=choice.internal)["rows"]:
        table.add_row(
            Text(each["name"]),
            count(each["partitions"]),
            count(each["records"]),
            size(each["bytes"]),
            Text(count(each["rate"]), "cyan"),
            f"{size(each['byte_rate'])}/s",
            Text(bars(each["spark"]), "cyan"),
            style="dim" if each["stale"] == each["partitions"] else "",
        )
    return table


def _partitions(snapshot: Snapshot, choice: TopChoice) -> Table:
    names = ("EARLIEST", "NEXT", "SIZE", "RECORDS/S", "STORES")
    table = _table("PARTITION", "CLIENT", "TOPIC", *names, left=3)
    for row in partition_window(snapshot, choice.topic, choice.window)["rows"]:
        table.add_row(
            Text(row["name"]),
            Text(row["client"]),
            Text(row["topic"]),
            f"{row['earliest']:,}",
            f"{row['end']:,}",
            size(row["bytes"]),
            Text(count(row["rate"]), "cyan"),
            str(len(row["holders"])),
            style="dim" if row["stale"] else "",
        )
    return table


def _nodes(snapshot: Snapshot, rows: int) -> Table:
    table = _table("NODE", "KIND", "CONNECTED", "FOLLOWS", left=4)
    for each in node_rows(snapshot)[:rows]:
        connected = "" if each["kind"] == "tower" else "yes" if each["connected"] else "no"
        follows = ", ".join(each.get("topics", ()))
        table.add_row(Text(each["node"]), each["kind"], connected, Text(follows))
    return table


def _queries(snapshot: Snapshot, rows: int) -> Table:
    table = _table("QUERY", "STATE", "BEHIND", "SIZE", "SECONDS", "", left=2)
    for each in snapshot.queries[:rows]:
        row, lags = query_row(each), snapshot.lags.last((each.query, each.run), SPARK_POINTS)
        seconds = row["seconds_behind"]
        table.add_row(
            Text(row["query"]),
            Text(row["state"], _QUERY_COLORS[row["state"]]),
            count(row["records_behind"]),
            size(row["bytes_behind"]),
            "" if seconds is None else f"{seconds:,.1f}",
            Text(bars(lags), "cyan"),
        )
    return table
