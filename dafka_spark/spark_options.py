"""What the options of reading and of writing have in common; each declares its own in ``options``.

Spark lower-cases the keys it is given; they are matched in any case, and named as users write
them (``fetchTimeoutMs``) in errors and in the documentation's tables.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import ClassVar, Final, NamedTuple, Self

from dafka_core import node_options as nodes
from dafka_core.envelope import AUTO, ENVELOPE, ENVELOPE_MEANING
from dafka_core.errors import ConfigError
from dafka_core.flight.store_location import parse_locations
from dafka_core.keys.allowed_keys import own_permissions
from dafka_core.options import DEFAULT_TOWER, Options, option, unknown
from dafka_core.permissions import Permissions
from dafka_core.security_options import KeyFiles, keys_in, keys_of_environment
from dafka_spark import kafka_options
from dafka_spark import option_values as values
from dafka_spark.node_settings import PREFIX, NodeSettings, settings_of, taken_out

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
        given, node = taken_out(kafka_options.translated(given, names), cls.NODES)
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
            raise ConfigError(PREFIX + of_mesh[0][0], of_mesh[0][1], why)
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
