"""Waiting until as many stores have a partition's records as must."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from typing import Final, NamedTuple, Protocol

from dafka_core.errors import NotAcknowledgedError, StoreUnreachableError
from dafka_core.flight.store_client import StoreClient
from dafka_core.records import TopicPartition, Transaction
from dafka_spark.option_values import ALL_STORES

LOOK_AGAIN_S: Final = 0.2
"""How long to wait before stores are asked, or looked for, again."""

SILENT_S: Final = 6.0
"""How long a store that does not answer is waited for while the mesh still tells of it.  The mesh
gives up a node that is gone after 4 s; one that is there and stays silent is of no use either."""


class AckGoal(NamedTuple):
    """What the stores must have.

    Attributes:
        start, end: offsets of what was written.
        unit: what is to be their marker then; None for none.
    """

    tp: TopicPartition
    start: int
    end: int
    transaction: Transaction | None = None


class Stores(Protocol):
    """Finds stores (``dafka_spark.cluster.store_registry.StoreRegistry``)."""

    @property
    def silent(self) -> Collection[str]:
        """Those that did not answer when they were looked for last, and may be there."""

    def anew(self) -> Sequence[StoreClient]:
        """Those that are there now."""


def wait_for_acks(
    goal: AckGoal,
    stores: Stores,
    known: Sequence[StoreClient],
    *,
    acks: int,
    have: set[str],
    deadline: float,
) -> None:
    """Waits until ``acks`` of the stores have the goal on disk.

    With ``ALL_STORES`` one is enough when the others are gone; one that does not answer is gone
    when the mesh has given it up.

    Args:
        stores: finds them anew, when one does not answer.
        known: those that are there.
        have: those that have it already.  Those that come to have it are added.
        deadline: on the clock ``time.monotonic``.

    Raises:
        NotAcknowledgedError: they have it not until then.
    """
    began = time.monotonic()
    while True:
        silent = _ask(goal, known, acks, have, deadline)
        if acks != ALL_STORES and len(have) >= acks:
            return
        now = time.monotonic()
        missing = {host.location.store for host in known} - have
        is_settled = not stores.silent or now >= began + SILENT_S
        if acks == ALL_STORES and have and not missing and is_settled:
            return
        if now >= deadline:
            count = goal.end - goal.start
            raise NotAcknowledgedError(*goal.tp, count, deadline - began)
        if silent or not missing:
            time.sleep(min(LOOK_AGAIN_S, remaining_s(deadline)))
            known = stores.anew()


def _ask(
    goal: AckGoal, known: Sequence[StoreClient], acks: int, have: set[str], deadline: float
) -> set[str]:
    """Asks each store that has it not yet; gives those that do not answer."""
    silent = set()
    for host in known:
        store = host.location.store
        if store in have or (acks != ALL_STORES and len(have) >= acks):
            continue
        step_s = min(remaining_s(deadline), LOOK_AGAIN_S)
        try:
            end = host.wait(goal.tp, goal.end, transaction=goal.transaction, timeout_s=step_s)
        except StoreUnreachableError:
            silent.add(store)
        else:
            if end >= goal.end:
                have.add(store)
    return silent


def remaining_s(deadline: float) -> float:
    """The seconds until then, and more than none: an operation looks once at least."""
    return max(deadline - time.monotonic(), 0.001)
