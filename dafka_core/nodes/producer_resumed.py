"""How a producer that comes back waits for its partition, and hears that it was deleted."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from dafka_core.deletions import Deletion, TopicDeletedError, parsed
from dafka_core.errors import ConfigError, DafkaError, MissingStoresError, NoStoreError
from dafka_core.names import DELETIONS_TOPIC
from dafka_core.node_options import IGNORE, ProducerOptions
from dafka_core.nodes.addresses import options_beside
from dafka_core.nodes.mesh import Mesh
from dafka_core.nodes.reader import Reader
from dafka_core.protocol.producer_role import ProducerRole
from dafka_core.records import TopicPartition
from dafka_core.timestamps import shown_time

_log = logging.getLogger("dafka.producer")


def resume(mesh: Mesh, role: ProducerRole, options: ProducerOptions) -> None:
    """Waits until the role has taken its partition over from an earlier producer.

    Raises:
        NoStoreError, MissingStoresError: stores have not answered within ``resume_timeout_s``.
        TopicDeletedError: the topic was deleted, and nothing was written since.
    """
    takeover, timeout_s = role.takeover, options.resume_timeout_s
    assert takeover is not None
    if not mesh.wait_until(lambda: role.takeover is None, timeout_s):
        if (lack := takeover.missing) is not None:
            raise MissingStoresError(*role.tp, lack.needed, lack.stores)
        raise NoStoreError([str(tower) for tower in options.tower], timeout_s)
    if takeover.has_deletions and options.resume_deleted != IGNORE:
        _check_deleted(role.tp, role.next_offset, options)


def _check_deleted(tp: TopicPartition, end: int, options: ProducerOptions) -> None:
    """Sees whether a partition was deleted up to where a producer goes on with it.

    Raises:
        TopicDeletedError: it was.
    """
    timeout_s = options.resume_timeout_s
    found: list[Deletion] = []
    try:
        with _reader(options_beside(options)) as reader:
            for info in reader.partitions([DELETIONS_TOPIC], timeout_s=timeout_s):
                for batch in reader.read(info.tp, info.earliest, info.end, timeout_s=timeout_s):
                    found += _deletions(map(bytes, batch.values))
    except DafkaError as error:
        text = "%s: whether the topic was deleted cannot be found out, it goes on: %s"
        _log.warning(text, tp, error)
    of_it = [each for each in found if each.tp == tp and each.before >= end]
    if end and of_it:
        when = shown_time(max(each.at_us for each in of_it))
        raise TopicDeletedError(*tp, end, when)


def _reader(options: dict[str, Any]) -> Reader:
    """A reader; at any port if those that nodes here are to have are all in use."""
    try:
        return Reader(**options)
    except ConfigError as error:
        if error.option != "port":
            raise
    return Reader(**options | {"port": "0"})


def _deletions(contents: Iterator[bytes]) -> Iterator[Deletion]:
    for content in contents:
        with suppress(ValueError):
            yield from parsed(content)
