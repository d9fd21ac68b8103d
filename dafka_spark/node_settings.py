"""Options of the nodes that Spark's processes are, given with ``dafka.`` before their names.

As ``kafka.`` does in Spark's Kafka connector: ``dafka.peer_expiry_ms`` is the node's
``peer_expiry_ms``.  In any case, and without underscores if users like: ``dafka.peerExpiryMs``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from dafka_core.errors import ConfigError
from dafka_core.node_options import NodeOptions
from dafka_core.options import unknown

PREFIX: Final = "dafka."

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
        if not name.lower().startswith(PREFIX):
            others[name] = value
            continue
        found = names.get(_folded(name[len(PREFIX) :]))
        if found is None:
            known = [PREFIX + each for each in names.values() if each not in OWN]
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
            raise ConfigError(PREFIX + error.option, error.value, error.why) from None
    return others, tuple(sorted(settings.items()))


def settings_of(node: type[NodeOptions], settings: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Those of the settings that a node takes."""
    names = {row.name for row in node.table()}
    return {name: value for name, value in settings if name in names}


def _folded(name: str) -> str:
    return name.lower().replace("_", "")
