"""Topics and partitions that no store has, and stores that are away, when a query begins.

A query that ends would read nothing in silence: it fails, and so does one that names partitions.
Other streaming queries wait for them, and say so once.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import replace

from dafka_core.config.missing_stores import check_min_stores, warning
from dafka_core.errors import ConfigError
from dafka_core.model.names import escape, quoted
from dafka_core.model.records import TopicPartition
from dafka_core.model.suggestions import what_there_is
from dafka_spark.cluster import timing
from dafka_spark.cluster.connections import Connect
from dafka_spark.options import SourceOptions
from dafka_spark.source.latest_offsets import fetch_latest_offsets
from dafka_spark.topic_selection import EVERY_TOPIC

_log = logging.getLogger("dafka_spark")


def check_found(options: SourceOptions, held: Collection[TopicPartition], connect: Connect) -> None:
    """Raises ``ConfigError`` for a name that no store has, if ``failOnMissingTopic`` is true."""
    if options.fail_on_missing_topic and (missing := options.selection.missing(held)):
        option, value, sentence = _sentence(options, missing[0], _all_held(options, connect))
        raise ConfigError(
            option, value, f"{sentence}; failOnMissingTopic = false reads it as empty"
        )


def wait_or_fail(
    options: SourceOptions, held: Collection[TopicPartition], connect: Connect, *, ends: bool
) -> None:
    """The same for a streaming query, which waits unless it ``ends`` or names partitions."""
    if ends or options.assign:
        check_found(options, held, connect)
    missing = options.selection.missing(held)
    everything = _all_held(options, connect) if missing else ()
    for each in missing:
        _, _, sentence = _sentence(options, each, everything)
        _log.warning("%s; the query waits for it", sentence)


def _all_held(options: SourceOptions, connect: Connect) -> Collection[TopicPartition]:
    everything = replace(
        options.without_bounds(),
        subscribe=(),
        assign=frozenset(),
        subscribe_pattern=EVERY_TOPIC,
        metadata="",
    )
    return fetch_latest_offsets(everything, connect, thorough=False).heads


def _sentence(
    options: SourceOptions, missing: TopicPartition, held: Collection[TopicPartition]
) -> tuple[str, str, str]:
    partitions = [tp.partition for tp in held if tp.topic == missing.topic]
    if not partitions:
        option = "assign" if options.assign else "subscribe"
        near = what_there_is(missing.topic, {tp.topic for tp in held}, "topics")
        return option, escape(missing.topic), f"no store has topic {quoted(missing.topic)} ({near})"
    near = what_there_is(missing.partition, partitions, "partitions")
    name = escape(missing.partition)
    what = f"partition {name} of topic {quoted(missing.topic)}"
    return "assign", name, f"no store has {what} ({near})"


def check_stores(options: SourceOptions, connect: Connect) -> None:
    """Warns of each store that is known and away.

    Raises:
        ConfigError: there are fewer stores than option ``minStores`` asks for.
    """
    with connect(options.mesh_address) as reader:
        missing = reader.missing_stores(timeout_s=timing.FIND_S)
        there = len(reader.stores())
    check_min_stores("minStores", options.min_stores, there, missing)
    for each in missing:
        _log.warning("%s", warning(each))
