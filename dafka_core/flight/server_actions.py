"""The service's actions: one request, one answer or several, all of them JSON."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any, Final, NamedTuple

from dafka_core.errors import InvalidRequestError
from dafka_core.flight.answers import Done, Heads, Offsets, PartitionEnd, TransactionStates
from dafka_core.flight.json_message import JsonMessage, nearest, short
from dafka_core.flight.limits import HEADS_PER_RESULT, MAX_LOCATIONS_LISTED
from dafka_core.flight.requests import (
    ActionRequest,
    CommitRequest,
    DescribeRequest,
    DiscardRequest,
    HeadsRequest,
    OffsetsRequest,
    StoresRequest,
    TransactionsRequest,
    WaitRequest,
)
from dafka_core.flight.server_context import ServerContext
from dafka_core.log_entries import Discard
from dafka_core.records import StagedTransaction, TopicPartition, Transaction

WAIT_STEP_S: Final = 0.5
"""How often a wait looks whether its client is still there."""

IsGone = Callable[[], bool]
"""Says whether the client has gone."""


class Action(NamedTuple):
    """One action: the class of its request, which has its name, and what answers it."""

    request: type[ActionRequest]
    answers: Callable[[ServerContext, Any, IsGone], Iterator[JsonMessage]]
    description: str


def act(context: ServerContext, name: str, body: bytes, is_gone: IsGone) -> Iterator[bytes]:
    """The results of an action.

    Raises:
        InvalidRequestError: there is no such action, or its body is none.
        DafkaError: the action failed.
    """
    action = ACTIONS.get(name)
    if action is None:
        raise InvalidRequestError("action", short(name), nearest(name, ACTIONS))
    request = context.parse(action.request, body)
    for answer in action.answers(context, request, is_gone):
        yield answer.packed()


def _heads(context: ServerContext, request: HeadsRequest, is_gone: IsGone) -> Iterator[Heads]:
    log = context.log
    if request.topics is None:
        found = log.partitions()
    else:
        topics = dict.fromkeys(request.topics)  # each of them once
        found = [info for topic in topics for info in log.partitions(topic)]
    for start in range(0, len(found), HEADS_PER_RESULT) or (0,):
        yield Heads(tuple(found[start : start + HEADS_PER_RESULT]))


def _offsets(context: ServerContext, request: OffsetsRequest, is_gone: IsGone) -> Iterator[Offsets]:
    found: list[int | None] = []
    for topic, partition, time_us in request.times:
        context.check_open()
        if is_gone():
            return
        found.append(context.log.offset_for_time(TopicPartition(topic, partition), time_us))
    yield Offsets(tuple(found))


def _wait(context: ServerContext, request: WaitRequest, is_gone: IsGone) -> Iterator[PartitionEnd]:
    transaction = None if request.transaction is None else Transaction(*request.transaction)
    deadline = time.monotonic() + request.timeout_s
    with context.waits.take():
        while True:
            context.check_open()
            step_s = min(max(deadline - time.monotonic(), 0), WAIT_STEP_S)
            end = context.backend.wait(request.tp, request.end, step_s, transaction)
            if end >= request.end or time.monotonic() >= deadline or is_gone():
                break
    yield PartitionEnd(end)


def _transaction_states(
    context: ServerContext, request: TransactionsRequest, is_gone: IsGone
) -> Iterator[TransactionStates]:
    yield TransactionStates(tuple(map(context.log.transaction_state, request.partitions)))


def _commit(context: ServerContext, request: CommitRequest, is_gone: IsGone) -> Iterator[Done]:
    with context.commits.take():
        staged = [StagedTransaction(*row) for row in request.transactions]
        yield _done(context, context.backend.commit(staged))


def _discard(context: ServerContext, request: DiscardRequest, is_gone: IsGone) -> Iterator[Done]:
    with context.commits.take():
        discards = [
            Discard(TopicPartition(topic, partition), attempt)
            for topic, partition, attempt in request.stages
        ]
        yield _done(context, context.backend.discard(discards))


def _done(context: ServerContext, future: Future[None]) -> Done:
    """Waits until it is on disk, even if the client has gone meanwhile."""
    while True:
        try:
            future.result(WAIT_STEP_S)
        except TimeoutError:
            if future.done():
                raise
            context.check_open()
        else:
            return Done()


def _stores(
    context: ServerContext, request: StoresRequest, is_gone: IsGone
) -> Iterator[JsonMessage]:
    yield from context.store_locations()[:MAX_LOCATIONS_LISTED]


def _describe(
    context: ServerContext, request: DescribeRequest, is_gone: IsGone
) -> Iterator[JsonMessage]:
    yield context.location


_TABLE: Final = (
    Action(
        HeadsRequest,
        _heads,
        "What the store holds of many topics: {v, topics?} -> {v, heads: [[topic, partition, "
        "earliest, end], ...]}, in several results if they are many",
    ),
    Action(
        OffsetsRequest,
        _offsets,
        "The first offsets stored at a time or later: {v, times: [[topic, partition, "
        "microseconds], ...]} -> {v, offsets: [offset or null, ...]}",
    ),
    Action(
        WaitRequest,
        _wait,
        "Wait until records are on disk: {v, topic, partition, end, timeout_s, transaction?} -> "
        "{v, end}, which is lower when the time has passed",
    ),
    Action(
        TransactionsRequest,
        _transaction_states,
        "How far transactions are: {v, partitions: [[topic, partition], ...]} -> {v, "
        "transactions: [[end, staged end, attempt, [version, start, end] or null], ...]}",
    ),
    Action(
        CommitRequest,
        _commit,
        "Make what was staged visible, all or nothing: {v, transactions: [[topic, partition, "
        "attempt, start, end, version], ...]} -> {v}",
    ),
    Action(
        DiscardRequest,
        _discard,
        "Give up what was staged: {v, stages: [[topic, partition, attempt], ...]} -> {v}",
    ),
    Action(
        StoresRequest,
        _stores,
        "The stores that this store knows of, itself included: {v}? -> a location each",
    ),
    Action(
        DescribeRequest,
        _describe,
        "Where this store can be read in bulk: {v}? -> {v, store, locations, directory, machine, "
        "session}",
    ),
)
ACTIONS: Final = {each.request.action: each for each in _TABLE}
"""The actions by their names."""
