"""Options that reading and writing share, and those of Kafka's connector and of nodes.

Spark lower-cases the keys it is given; they are matched in any case, and named as users write
them (``fetchTimeoutMs``) in errors and in the documentation's tables.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from enum import StrEnum
from typing import ClassVar, Final, NamedTuple, Self

from dafka_core.config import node_options as nodes
from dafka_core.config.node_options import KeyFiles, NodeOptions, keys_in, keys_of_environment
from dafka_core.config.options import DEFAULT_TOWER, Options, option, unknown
from dafka_core.errors import HIDDEN, ConfigError
from dafka_core.flight.store_location import parse_locations
from dafka_core.model.envelope import AUTO, ENVELOPE, ENVELOPE_MEANING
from dafka_core.model.name_limits import nearest_name
from dafka_core.security.allowed_keys import own_permissions
from dafka_core.security.permissions import Permissions
from dafka_spark import option_values as values

# What becomes of the options of Spark's Kafka connector, and of Kafka's clients: one table.
#
# A job that was written for Kafka has the format's name and the server's option changed, and
# keeps the others: those with a meaning here have it, those that only tune Kafka's clients are
# passed over, by name, and those whose meaning nobody here has are refused, with what to use
# instead.


KAFKA_PREFIX: Final = "kafka."

_log = logging.getLogger("dafka_spark")


class Decision(StrEnum):
    """What becomes of an option."""

    MAPPED = "becomes"
    IGNORED = "is passed over"
    REFUSED = "is refused"


class KafkaOption(NamedTuple):
    """One option, or, with ``*`` at its end, all that begin so; ``to`` is ours for it."""

    name: str
    decision: Decision
    why: str
    to: str = ""

    def is_for(self, lower: str) -> bool:
        """Whether a name, in lower case, is this option's."""
        own = self.name.lower()
        return lower.startswith(own[:-1]) if own.endswith("*") else lower == own


def _mapped(name: str, to: str, why: str = "") -> KafkaOption:
    return KafkaOption(name, Decision.MAPPED, why, to)


def _ignored(why: str, *names: str) -> list[KafkaOption]:
    return [KafkaOption(name, Decision.IGNORED, why) for name in names]


def _refused(why: str, *names: str) -> list[KafkaOption]:
    return [KafkaOption(name, Decision.REFUSED, why) for name in names]


_SECURITY: Final = (
    "a key says who this is, and encrypts (docs/security.md): set dafka.secret_key_file and "
    "dafka.allowed_keys instead"
)
_CAST: Final = "keys and values are binary columns: leave it out, and cast them in the query"
_GROUPS: Final = "each query keeps its own offsets, and is in no consumer group"
_RETRIES: Final = "stores are asked again until fetchTimeoutMs has passed"
_TUNING: Final = "it tunes Kafka's clients"

KAFKA_OPTIONS: Final[tuple[KafkaOption, ...]] = (
    *_refused(
        "name a tower in its place, with option 'tower' or DAFKA_TOWER in the driver's environment",
        "kafka.bootstrap.servers",
    ),
    *_ignored(
        "it is one poll's; fetchTimeoutMs, which decides when records are lost, is another thing",
        "kafkaConsumer.pollTimeoutMs",
    ),
    _mapped("kafka.delivery.timeout.ms", "deliveryTimeoutMs"),
    _mapped("kafka.acks", "acks", "-1 is all; 0 is 1, since a row is always at a store"),
    *_ignored(_GROUPS, "kafka.group.id", "groupIdPrefix", "kafka.group.instance.id"),
    *_ignored(_RETRIES, "fetchOffset.numRetries", "fetchOffset.retryIntervalMs"),
    *_ignored("readers see committed records only, always", "kafka.isolation.level"),
    *_ignored("delivery = exactly-once, the default, does more", "kafka.enable.idempotence"),
    *_ignored("a topic is there once it has a record", "kafka.allow.auto.create.topics"),
    *_ignored(
        _TUNING,
        "kafka.batch.size",
        "kafka.buffer.memory",
        "kafka.check.crcs",
        "kafka.client.dns.lookup",
        "kafka.client.id",
        "kafka.client.rack",
        "kafka.compression.*",
        "kafka.connections.max.idle.ms",
        "kafka.default.api.timeout.ms",
        "kafka.exclude.internal.topics",
        "kafka.fetch.*",
        "kafka.heartbeat.interval.ms",
        "kafka.linger.ms",
        "kafka.max.block.ms",
        "kafka.max.in.flight.requests.per.connection",
        "kafka.max.partition.fetch.bytes",
        "kafka.max.poll.interval.ms",
        "kafka.max.poll.records",
        "kafka.max.request.size",
        "kafka.metadata.*",
        "kafka.metric.reporters",
        "kafka.metrics.*",
        "kafka.partition.assignment.strategy",
        "kafka.receive.buffer.bytes",
        "kafka.reconnect.backoff.*",
        "kafka.request.timeout.ms",
        "kafka.retries",
        "kafka.retry.backoff.*",
        "kafka.send.buffer.bytes",
        "kafka.session.timeout.ms",
        "kafka.socket.connection.setup.*",
    ),
    *_refused("say with startingOffsets where a new query begins", "kafka.auto.offset.reset"),
    *_refused("a query's offsets are in its checkpoint: leave it out", "kafka.enable.auto.commit"),
    *_refused("nothing is called with records here: leave it out", "kafka.interceptor.classes"),
    *_refused(
        _CAST,
        "kafka.key.deserializer",
        "kafka.value.deserializer",
        "kafka.key.serializer",
        "kafka.value.serializer",
    ),
    *_refused("each task writes to a partition of its own: leave it out", "kafka.partitioner.*"),
    *_refused(
        "delivery = exactly-once, the default, is what it would do; txnAppId and txnVersion are "
        "for batch writes",
        "kafka.transactional.id",
        "kafka.transaction.*",
    ),
    *_refused(_SECURITY, "kafka.security.*", "kafka.sasl.*", "kafka.ssl.*"),
)
"""In the order in which docs/from_kafka.md has them."""

_ACKS: Final = {"-1": "all", "0": "1"}


def translated(given: Mapping[str, str], known: Collection[str]) -> dict[str, str]:
    """Options without Kafka's: those with a meaning here under their name here.

    ``known`` are the names that the side in question has, in lower case.  What is given under our
    name, too, counts.

    Raises:
        ConfigError: one is refused, or is none of Kafka's.
    """
    names = {name.lower() for name in given}
    found: dict[str, str] = {}
    ignored: list[str] = []
    for name, value in given.items():
        row = kafka_option(name)
        if row is None:
            if name.lower().startswith(KAFKA_PREFIX):
                near = nearest_name(name, [each.name for each in KAFKA_OPTIONS])
                see = f"did you mean {near!r}?" if near else "docs/from_kafka.md has them"
                why = f"is none of Kafka's that are known here; {see}"
                raise ConfigError(name, HIDDEN, why)
            found[name] = value
        elif row.decision is Decision.REFUSED:
            if not (name.lower() == "kafka.security.protocol" and _is_plaintext(value)):
                raise ConfigError(name, HIDDEN if row.why == _SECURITY else value, row.why)
        elif row.to.lower() in known and row.to.lower() not in names:
            found[row.to] = _ACKS.get(value.strip(), value) if row.to == "acks" else value
        else:
            ignored.append(row.name if row.to else f"{row.name} ({row.why})")
    if ignored:
        _log.warning("options of Kafka's are passed over: %s", "; ".join(sorted(ignored)))
    return found


def kafka_option(name: str) -> KafkaOption | None:
    """The row of an option of Kafka's, in any case; None if there is none."""
    lower = name.lower()
    return next((row for row in KAFKA_OPTIONS if row.is_for(lower)), None)


def _is_plaintext(value: str) -> bool:
    return value.strip().upper() == "PLAINTEXT"


# Options of the nodes that Spark's processes are, given with ``dafka.`` before their names.
#
# As ``kafka.`` does in Spark's Kafka connector: ``dafka.peer_expiry_ms`` is the node's
# ``peer_expiry_ms``.  In any case, and without underscores if users like: ``dafka.peerExpiryMs``.


NODE_PREFIX: Final = "dafka."

OWN: Final = {
    "tower": "tower",
    "host": "host",
    "port": "port",
    "acks": "acks",
    "allow_control_characters": "allowControlCharacters",
    "envelope": "envelope",
}
"""What is an option of Spark's already, by the node's name of it."""

NodeSettings = tuple[tuple[str, str], ...]
"""Names of the nodes' options, and their values, in order."""


def taken_out(
    given: Mapping[str, str], nodes: Iterable[type[NodeOptions]]
) -> tuple[dict[str, str], NodeSettings]:
    """The options without those of ``nodes``, and these.

    Raises:
        ConfigError: none of the nodes has such an option, or it has a wrong value.
    """
    tables = list(nodes)
    names = {_folded(row.name): row.name for each in tables for row in each.table()}
    others: dict[str, str] = {}
    settings: dict[str, str] = {}
    spelt: dict[str, str] = {}
    for name, value in given.items():
        if not name.lower().startswith(NODE_PREFIX):
            others[name] = value
            continue
        found = names.get(_folded(name[len(NODE_PREFIX) :]))
        if found is None:
            known = [NODE_PREFIX + each for each in names.values() if each not in OWN]
            raise ConfigError(name, value, unknown(name, known))
        if found in OWN:
            raise ConfigError(name, value, f"is option {OWN[found]!r} here")
        if found in spelt:
            why = f"is option {spelt[found]!r} in another spelling; leave one of them out"
            raise ConfigError(name, value, why)
        spelt[found], settings[found] = name, value
    for table in tables:
        try:
            # With a tower: that of the environment is not asked for here.
            table.build({"tower": "localhost", **settings_of(table, settings.items())})
        except ConfigError as error:
            raise ConfigError(NODE_PREFIX + error.option, error.value, error.why) from None
    return others, tuple(sorted(settings.items()))


def settings_of(node: type[NodeOptions], settings: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Those of the settings that a node takes."""
    names = {row.name for row in node.table()}
    return {name: value for name, value in settings if name in names}


def _folded(name: str) -> str:
    return name.lower().replace("_", "")


TABLE_PREFIX: Final = "option."
"""``CREATE TABLE ... OPTIONS (a 1)`` arrives as ``a`` and ``option.a``, among table properties."""


class MeshAddress(NamedTuple):
    """How to join the mesh, or, where ``stores`` are named, what to use instead of it."""

    tower: str
    host: str = nodes.AUTO_HOST
    port: str = "0"
    stores: tuple[str, ...] = ()
    node: NodeSettings = ()

    @property
    def name(self) -> str:
        """What its stores are found by."""
        return ",".join(self.stores) or self.tower

    @property
    def keys(self) -> KeyFiles:
        """By which stores and these processes know each other: the names of files."""
        return keys_in(dict(self.node))

    @property
    def owner(self) -> Permissions:
        """Whose the nodes and partitions are: the key's, or everybody's where there is none.

        Raises:
            ConfigError: the key or the directory of allowed ones is wrong.
        """
        return own_permissions(nodes.ReaderOptions.build({"tower": "localhost", **dict(self.node)}))


def camel(name: str) -> str:
    """``fetch_timeout_ms`` as Spark's users write it: ``fetchTimeoutMs``."""
    first, *others = name.split("_")
    return first + "".join(map(str.title, others))


@dataclasses.dataclass(frozen=True)
class SparkOptions(Options):
    """Options with names as Spark's users write them."""

    RENAME: ClassVar[Callable[[str], str]] = staticmethod(camel)
    ALLOWED: ClassVar[frozenset[str]] = frozenset()
    """What Spark itself adds to the options (seen in 4.3), in lower case."""
    USE: ClassVar[str] = ""
    NAMES_TOPIC: ClassVar[str] = ""
    NODES: ClassVar[tuple[type[nodes.NodeOptions], ...]] = (nodes.ReaderOptions,)
    """The nodes that Spark's processes are, whose options are given with ``dafka.`` before them."""
    tower: str = option(
        DEFAULT_TOWER,
        "towers to join through, with commas between; without it DAFKA_TOWER of the driver's "
        "environment",
        kind=nodes.TOWERS,
        parse=values.parse_tower,
    )
    host: str = option(
        nodes.AUTO_HOST,
        "address at which stores reach the driver and the executors; `auto` takes the one from "
        "which each of them reaches the towers",
        parse=nodes.parse_host,
    )
    port: str = option(
        "0",
        "where stores connect to each of these Python processes; 0 lets the system choose",
        kind=nodes.PORTS,
        parse=nodes.parse_ports,
    )
    stores: tuple[str, ...] = option(
        (),
        "stores to use, and no others, by Arrow Flight instead of through towers; with commas "
        "between. Nobody connects to the driver or the executors then",
        kind="grpc://HOST:PORT",
        parse=parse_locations,
    )

    envelope: str = option(
        AUTO,
        ENVELOPE_MEANING,
        choices=ENVELOPE,
        parse=values.parse_word,
    )

    node: NodeSettings = ()
    """What was given with ``dafka.`` before the name of a node's option."""

    @property
    def opens(self) -> bool:
        """Whether keys, headers and null values are in envelopes, or contents left alone."""
        return self.envelope == AUTO

    @property
    def mesh_address(self) -> MeshAddress:
        """How to join the mesh, or how to do without one."""
        node = tuple(settings_of(nodes.ReaderOptions, self.node).items())
        return MeshAddress(self.tower, self.host, self.port, self.stores, node)

    @property
    def keys(self) -> KeyFiles:
        """See ``MeshAddress``."""
        return keys_in(dict(self.node))

    @classmethod
    def of(cls, given: Mapping[str, str]) -> Self:
        """The options as Spark hands them over.

        Raises:
            ConfigError: an option is unknown, belongs to the other side, or has a wrong value.
        """
        names = {row.name.lower(): row.name for row in cls.table()}
        given, node = taken_out(translated(given, names), cls.NODES)
        # Here and not in a node: executors' environments are not the driver's.
        folded: dict[str, object] = {}
        for name, value in given.items():
            lower = name.lower()
            if lower in names:
                folded[names[lower]] = value
            elif lower not in cls.ALLOWED:
                raise ConfigError(name, value, cls._why_not(lower, list(names.values())))
        if "tower" not in folded:
            folded["tower"] = nodes.towers_of_environment()
        if not any(name in KeyFiles._fields for name, _ in node):
            node = tuple(sorted({**dict(node), **keys_of_environment()}.items()))
        options = dataclasses.replace(cls.build(folded), node=node)
        of_mesh = [each for each in node if each[0] not in KeyFiles._fields]
        if of_mesh and options.stores:
            why = "nobody joins a mesh with option stores; leave one of them out"
            raise ConfigError(NODE_PREFIX + of_mesh[0][0], of_mesh[0][1], why)
        return options

    @classmethod
    def of_table(cls, kept: Mapping[str, str], given: Mapping[str, str]) -> Self:
        """The options of a query of a SQL table, which has ``kept`` some for either side."""
        own = {row.name.lower() for row in cls.table()}
        other = {row.name.lower() for each in sides() for row in each.table()} - own
        kept = {name: value for name, value in kept.items() if name.lower() not in other}
        return cls.of({**kept, **given})

    @classmethod
    def _why_not(cls, name: str, known: list[str]) -> str:
        for other in sides():
            if name in {row.name.lower() for row in other.table()}:
                return f"is an option of {other.USE}; {cls.USE} takes {', '.join(sorted(known))}"
        if name == "path":
            return f"format 'dafka' has no path; name the topic with option {cls.NAMES_TOPIC!r}"
        return unknown(name, known)


def sides() -> list[type[SparkOptions]]:
    """The options of reading, and those of writing."""
    return SparkOptions.__subclasses__()


def creates_table(given: Mapping[str, str]) -> bool:
    """Whether Spark asks on behalf of ``CREATE TABLE``: it adds the provider's name then."""
    return "provider" in given


def user_options(given: Mapping[str, str]) -> dict[str, str]:
    """The options a user gave: at ``CREATE TABLE`` Spark mixes them with table properties."""
    if not creates_table(given):
        return dict(given)
    return {
        name.removeprefix(TABLE_PREFIX): value
        for name, value in given.items()
        if name.startswith(TABLE_PREFIX)
    }
