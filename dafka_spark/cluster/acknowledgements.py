"""Waiting until as many stores have a partition's records on disk as must."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from dafka_core.errors import NotAcknowledgedError, StoreUnreachableError
from dafka_core.flight.store_client import StoreClient
from dafka_core.records import TopicPartition, Transaction
from dafka_spark.cluster import timing
from dafka_spark.cluster.deadline import Deadline
from dafka_spark.option_values import ALL_STORES


class AckGoal(NamedTuple):
    """What the stores must have: the records from ``start`` to ``end``, and a last transaction.

    ``transaction`` is the one that the stores are to know as the partition's last; None for none.
    """

    tp: TopicPartition
    start: int
    end: int
    transaction: Transaction | None = None


class Stores(Protocol):
    """Finds stores anew (``StoreSession``)."""

    @property
    def silent(self) -> Sequence[str]:
        """Those that did not answer when they were looked for last, and may be there."""

    def refresh(self) -> Sequence[StoreClient]:
        """Those that are there now."""


def wait_for_acks(
    goal: AckGoal,
    stores: Stores,
    known: Sequence[StoreClient],
    acks: int,
    have: set[str],
    deadline: Deadline,
) -> None:
    """Waits until ``acks`` of the stores have the goal on disk.

    With ``ALL_STORES`` one is enough when the others are gone; one that does not answer is gone
    when the mesh has given it up.

    Args:
        stores: finds stores anew when one does not answer.
        known: the stores that are there.
        have: the stores that have the goal already; those that come to have it are added.

    Raises:
        NotAcknowledgedError: they have it not until the deadline.
    """
    began = Deadline(timing.SILENT_S)
    while True:
        silent = _ask(goal, known, acks, have, deadline)
        if acks != ALL_STORES and len(have) >= acks:
            return
        missing = {client.location.store for client in known} - have
        is_settled = not stores.silent or began.is_over
        if acks == ALL_STORES and have and not missing and is_settled:
            return
        if deadline.is_over:
            raise NotAcknowledgedError(*goal.tp, goal.end - goal.start, began.waited_s)
        if silent or not missing:
            deadline.pause()
            known = stores.refresh()


def _ask(
    goal: AckGoal, known: Sequence[StoreClient], acks: int, have: set[str], deadline: Deadline
) -> set[str]:
    """Asks each store that has not the goal yet; the stores that do not answer."""
    silent = set()
    for client in known:
        store = client.location.store
        if store in have or (acks != ALL_STORES and len(have) >= acks):
            continue
        step_s = min(deadline.left_s, timing.LOOK_AGAIN_S)
        try:
            end = client.wait(goal.tp, goal.end, transaction=goal.transaction, timeout_s=step_s)
        except StoreUnreachableError:
            silent.add(store)
        else:
            if end >= goal.end:
                have.add(store)
    return silent
