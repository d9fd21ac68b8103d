"""DescribeConfigs, AlterConfigs and IncrementalAlterConfigs, for topics and gateways.

Clients can change a topic's retention. Other configs are read-only; setting one to its current
value succeeds.
"""

from __future__ import annotations

import glob
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import Any, Final

from dafka_core.config.topic_rules import MAX_AGE_S, RetentionRule, parse_rules, rule_of
from dafka_core.errors import DafkaError
from dafka_core.flight.requests import RetentionRequest, RetentionRules
from dafka_core.flight.store_client import StoreClient
from dafka_core.flight.store_location import StoreLocation
from dafka_core.nodes.store import Store
from dafka_core.system.hosts import HostPort
from dafka_kafka.api import Api, Client, Feature, Rule, named_resource, refuse_resource, serves
from dafka_kafka.errors import KafkaError, RefusedError
from dafka_kafka.gateway_node import GatewayNode
from dafka_kafka.schemas import (
    AlterConfigsResponse,
    DescribeConfigsResponse,
    IncrementalAlterConfigsResponse,
)
from dafka_kafka.users import Operation as Permitted

# Retention: Kafka's ``retention.ms`` and ``retention.bytes`` as rules at every store.
#
# Such a rule is for one topic, and comes before all others. ``retention.bytes`` limits the topic
# in each store, as all rules' sizes do, and not each partition as in Kafka.


ANSWER_S: Final = 10.0
"""Time for each store's answer."""


def check_all_there(store: Store) -> None:
    """Check that all known stores can be asked.

    Raises:
        RefusedError: a store is away, or serves no Flight.
    """
    lacking = sorted(set(store.known.names) - set(store.known.endpoints))
    if lacking:
        why = (
            f"stores {', '.join(lacking)} are away, or serve no Flight, and would not hear of it: "
            "start them, or if they are gone for ever, say so by 'dafka store forget'"
        )
        raise RefusedError(KafkaError.NOT_ENOUGH_REPLICAS, why)


def tell_others(store: Store, tell: Callable[[StoreClient], object]) -> None:
    """Call ``tell`` with a client of each other reachable store; blocks.

    Raises:
        RefusedError: a store failed; others may have applied it.
    """
    for address, locations in sorted(store.known.endpoints.items()):
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
"""Digits in the text form of a rule."""

Limits = Mapping[str, int | None]
"""Requested limits by config name; None removes a limit."""


def parsed(name: str, value: str | None) -> int | None:
    """Parse a config's value.

    Raises:
        RefusedError: it is invalid.
    """
    if value is None:
        return None
    number = int(value) if value.removeprefix("-").isdecimal() and value.isascii() else 0
    if number != FOREVER and not 1 <= number <= _MOST[name]:
        why = f"config {name} must be 1 to {_MOST[name]}, or -1 to keep all; got {value!r}"
        raise RefusedError(KafkaError.INVALID_CONFIG, why)
    return number


def own_rule(topic: str, rules: Sequence[RetentionRule]) -> RetentionRule | None:
    """Return the rule for this topic alone, if any."""
    return next((rule for rule in rules if rule.pattern == glob.escape(topic)), None)


def changed(
    topic: str, rules: Sequence[RetentionRule], limits: Limits, *, anew: bool = False
) -> tuple[RetentionRule, ...]:
    """Return the rules with a topic's new limits.

    Limits that are not named stay; with ``anew`` they fall back to the general rules.
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


def set_at_all(store: Store, topic: str, limits: Limits, *, anew: bool = False) -> None:
    """Change a topic's limits at all known stores; blocks.

    This store comes last: if another one fails, it still shows the old limits, and a retry repeats
    the change.

    Raises:
        RefusedError: a store is away, or failed.
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


TUNING: Final = frozenset(
    {
        "compression.type",
        "delete.retention.ms",
        "file.delete.delay.ms",
        "flush.messages",
        "flush.ms",
        "index.interval.bytes",
        "max.compaction.lag.ms",
        "message.downconversion.enable",
        "message.format.version",
        "min.cleanable.dirty.ratio",
        "min.compaction.lag.ms",
        "preallocate",
        "segment.bytes",
        "segment.index.bytes",
        "segment.jitter.ms",
        "segment.ms",
        "unclean.leader.election.enable",
    }
)
"""Configs of a broker's files. They are accepted, and have no effect."""

RETENTION: Final = (AGE, SIZE)
"""Configs that clients may change."""

UNCHANGED: Final = (
    "a gateway's options are given where it starts ('dafka kafka --help'), and nothing else but "
    "topics has configs"
)

_Result = DescribeConfigsResponse.DescribeConfigsResult
_Config = _Result.DescribeConfigsResourceResult


class Resource(IntEnum):
    """Types of resources with configs."""

    TOPIC = 2
    BROKER = 4


class Operation(IntEnum):
    """Operations of IncrementalAlterConfigs."""

    SET = 0
    DELETE = 1


class Source(IntEnum):
    """Sources of a value, by Kafka's names."""

    STATIC_BROKER_CONFIG = 4
    DYNAMIC_TOPIC_CONFIG = 1
    DEFAULT_CONFIG = 5


class Kind(IntEnum):
    """Types of values."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    LIST = 7


def _alters(result: Any) -> Rule:
    needs, refused = named_resource(Permitted.ALTER_CONFIGS), refuse_resource(result)
    return Rule(each=needs, asked="resources", answered="responses", refused=refused)


class Configs(Feature):
    """Describes configs, and changes the retention of topics."""

    def __init__(self, node: GatewayNode) -> None:
        self._node = node

    @serves(
        Api.DESCRIBE_CONFIGS,
        range(5),
        Rule(
            asked="resources",
            each=named_resource(Permitted.DESCRIBE_CONFIGS),
            answered="results",
            refused=refuse_resource(_Result, configs=[]),
        ),
    )
    async def _describe_configs(self, request: Any, client: Client) -> Any:
        results = [self._described(each) for each in request.resources]
        return DescribeConfigsResponse(throttle_time_ms=0, results=results)

    @serves(
        Api.ALTER_CONFIGS,
        range(3),
        _alters(AlterConfigsResponse.AlterConfigsResourceResponse),
    )
    async def _alter_configs(self, request: Any, client: Client) -> Any:
        return await self._altered(AlterConfigsResponse, request, anew=True)

    @serves(
        Api.INCREMENTAL_ALTER_CONFIGS,
        range(2),
        _alters(IncrementalAlterConfigsResponse.AlterConfigsResourceResponse),
    )
    async def _change_configs(self, request: Any, client: Client) -> Any:
        return await self._altered(IncrementalAlterConfigsResponse, request, anew=False)

    async def _altered(self, kind: Any, request: Any, *, anew: bool) -> Any:
        """Change retention; check that other configs have the requested value already.

        With ``anew``, limits that are not named are reset.
        """
        responses = []
        for each in request.resources:
            error, why = int(KafkaError.NONE), None
            try:
                limits = self._checked(each)
                is_change = bool(limits) or (
                    anew and changed_configs(self._node, each.resource_name)
                )
                if is_change and not request.validate_only:
                    await set_retention(self._node, each.resource_name, limits, anew=anew)
            except RefusedError as refused:
                error, why = refused.code, refused.why
            responses.append(
                kind.AlterConfigsResourceResponse(
                    error_code=error,
                    error_message=why,
                    resource_type=each.resource_type,
                    resource_name=each.resource_name,
                )
            )
        return kind(throttle_time_ms=0, responses=responses)

    def _checked(self, asked: Any) -> dict[str, int | None]:
        """Return the requested limits; raise RefusedError for configs that can't be set."""
        name = asked.resource_name
        if asked.resource_type != Resource.TOPIC:
            raise RefusedError(KafkaError.INVALID_REQUEST, UNCHANGED)
        if not self._node.registry.exists(name):
            raise RefusedError(
                KafkaError.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name!r} does not exist"
            )
        limits = {}
        for config in asked.configs:
            operation = getattr(config, "config_operation", Operation.SET)
            if operation not in tuple(Operation):
                why = f"config {config.name!r} is not a list: it can be set or deleted"
                raise RefusedError(KafkaError.INVALID_CONFIG, why)
            value = None if operation == Operation.DELETE else config.value
            if config.name in RETENTION:
                limits[config.name] = parsed(config.name, value)
            elif why := refused_config(self._node, name, config.name, value):
                raise RefusedError(KafkaError.INVALID_CONFIG, why)
        return limits

    def _described(self, asked: Any) -> Any:
        error, why, found, source = KafkaError.NONE, None, dict[str, str](), Source.DEFAULT_CONFIG
        changed: frozenset[str] = frozenset()
        name, own = asked.resource_name, self._node.gateways.own.node_id
        if asked.resource_type == Resource.TOPIC:
            if self._node.registry.exists(name):
                found = topic_configs(self._node, name)
                changed = changed_configs(self._node, name)
            else:
                error, why = KafkaError.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name!r} does not exist"
        elif asked.resource_type != Resource.BROKER:
            error, why = KafkaError.INVALID_REQUEST, "only topics and brokers have configs here"
        elif name == str(own):
            found, source = gateway_configs(self._node), Source.STATIC_BROKER_CONFIG
        elif name:  # all brokers' dynamic configs: none
            why = f"this is broker {own}: it knows nothing of {name!r}"
            error = KafkaError.INVALID_REQUEST
        keys = asked.configuration_keys
        return _Result(
            error_code=error,
            error_message=why,
            resource_type=asked.resource_type,
            resource_name=name,
            configs=[
                _config(key, value, Source.DYNAMIC_TOPIC_CONFIG if key in changed else source)
                for key, value in found.items()
                if keys is None or key in keys
            ],
        )


def _config(name: str, value: str, source: Source) -> Any:
    return _Config(
        name=name,
        value=value,
        read_only=name not in RETENTION,
        config_source=source,
        is_default=source == Source.DEFAULT_CONFIG,
        is_sensitive=False,
        synonyms=[],
        config_type=_kind(name, value),
        documentation=None,
    )


def _kind(name: str, value: str) -> Kind:
    if value in ("true", "false"):
        return Kind.BOOLEAN
    if value.removeprefix("-").isdecimal():
        return Kind.LONG if name.endswith(".ms") or name == "retention.bytes" else Kind.INT
    return Kind.LIST if name in ("cleanup.policy", "listeners") else Kind.STRING


def topic_configs(node: GatewayNode, topic: str) -> dict[str, str]:
    """Return a topic's configs; its retention is that of the gateway's store."""
    rule = rule_of(topic, node.store.retention_control.rules) or RetentionRule(topic)
    age_ms = -1 if rule.age_s is None else int(rule.age_s * 1000)
    return {
        "cleanup.policy": "delete",
        "max.message.bytes": str(node.store.options.max_record_bytes),
        "message.timestamp.after.max.ms": _ahead_ms(node),
        "message.timestamp.type": "CreateTime",
        "min.insync.replicas": "1",
        "retention.bytes": str(-1 if rule.size_bytes is None else rule.size_bytes),
        "retention.ms": str(age_ms),
    }


def _ahead_ms(node: GatewayNode) -> str:
    return str(int(node.store.options.max_timestamp_ahead_s * 1000))


def changed_configs(node: GatewayNode, topic: str) -> frozenset[str]:
    """Return the configs that were set for this topic."""
    own = own_rule(topic, node.store.retention_control.rules)
    return frozenset(RETENTION if own is not None else ())


async def set_retention(
    node: GatewayNode, topic: str, limits: Limits, *, anew: bool = False
) -> None:
    """Set a topic's limits at all stores; raise RefusedError if a store fails."""
    async with node.rules_turn:
        await node.in_thread(set_at_all, node.store, topic, limits, anew=anew)


def gateway_configs(node: GatewayNode) -> dict[str, str]:
    """Return this gateway's configs."""
    own, options = node.gateways.own, node.options
    at = f"PLAINTEXT://{HostPort(own.host, own.port)}"
    return {
        "advertised.listeners": at,
        "auto.create.topics.enable": str(options.auto_create_topics).lower(),
        "broker.id": str(own.node_id),
        "default.replication.factor": str(1 + len(node.store.known.names)),
        "delete.topic.enable": str(options.delete_topics).lower(),
        "listeners": f"PLAINTEXT://{options.listen}",
        "log.cleanup.policy": "delete",
        "log.message.timestamp.after.max.ms": _ahead_ms(node),
        "log.message.timestamp.type": "CreateTime",
        "log.retention.bytes": "-1",
        "log.retention.ms": "-1",
        "message.max.bytes": str(node.store.options.max_record_bytes),
        "min.insync.replicas": "1",
        "node.id": str(own.node_id),
        "num.partitions": str(options.num_partitions),
    }


_WHY: Final[Mapping[str, str]] = {
    "cleanup.policy": "nothing is compacted here",
    "max.message.bytes": "it is the stores' option max_record_bytes",
    "message.timestamp.after.max.ms": "it is the stores' option max_timestamp_ahead_s",
    "message.timestamp.type": "records keep the times that their producers give them",
    "min.insync.replicas": "acks=all waits for all reachable stores",
}


def refused_config(node: GatewayNode, topic: str, name: str, value: str | None) -> str:
    """Return why a topic can't have this config; empty if it can."""
    found = topic_configs(node, topic)
    if name in TUNING or value is None or found.get(name) == value:
        return ""
    if name not in found:
        return f"config {name!r} is not known here"
    return f"config {name} is {found[name]}, and {value!r} cannot be had: {_WHY[name]}"
