"""Who is in a cluster, and who is connected to whom: what a map is drawn of."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from dafka_core.console.snapshot import STORE, TOWER, Snapshot
from dafka_core.names import INTERNAL, escape

MOST_NODES: Final = 300
"""Drawn at most, of each kind: beyond that nobody sees anything."""

MOST_TOPICS: Final = 5
"""Of a producer's or a consumer's topics that are named."""


def cluster_map(snapshot: Snapshot) -> dict[str, Any]:
    """Nodes and links.

    A node has ``id``, ``kind``, ``here``, ``own`` (it is the one that looks), ``topics`` and
    ``rate``, in records per second.  A link says of a store and another node whether the node is
    ``connected`` to the store, as the store says: True, False, or None where it cannot say.
    """
    writes = _writes(snapshot)
    nodes: dict[str, dict[str, Any]] = {}
    counts: dict[str, int] = {}
    for each in snapshot.nodes:
        kind = each.kind or "node"
        counts[kind] = counts.get(kind, 0) + 1
        if counts[kind] > MOST_NODES:
            continue
        topics, rate = writes.get(each.node, ((), 0.0))
        topics = topics if kind == "producer" else tuple(topic for topic in each.topics if topic)
        shown = [topic for topic in topics if not topic.startswith(INTERNAL)] or list(topics)
        nodes[each.node] = {
            "id": escape(each.node),
            "kind": kind,
            "endpoint": each.endpoint,
            "here": True,
            "own": False,
            "connected": each.connected,
            "topics": [escape(topic) for topic in shown[:MOST_TOPICS]],
            "topic_count": len(topics),
            "rate": round(rate, 2),
        }
    for state in snapshot.stores:
        known = nodes.setdefault(state.store, _node(state.store, STORE))
        known |= {"kind": STORE, "here": state.here, "partitions": state.partitions}
        known |= {"behind": state.behind, "failure": state.failure}
    for missing in snapshot.missing:
        nodes.setdefault(missing.store, _node(missing.store, STORE))
    if snapshot.own:
        nodes[snapshot.own] = _node(snapshot.own, "console") | {"here": True, "own": True}
    towers = [{"id": tower, "kind": TOWER, "here": True} for tower in snapshot.towers]
    return {
        "number": snapshot.number,
        "towers": towers,
        "nodes": sorted(nodes.values(), key=lambda node: (node["kind"], node["id"])),
        "links": _links(snapshot, nodes),
        "left_out": {
            kind: count - MOST_NODES for kind, count in counts.items() if count > MOST_NODES
        },
    }


def _node(address: str, kind: str) -> dict[str, Any]:
    return {
        "id": escape(address),
        "kind": kind,
        "endpoint": "",
        "here": False,
        "own": False,
        "connected": False,
        "topics": [],
        "topic_count": 0,
        "rate": 0.0,
    }


def _links(snapshot: Snapshot, nodes: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """One for each store that is there and each other node; two stores have one."""
    links: dict[tuple[str, str], bool | None] = {}
    for state in snapshot.stores:
        if not state.here:
            continue
        told = None if state.peers is None else {each.node: each.connected for each in state.peers}
        for node, found in nodes.items():
            if node == state.store or not found["here"]:
                continue
            connected = None if told is None else told.get(node, False)
            pair = state.store, node
            if found["kind"] == STORE:
                pair = min(pair), max(pair)
            links[pair] = connected and links.get(pair, connected)
    return [
        {"store": escape(store), "node": escape(node), "connected": connected}
        for (store, node), connected in links.items()
    ]


def _writes(snapshot: Snapshot) -> dict[str, tuple[tuple[str, ...], float]]:
    columns = snapshot.partitions
    addresses = {each.node for each in snapshot.nodes}
    found: dict[str, tuple[tuple[str, ...], float]] = {}
    rates = np.round(columns.rate, 3)
    for row, tp in enumerate(columns.tps):
        if tp.partition in addresses:
            topics, rate = found.get(tp.partition, ((), 0.0))
            found[tp.partition] = (*topics, tp.topic), rate + float(rates[row])
    return found
