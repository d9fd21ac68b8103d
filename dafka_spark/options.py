"""Options of format ``dafka``, each declared once: name, type, default, unit and meaning."""

from __future__ import annotations

import base64
import dataclasses
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple, Self

from pyspark.sql import types

from dafka_core.config import node_options as nodes
from dafka_core.config.missing_stores import parse_min_stores
from dafka_core.config.node_options import KeyFiles, NodeOptions, keys_in, keys_of_environment
from dafka_core.config.options import DEFAULT_TOWER, Options, option, parse_int, parse_str, unknown
from dafka_core.errors import ConfigError
from dafka_core.flight.limits import MAX_BATCH_BYTES, MAX_BATCH_RECORDS
from dafka_core.flight.store_location import parse_locations
from dafka_core.model.envelope import AUTO as ENVELOPE_AUTO
from dafka_core.model.envelope import ENVELOPE, ENVELOPE_MEANING
from dafka_core.model.name_limits import parse_topic
from dafka_core.model.names import INTERNAL, NOT_PLAIN, QUERIES_TOPIC, escape, is_plain
from dafka_core.model.records import TopicPartition
from dafka_core.model.where import Where
from dafka_core.security.allowed_keys import own_permissions
from dafka_core.security.permissions import Permissions
from dafka_spark import option_types as values
from dafka_spark.formats import codecs
from dafka_spark.formats.codecs import BYTES, FORMATS, PROTOBUF, TYPED, Codec
from dafka_spark.kafka_options import translated
from dafka_spark.metadata import KINDS
from dafka_spark.option_types import (
    AT_EARLIEST,
    AT_LATEST,
    EARLIEST_OFFSET,
    EVERY_TOPIC,
    UNLIMITED,
    UNLIMITED_BYTES,
    OffsetRangeLimit,
    Position,
    TopicSelection,
    parse_duration_ms,
    parse_offset_range_limit,
    parse_offsets_by_timestamp,
    parse_size,
    parse_timestamp,
    parse_word,
)

_log = logging.getLogger("dafka_spark")

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
        ENVELOPE_AUTO,
        ENVELOPE_MEANING,
        choices=ENVELOPE,
        parse=values.parse_word,
    )

    node: NodeSettings = ()
    """What was given with ``dafka.`` before the name of a node's option."""

    @property
    def opens(self) -> bool:
        """Whether keys, headers and null values are in envelopes, or contents left alone."""
        return self.envelope == ENVELOPE_AUTO

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


# Every option of format ``dafka``, declared once: name, type, default, unit and meaning.
#
# Those of reading and writing alike are in ``spark_options``, with how all of them are given.


def parse_where(value: Any) -> Where:
    """A condition on records."""
    return Where.parse(str(value))


@dataclasses.dataclass(frozen=True)
class FilterOptions(Options):
    """What records are looked for, and what filters are taken over from Spark."""

    RENAME: ClassVar[Callable[[str], str]] = staticmethod(camel)

    where: Where | None = option(  # noqa: RUF009 -- a field
        None,
        "read only records that fit a condition, which stores evaluate: a part of SQL over `key`, "
        "`value`, `topic`, `partition`, `offset` and `timestamp`, as `key = 'a' AND offset >= 5` "
        "(docs/spark.md). Limits of batches count the records that are looked at",
        kind="condition",
        parse=parse_where,
    )
    push_filters: bool = option(
        False,
        "batches only: filters of the query on topic, partition, offset and timestamp narrow what "
        "is read. Needs `spark.sql.python.filterPushdown.enabled` = true. Spark 4.3 then reads all "
        "queries of one DataFrame as the one that it planned last, so that others may lack rows: "
        "load a DataFrame for each filter (docs/spark.md)",
    )

    def unused_of_filters(self, *, batch: bool) -> list[tuple[str, str]]:
        """Which of these say nothing, and why."""
        return [] if batch else [("push_filters", "Spark pushes filters of batches only")]


ERROR: Final = "error"
TO_LATEST: Final = "latest"


_TIME: Final = "ms or time"
_POSITIONS: Final = "word, time or JSON"
_BY_TIME: Final = "JSON"
_PARSERS: Final = {
    _TIME: parse_timestamp,
    _POSITIONS: parse_offset_range_limit,
    _BY_TIME: parse_offsets_by_timestamp,
}


def _bound(kind: str, meaning: str) -> OffsetRangeLimit | None:
    return option(None, meaning, kind=kind, parse=_PARSERS[kind])


class Bound(NamedTuple):
    """Where a query starts or ends, and the option that says so.

    ``unnamed`` is the position of partitions of which ``limit`` says nothing.  With
    ``fails_unmatched`` a time at which or after which a partition has no record fails the query.
    """

    option: str
    limit: OffsetRangeLimit
    unnamed: Position
    fails_unmatched: bool = False

    @property
    def everywhere(self) -> Position | None:
        """The position of all partitions, if it is one."""
        named = self.limit.topics or self.limit.partitions
        return None if named else self.limit.everywhere or self.unnamed


@dataclasses.dataclass(frozen=True)
class OffsetOptions(Options):
    """Where reading begins and ends; with Kafka's precedence, a time before offsets."""

    RENAME: ClassVar[Callable[[str], str]] = staticmethod(camel)
    STARTING: ClassVar[tuple[str, ...]] = (
        "starting_timestamp",
        "starting_offsets_by_timestamp",
        "starting_offsets",
    )
    ENDING: ClassVar[tuple[str, ...]] = (
        "ending_timestamp",
        "ending_offsets_by_timestamp",
        "ending_offsets",
    )

    starting_timestamp: OffsetRangeLimit | None = _bound(  # noqa: RUF009 -- a field
        _TIME,
        "where a new query starts: at the first record of each partition that was published at "
        "this time, in milliseconds since 1970 or as `2026-01-01T00:00:00Z`, or later. Goes before "
        "startingOffsetsByTimestamp and startingOffsets",
    )
    starting_offsets_by_timestamp: OffsetRangeLimit | None = _bound(  # noqa: RUF009
        _BY_TIME,
        'the same by partition: `{"topic": {"partition": ms}}`; partitions not named, and those '
        "that appear later, start at their first record. Goes before startingOffsets",
    )
    starting_offsets_by_timestamp_strategy: str = option(
        ERROR,
        "where these two options find no record so new in a partition: `error` fails the query, "
        "`latest` starts at the partition's end",
        choices=(ERROR, TO_LATEST),
        parse=parse_word,
    )
    starting_offsets: OffsetRangeLimit | None = _bound(  # noqa: RUF009
        _POSITIONS,
        "where a new query starts: `earliest` (default of batches), `latest` (streams only, their "
        'default) or `{"topic": {"partition": offset}}` with -2 for earliest and -1 for latest; '
        "or `latest-100` (so many records before the end of each partition), `earliest+100`, "
        "`-10m` (also s, h, d: what was published since, by the stores' clocks), a time as "
        "`2026-01-01T00:00:00Z`, and JSON with any of these for topics or partitions. "
        "Partitions not named, and those that appear later, start at their first record, or, where "
        "`latest` or a time is said of all, at the first one that was written since",
    )
    ending_timestamp: OffsetRangeLimit | None = _bound(  # noqa: RUF009
        _TIME,
        "batches only, where to end: before the first record of each partition that was published "
        "at this time or later; at its end if there is none. Goes before endingOffsetsByTimestamp "
        "and endingOffsets",
    )
    ending_offsets_by_timestamp: OffsetRangeLimit | None = _bound(  # noqa: RUF009
        _BY_TIME,
        'batches only, the same by partition: `{"topic": {"partition": ms}}`; partitions not named '
        "are read to their end. Goes before endingOffsets",
    )
    ending_offsets: OffsetRangeLimit | None = _bound(  # noqa: RUF009
        _POSITIONS,
        "batches only, where to end (exclusive): `latest` (default), JSON with offsets or -1, or "
        "any form of startingOffsets",
    )

    @property
    def bounds(self) -> dict[str, OffsetRangeLimit]:
        """What is given of these options, by their names."""
        found = {camel(name): getattr(self, name) for name in (*self.STARTING, *self.ENDING)}
        return {name: limit for name, limit in found.items() if limit is not None}

    def without_bounds(self) -> Self:
        """The other options alone."""
        bounds: dict[str, Any] = dict.fromkeys((*self.STARTING, *self.ENDING))
        return dataclasses.replace(self, **bounds)

    def starting(self, unnamed: Position) -> Bound:
        """Where the query starts; at ``unnamed`` unless an option says otherwise.

        What an option says of some partitions only leaves the others at their first record.
        """
        for name in self.STARTING:
            if limit := getattr(self, name):
                is_strict = self.starting_offsets_by_timestamp_strategy == ERROR
                fails = is_strict and name != "starting_offsets"
                return Bound(camel(name), limit, AT_EARLIEST, fails)
        return Bound("startingOffsets", OffsetRangeLimit(text=unnamed.base), unnamed)

    def ending(self) -> Bound:
        """Where a batch ends."""
        for name in self.ENDING:
            if limit := getattr(self, name):
                return Bound(camel(name), limit, AT_LATEST)
        return Bound("endingOffsets", OffsetRangeLimit(text=AT_LATEST.base), AT_LATEST)

    def unused_of_offsets(self) -> Iterator[tuple[str, str]]:
        """Which of these options say nothing beside the others, and why."""
        if self.starting_timestamp is None and self.starting_offsets_by_timestamp is None:
            why = "it is about startingTimestamp and startingOffsetsByTimestamp; give one of them"
            yield "starting_offsets_by_timestamp_strategy", why

    def check_bounds_of_batch(self) -> None:
        """Raises ConfigError where a batch could read nothing."""
        start, end = self.starting(AT_EARLIEST), self.ending()
        if start.everywhere == AT_LATEST:
            why = "a batch that starts at the latest offset reads nothing"
            raise ConfigError(start.option, start.limit.text, why)
        if AT_EARLIEST in end.limit.all:
            why = f"a batch that ends at the earliest offset ({EARLIEST_OFFSET}) reads nothing"
            raise ConfigError(end.option, end.limit.text, why)

    def for_stream(self) -> Self:
        """These options, if a streaming query can use them; raises ``ConfigError`` otherwise."""
        for name in self.ENDING:
            if limit := getattr(self, name):
                raise ConfigError(camel(name), limit.text, "is for batch queries only")
        return self


DEFAULT_BYTES: Final = 4 << 30
"""What a micro-batch takes unless options say otherwise.  A topic's whole past in one batch takes
hours without a checkpoint, and shuffles that fill disks.  So much takes a laptop most of a minute,
and a hundred cores seconds, beside which the 0.1 to 0.5 s that a batch costs Spark are little."""


@dataclasses.dataclass(frozen=True)
class TriggerOptions(Options):
    """How much a micro-batch takes, and when; streams only."""

    RENAME: ClassVar[Callable[[str], str]] = staticmethod(camel)

    max_offsets_per_trigger: int | None = option(
        None,
        "streams only, the most records in a micro-batch, shared among the partitions in "
        "proportion to what each has waiting",
        kind="int",
        parse=parse_int,
        minimum=1,
        unit="records",
    )
    max_bytes_per_trigger: int | None = option(
        None,
        "streams only, about the most bytes in a micro-batch, shared in the same way: a number, a "
        f"size as `512m` or `4g`, or `{UNLIMITED}`; {DEFAULT_BYTES} (4g) when neither this nor "
        "maxOffsetsPerTrigger is given. Stores tell the size of records by samples of what is "
        "waiting",
        kind=f"int, size or {UNLIMITED}",
        parse=parse_size,
        minimum=1,
        unit="bytes",
    )
    min_offsets_per_trigger: int | None = option(
        None,
        "streams only, wait with a micro-batch until so many records are there, or maxTriggerDelay "
        "has passed since the last one; not with `availableNow`, which reads what there is",
        kind="int",
        parse=parse_int,
        minimum=1,
        unit="records",
    )
    max_trigger_delay: int = option(
        900_000,
        "the longest wait for minOffsetsPerTrigger while there are records: a time as `500ms`, "
        "`30s`, `15m`, `2h`, or a number of milliseconds",
        kind="time",
        parse=parse_duration_ms,
        unit="ms",
    )

    def check_trigger(self) -> None:
        """Raises ConfigError where no micro-batch could have as many records as it must."""
        least, most = self.min_offsets_per_trigger, self.max_offsets_per_trigger
        if least is not None and most is not None and least > most:
            why = f"must not be above maxOffsetsPerTrigger, which is {most}"
            raise ConfigError("minOffsetsPerTrigger", least, why)

    @property
    def trigger_bytes(self) -> int:
        """The most bytes in a micro-batch."""
        if self.max_bytes_per_trigger is not None:
            return self.max_bytes_per_trigger
        return DEFAULT_BYTES if self.max_offsets_per_trigger is None else UNLIMITED_BYTES

    @property
    def is_limited_by_default(self) -> bool:
        """Whether no option says how much a micro-batch takes."""
        return self.max_bytes_per_trigger is None and self.max_offsets_per_trigger is None

    def unused_of_trigger(self, *, batch: bool) -> Iterator[tuple[str, str]]:
        """Which of these options say nothing to a batch, or to a stream as it is, and why."""
        if batch:
            for each in dataclasses.fields(TriggerOptions):
                yield each.name, "a batch has no trigger"
        elif self.min_offsets_per_trigger is None:
            yield "max_trigger_delay", "no batch waits without minOffsetsPerTrigger; give it, too"


FAILFAST: Final = "FAILFAST"
PERMISSIVE: Final = "PERMISSIVE"
DROPMALFORMED: Final = "DROPMALFORMED"
MODES: Final = (FAILFAST, PERMISSIVE, DROPMALFORMED)

DESCRIPTOR_SETS: Final = (".desc", ".pb", ".binpb", ".protoset")
"""Ends of the names of files with descriptor sets."""


def parse_mode(value: Any) -> str:
    """A word in capitals, as Spark's users write it."""
    return parse_word(value).upper()


def parse_value_schema(value: Any) -> str:
    """A schema, which is read from a file where its name is given: octets in base64."""
    text = parse_str(value).strip()
    is_text = text.endswith(".avsc")
    if not (is_text or text.endswith(DESCRIPTOR_SETS)):
        return text
    try:
        octets = Path(text).read_bytes()
        return octets.decode() if is_text else base64.b64encode(octets).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"cannot be read: {error}") from None


@dataclasses.dataclass(frozen=True)
class ValueOptions(Options):
    """What both sides need to know of values."""

    RENAME: ClassVar[Callable[[str], str]] = staticmethod(camel)
    NEEDS_SCHEMA: ClassVar[bool] = True

    value_format: str = option(
        BYTES,
        "what values are, and column `value` with them: `bytes` are binary, or a string that is "
        "written; `string` is text; `json` is a struct with the columns of valueSchema, one object "
        "in each value; `arrow` is an array of such structs, one stream of Arrow's IPC format in "
        "each value; `avro` is a struct, one record of the Avro schema valueSchema in each value; "
        "`protobuf` is a struct, one message messageName in each value (docs/typed_values.md)",
        choices=FORMATS,
        parse=parse_word,
    )
    value_schema: str = option(
        "",
        "the columns of values, `id BIGINT, tags ARRAY<INT>`; for `avro` an Avro schema in JSON, "
        "or a file FILE.avsc with one; for `protobuf` a file FILE.desc with a descriptor set, or "
        "that in base64. The driver reads the file",
        kind="DDL, JSON or file",
        parse=parse_value_schema,
    )
    message_name: str = option(
        "",
        "for `protobuf`, which message of the descriptor set a value is, as `from_protobuf` takes "
        "it: `package.Message`, or `Message` where only one is called so",
        kind="name",
    )

    def check_values(self) -> None:
        """Raises ``ConfigError`` where these options do not fit together."""
        typed = self.value_format in TYPED
        if self.value_schema and not typed:
            why = f"is for valueFormat = {' or '.join(TYPED)}, not {self.value_format}"
            raise ConfigError("valueSchema", self.value_schema, why)
        if typed and not self.value_schema and self.NEEDS_SCHEMA:
            why = "needs the columns of values: name them with option valueSchema"
            raise ConfigError("valueFormat", self.value_format, why)
        is_protobuf = self.value_format == PROTOBUF
        if self.message_name and not is_protobuf:
            why = f"is for valueFormat = {PROTOBUF}, not {self.value_format}"
            raise ConfigError("messageName", self.message_name, why)
        if is_protobuf and self.value_schema and not self.message_name:
            why = f"is needed with valueFormat = {PROTOBUF}: name the message of values"
            raise ConfigError("messageName", self.message_name, why)
        try:
            self.codec()
        except ConfigError:
            raise
        except ValueError as error:
            raise ConfigError("valueSchema", self.value_schema, str(error)) from None

    def codec(self) -> Codec | None:
        """What decodes and encodes values; None where they are bytes, or no schema is given.

        Raises:
            ConfigError: the format needs a package that is not installed here.
            ValueError: the schema is wrong.
        """
        if self.value_format in TYPED and not self.value_schema:
            return None
        try:
            return codecs.codec_of(self.value_format, self.value_schema, self.message_name)
        except ImportError as error:
            raise ConfigError("valueFormat", self.value_format, str(error)) from None

    @property
    def value_kind(self) -> types.DataType:
        """The type of column ``value``."""
        codec = self.codec()
        return types.BinaryType() if codec is None else codec.kind


@dataclasses.dataclass(frozen=True)
class ReadValueOptions(ValueOptions):
    """What reading needs to know more."""

    mode: str = option(
        FAILFAST,
        "what becomes of a value that is not of valueFormat and its schema: `FAILFAST` fails the "
        "query and says which one; `PERMISSIVE` gives a null, and has columns `_error` (why) and "
        "`_corrupt_record` (the value); `DROPMALFORMED` leaves the record out, and warns",
        choices=MODES,
        parse=parse_mode,
    )

    @property
    def keeps_bad(self) -> bool:
        """Whether there are columns for bad values."""
        return self.mode == PERMISSIVE

    def check_values(self) -> None:
        """Raises ``ConfigError`` where these options do not fit together."""
        super().check_values()
        if self.value_format == BYTES and self.mode != FAILFAST:
            raise ConfigError("mode", self.mode, "needs valueFormat: no bytes are bad ones")


AUTO: Final = "auto"
LOCAL: Final = "local"
FLIGHT: Final = "flight"
MESH: Final = "mesh"
FETCH: Final = (AUTO, LOCAL, FLIGHT, MESH)

RECORDS_PER_TASK: Final = 2_500_000
"""Large partitions are cut into tasks of this size unless options say otherwise: half a second's
work or more, beside which the 70 ms that a task costs Spark are little (measured: 10 million
records take a third longer in 20 tasks than in 4), and small enough to keep all cores busy.  A
partition is all that one producer has written, and there may be only one."""

EXACTLY_ONCE: Final = "exactly-once"
AT_LEAST_ONCE: Final = "at-least-once"
DELIVERY: Final = (EXACTLY_ONCE, AT_LEAST_ONCE)

BATCH: Final = "batch"

COUNT_BITS: Final = 14
"""Of the version that stores keep of a transaction with ``txnVersion``: to how many partitions that
was written."""

MAX_TXN_VERSION: Final = (1 << 63 - COUNT_BITS) - 1


def _count(meaning: str, unit: str) -> int | None:
    """Declares an option that is a number of 1 or more, or not given."""
    return option(None, meaning, kind="int", parse=parse_int, minimum=1, unit=unit)


@dataclasses.dataclass(frozen=True)
class SourceOptions(TriggerOptions, OffsetOptions, FilterOptions, ReadValueOptions, SparkOptions):
    """Reading: options of batch and streaming queries."""

    USE = "reading"
    NAMES_TOPIC = "subscribe"
    subscribe: tuple[str, ...] = option(
        (), "topics to read", kind="list with commas", parse=values.parse_names
    )
    subscribe_pattern: str = option(
        "",
        "topics to read: those that match as a whole, as column `topic` shows them",
        kind="regex",
        parse=values.parse_pattern,
    )
    assign: frozenset[TopicPartition] = option(
        frozenset(),
        'partitions to read: `{"topic": ["partition", ...]}`',
        kind="JSON",
        parse=values.parse_assign,
    )
    metadata: str = option(
        "",
        "batches only, what to read in place of records: a table of what is known of topics, "
        "partitions, stores, queries or their lag (docs/spark.md has the columns); subscribe, "
        "subscribePattern or assign narrow it, and may be left out",
        kind=" or ".join(KINDS),
        choices=KINDS,
        parse=values.parse_word,
    )
    min_partitions: int | None = _count(
        "split large partitions until there are about this many tasks; small ones share tasks as "
        "long as so many are left, or 16 when this is not given",
        "tasks",
    )
    max_records_per_partition: int | None = _count(
        "split partitions so that no task reads more; "
        f"{RECORDS_PER_TASK} when neither this nor minPartitions is given",
        "records",
    )
    fetch: str = option(
        AUTO,
        "how executors get the records: `local` reads the file of a store on their own machine, "
        "`flight` reads from stores by Arrow Flight, `mesh` fetches from any node that has them; "
        "`auto` takes the first of these that is possible, and the next one when it fails",
        choices=FETCH,
        parse=values.parse_word,
    )
    archive: str = option(
        "",
        "a directory with an archive (docs/archive.md), at the same path on the driver and the "
        "executors: what it has and no store has any more is read from there, as part of the topic",
        kind="directory",
        parse=values.parse_directory,
    )
    include_headers: bool = option(False, "have a column `headers`")
    fail_on_data_loss: bool = option(
        True,
        "fail when records are lost before they were read, once that has been so for "
        "fetchTimeoutMs; else warn of each loss and go on without them. docs/source.md has the "
        "conditions, and what to do about each",
    )
    fail_on_missing_topic: bool = option(
        True,
        "fail when no store has a topic or partition that is named: batches, streams that end by "
        "themselves, and option assign; other streams, and all with false, read it as empty until "
        "it is there, and say so",
    )
    query_name: str = option(
        "",
        "streams only, a name under which the query reports how far it is: `dafka lag` and option "
        "metadata tell then how far it is behind. Without it nothing is reported",
        kind="name",
    )
    progress_topic: str = option(
        QUERIES_TOPIC,
        f"where queries report how far they are; begins with `{INTERNAL}`, so that no pattern "
        "matches it",
        kind="topic",
        parse=values.parse_internal_topic,
    )
    min_stores: int | None = option(
        None,
        "fail unless so many stores answer when a batch is planned or a stream begins, or `all` "
        "that are known; else each that is known and away is named in a warning",
        kind="int or all",
        parse=parse_min_stores,
    )
    fetch_timeout_ms: int = option(
        60_000, "the longest wait for a store without progress", minimum=1, unit="ms"
    )
    # A store's block is a batch as it is, neither cut nor copied.  Measured with 100-byte values:
    # 10,000 rows a batch gave 3 million rows/s, 50,000 gave 4 to 6.
    max_records_per_batch: int = option(
        MAX_BATCH_RECORDS, "rows in one Arrow batch", minimum=1, maximum=1_000_000, unit="records"
    )
    max_bytes_per_batch: int = option(
        MAX_BATCH_BYTES,
        "values in one Arrow batch; a larger record has one to itself",
        minimum=1,
        maximum=1 << 30,
        unit="bytes",
    )

    def __post_init__(self) -> None:
        """Checks what concerns more than one option."""
        names = ("subscribe", "subscribe_pattern", "assign")
        choices = {camel(name): getattr(self, name) for name in names}
        chosen = [name for name in choices if choices[name]]
        if self.metadata:
            self._check_metadata()
        self.check_values()
        if len(chosen) > 1 or not (chosen or self.metadata):
            name = chosen[1] if chosen else "subscribe"
            why = f"not with {' and '.join(chosen)}" if chosen else _NO_TABLE_OPTIONS
            exactly = "name what to read with exactly one of subscribe, subscribePattern and assign"
            raise ConfigError(name, values.as_written(choices[name]), f"{exactly}, {why}")
        if self.include_headers and not self.opens:
            why = "leaves contents as they are, there are no headers; leave out includeHeaders"
            raise ConfigError("envelope", self.envelope, why)
        if self.stores and self.fetch == MESH:
            raise ConfigError("fetch", MESH, "reads from the mesh; leave it out, or option stores")
        self.check_trigger()
        for name, limit in self.bounds.items():
            unread = [tp for tp in limit.partitions if not self.selection.has(tp)]
            topics = [topic for topic in limit.topics if not self.selection.has_of(topic)]
            for what, wrong in (("partition", unread), ("topic", [(topic,) for topic in topics])):
                if wrong:
                    why = (
                        f"names a {what} that this query does not read; compare it with "
                        "subscribe, subscribePattern or assign"
                    )
                    raise ConfigError(name, "/".join(map(escape, wrong[0])), why)

    @property
    def selection(self) -> TopicSelection:
        """What to read."""
        pattern = self.subscribe_pattern
        if self.metadata and not (self.subscribe or self.assign):
            pattern = pattern or EVERY_TOPIC
        return TopicSelection(frozenset(self.subscribe), pattern, self.assign)

    @property
    def fetch_timeout_s(self) -> float:
        """``fetchTimeoutMs`` in seconds."""
        return self.fetch_timeout_ms / 1000

    def _check_metadata(self) -> None:
        """Raises ``ConfigError`` for an option that says which records to read, or how."""
        own = {"metadata", "subscribe", "subscribe_pattern", "assign", "fetch", "fetch_timeout_ms"}
        own |= {"fail_on_missing_topic", "min_stores", "progress_topic"}
        shared = {each.name for each in dataclasses.fields(SparkOptions)}
        for each in dataclasses.fields(self):
            value = getattr(self, each.name)
            if each.name not in own | shared and value != each.default:
                why = "is about records; leave it out, or option metadata"
                shown = values.as_written(getattr(value, "text", value))
                raise ConfigError(camel(each.name), shown, why)

    def for_batch(self) -> Self:
        """These options, if a batch query can use them; raises ``ConfigError`` otherwise."""
        self.check_bounds_of_batch()
        self._warn_of_unused(batch=True)
        return self

    def for_stream(self) -> Self:
        """These options, if a streaming query can use them; raises ``ConfigError`` otherwise."""
        if self.metadata:
            raise ConfigError("metadata", self.metadata, "is for batch queries only")
        options = super().for_stream()
        self._warn_of_unused(batch=False)
        return options

    def _warn_of_unused(self, *, batch: bool) -> None:
        """Names what is given and says nothing.

        It fails no query, as with Kafka's: one function may make the options of several.
        """
        unused = [*self.unused_of_trigger(batch=batch), *self.unused_of_offsets()]
        unused += self.unused_of_filters(batch=batch)
        if batch:
            unused.append(("query_name", "a batch reports nothing"))
        if not (self.query_name or self.metadata):
            unused.append(("progress_topic", "only a query with option queryName reports there"))
        for name, why in unused:
            if (value := getattr(self, name)) != getattr(type(self), name):
                _log.warning("option %s = %s is ignored: %s", camel(name), value, why)


_NO_TABLE_OPTIONS: Final = (
    "none is given (Spark does not hand a table's OPTIONS to sources in Python when CREATE TABLE "
    "lists columns: leave them out)"
)


@dataclasses.dataclass(frozen=True)
class SinkOptions(ValueOptions, SparkOptions):
    """Writing: options of batch and streaming queries."""

    USE = "writing"
    NAMES_TOPIC = "topic"
    NODES = (nodes.ReaderOptions, nodes.ProducerOptions)
    NEEDS_SCHEMA = False  # the rows have one
    ALLOWED = frozenset({"checkpointlocation", "queryname"})
    topic: str = option(
        "", "topic of every row; without it column `topic` says each row's", parse=parse_topic
    )
    delivery: str = option(
        EXACTLY_ONCE,
        "`exactly-once`: each row of a micro-batch is in its topic once, however often it is tried "
        "again, and the rows of a batch write appear all at once; needs a store with Arrow Flight. "
        "`at-least-once`: what is tried again is written again; stores of any kind will do",
        choices=DELIVERY,
        parse=values.parse_word,
    )
    acks: int | None = option(
        None,
        "stores that must have a row on disk before its task (with a batch write its job) "
        "succeeds; `all`: every store with Arrow Flight that is reachable then, one at least. "
        "Without it `all` with exactly-once, and 1 with at-least-once",
        kind="int or all",
        parse=values.parse_acks,
        unit="stores",
    )
    commit: str = option(
        BATCH,
        "with exactly-once all rows of a micro-batch, or of a batch write, appear at once, in all "
        "partitions and topics of the store that takes them. No other value is left",
        choices=(BATCH,),
        parse=values.parse_commit,
    )
    audit: bool = option(
        False,
        "streaming queries only, note in topic `__dafka.audit` where the rows of each micro-batch "
        "are, their digest, and that of the source's offsets, for `dafka checkpoint verify` "
        "(docs/checkpoints.md)",
    )
    writer_id: str = option(
        "",
        "batch writes only: a name of the application, whose writes all go on in the same "
        "partitions, one for each topic and task number; without it each write makes partitions of "
        "its own. Where two jobs write with one name at the same time, one fails, or both",
        kind="name",
    )
    txn_app_id: str = option(
        "",
        "batch writes only, with `txnVersion`: a name of the application, of which each version is "
        "written to a topic once; also that of its partitions, as `writerId`",
        kind="name",
    )
    txn_version: int | None = option(
        None,
        "batch writes only, with `txnAppId`: a number that grows with each write of the "
        "application; a write whose number is not greater than the last one's is skipped",
        kind="int",
        parse=parse_int,
        minimum=0,
        maximum=MAX_TXN_VERSION,
    )
    allow_control_characters: bool = option(
        False,
        "write to topics whose names have control characters, or octets that are not UTF-8 "
        "(reading never needs it)",
    )
    delivery_timeout_ms: int = option(
        120_000,
        "the longest wait for stores, and for the last acknowledgement of a task",
        minimum=1,
        unit="ms",
    )

    def __post_init__(self) -> None:
        """Checks what concerns more than one option."""
        if why := self.why_not(self.topic):
            raise ConfigError("topic", escape(self.topic), why)
        if self.audit and not self.is_exact:
            raise ConfigError("audit", "true", f"needs delivery = {EXACTLY_ONCE}")
        self.check_values()
        self._check_transaction()

    def _check_transaction(self) -> None:
        name, version = self.txn_app_id, self.txn_version
        if version is None:
            if name:
                raise ConfigError("txnAppId", name, "is given with 'txnVersion' only: name both")
        elif not name:
            raise ConfigError("txnVersion", version, "is given with 'txnAppId' only: name both")
        elif self.writer_id:
            why = "names the application already; leave out writerId"
            raise ConfigError("txnAppId", name, why)
        elif not self.is_exact:
            why = f"a version is written once: it needs delivery = {EXACTLY_ONCE}"
            raise ConfigError("txnVersion", version, why)

    def why_not(self, topic: str) -> str:
        """Why rows cannot be written to a topic, if so."""
        allowed = self.allow_control_characters or is_plain(topic)
        return "" if allowed else NOT_PLAIN.format("allowControlCharacters")

    @classmethod
    def of_table(cls, kept: Mapping[str, str], given: Mapping[str, str]) -> Self:
        """See ``SparkOptions``; a table that reads one topic is written to that one."""
        topics = values.parse_names(kept["subscribe"]) if "subscribe" in kept else ()
        topic = {"topic": escape(topics[0])} if len(topics) == 1 else {}
        return super().of_table({**topic, **kept}, given)

    @property
    def is_exact(self) -> bool:
        """Whether ``delivery`` is exactly-once."""
        return self.delivery == EXACTLY_ONCE

    @property
    def acks_needed(self) -> int:
        """``acks``, or what ``delivery`` needs: rows that one store alone has go with it."""
        if self.acks is not None:
            return self.acks
        return values.ALL_STORES if self.is_exact else 1

    @property
    def delivery_timeout_s(self) -> float:
        """``deliveryTimeoutMs`` in seconds."""
        return self.delivery_timeout_ms / 1000
