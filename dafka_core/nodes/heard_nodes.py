"""The nodes whose beacons come to a tower, which passes them on and needs no table of them."""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from typing import Final

from dafka_core.protocol.beacons import MAX_PEERS

SILENT_S: Final = 10.0
"""A node of which nothing came for so long is not counted any more: twice and a half of what nodes
wait for each other unless they are told otherwise."""

_log = logging.getLogger("dafka.tower")


class HeardNodes:
    """Which nodes were heard lately.  The tower's thread notes, any thread counts."""

    def __init__(self) -> None:
        self._heard_at = OrderedDict[str, float]()  # the one that was heard of longest ago first

    def note(self, now: float, node: str, endpoint: str) -> None:
        """A beacon of a node has come."""
        if node not in self._heard_at:
            _log.info(
                "node %(node)s has come, at %(endpoint)s",
                {"node": node, "endpoint": endpoint},
                extra={"event": "node_came"},
            )
        self._heard_at[node] = now
        self._heard_at.move_to_end(node)
        self._drop_silent(now)

    def count(self) -> int:
        """How many there are now."""
        since = time.monotonic() - SILENT_S
        return sum(heard_at > since for heard_at in [*self._heard_at.values()])

    def _drop_silent(self, now: float) -> None:
        while self._heard_at:
            node, heard_at = next(iter(self._heard_at.items()))
            if heard_at > now - SILENT_S and len(self._heard_at) <= MAX_PEERS:
                break
            del self._heard_at[node]
            _log.info("node %(node)s is silent", {"node": node}, extra={"event": "node_went"})
