"""The action that tells what has changed: a client that waits for records asks once, not again."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

from dafka_core.flight.json_messages import HeadsSince
from dafka_core.flight.limits import HEADS_PER_RESULT
from dafka_core.flight.requests import WatchRequest
from dafka_core.flight.server_context import ServerContext
from dafka_core.flight.server_keys import Caller
from dafka_core.records import PartitionInfo
from dafka_core.storage.head_changes import Topics

WATCH_STEP_S: Final = 0.5
"""How often a watch looks whether its client is there, and the service open."""

TURN_S: Final = 0.1
"""How long a watch waits where there are as many as may be.  A client that is refused asks again
and again, as often as it likes, so it is told soon."""


def watch(context: ServerContext, request: WatchRequest, caller: Caller) -> Iterator[HeadsSince]:
    """What has changed since the request's cursor; at the latest when its time has passed.

    Raises:
        UnavailableError: as many watch as may at one time.
    """
    topics = None if request.topics is None else frozenset(request.topics)
    session = context.location.session
    known = _number(request.cursor, session)
    if known is not None and request.timeout_s:
        _wait(context, known, topics, request.timeout_s, caller)
    # The cursor first: what changes meanwhile is told twice and not never.
    cursor = f"{session}:{context.log.changes.number}"
    found = None if known is None else _changed(context, known, topics)
    complete = found is None
    found = context.held(request.topics, caller) if found is None else caller.known(found)
    for start in range(0, len(found), HEADS_PER_RESULT) or (0,):
        yield HeadsSince(cursor, complete, tuple(found[start : start + HEADS_PER_RESULT]))


def _number(cursor: str, session: str) -> int | None:
    """The change that a cursor stands for; None if it is of another start of the store, or none."""
    begin, _, number = cursor.partition(":")
    return int(number) if begin == session and number.isascii() and number.isdigit() else None


def _wait(
    context: ServerContext,
    known: int,
    topics: Topics,
    timeout_s: float,
    caller: Caller,
) -> None:
    deadline = time.monotonic() + timeout_s
    with (
        context.watches.take(caller.is_gone, TURN_S),
        context.log.changes.watching(known, topics) as woken,
    ):
        while not woken.wait(min(max(deadline - time.monotonic(), 0), WATCH_STEP_S)):
            context.check_open()
            if caller.is_gone() or time.monotonic() >= deadline:
                break


def _changed(context: ServerContext, known: int, topics: Topics) -> list[PartitionInfo] | None:
    """What is held of the partitions that have changed; None where that does not say it all."""
    if context.log.changes.since(known, topics) == []:
        return []  # no look at the tables
    with context.log.snapshot() as snapshot:
        # Not before: all that has changed together with what the snapshot shows must be among it.
        changed = context.log.changes.since(known, topics)
        if changed is None:
            return None
        found = [snapshot.info(tp) for tp in changed]
    held = [each for each in found if each is not None]
    return held if len(held) == len(found) else None
