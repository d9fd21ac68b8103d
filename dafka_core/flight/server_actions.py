"""Actions of the Flight service: JSON requests and answers, and the watch for changes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import nullcontext
from typing import Any, Final, NamedTuple, TypeVar

from dafka_core.errors import DataLossError, InvalidRequestError
from dafka_core.flight import limits
from dafka_core.flight.backup_requests import CheckRequest, LinksRequest
from dafka_core.flight.flight_errors import BUSY, UnavailableError
from dafka_core.flight.limits import MAX_LEASED_BLOCKS, MAX_LEASED_BYTES
from dafka_core.flight.requests import (
    ActionRequest,
    CommitRequest,
    Deleted,
    DeleteRequest,
    DescribeRequest,
    Digests,
    DigestsRequest,
    DiscardRequest,
    Done,
    DurableEnd,
    ForgetRequest,
    Heads,
    HeadsRequest,
    HeadsSince,
    LeaseGranted,
    LeaseRequest,
    Offsets,
    OffsetsRequest,
    Peers,
    PeersRequest,
    RecordSizes,
    RetentionRequest,
    RetentionRules,
    SizesRequest,
    SpaceRequest,
    Staged,
    StagedRequest,
    StoresRequest,
    TransactionsRequest,
    TransactionStates,
    Trimmed,
    TrimRequest,
    WaitRequest,
    WatchRequest,
)
from dafka_core.flight.server_context import POLL_S, ServerContext
from dafka_core.flight.server_get import check_held, check_history, check_log, links
from dafka_core.flight.server_keys import (
    Caller,
    Need,
    administers,
    anything,
    discards,
    knows,
    reads,
    reads_or_writes,
    sets_rules,
    writes,
)
from dafka_core.model.json_message import JsonMessage, short
from dafka_core.model.log_entries import Commit, Discard, Forget
from dafka_core.model.name_limits import nearest
from dafka_core.model.records import PartitionInfo, StagedTransaction, TopicPartition, Transaction
from dafka_core.model.values import RowDigest
from dafka_core.storage.environment import Topics
from dafka_core.storage.leases import MAX_LEASES
from dafka_core.storage.log import TRIM_PARTITIONS

TURN_S: Final = 0.1
"""Wait of a watch beyond the limit.  A refused client asks again and again, as often as it likes,
so it is refused soon."""

T = TypeVar("T")


def watch(context: ServerContext, request: WatchRequest, caller: Caller) -> Iterator[HeadsSince]:
    """Yield the changes since the request's cursor, at the latest after its timeout."""
    topics = None if request.topics is None else frozenset(request.topics)
    session = context.location.session
    known = _number(request.cursor, session)
    if known is not None and request.timeout_s:
        deadline = time.monotonic() + request.timeout_s
        with (
            context.watches.take(caller.is_gone, TURN_S),
            context.log.changes.waking(threading.Event(), known, topics) as woken,
        ):
            while not woken.wait(min(max(deadline - time.monotonic(), 0), POLL_S)):
                context.check_open()
                if caller.is_gone() or time.monotonic() >= deadline:
                    break
    # The cursor first: changes in between are reported twice instead of never.
    cursor = f"{session}:{context.log.changes.number}"
    found = None if known is None else _changed(context, known, topics)
    complete = found is None
    found = context.held(request.topics, caller) if found is None else caller.known(found)
    for part in _parts(found):
        yield HeadsSince(cursor, complete, part)


def _number(cursor: str, session: str) -> int | None:
    """Return the change of a cursor; None if it is invalid or of an earlier start of the store."""
    begin, _, number = cursor.partition(":")
    return int(number) if begin == session and number.isascii() and number.isdigit() else None


def _changed(context: ServerContext, known: int, topics: Topics) -> list[PartitionInfo] | None:
    """Return the changed partitions' offsets; None if the changes are not known completely."""
    if context.log.changes.since(known, topics) == []:
        return []  # without reading the tables
    with context.log.snapshot() as snapshot:
        # Not before: all changes made together with those in the snapshot must be included.
        changed = context.log.changes.since(known, topics)
        if changed is None:
            return None
        found = [snapshot.info(tp) for tp in changed]
    held = [each for each in found if each is not None]
    return held if len(held) == len(found) else None


class Action(NamedTuple):
    """The class of an action's request, which has the action's name, its permission and handler."""

    request: type[ActionRequest]
    need: Need
    answers: Callable[[ServerContext, Any, Caller], Iterable[JsonMessage]]
    changes: bool = False  # the store: it waits for its turn among commits


def descriptions() -> list[tuple[str, str]]:
    """Return the name and description of each action, for clients."""
    page = "See docs/flight.md for its body and result."
    docs = ((name, each.request.__doc__ or "") for name, each in ACTIONS.items())
    return [(name, f"{doc.partition(chr(10))[0]} {page}") for name, doc in docs]


def act(context: ServerContext, name: str, body: bytes, caller: Caller) -> Iterator[bytes]:
    """Yield the results of an action; raise InvalidRequestError if it is unknown or invalid."""
    action = ACTIONS.get(name)
    if action is None:
        raise InvalidRequestError("action", short(name), nearest(name, ACTIONS))
    request = context.parse(action.request, action.need, body, caller)
    with context.commits.take(caller.is_gone) if action.changes else nullcontext():
        for answer in action.answers(context, request, caller):
            yield answer.packed()


def _parts(found: Sequence[T]) -> Iterable[tuple[T, ...]]:
    """Split the entries of an answer into several results; at least one."""
    return limits.parts(found, limits.HEADS_PER_RESULT) if found else ((),)


def _heads(context: ServerContext, request: HeadsRequest, caller: Caller) -> Iterator[Heads]:
    return map(Heads, _parts(context.held(request.topics, caller)))


def _staged(context: ServerContext, request: StagedRequest, caller: Caller) -> Iterator[Staged]:
    return map(Staged, _parts(caller.known(context.log.staged())))


def _offsets(context: ServerContext, request: OffsetsRequest, caller: Caller) -> Iterator[Offsets]:
    found: list[int | None] = []
    for topic, partition, time_us in request.times:
        context.check_wanted(caller)
        tp = TopicPartition(topic, partition)
        found.append(context.log.offset_for_time(tp, time_us, after_all=request.after_all))
    refusal = context.backend.refusal.why if context.backend.refusal else ""
    doubt, damaged = context.log.clock.doubt(), len(context.log.healer.damaged)
    yield Offsets(tuple(found), time.time_ns() // 1_000, doubt, refusal, damaged)


def _sizes(context: ServerContext, request: SizesRequest, caller: Caller) -> Iterator[RecordSizes]:
    found: list[tuple[int, ...] | None] = []
    with context.log.snapshot() as snapshot:
        for each in request.ranges:
            context.check_wanted(caller)
            sizes = snapshot.record_sizes(each.tp, each.start, each.end)
            found.append(None if sizes is None else tuple(sizes))
    yield RecordSizes(tuple(found))


def _wait(context: ServerContext, request: WaitRequest, caller: Caller) -> Iterator[DurableEnd]:
    transaction = None if request.transaction is None else Transaction(*request.transaction)
    deadline = time.monotonic() + request.timeout_s
    with context.waits.take(caller.is_gone, request.timeout_s):
        while True:
            context.check_open()
            step_s = min(max(deadline - time.monotonic(), 0), POLL_S)
            end = context.backend.wait(request.tp, request.end, step_s, transaction)
            if end >= request.end or time.monotonic() >= deadline or caller.is_gone():
                break
    yield DurableEnd(end)


def _transaction_states(
    context: ServerContext, request: TransactionsRequest, caller: Caller
) -> Iterator[TransactionStates]:
    yield TransactionStates(tuple(map(context.log.transaction_state, request.partitions)))


def _commit(context: ServerContext, request: CommitRequest, caller: Caller) -> Iterator[Done]:
    staged = (StagedTransaction(*row) for row in request.transactions)
    yield _done(context, context.backend.put(Commit(tuple(staged))))


def _digests(context: ServerContext, request: DigestsRequest, caller: Caller) -> Iterator[Digests]:
    found: list[str] = []
    with context.log.snapshot() as snapshot:
        for topic, partition, attempt, start, end in request.ranges:
            tp, digest = TopicPartition(topic, partition), RowDigest()
            check_held(snapshot.held(tp, attempt)[0], tp, start, end)
            for batch in snapshot.read(tp, start, end, attempt):
                context.check_wanted(caller)
                digest.add(batch.values)
            found.append(str(digest))
    yield Digests(tuple(found))


def _discard(context: ServerContext, request: DiscardRequest, caller: Caller) -> Iterator[Done]:
    discards = [
        Discard(TopicPartition(topic, partition), attempt)
        for topic, partition, attempt in request.stages
    ]
    yield _done(context, context.backend.put(*discards)) if discards else Done()


def _forget(context: ServerContext, request: ForgetRequest, caller: Caller) -> Iterator[Done]:
    yield _done(context, context.backend.put(Forget(request.address)))


def _lease(context: ServerContext, request: LeaseRequest, caller: Caller) -> Iterator[LeaseGranted]:
    log = context.log
    if request.done:
        log.end_lease(request.done)
    if not request.ranges:
        yield LeaseGranted()
        return
    ranges = [(each.tp, each.start, each.end) for each in request.ranges]
    found, lease = log.lease(ranges, max_blocks=MAX_LEASED_BLOCKS, max_bytes=MAX_LEASED_BYTES)
    if lease is None:
        why = f"{MAX_LEASES} leases are held, as many as may be; read over Flight, or later"
        raise UnavailableError(BUSY, why)
    try:
        blocks: list[tuple[int, int, int, int]] = []
        for number, (each, placed) in enumerate(zip(request.ranges, found, strict=False)):
            try:
                check_held(placed.held, each.tp, each.start, each.end)
                check_history(placed.history, each)
            except (DataLossError, UnavailableError):
                if not request.partial:
                    raise
            else:
                blocks += [(number, *place) for place in placed.blocks]
        yield LeaseGranted(lease.id, lease.slot, len(found), tuple(blocks))
    except BaseException:
        log.end_lease(lease.id)
        raise


def _retention(
    context: ServerContext, request: RetentionRequest, caller: Caller
) -> Iterator[RetentionRules]:
    control = context.retention
    if control is None:
        raise InvalidRequestError("rules", list(request.rules or ()), "this store keeps all")
    if request.reset or request.rules is not None:
        control.replace(None if request.reset else request.parsed())
    rules = control.rules
    if not caller.owner.knows_all:  # rules name topics
        topics = {info.topic for info in context.held(None, caller)}
        rules = tuple(rule for rule in rules if any(map(rule.fits, topics)))
    yield RetentionRules(tuple(map(str, rules)), control.is_set, control.given_up)


def _trim(context: ServerContext, request: TrimRequest, caller: Caller) -> Iterator[Trimmed]:
    earliest: list[int] = []
    for part in limits.parts(request.trims, TRIM_PARTITIONS):
        context.check_open()
        wanted = [(TopicPartition(topic, partition), at) for topic, partition, at in part]
        earliest += context.log.trim_all(wanted)
    yield Trimmed(tuple(earliest))


def _delete(context: ServerContext, request: DeleteRequest, caller: Caller) -> Iterator[Deleted]:
    if context.delete_topic is None:
        raise InvalidRequestError("topic", request.topic, "this store deletes nothing")
    yield Deleted(*context.delete_topic(request.topic))


def _done(context: ServerContext, future: Future[None]) -> Done:
    """Wait for the disk, even if the client has gone meanwhile."""
    while not wait([future], POLL_S).done:
        context.check_open()
    future.result()
    return Done()


ACTIONS: Final[dict[str, Action]] = {
    action.request.action: action
    for action in (
        Action(HeadsRequest, knows, _heads),
        Action(OffsetsRequest, knows, _offsets),
        Action(SizesRequest, knows, _sizes),
        Action(WaitRequest, knows, _wait),
        Action(WatchRequest, knows, watch),
        Action(TransactionsRequest, knows, _transaction_states),
        Action(CommitRequest, writes, _commit, changes=True),
        Action(DigestsRequest, reads_or_writes, _digests),
        Action(DiscardRequest, discards, _discard, changes=True),
        Action(ForgetRequest, administers, _forget, changes=True),
        Action(RetentionRequest, sets_rules, _retention, changes=True),
        Action(TrimRequest, administers, _trim, changes=True),
        Action(DeleteRequest, administers, _delete, changes=True),
        Action(StagedRequest, knows, _staged),
        Action(LeaseRequest, reads, _lease),
        Action(CheckRequest, administers, check_log),
        Action(LinksRequest, administers, links),
        Action(SpaceRequest, anything, lambda context, *_: [context.log.space()]),
        Action(PeersRequest, administers, lambda context, *_: [Peers(tuple(context.peers()))]),
        Action(StoresRequest, anything, lambda context, *_: context.store_locations()),
        Action(DescribeRequest, anything, lambda context, *_: [context.location]),
    )
}
"""The actions by their names."""
