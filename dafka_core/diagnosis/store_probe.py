"""What one store says of itself by Arrow Flight."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final

from dafka_core.diagnosis.facts import FileAccess, StoreFacts
from dafka_core.diagnosis.port_probe import HTTP2, PROBE_S, Answer, probed
from dafka_core.errors import (
    DafkaError,
    InvalidRequestError,
    NotAllowedError,
    StoreUnreachableError,
)
from dafka_core.flight.json_messages import Offsets
from dafka_core.flight.local_log import LocalLogs
from dafka_core.flight.requests import OffsetsRequest
from dafka_core.flight.retention_actions import RetentionRequest, RetentionRules
from dafka_core.flight.server_actions import ACTIONS
from dafka_core.flight.store_client import StoreClient
from dafka_core.flight.store_location import StoreLocation, host_of
from dafka_core.records import PartitionInfo
from dafka_core.security_options import KeyFiles

MAX_ASKED: Final = 16
"""Stores asked at the same time."""

Asked = tuple[StoreFacts, list[PartitionInfo]]
"""What is known of a store, and what it has of the topics."""


def asked(
    stores: Sequence[StoreFacts],
    topics: Sequence[str] | None,
    timeout_s: float,
    keys: KeyFiles,
) -> list[Asked]:
    """The stores with what each says; one without Arrow Flight is as it was.

    Args:
        stores: what is known of them.
        topics: those about which they are asked; None: all.
        timeout_s: how long each call to one of them may take.
        keys: by which they let this process in.
    """
    if not stores:
        return []
    with ThreadPoolExecutor(min(len(stores), MAX_ASKED)) as pool:
        return [*pool.map(lambda each: _asked(each, topics, timeout_s, keys), stores)]


def _asked(
    facts: StoreFacts, topics: Sequence[str] | None, timeout_s: float, keys: KeyFiles
) -> Asked:
    if not facts.locations:
        return facts, []
    name = "" if facts.is_named else facts.store
    try:
        with _Client(StoreLocation(name, facts.locations), keys) as client:
            location = client.describe(timeout_s=timeout_s)
            facts = facts._replace(store=location.store)
            began = time.time()
            (clock,) = client.ask(Offsets, timeout_s, OffsetsRequest(()))
            ended = time.time()
            knows = client.actions(timeout_s=timeout_s)
            heads = client.heads(topics, timeout_s=timeout_s)
            if RetentionRequest.action in knows:
                # It has no rules at all, or the key is not told of them.
                with suppress(InvalidRequestError, NotAllowedError):
                    (said,) = client.ask(RetentionRules, timeout_s, RetentionRequest())
                    facts = facts._replace(rules=said.rules, rules_set=said.is_set)
    except DafkaError as error:
        why = error.why if isinstance(error, StoreUnreachableError) else str(error)
        return facts._replace(failure=why, stranger=_stranger(facts, timeout_s)), []
    facts = facts._replace(
        ahead_s=clock.now_us / 1e6 - (began + ended) / 2,
        unsure_s=(ended - began) / 2,
        clock_doubt=clock.clock_doubt,
        lacks=tuple(sorted(set(ACTIONS) - knows)),
        more=tuple(sorted(knows - set(ACTIONS))),
        file=_access(location),
    )
    return facts, heads


def _stranger(facts: StoreFacts, timeout_s: float) -> str:
    """What is spoken in place of Flight where a store was named; empty where it may be a store."""
    place = host_of(facts.locations[-1]) if facts.is_named else None
    if place is None:
        return ""
    (port,) = probed([place], min(timeout_s, PROBE_S))
    if port.answer is Answer.ZEROMQ:
        return f"ZeroMQ {port.said}".strip()
    return port.said if port.answer is Answer.STRANGER and port.said != HTTP2 else ""


def _access(location: StoreLocation) -> FileAccess:
    if not (location.here and location.directory):
        return FileAccess.ELSEWHERE
    logs = LocalLogs()
    try:
        found = logs.open(location)
    finally:
        logs.close()
    return FileAccess.READABLE if found else FileAccess.UNREADABLE


class _Client(StoreClient):
    """Asks what nobody else needs to know."""

    def actions(self, *, timeout_s: float) -> set[str]:
        """The names of the actions that the store knows."""
        with self._asking(timeout_s) as (client, options):
            return {each.type for each in client.list_actions(options)}
