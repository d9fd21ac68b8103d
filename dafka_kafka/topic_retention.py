"""Kafka's ``retention.ms`` and ``retention.bytes``, as rules at every store.

Such a rule is for one topic, and stands before all others.  ``retention.bytes`` is of the topic in
each store, as all rules' sizes are, and not of each partition as with Kafka.
"""

from __future__ import annotations

import glob
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from dafka_core.config.topic_rules import MAX_AGE_S, RetentionRule, parse_rules, rule_of
from dafka_core.errors import DafkaError
from dafka_core.flight.retention_actions import RetentionRequest, RetentionRules
from dafka_core.flight.store_client import StoreClient
from dafka_core.flight.store_location import StoreLocation
from dafka_core.nodes.store_handle import StoreHandle
from dafka_kafka.errors import KafkaError, RefusedError

ANSWER_S: Final = 10.0
"""How long each may take."""


def check_all_there(store: StoreHandle) -> None:
    """Sees whether all stores that are known can be asked.

    Raises:
        RefusedError: one is away, or serves no Flight.
    """
    lacking = sorted(set(store.known_stores) - set(store.endpoints))
    if lacking:
        why = (
            f"stores {', '.join(lacking)} are away, or serve no Flight, and would not hear of it: "
            "start them, or if they are gone for ever, say so by 'dafka store forget'"
        )
        raise RefusedError(KafkaError.NOT_ENOUGH_REPLICAS, why)


def tell_others(store: StoreHandle, tell: Callable[[StoreClient], object]) -> None:
    """Tells each other store that is there.  Waits, so it is not for the loop.

    Raises:
        RefusedError: one does not do it; the others may have.
    """
    for address, locations in sorted(store.endpoints.items()):
        try:
            with StoreClient(StoreLocation(address, locations), store.options.keys) as client:
                tell(client)
        except DafkaError as error:
            why = f"store {address} has not done it, and others may have: {error}"
            raise RefusedError(KafkaError.REQUEST_TIMED_OUT, why) from None


AGE: Final = "retention.ms"
SIZE: Final = "retention.bytes"

FOREVER: Final = -1

_MOST: Final = {AGE: MAX_AGE_S * 1000, SIZE: 10**15 - 1}
"""So many digits a rule's text has."""

Limits = Mapping[str, int | None]
"""What is asked for by the configs' names; None takes back what was asked for before."""


def parsed(name: str, value: str | None) -> int | None:
    """A config's value.

    Raises:
        RefusedError: it cannot be had.
    """
    if value is None:
        return None
    number = int(value) if value.removeprefix("-").isdecimal() and value.isascii() else 0
    if number != FOREVER and not 1 <= number <= _MOST[name]:
        why = f"config {name} must be 1 to {_MOST[name]}, or -1 to keep all; got {value!r}"
        raise RefusedError(KafkaError.INVALID_CONFIG, why)
    return number


def own_rule(topic: str, rules: Sequence[RetentionRule]) -> RetentionRule | None:
    """The rule that is for this topic alone."""
    return next((rule for rule in rules if rule.pattern == glob.escape(topic)), None)


def changed(
    topic: str, rules: Sequence[RetentionRule], limits: Limits, *, anew: bool = False
) -> tuple[RetentionRule, ...]:
    """The rules when a topic's limits are these.

    Those that are not named stay, or with ``anew`` are those of the other rules.
    """
    pattern = glob.escape(topic)
    others = tuple(rule for rule in rules if rule.pattern != pattern)
    nothing = RetentionRule(pattern)
    given = (rule_of(topic, others) or nothing)._replace(pattern=pattern)
    kept = given if anew else (rule_of(topic, rules) or nothing)._replace(pattern=pattern)
    age_s, size_bytes = kept.age_s, kept.size_bytes
    if AGE in limits:
        age_s = _limit(limits[AGE], given.age_s, 1000)
    if SIZE in limits:
        size = _limit(limits[SIZE], given.size_bytes, 1)
        size_bytes = None if size is None else int(size)
    wanted = RetentionRule(pattern, age_s, size_bytes)
    return others if wanted == given else (wanted, *others)


def _limit(asked: int | None, given: float | None, unit: int) -> float | None:
    if asked is None:
        return given
    return None if asked == FOREVER else asked / unit


def set_at_all(store: StoreHandle, topic: str, limits: Limits, *, anew: bool = False) -> None:
    """Has all stores that are known go by these limits.  Waits, so it is not for the loop.

    This store comes last: as long as another one has not done it, it has what is to be changed.

    Raises:
        RefusedError: a store is away, or does not do it.
    """
    control = store.retention_control
    rules = changed(topic, control.rules, limits, anew=anew)

    def tell(client: StoreClient) -> None:
        (said,) = client.ask(RetentionRules, ANSWER_S, RetentionRequest())
        before = parse_rules(said.rules)
        after = changed(topic, before, limits, anew=anew)
        if after != before:
            request = RetentionRequest(tuple(map(str, after)))
            client.ask(RetentionRules, ANSWER_S, request)

    check_all_there(store)
    tell_others(store, tell)
    try:
        if rules != control.rules:
            control.replace(rules)
    except DafkaError as error:
        why = f"this store has not done it: {error}"
        raise RefusedError(KafkaError.KAFKA_STORAGE_ERROR, why) from None
