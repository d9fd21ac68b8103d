"""Gathers the facts about a cluster, within a time limit."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from dafka_core.diagnosis.facts import Facts, StoreFacts
from dafka_core.diagnosis.findings import Severity
from dafka_core.diagnosis.port_probe import PROBE_S
from dafka_core.diagnosis.store_probe import asked
from dafka_core.diagnosis.tower_checks import check_towers, towers_probed
from dafka_core.errors import NoStoreError, TowerNotFoundError
from dafka_core.node_options import ReaderOptions
from dafka_core.nodes.reader import Reader
from dafka_core.records import PartitionInfo, TopicPartition, merge_heads
from dafka_core.security_options import KeyFiles, keys_in

HEAR_S: Final = 2.0
"""Stores that are there are heard of in less; those far away are waited for longer by the mesh."""

MOST_STORE_S: Final = 5.0
"""For one call to a store: one that stands still is known by then."""


def gathered(
    options: Mapping[str, Any],
    topics: Sequence[str] = (),
    uris: Sequence[str] = (),
    *,
    timeout_s: float = 10.0,
) -> Facts:
    """What can be found out from here.

    Args:
        options: how to join the mesh, as ``Reader`` takes them.
        topics: those to look for.
        uris: stores to ask by Arrow Flight in place of towers.
        timeout_s: about how long all of it may take.

    Raises:
        ConfigError: an option cannot be used.
    """
    deadline = time.monotonic() + timeout_s
    if uris:
        facts = Facts(topics=tuple(topics))
        return _with_stores(facts, named_stores(uris), keys_in(options), deadline)
    towers = towers_probed(ReaderOptions.build(options).tower, min(PROBE_S, timeout_s))
    facts = Facts(tuple(towers), topics=tuple(topics))
    if not any(each.severity is Severity.OK for each in check_towers(towers)):
        return facts
    left_s = max(deadline - time.monotonic(), 0.1)
    try:
        with Reader(**{**options, "tower_timeout_s": left_s, "wait_for_tower": False}) as reader:
            return _heard(facts._replace(tower_found=True), reader, deadline)
    except TowerNotFoundError:
        return facts._replace(tower_found=False)


def _heard(facts: Facts, reader: Reader, deadline: float) -> Facts:
    left_s = max(deadline - time.monotonic(), 0.1)
    found: list[PartitionInfo] = []
    try:
        if not facts.topics:
            reader.hear_stores(timeout_s=min(HEAR_S, left_s))
        else:
            found = reader.partitions(facts.topics, timeout_s=min(HEAR_S, left_s))
        if set(facts.topics) - {info.topic for info in found}:
            found = reader.partitions(timeout_s=min(HEAR_S, left_s))
        facts = facts._replace(asked=True)
    except NoStoreError:
        pass  # those that cannot connect to the reader are asked by Arrow Flight
    facts = heard(facts, reader)._replace(
        away=tuple(reader.missing_stores(timeout_s=0.01)),
        heads={info.tp: info for info in found},
    )
    return _with_stores(facts, facts.stores, reader.keys, deadline)


def named_stores(uris: Sequence[str]) -> list[StoreFacts]:
    """What is known of stores that somebody has named."""
    return [StoreFacts(uri, locations=(uri,)) for uri in uris]


def heard(facts: Facts, reader: Reader) -> Facts:
    """With the nodes and stores that a reader of the mesh has heard of."""
    contacts, locations = reader.contacts(), reader.endpoints()
    stores = tuple(
        StoreFacts(
            store,
            knows_queries=store not in contacts.c_stores,
            connects=store not in contacts.unmet,
            locations=locations.get(store, ()),
        )
        for store in reader.stores()
    )
    return facts._replace(node_count=contacts.node_count, endpoint=contacts.endpoint, stores=stores)


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
        stores=tuple(each for each, _ in answers),
        heads=heads,
        asked=facts.asked or bool(answered),
    )
