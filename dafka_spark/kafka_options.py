"""Kafka's options that format ``dafka`` does not have, in one table.

A job written for Kafka changes the format's name and the server's option and keeps the others.
An option with an equivalent becomes that option, one that tunes Kafka's clients is ignored, and
any other is refused with a remedy.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from enum import StrEnum
from fnmatch import fnmatchcase
from functools import partial
from typing import Final, NamedTuple

from dafka_core.errors import HIDDEN, ConfigError
from dafka_core.model.name_limits import nearest_name

_log = logging.getLogger("dafka_spark")


class Decision(StrEnum):
    """The treatment of an option."""

    MAPPED = "becomes"
    IGNORED = "ignored"
    REFUSED = "refused"


class KafkaOptions(NamedTuple):
    """Options with the same treatment and reason; ``*`` ends a prefix of names.

    ``to`` is the equivalent option of format ``dafka``.
    """

    decision: Decision
    why: str
    names: tuple[str, ...]
    to: str = ""

    def has(self, name: str) -> bool:
        """Return whether an option belongs to this row; the case does not matter."""
        return any(fnmatchcase(name.lower(), each.lower()) for each in self.names)


def _row(decision: Decision, why: str, *names: str, to: str = "") -> KafkaOptions:
    return KafkaOptions(decision, why, names, to)


_mapped = partial(_row, Decision.MAPPED)
_ignored = partial(_row, Decision.IGNORED)
_refused = partial(_row, Decision.REFUSED)

_TUNING: Final = (
    "kafka.batch.size", "kafka.buffer.memory", "kafka.check.crcs", "kafka.client.dns.lookup",
    "kafka.client.id", "kafka.client.rack", "kafka.compression.*", "kafka.connections.max.idle.ms",
    "kafka.default.api.timeout.ms", "kafka.exclude.internal.topics", "kafka.fetch.*",
    "kafka.heartbeat.interval.ms", "kafka.linger.ms", "kafka.max.block.ms",
    "kafka.max.in.flight.requests.per.connection", "kafka.max.partition.fetch.bytes",
    "kafka.max.poll.interval.ms", "kafka.max.poll.records", "kafka.max.request.size",
    "kafka.metadata.*", "kafka.metric.reporters", "kafka.metrics.*",
    "kafka.partition.assignment.strategy", "kafka.receive.buffer.bytes",
    "kafka.reconnect.backoff.*", "kafka.request.timeout.ms", "kafka.retries",
    "kafka.retry.backoff.*", "kafka.send.buffer.bytes", "kafka.session.timeout.ms",
    "kafka.socket.connection.setup.*",
)  # fmt: skip

KAFKA_OPTIONS: Final[tuple[KafkaOptions, ...]] = (
    _refused(
        "name a tower instead, with option 'tower' or DAFKA_TOWER in the driver's environment",
        "kafka.bootstrap.servers",
    ),
    _mapped("", "kafka.delivery.timeout.ms", to="deliveryTimeoutMs"),
    _mapped(
        "-1 means all; 0 means 1, because a store always acknowledges", "kafka.acks", to="acks"
    ),
    _ignored(
        "it limits one poll, while fetchTimeoutMs also decides when records count as lost",
        "kafkaConsumer.pollTimeoutMs",
    ),
    _ignored(
        "a query keeps its own offsets and joins no consumer group",
        "kafka.group.id",
        "groupIdPrefix",
        "kafka.group.instance.id",
    ),
    _ignored(
        "a query asks the stores again until fetchTimeoutMs has passed",
        "fetchOffset.numRetries",
        "fetchOffset.retryIntervalMs",
    ),
    _ignored("readers only see committed records", "kafka.isolation.level"),
    _ignored("each batch is written exactly once, which does more", "kafka.enable.idempotence"),
    _ignored("the first record creates a topic", "kafka.allow.auto.create.topics"),
    _ignored("it tunes Kafka's clients", *_TUNING),
    _refused("set startingOffsets, where a new query starts", "kafka.auto.offset.reset"),
    _refused("the checkpoint keeps a query's offsets: leave it out", "kafka.enable.auto.commit"),
    _refused("no interceptor is called: leave it out", "kafka.interceptor.classes"),
    _refused(
        "keys and values are binary columns: leave it out, and cast them in the query",
        "kafka.key.deserializer",
        "kafka.value.deserializer",
        "kafka.key.serializer",
        "kafka.value.serializer",
    ),
    _refused("each task writes to its own partition: leave it out", "kafka.partitioner.*"),
    _refused(
        "each batch is written exactly once; batch writes also take txnAppId and txnVersion",
        "kafka.transactional.id",
        "kafka.transaction.*",
    ),
    _refused(
        "keys authenticate and encrypt instead (docs/security.md): set dafka.secret_key_file and "
        "dafka.allowed_keys",
        "kafka.security.*",
        "kafka.sasl.*",
        "kafka.ssl.*",
    ),
)

_ACKS: Final = {"-1": "all", "0": "1"}
_NO_SECURITY: Final = ("kafka.security.protocol", "PLAINTEXT")


def translate_kafka_options(given: Mapping[str, str], known: Collection[str]) -> dict[str, str]:
    """Return the options with Kafka's replaced by their equivalents.

    ``known`` are the options of the source or the sink, in lower case.  An equivalent that is
    given itself takes precedence.

    Raises:
        ConfigError: an option is refused, or is an unknown one with Kafka's prefix.
    """
    names = {name.lower() for name in given}
    found: dict[str, str] = {}
    ignored: list[str] = []
    for name, value in given.items():
        row = kafka_option(name)
        if row is None:
            if name.lower().startswith("kafka."):
                raise ConfigError(name, HIDDEN, _unknown(name))
            found[name] = value
        elif row.decision is Decision.REFUSED:
            if (name.lower(), value.strip().upper()) != _NO_SECURITY:
                raise ConfigError(name, value, row.why)
        elif row.to.lower() in known and row.to.lower() not in names:
            found[row.to] = _ACKS.get(value.strip(), value) if row.to == "acks" else value
        else:
            ignored.append(name if row.to else f"{name} ({row.why})")
    if ignored:
        _log.warning("Kafka's options are ignored: %s", "; ".join(sorted(ignored)))
    return found


def kafka_option(name: str) -> KafkaOptions | None:
    """Return the row of one of Kafka's options; None for any other option."""
    return next((row for row in KAFKA_OPTIONS if row.has(name)), None)


def _unknown(name: str) -> str:
    near = nearest_name(name, [each for row in KAFKA_OPTIONS for each in row.names])
    remedy = f"did you mean {near!r}?" if near else "docs/from_kafka.md lists the known ones"
    return f"is not a known option of Kafka; {remedy}"
