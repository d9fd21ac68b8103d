"""Collection of facts about a cluster and its stores, within a time limit."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Final

from dafka_core.config.node_options import KeyFiles, ReaderOptions, keys_in
from dafka_core.errors import (
    DafkaError,
    InvalidRequestError,
    NoStoreError,
    NotAllowedError,
    StoreUnreachableError,
    TowerNotFoundError,
)
from dafka_core.flight.local_log import LocalLogs
from dafka_core.flight.requests import OffsetsRequest, RetentionRequest
from dafka_core.flight.server_requests import ACTIONS
from dafka_core.flight.store_client import StoreClient
from dafka_core.flight.store_location import StoreLocation, host_of
from dafka_core.model.records import PartitionInfo, TopicPartition, merge_heads
from dafka_core.nodes.reader import Reader
from dafka_core.ops.checks import Facts, FileAccess, StoreFacts
from dafka_core.ops.findings import Severity
from dafka_core.ops.port_probe import HTTP2, PROBE_S, Answer, check_towers, probed, towers_probed

MAX_QUERIED: Final = 16  # stores queried concurrently

Reply = tuple[StoreFacts, list[PartitionInfo]]
"""Facts about a store, and its partitions of the topics."""


def asked(
    stores: Sequence[StoreFacts], topics: Sequence[str] | None, timeout_s: float, keys: KeyFiles
) -> list[Reply]:
    """Query stores over Arrow Flight; those without it are returned unchanged.

    Args:
        stores: their known facts.
        topics: None for all.
        timeout_s: time limit of each request.
        keys: that identify this process to the stores.
    """
    if not stores:
        return []
    with ThreadPoolExecutor(min(len(stores), MAX_QUERIED)) as pool:
        return [*pool.map(lambda each: _query(each, topics, timeout_s, keys), stores)]


def _query(
    facts: StoreFacts, topics: Sequence[str] | None, timeout_s: float, keys: KeyFiles
) -> Reply:
    if not facts.locations:
        return facts, []
    name = "" if facts.is_named else facts.store
    try:
        with _Client(StoreLocation(name, facts.locations), keys) as client:
            location = client.describe(timeout_s=timeout_s)
            facts = facts._replace(store=location.store)
            began = time.time()  # of the request whose response contains the store's time
            (clock,) = client.ask(timeout_s, OffsetsRequest(()))
            ended = time.time()
            knows = client.actions(timeout_s=timeout_s)
            heads = client.heads(topics, timeout_s=timeout_s)
            if RetentionRequest.action in knows:
                # The store has no rules, or this key may not read them.
                with suppress(InvalidRequestError, NotAllowedError):
                    (active,) = client.ask(timeout_s, RetentionRequest())
                    facts = facts._replace(rules=active.rules, rules_set=active.is_set)
    except DafkaError as error:
        why = error.why if isinstance(error, StoreUnreachableError) else str(error)
        return facts._replace(failure=why, stranger=_stranger(facts, timeout_s)), []
    facts = facts._replace(
        ahead_s=clock.now_us / 1e6 - (began + ended) / 2,
        unsure_s=(ended - began) / 2,
        clock_doubt=clock.clock_doubt,
        refusal=clock.refusal,
        damaged=clock.damaged,
        lacks=tuple(sorted(set(ACTIONS) - knows)),
        more=tuple(sorted(knows - set(ACTIONS))),
        file=_access(location),
    )
    return facts, heads


def _stranger(facts: StoreFacts, timeout_s: float) -> str:
    """Return the protocol at a store's URI if it is not Flight; empty if it may be a store."""
    place = host_of(facts.locations[-1]) if facts.is_named else None
    if place is None:
        return ""
    (port,) = probed([place], min(timeout_s, PROBE_S))
    if port.answer is Answer.ZEROMQ:
        return f"ZeroMQ {port.reply}".strip()
    return port.reply if port.answer is Answer.STRANGER and port.reply != HTTP2 else ""


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
    def actions(self, *, timeout_s: float) -> set[str]:
        with self._asking(timeout_s) as (client, options):
            return {each.type for each in client.list_actions(options)}


DISCOVERY_S: Final = 2.0
"""Time limit for discovering stores, which usually takes less than a second."""

MOST_STORE_S: Final = 5.0
"""Maximum time for a request: a store that takes longer is reported as not responding."""


def gathered(
    options: Mapping[str, Any],
    topics: Sequence[str] = (),
    uris: Sequence[str] = (),
    *,
    timeout_s: float = 10.0,
) -> Facts:
    """Collect the facts about a cluster.

    Args:
        options: of a ``Reader``.
        topics: to check.
        uris: of stores to query by Arrow Flight, without a tower.
        timeout_s: approximate time limit.

    Raises:
        ConfigError: an option is invalid.
    """
    deadline = time.monotonic() + timeout_s
    if uris:
        named = [StoreFacts(uri, locations=(uri,)) for uri in uris]
        return _with_stores(Facts(topics=tuple(topics)), named, keys_in(options), deadline)
    towers = towers_probed(ReaderOptions.build(options).tower, min(PROBE_S, timeout_s))
    facts = Facts(tuple(towers), topics=tuple(topics))
    if not any(each.severity is Severity.OK for each in check_towers(towers)):
        return facts
    left_s = max(deadline - time.monotonic(), 0.1)
    try:
        with Reader(**{**options, "tower_timeout_s": left_s, "wait_for_tower": False}) as reader:
            return _discover(facts._replace(tower_found=True), reader, deadline)
    except TowerNotFoundError:
        return facts._replace(tower_found=False)


def _discover(facts: Facts, reader: Reader, deadline: float) -> Facts:
    left_s = max(deadline - time.monotonic(), 0.1)
    found: list[PartitionInfo] = []
    try:
        if not facts.topics:
            reader.wait_for_stores(timeout_s=min(DISCOVERY_S, left_s))
        else:
            found = reader.partitions(facts.topics, timeout_s=min(DISCOVERY_S, left_s))
        if set(facts.topics) - {info.topic for info in found}:
            found = reader.partitions(timeout_s=min(DISCOVERY_S, left_s))
        facts = facts._replace(asked=True)
    except NoStoreError:
        pass  # stores that cannot connect to the reader are queried by Arrow Flight below
    facts = with_discovered(facts, reader)._replace(
        away=tuple(reader.missing_stores(timeout_s=0.01)), heads={info.tp: info for info in found}
    )
    return _with_stores(facts, facts.stores, reader.keys, deadline)


def with_discovered(facts: Facts, reader: Reader) -> Facts:
    """Add the nodes and stores that a reader has discovered."""
    peers, directory = reader.mesh.peers, reader.role.directory
    found, c_stores, locations = directory.stores, directory.c_stores, directory.endpoints
    unconnected = peers.inbound.unconnected(found)
    stores = tuple(
        StoreFacts(
            store,
            knows_queries=store not in c_stores,
            connects=store not in unconnected,
            locations=locations.get(store, ()),
        )
        for store in sorted(found)
    )
    endpoint, node_count = peers.inbound.endpoint, len(peers.table)
    return facts._replace(node_count=node_count, endpoint=endpoint, stores=stores)


def _with_stores(
    facts: Facts, stores: Sequence[StoreFacts], keys: KeyFiles, deadline: float
) -> Facts:
    left_s = min(max(deadline - time.monotonic(), 0.5), MOST_STORE_S)
    answers = asked(stores, facts.topics, left_s, keys)
    heads: dict[TopicPartition, PartitionInfo] = dict(facts.heads)
    answered = [each for each, _ in answers if each.locations and not each.failure]
    if answered and not facts.asked:
        found = [info for _, infos in answers for info in infos]
        if set(facts.topics) - {info.topic for info in found}:
            found = [info for _, infos in asked(answered, None, left_s, keys) for info in infos]
        heads |= merge_heads(found)
    return facts._replace(
        stores=tuple(each for each, _ in answers), heads=heads, asked=facts.asked or bool(answered)
    )
