"""The configs of topics and gateways: shown, listed and changed.

Clients can change a topic's retention, a rule of all stores, and ``max.message.bytes`` and
``min.insync.replicas``, which the partition registry keeps. Other configs are fixed; a client may
set one to a value that changes nothing.
"""

from __future__ import annotations

import glob
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import Any, Final, NamedTuple

from dafka_core.config.node_options import StoreOptions
from dafka_core.config.topic_rules import MAX_AGE_S, RetentionRule, parse_rules, rule_of
from dafka_core.errors import DafkaError
from dafka_core.flight.requests import RetentionRequest
from dafka_core.flight.store_client import StoreClient
from dafka_core.flight.store_location import StoreLocation
from dafka_core.nodes.store import Store
from dafka_core.system.hosts import HostPort
from dafka_kafka.api import (
    WHY,
    Answer,
    Api,
    Client,
    Feature,
    Response,
    encoded,
    on_cluster,
    on_topics,
    outcome,
    serves,
)
from dafka_kafka.errors import KafkaError, RefusedError
from dafka_kafka.gateway_node import MIN_STORES, GatewayNode
from dafka_kafka.options import KafkaOptions
from dafka_kafka.users import Operation as Permitted

# Retention: Kafka's ``retention.ms`` and ``retention.bytes`` as rules at every store.
#
# Such a rule is for one topic, and comes before all others. ``retention.bytes`` limits the topic
# in each store, as all rules' sizes do, and not each partition as in Kafka.


ANSWER_S: Final = 10.0  # time for each store's answer

MAX_TRIES: Final = 100
"""How often a store is asked to change its rules: each time, another client has changed them."""


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
MAX_LONG: Final = 2**63 - 1

_MOST: Final = {AGE: MAX_AGE_S * 1000, SIZE: 10**15 - 1}
"""Largest limits of a rule. Larger ones keep everything: tools write 2^63 - 1 for ever."""

Limits = Mapping[str, int | None]  # requested values by config name; None resets one


def own_rule(topic: str, rules: Sequence[RetentionRule]) -> RetentionRule | None:
    """Return the rule for this topic alone, if any."""
    pattern = glob.escape(topic)
    return next((rule for rule in rules if rule.pattern == pattern), None)


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

    This store comes last: if another store fails, it still shows the old limits, and a retry
    repeats the change. Other gateways may change other topics' rules meanwhile.

    Raises:
        RefusedError: a store is away, or failed.
    """
    control = store.retention_control

    def after(before: tuple[RetentionRule, ...]) -> tuple[RetentionRule, ...]:
        return changed(topic, before, limits, anew=anew)

    def tell(client: StoreClient) -> None:
        (said,) = client.ask(ANSWER_S, RetentionRequest())
        for _ in range(MAX_TRIES):
            if (rules := after(before := parse_rules(said.rules))) == before:
                return
            request = RetentionRequest(tuple(map(str, rules)), previous=said.rules)
            (said,) = client.ask(ANSWER_S, request)
        raise DafkaError("other clients change its rules again and again")

    check_all_there(store)
    tell_others(store, tell)
    try:
        while (rules := after(before := control.rules)) != before:
            control.replace(rules, tuple(map(str, before)))
    except DafkaError as error:
        why = f"this store has not done it: {error}"
        raise RefusedError(KafkaError.KAFKA_STORAGE_ERROR, why) from None


MAX_BATCH: Final = "max.message.bytes"

RETENTION: Final = (AGE, SIZE)
REGISTERED: Final = (MAX_BATCH, MIN_STORES)
CHANGEABLE: Final = (*RETENTION, *REGISTERED)
"""All configs that clients may change: retention rules keep the first ones, the partition registry
the others."""


_INTEGER: Final = re.compile(r"(?a)\s*[-+]?\d{1,19}\s*")


class Kind(IntEnum):
    """Types of values."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    DOUBLE = 6
    LIST = 7

    def parse(self, value: str) -> Any:
        """Parse a value; raise ValueError if it is invalid."""
        if self in (Kind.INT, Kind.LONG):
            return int(value if _INTEGER.fullmatch(value) else "")
        if self == Kind.DOUBLE:
            return float(value)
        if self == Kind.BOOLEAN:
            return bool(("false", "true").index(value.lower()))
        return sorted(filter(None, value.split(","))) if self == Kind.LIST else value


NO_COMPACTION: Final = (
    "records are not compacted by key. Kafka Streams works with stores without a changelog "
    "(Materialized.withLoggingDisabled()), and Kafka Connect and MirrorMaker 2 in standalone mode "
    "(connect-standalone)"
)


class TopicConfig(NamedTuple):
    """A config of topics.

    Attributes:
        value: its value at a store with these options; None if it has no meaning here.
        accepts: returns whether a client may set it to a value.
        why: the reason for other values.
    """

    kind: Kind
    value: Callable[[StoreOptions], object] | None = None
    accepts: Callable[[GatewayNode, Any], bool] = lambda node, value: True
    why: str = ""


_WITHOUT_MEANING: Final = {
    Kind.BOOLEAN: "message.downconversion.enable preallocate remote.log.copy.disable "
    "remote.log.delete.on.disable unclean.leader.election.enable",
    Kind.INT: "compression.gzip.level compression.lz4.level compression.zstd.level "
    "index.interval.bytes segment.bytes segment.index.bytes",
    Kind.LONG: "delete.retention.ms file.delete.delay.ms flush.ms max.compaction.lag.ms "
    "message.timestamp.difference.max.ms min.compaction.lag.ms segment.jitter.ms segment.ms",
    Kind.STRING: "message.format.version",
    Kind.DOUBLE: "min.cleanable.dirty.ratio",
}
"""Configs that any value may be set to; they are not shown."""

_LIMIT: Final = TopicConfig(
    Kind.LONG,
    lambda _: FOREVER,
    lambda _, value: value == FOREVER or 1 <= value <= MAX_LONG,
    "it is at least 1, or -1 to keep all",
)

TOPIC_CONFIGS: Final[Mapping[str, TopicConfig]] = {
    AGE: _LIMIT,
    SIZE: _LIMIT,
    "cleanup.policy": TopicConfig(
        Kind.LIST, lambda _: "delete", lambda _, value: value == ["delete"], NO_COMPACTION
    ),
    "compression.type": TopicConfig(Kind.STRING, lambda _: "uncompressed"),
    "flush.messages": TopicConfig(Kind.LONG, lambda _: 1),
    "follower.replication.throttled.replicas": TopicConfig(Kind.LIST, lambda _: ""),
    "leader.replication.throttled.replicas": TopicConfig(Kind.LIST, lambda _: ""),
    "local.retention.bytes": TopicConfig(Kind.LONG, lambda _: -2),
    "local.retention.ms": TopicConfig(Kind.LONG, lambda _: -2),
    MAX_BATCH: TopicConfig(
        Kind.INT,
        lambda options: options.max_record_bytes,
        lambda node, value: 0 <= value <= node.store.options.max_record_bytes,
        "larger records need the stores' option max_record_bytes",
    ),
    "message.timestamp.after.max.ms": TopicConfig(
        Kind.LONG,
        lambda options: int(options.max_timestamp_ahead_s * 1000),
        lambda node, value: 0 <= value <= node.store.options.max_timestamp_ahead_s * 1000,
        "times further ahead need the stores' option max_timestamp_ahead_s",
    ),
    "message.timestamp.before.max.ms": TopicConfig(Kind.LONG, lambda _: MAX_LONG),
    "message.timestamp.type": TopicConfig(
        Kind.STRING,
        lambda _: "CreateTime",
        lambda _, value: value == "CreateTime",
        "records keep the times that their producers give them",
    ),
    MIN_STORES: TopicConfig(
        Kind.INT,
        lambda _: 1,
        lambda node, value: 1 <= value <= 1 + len(node.store.known.names),
        "it is at most the number of stores",
    ),
    "remote.storage.enable": TopicConfig(
        Kind.BOOLEAN, lambda _: "false", lambda _, value: not value, "there is no tiered storage"
    ),
    **{
        name: TopicConfig(kind)
        for kind, names in _WITHOUT_MEANING.items()
        for name in names.split()
    },
}
"""The configs of Kafka's topics."""

UNCHANGED: Final = (
    "a gateway's options are given where it starts ('dafka kafka --help'), and nothing else but "
    "topics has configs"
)


class Resource(IntEnum):
    """Types of resources with configs."""

    TOPIC = 2
    BROKER = 4


class Operation(IntEnum):
    """Operations of IncrementalAlterConfigs."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class Source(IntEnum):
    """Sources of a value, by Kafka's names."""

    STATIC_BROKER_CONFIG = 4
    DYNAMIC_TOPIC_CONFIG = 1
    DEFAULT_CONFIG = 5


MOST_INLINE: Final = 20
"""Resources in a response that is made in the loop, in about 5 ms; larger ones use a thread.
Consoles ask for all topics."""


class Configs(Feature):
    """Describes configs, and changes the retention of topics."""

    def __init__(self, node: GatewayNode) -> None:
        self._node = node

    @serves(Api.DESCRIBE_CONFIGS, range(5))
    async def _describe_configs(self, request: Any, client: Client) -> Response:
        asked = [
            (each, _refusal(client, Permitted.DESCRIBE_CONFIGS, each)) for each in request.resources
        ]

        def answer() -> Answer:
            return {"results": [self._described(*each) for each in asked]}

        if len(asked) <= MOST_INLINE:
            return answer()

        api, version = Api.DESCRIBE_CONFIGS, client.version
        return await self._node.in_thread(lambda: encoded(api, version, answer()))

    @serves(Api.LIST_CONFIG_RESOURCES, range(2), on_cluster(Permitted.DESCRIBE_CONFIGS))
    async def _list_resources(self, request: Any, client: Client) -> Answer:
        """List what has configs; version 0 asks for client metrics only, which have none here."""
        asked = request.resource_types or (Resource if client.version else ())
        found = [(Resource.TOPIC, each) for each in sorted(self._node.registry.table.topics)]
        found += [(Resource.BROKER, str(each.node_id)) for each in self._node.gateways.live()]
        listed = [
            {"resource_type": each, "resource_name": name} for each, name in found if each in asked
        ]
        return {"config_resources": listed}

    @serves(Api.ALTER_CONFIGS, range(3))
    async def _alter_configs(self, request: Any, client: Client) -> Answer:
        return await self._altered(request, client, anew=True)

    @serves(Api.INCREMENTAL_ALTER_CONFIGS, range(2))
    async def _change_configs(self, request: Any, client: Client) -> Answer:
        return await self._altered(request, client, anew=False)

    async def _altered(self, request: Any, client: Client, *, anew: bool) -> Answer:
        responses = []
        for each in request.resources:
            work = self._alter(each, client, request.validate_only, anew=anew)
            error = await outcome(work)
            named = {"resource_type": each.resource_type, "resource_name": each.resource_name}
            responses.append(named | error)
        return {"responses": responses}

    async def _alter(self, asked: Any, client: Client, validate_only: bool, *, anew: bool) -> None:
        """Change configs; check that fixed ones may have the requested value.

        With ``anew``, those that are not named are reset. Raise RefusedError for configs that can't
        be set.
        """
        if refusal := _refusal(client, Permitted.ALTER_CONFIGS, asked):
            raise RefusedError(refusal, WHY)
        if asked.resource_type != Resource.TOPIC:
            raise RefusedError(KafkaError.INVALID_REQUEST, UNCHANGED)
        self._node.registry.check_exists(asked.resource_name)
        values = values_of(self._node, asked.configs)
        if not validate_only:
            # A later change must not overtake it, and both kinds of configs are set, or none.
            await self.to_its_end(set_configs(self._node, asked.resource_name, values, anew=anew))

    def _described(self, asked: Any, refusal: KafkaError) -> Answer:
        named = {"resource_type": asked.resource_type, "resource_name": asked.resource_name}
        try:
            if refusal:
                raise RefusedError(refusal, WHY)
            found = self._found(asked.resource_type, asked.resource_name)
        except RefusedError as refused:
            return named | {"error_code": refused.code, "error_message": refused.why}
        keys = asked.configuration_keys
        configs = [
            each.shown
            | {
                "is_default": each.source == Source.DEFAULT_CONFIG,
                "config_type": each.kind,
                "documentation": None,
            }
            for each in found
            if not keys or each.name in keys
        ]
        return named | {"error_message": None, "configs": configs}

    def _found(self, kind: int, name: str) -> Sequence[Config]:
        """Return the configs of a resource; raise RefusedError if it has none here."""
        own = self._node.gateways.own.node_id
        if kind == Resource.TOPIC:
            self._node.registry.check_exists(name)
            return topic_configs(self._node, name)
        if kind != Resource.BROKER:
            raise RefusedError(KafkaError.INVALID_REQUEST, "only topics and brokers have configs")
        if name == str(own):
            return gateway_configs(self._node)
        if name:
            why = f"this is broker {own}: it knows nothing of {name!r}"
            raise RefusedError(KafkaError.INVALID_REQUEST, why)
        return ()  # all brokers' dynamic configs


def _refusal(client: Client, operation: Permitted, asked: Any) -> KafkaError:
    on_resource = on_topics if asked.resource_type == Resource.TOPIC else on_cluster
    return client.refusal(on_resource(operation), asked.resource_name)


class Config(NamedTuple):
    """A config as clients see it."""

    name: str
    kind: Kind
    value: str
    source: Source

    @property
    def shown(self) -> dict[str, Any]:
        """Its fields in the responses of DescribeConfigs and CreateTopics."""
        return {
            "name": self.name,
            "value": self.value,
            "read_only": self.name not in CHANGEABLE,
            "config_source": self.source,
            "is_sensitive": False,
        }


def _config(name: str, kind: Kind, value: object, default: object) -> Config:
    source = Source.DEFAULT_CONFIG if value == default else Source.STATIC_BROKER_CONFIG
    return Config(name, kind, str(value), source)


def topic_configs(node: GatewayNode, topic: str) -> list[Config]:
    """Return a topic's configs by name; its retention is that of the gateway's store."""
    rules, options = node.store.retention_control.rules, node.store.options
    registered = node.registry.table.configs(topic)
    limits = dict(zip(RETENTION, _limits_of(rule_of(topic, rules)), strict=True))
    values = {MIN_STORES: node.default_copies, **limits, **registered}
    defaults = StoreOptions()
    found = [
        _config(name, each.kind, values.get(name, each.value(options)), each.value(defaults))
        for name, each in TOPIC_CONFIGS.items()
        if each.value is not None
    ]
    changed = {*registered, *(RETENTION if own_rule(topic, rules) is not None else ())}
    return sorted(
        each._replace(source=Source.DYNAMIC_TOPIC_CONFIG) if each.name in changed else each
        for each in found
    )


def _limits_of(rule: RetentionRule | None) -> tuple[int, int]:
    """Return the values of ``RETENTION``."""
    age_s, size_bytes = (rule.age_s, rule.size_bytes) if rule else (None, None)
    age_ms = FOREVER if age_s is None else round(age_s * 1000)
    return age_ms, FOREVER if size_bytes is None else size_bytes


async def set_configs(
    node: GatewayNode, topic: str, values: Mapping[str, int | None], *, anew: bool
) -> None:
    """Set a topic's configs, None to their defaults; with ``anew`` also those without a value.

    Raises:
        RefusedError: a store fails, or too few stores answer.
    """
    limits = {name: value for name, value in values.items() if name in RETENTION}
    has_rule = own_rule(topic, node.store.retention_control.rules) is not None
    if limits or (anew and has_rule):
        await set_retention(node, topic, limits, anew=anew)
    known = node.registry.table.configs(topic)
    changes = {name: values.get(name) for name in REGISTERED if anew or name in values}
    if any(known.get(name) != value for name, value in changes.items()):
        await node.registry.configure(topic, changes)


async def set_retention(
    node: GatewayNode, topic: str, limits: Limits, *, anew: bool = False
) -> None:
    """Set a topic's limits at all stores; raise RefusedError if a store fails."""
    async with node.rules_turn:
        await node.in_thread(set_at_all, node.store, topic, limits, anew=anew)


def gateway_configs(node: GatewayNode) -> list[Config]:
    """Return this gateway's configs by name."""
    own, options = node.gateways.own, node.options
    protocol = "SSL" if options.kafka_tls_certificate else "PLAINTEXT"
    protocol = f"SASL_{protocol}" if options.kafka_users else protocol
    told = {
        "advertised.listeners": (Kind.STRING, f"{protocol}://{HostPort(own.host, own.port)}"),
        "broker.id": (Kind.INT, own.node_id),
        "listeners": (Kind.STRING, f"{protocol}://{options.listen}"),
        "node.id": (Kind.INT, own.node_id),
    }
    found = [_config(name, kind, value, None) for name, (kind, value) in told.items()]
    defaults = settings(KafkaOptions(), StoreOptions())
    values = settings(options, node.store.options)
    values[MIN_STORES] = Kind.INT, node.default_copies
    for name, (kind, value) in values.items():
        found.append(_config(name, kind, value, defaults[name][1]))
    copies = 1 + len(node.store.known.names)
    found.append(_config("default.replication.factor", Kind.INT, copies, 1))
    rules = node.store.retention_control.rules
    general = next((each for each in rules if each.pattern == "*"), None)
    for name, limit in zip(RETENTION, _limits_of(general), strict=True):
        found.append(_config(f"log.{name}", Kind.LONG, limit, FOREVER))
    return sorted(found)


def settings(gateway: KafkaOptions, store: StoreOptions) -> dict[str, tuple[Kind, object]]:
    """Return the configs that options set, with their kinds."""
    ahead_ms = int(store.max_timestamp_ahead_s * 1000)
    return {
        "auto.create.topics.enable": (Kind.BOOLEAN, str(gateway.auto_create_topics).lower()),
        "delete.topic.enable": (Kind.BOOLEAN, str(gateway.delete_topics).lower()),
        "group.initial.rebalance.delay.ms": (Kind.INT, gateway.group_rebalance_delay_ms),
        "group.max.session.timeout.ms": (Kind.INT, gateway.group_max_session_timeout_ms),
        "group.max.size": (Kind.INT, gateway.group_max_size),
        "group.min.session.timeout.ms": (Kind.INT, gateway.group_min_session_timeout_ms),
        "log.cleanup.policy": (Kind.LIST, "delete"),
        "log.message.timestamp.after.max.ms": (Kind.LONG, ahead_ms),
        "log.message.timestamp.type": (Kind.STRING, "CreateTime"),
        "message.max.bytes": (Kind.INT, store.max_record_bytes),
        "min.insync.replicas": (Kind.INT, 1),
        "num.partitions": (Kind.INT, gateway.num_partitions),
        "offset.metadata.max.bytes": (Kind.INT, gateway.offset_metadata_max_bytes),
        "offsets.retention.minutes": (Kind.INT, gateway.offsets_retention_minutes),
    }


def values_of(node: GatewayNode, configs: Sequence[Any]) -> dict[str, int | None]:
    """Return the values that a client sets for a topic, None for defaults, without fixed configs.

    Raises:
        RefusedError: some of them can't be set; it names all of these.
    """
    values: dict[str, int | None] = {}
    times = Counter(each.name for each in configs)
    refusals = [f"config {name!r} is named twice" for name in times if times[name] > 1]
    for config in configs:
        try:
            value = _parsed(node, config)
        except ValueError as error:
            refusals.append(str(error))
        else:
            if config.name in CHANGEABLE:
                values[config.name] = value
    if refusals:
        raise RefusedError(KafkaError.INVALID_CONFIG, "; ".join(refusals))
    return values


def _parsed(node: GatewayNode, asked: Any) -> Any:
    """Return the value that a client sets a config of a topic to; None for the default.

    Raises:
        ValueError: it can't be set, with the reason.
    """
    name, value, config = asked.name, asked.value, TOPIC_CONFIGS.get(asked.name)
    operation = getattr(asked, "config_operation", Operation.SET)
    if config is None:
        raise ValueError(f"config {name!r} is not known here")
    if operation not in tuple(Operation) or (
        operation in (Operation.APPEND, Operation.SUBTRACT) and config.kind != Kind.LIST
    ):
        raise ValueError(f"config {name!r} is not a list: it can be set or deleted")
    if operation == Operation.DELETE:
        return None
    if value is None:
        raise ValueError(f"config {name} has no value: leave it out, or delete it, for the default")
    shown = "" if config.value is None else str(config.value(node.store.options))
    try:
        found = config.kind.parse(value)
        if operation == Operation.APPEND:
            found = sorted({*found, *config.kind.parse(shown)})
        elif operation == Operation.SUBTRACT:
            found = sorted({*config.kind.parse(shown)}.difference(found))
    except ValueError:
        kind, why = config.kind.name.lower(), f"; {config.why}" if config.why else ""
        raise ValueError(f"config {name} cannot be {value!r}: its type is {kind}{why}") from None
    if not config.accepts(node, found):
        now = f" is {shown}, and" if shown and name not in RETENTION else ""
        why = f": {config.why}" if config.why else ""
        raise ValueError(f"config {name}{now} cannot be {value!r}{why}")
    return FOREVER if name in _MOST and found > _MOST[name] else found
