"""A window of a long list, as JSON: found, sorted and limited to what a screen shows.

Names are escaped (``names.escape``), times are microseconds since 1970 UTC, rates are per second,
and unknown values are None.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from dafka_console.snapshot import NO_FLIGHT, PartitionColumns, Snapshot, TopicColumns
from dafka_core.config.topic_rules import FOREVER, RetentionRule, parse_rules, rule_of
from dafka_core.errors import InvalidRequestError
from dafka_core.model.name_limits import nearest
from dafka_core.model.names import INTERNAL, escape, printable

MOST_ROWS: Final = 500  # rows of one answer: several screens
SPARK_POINTS: Final = 30  # points of a topic's history beside its row


class Window(NamedTuple):
    """The requested window."""

    find: str = ""  # a part of the name, ignoring case; empty for all
    sort: str = "name"  # the column to sort by
    down: bool = False
    start: int = 0  # the first of the found rows
    most: int = 100  # the number of rows


def topic_window(snapshot: Snapshot, window: Window, *, internal: bool = True) -> dict[str, Any]:
    """Return topics: the ``total`` found, and the ``rows`` of the window."""
    names, topics = snapshot.partitions.topics, snapshot.topics
    shown = [escape(name) for name in names]
    wanted = [internal or not name.startswith(INTERNAL) for name in names]
    rows, total = _picked(
        shown, window, lambda column: topics._asdict()[column], TopicColumns._fields, wanted
    )
    return {"total": total, "rows": [_topic(snapshot, row, shown[row]) for row in rows]}


def topic_row(snapshot: Snapshot, topic: str) -> dict[str, Any] | None:
    """Return one topic; None if it does not exist."""
    names = snapshot.partitions.topics
    if topic not in names:
        return None
    return _topic(snapshot, names.index(topic), escape(topic)) | {"kept": kept(snapshot, topic)}


def kept(snapshot: Snapshot, topic: str) -> list[str]:
    """Return the stores' retention of a topic: one entry if all agree.

    Empty if no store reports it.
    """
    told = [
        rule_of(topic, _rules(each.rules)) for each in snapshot.stores if each.rules is not None
    ]
    return sorted({FOREVER if rule is None else str(rule).rpartition("=")[2] for rule in told})


def partition_window(snapshot: Snapshot, topic: str | None, window: Window) -> dict[str, Any]:
    """Return partitions of a topic, or of all; ``holders`` are the stores' ends."""
    columns = snapshot.partitions
    number = columns.topics.index(topic) if topic in columns.topics else -1
    of_topic = slice(None) if topic is None else columns.topic == number
    own = np.arange(len(columns.tps))[of_topic]
    shown = [escape(columns.tps[row].partition) for row in own]
    clients = [columns.clients.get(columns.tps[row], "") for row in own]
    sortable: dict[str, npt.NDArray[Any]] = {
        "records": columns.end - columns.earliest,
        "holders": columns.holders(),
        **{name: getattr(columns, name) for name in _PARTITION_COLUMNS[2:]},
    }
    names = [f"{name} {client}" for name, client in zip(shown, clients, strict=True)]
    rows, total = _picked(
        names, window, lambda column: sortable[column][own], _PARTITION_COLUMNS, None
    )
    found = [_partition(snapshot, int(own[row]), shown[row]) for row in rows]
    return {"total": total, "rows": found}


_PARTITION_COLUMNS: Final = (
    *("records", "holders", "earliest", "end", "bytes", "rate", "byte_rate"),
    *("first_us", "last_us"),
)


def totals(snapshot: Snapshot) -> dict[str, Any]:
    """Return the cluster's totals."""
    columns = snapshot.partitions
    here = [each for each in snapshot.stores if each.here]
    return {
        "number": snapshot.number,
        "time_s": snapshot.time_s,
        **availability(snapshot),
        "took_ms": round(snapshot.took_s * 1e3, 1),
        "topics": len(columns.topics),
        "partitions": len(columns.tps),
        "records": int((columns.end - columns.earliest).sum()),
        "bytes": int(columns.bytes.sum()),
        "rate": round(float(columns.rate.sum()), 2),
        "byte_rate": round(float(columns.byte_rate.sum()), 1),
        "stores": len(here),
        "stores_known": len(store_rows(snapshot)),
        "nodes": len(snapshot.nodes),
        "towers": len(snapshot.towers),
        "file_bytes": sum(each.space.file_bytes for each in snapshot.stores if each.space),
    }


def availability(snapshot: Snapshot) -> dict[str, Any]:
    """Return whether any store answers, and the silent ones with their times (in each answer)."""
    away = (row for row in store_rows(snapshot) if row["failure"] not in ("", NO_FLIGHT))
    named = [{name: row[name] for name in ("store", "since_us", "failure")} for row in away]
    return {"live": snapshot.live, "away": named}


def store_rows(snapshot: Snapshot) -> list[dict[str, Any]]:
    """Return all stores: present and missing ones."""
    rows = [
        {
            "store": escape(each.store),
            "here": each.here,
            "failure": each.failure,
            "since_us": each.since_us or None,
            "locations": list(each.locations),
            "file_bytes": each.space.file_bytes if each.space else None,
            "free_bytes": each.space.free_bytes if each.space else None,
            "leases": each.space.leases if each.space else None,
            "oldest_lease_s": round(each.space.oldest_lease_s, 1) if each.space else None,
            "partitions": each.partitions,
            "behind": each.behind if each.here else None,
            "rules": None if each.rules is None else list(each.rules),
            "answered_ms": round(each.answered_s * 1e3, 1),
        }
        for each in snapshot.stores
    ]
    known = {each.store for each in snapshot.stores}
    rows += [
        {
            "store": escape(each.store),
            "here": False,
            "failure": "other stores know it, and it is not reachable now",
            "locations": [each.endpoint] if each.endpoint else [],
            "since_us": each.seen_us or None,
        }
        for each in snapshot.missing
        if each.store not in known
    ]
    return rows


def _picked(
    names: Sequence[str],
    window: Window,
    column: Callable[[str], npt.NDArray[Any]],
    columns: Sequence[str],
    wanted: Sequence[bool] | None,
) -> tuple[Sequence[int], int]:
    if window.sort != "name" and window.sort not in columns:
        why = nearest(window.sort, ("name", *columns))
        raise InvalidRequestError("sort", window.sort[:100], why)
    word = window.find.casefold()
    rows = [
        row
        for row, name in enumerate(names)
        if (not word or word in name.casefold()) and (wanted is None or wanted[row])
    ]
    rows.sort(key=lambda row: names[row])
    if window.sort != "name":
        keys = column(window.sort)[rows]
        order = np.argsort(-keys if window.down else keys, kind="stable")
        rows = [rows[each] for each in order]
    elif window.down:
        rows.reverse()
    start = max(window.start, 0)
    return rows[start : start + max(0, min(window.most, MOST_ROWS))], len(rows)


def _topic(snapshot: Snapshot, row: int, shown: str) -> dict[str, Any]:
    topics = snapshot.topics
    return {
        "name": shown,
        "internal": snapshot.partitions.topics[row].startswith(INTERNAL),
        "partitions": int(topics.partitions[row]),
        "records": int(topics.records[row]),
        "bytes": _size(topics.bytes[row], topics.records[row], topics.first_us[row]),
        **_activity(topics, row),
        "stale": int(topics.stale[row]),
        "spark": snapshot.rates.last(snapshot.partitions.topics[row], SPARK_POINTS),
    }


def _partition(snapshot: Snapshot, row: int, shown: str) -> dict[str, Any]:
    columns = snapshot.partitions
    address = columns.tps[row].partition
    records = int(columns.end[row] - columns.earliest[row])
    return {
        "name": shown,
        "topic": escape(columns.tps[row].topic),
        "client": printable(columns.clients.get(columns.tps[row], "")),
        "producing": any(each.node == address for each in snapshot.nodes),
        "earliest": int(columns.earliest[row]),
        "end": int(columns.end[row]),
        "records": records,
        "bytes": _size(columns.bytes[row], records, columns.first_us[row]),
        **_activity(columns, row),
        "stale": bool(columns.end[row] > columns.readable[row]),
        "holders": {
            escape(store): int(ends[row])
            for store, ends in columns.stores.items()
            if ends[row] >= 0
        },
    }


def _activity(columns: TopicColumns | PartitionColumns, row: int) -> dict[str, Any]:
    return {
        "rate": round(float(columns.rate[row]), 2),
        "byte_rate": round(float(columns.byte_rate[row]), 1),
        "first_us": int(columns.first_us[row]) or None,
        "last_us": int(columns.last_us[row]) or None,
    }


def _size(octets: int, records: int, first_us: int) -> int | None:
    """Return the disk usage; None until a store has reported it."""
    return None if records and not octets and not first_us else int(octets)


@lru_cache(256)
def _rules(texts: tuple[str, ...]) -> tuple[RetentionRule, ...]:
    """Parse a store's rules; skip unknown ones of a later version."""
    try:
        return parse_rules(texts)
    except ValueError:
        return ()
