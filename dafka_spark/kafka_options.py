"""Options of Spark's Kafka connector and of Kafka's clients: one table.

A job written for Kafka changes the format's name and the server's option, and keeps the others.
Options with a meaning here are translated, those that tune Kafka's clients are ignored, and the
rest is refused with what to use instead.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import Final, NamedTuple

from dafka_core.errors import HIDDEN, ConfigError
from dafka_core.model.name_limits import nearest_name

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
    *_ignored("each batch is written exactly once, which does more", "kafka.enable.idempotence"),
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
        "each batch is written exactly once anyway; txnAppId and txnVersion are for batch writes",
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
