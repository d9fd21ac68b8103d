"""Kafka's consumer groups, as the console shows them: who reads, and how far each is."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any, Final

from dafka_core.console.query_watch import EVERY_S, SHARE, behind
from dafka_core.console.store_link import ANSWER_S
from dafka_core.errors import InvalidRequestError
from dafka_core.flight.store_client import StoreClient
from dafka_core.kafka.groups.group_lag import GroupLag, GroupPartition, group_lags
from dafka_core.names import escape

MOST_GROUPS: Final = 1_000
MOST_PARTITIONS: Final = 1_000
"""Of what is listed.  Anybody may have groups."""


class ConsumerGroups:
    """Asks stores while somebody looks, once for all who do, and no more often than queries."""

    def __init__(self) -> None:
        self._found: Sequence[GroupLag] = ()
        self._due = 0.0
        self._lock = threading.Lock()

    def listed(self, clients: Sequence[StoreClient]) -> list[dict[str, Any]]:
        """The groups, by their names.

        Raises:
            StoreUnreachableError: a store does not answer.
        """
        return [_row(each) for each in self._look(clients)[:MOST_GROUPS]]

    def partitions(self, clients: Sequence[StoreClient], group: str) -> dict[str, Any]:
        """A group's partitions, and who reads them.

        Raises:
            InvalidRequestError: there is no such group.
            StoreUnreachableError: a store does not answer.
        """
        for each in self._look(clients):
            if each.group == group:
                rows = [_partition(part) for part in each.partitions[:MOST_PARTITIONS]]
                return {"rows": rows, "total": len(each.partitions)}
        raise InvalidRequestError("group", escape(group)[:300], "it has not committed")

    def _look(self, clients: Sequence[StoreClient]) -> Sequence[GroupLag]:
        with self._lock:
            began = time.monotonic()
            if clients and began >= self._due:  # without one it is as it was known last
                self._found = group_lags(clients, timeout_s=ANSWER_S)
                ended = time.monotonic()
                self._due = ended + max(EVERY_S, (ended - began) / SHARE)
            return self._found


def _row(found: GroupLag) -> dict[str, Any]:
    return {
        "name": escape(found.group),
        "state": found.state,
        "members": found.members,
        "partitions": len(found.partitions),
        **behind(found),
    }


def _partition(found: GroupPartition) -> dict[str, Any]:
    row: dict[str, Any] = {"topic": escape(found.topic), "number": found.number}
    if found.lag is not None:
        lag = found.lag
        row |= {"partition": escape(lag.partition), "committed": lag.position, "end": lag.end}
        row |= behind(lag)
    if found.member is not None:
        names = found.member.member_id, found.member.client_id, found.member.host
        row |= zip(("member", "client", "host"), map(escape, names), strict=True)
    return row
