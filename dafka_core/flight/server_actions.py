"""The service's actions: one request, one answer, both JSON."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any, Final, NamedTuple

from dafka_core.flight.limits import HEADS_PER_RESULT, MAX_LOCATIONS_LISTED
from dafka_core.flight.request_members import VERSION
from dafka_core.flight.requests import (
    COMMIT_ACTION,
    DESCRIBE_ACTION,
    DISCARD_ACTION,
    HEADS_ACTION,
    OFFSETS_ACTION,
    STORES_ACTION,
    TRANSACTIONS_ACTION,
    WAIT_ACTION,
    HeadsRequest,
    OffsetsRequest,
    TransactionsRequest,
    WaitRequest,
)
from dafka_core.flight.store_backend import StoreBackend
from dafka_core.records import PartitionInfo, Transaction, TransactionState
from dafka_core.storage import Log

WAIT_STEP_S: Final = 0.5
"""How often a wait looks whether its client is still there."""

DESCRIPTIONS: Final = {
    HEADS_ACTION: "What the store holds of many topics: {v, topics?} -> {v, heads: [[topic, "
    "partition, earliest, end], ...]}, in several results if they are many",
    OFFSETS_ACTION: "The first offsets stored at a time or later: {v, times: [[topic, partition, "
    "microseconds], ...]} -> {v, offsets: [offset or null, ...]}",
    WAIT_ACTION: "Wait until records are on disk: {v, topic, partition, end, timeout_s, unit?} -> "
    "{v, end}, which is lower when the time has passed",
    TRANSACTIONS_ACTION: "How far units are: {v, partitions: [[topic, partition], ...]} -> {v, units: "
    "[[end, staged end, attempt, [number, start, end] or null], ...]}",
    COMMIT_ACTION: "Make what was staged visible, all or nothing: {v, units: [[topic, partition, "
    "attempt, start, end, number], ...]} -> {v}",
    DISCARD_ACTION: "Give up what was staged: {v, stages: [[topic, partition, attempt], ...]} -> "
    "{v}",
    STORES_ACTION: "The stores that this store knows of, itself included: {v}? -> a place each",
    DESCRIBE_ACTION: "Where this store can be read in bulk: {v}? -> {v, store, locations, "
    "directory, machine, session}",
}


class ActionCall(NamedTuple):
    """What an action must know of its call: whether it is still wanted, and allowed."""

    is_gone: Callable[[], bool]
    check_open: Callable[[], None]


def heads(log: Log, request: HeadsRequest) -> Iterator[bytes]:
    """What is held of each partition."""
    if request.topics is None:
        found = log.partitions()
    else:
        # Each one once, whatever was asked.
        found = [info for topic in dict.fromkeys(request.topics) for info in log.partitions(topic)]
    for start in range(0, len(found), HEADS_PER_RESULT) or (0,):
        yield _packed(heads=found[start : start + HEADS_PER_RESULT])


def offsets(log: Log, request: OffsetsRequest, caller: ActionCall) -> bytes:
    """The offset for each moment; null where nothing was stored then or later."""
    found: list[int | None] = []
    for moment in request.times:
        caller.check_open()
        if caller.is_gone():
            break
        found.append(log.offset_for_time(moment.tp, moment.timestamp_us))
    return _packed(offsets=found)


def wait(host: StoreBackend, request: WaitRequest, caller: ActionCall) -> bytes:
    """How far the partition is, when it is as far as asked for or the time has passed."""
    deadline = time.monotonic() + request.timeout_s
    while True:
        caller.check_open()
        remaining_s = min(max(deadline - time.monotonic(), 0), WAIT_STEP_S)
        end = host.wait(request.tp, request.end, remaining_s, request.transaction)
        if end >= request.end or time.monotonic() >= deadline or caller.is_gone():
            return _packed(end=end)


def transaction_states(host: StoreBackend, request: TransactionsRequest) -> bytes:
    """How far each partition is."""
    return _packed(transactions=host.transaction_states(request.partitions))


def finish(promise: Future[None], caller: ActionCall) -> bytes:
    """An answer that says nothing but that it is done; whether anybody still wants it or not."""
    while True:
        try:
            promise.result(WAIT_STEP_S)
        except TimeoutError:
            if promise.done():
                raise
            caller.check_open()
        else:
            return _packed()


def stores(host: StoreBackend) -> Iterator[bytes]:
    """The places known, one a result."""
    for location in host.store_locations()[:MAX_LOCATIONS_LISTED]:
        yield location.as_json().encode("ascii")


def parse_heads(results: Sequence[bytes]) -> list[PartitionInfo]:
    """The answer of ``heads``.

    Raises:
        ValueError: it is none.
    """
    rows = [row for result in results for row in _members(result)["heads"]]
    return [PartitionInfo(str(row[0]), str(row[1]), int(row[2]), int(row[3])) for row in rows]


def parse_offsets(results: Sequence[bytes]) -> list[int | None]:
    """The answer of ``offsets``.

    Raises:
        ValueError: it is none.
    """
    rows = [row for result in results for row in _members(result)["offsets"]]
    return [None if row is None else int(row) for row in rows]


def parse_transactions(result: bytes) -> list[TransactionState]:
    """The answer of ``transactions``.

    Raises:
        ValueError: it is none.
    """
    return [
        TransactionState(
            int(end),
            int(staged_end),
            str(attempt),
            Transaction(*map(int, transaction)) if transaction else None,
        )
        for end, staged_end, attempt, transaction in _members(result)["transactions"]
    ]


def parse_done(result: bytes) -> None:
    """The answer of ``finish``.

    Raises:
        ValueError: it is none.
    """
    _members(result)


def parse_end(result: bytes) -> int:
    """The answer of ``wait``.

    Raises:
        ValueError: it is none.
    """
    end: int = _members(result)["end"]
    return int(end)


def parse_told(result: bytes) -> tuple[int, bool]:
    """What a put is told: how far it is on disk, and whether it has failed.

    Raises:
        ValueError: it is none.
    """
    members = _members(result)
    return int(members["end"]), members.get("failed") is True


def _packed(**members: object) -> bytes:
    return json.dumps({"v": VERSION, **members}).encode("ascii")


def _members(packed: bytes) -> dict[str, Any]:
    found = json.loads(packed)
    if not isinstance(found, dict) or found.get("v") != VERSION:
        raise ValueError(f"the answer is not of version {VERSION}")
    return found
