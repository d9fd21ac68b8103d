"""Options of format ``dafka``, each declared once: name, type, default, unit and meaning.

The source takes ``SourceOptions``, the sink ``SinkOptions``; ``SparkOptions`` is what they share.
``KAFKA_OPTIONS`` are those of jobs that were written for Kafka. docs/options.md and
docs/from_kafka.md are generated from these declarations.
"""

# ruff: noqa: RUF009 -- ``option`` returns a dataclass field

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from enum import StrEnum
from fnmatch import fnmatchcase
from functools import partial
from typing import ClassVar, Final, NamedTuple, Self

from pyspark.sql import types

from dafka_core.config import node_options as nodes
from dafka_core.config.missing_stores import EVERY_STORE, parse_min_stores
from dafka_core.config.node_options import KeyFiles, keys_in
from dafka_core.config.options import DEFAULT_TOWER, Options, option, parse_int, unknown
from dafka_core.errors import HIDDEN, ConfigError
from dafka_core.flight.limits import MAX_BATCH_BYTES, MAX_BATCH_RECORDS
from dafka_core.flight.store_location import parse_locations
from dafka_core.model.envelope import AUTO as ENVELOPE_AUTO
from dafka_core.model.envelope import ENVELOPE, ENVELOPE_MEANING
from dafka_core.model.name_limits import nearest_name, parse_topic
from dafka_core.model.names import INTERNAL, NOT_PLAIN, QUERIES_TOPIC, escape, is_plain
from dafka_core.model.positions import AT_EARLIEST, AT_LATEST, LATEST, Position
from dafka_core.model.records import TopicPartition
from dafka_core.model.where import Where
from dafka_core.security.allowed_keys import own_permissions
from dafka_core.security.permissions import Permissions
from dafka_spark import option_types as values
from dafka_spark.formats import codecs
from dafka_spark.formats.codecs import BYTES, FORMATS, PROTOBUF, TYPED, Codec
from dafka_spark.metadata import KINDS
from dafka_spark.option_types import OffsetRangeLimit

_log = logging.getLogger("dafka_spark")


# -- options of the reader that joins the mesh for Spark -------------------------------------------

# They have a prefix, as ``dafka.peer_expiry_ms``, in any case and with or without underscores.

NODE_PREFIX: Final = "dafka."

SHARED_NAMES: Final = "tower", "host", "port", "acks", "allow_control_characters", "envelope"
"""Options of nodes that are options of format ``dafka`` themselves."""

NodeSettings = tuple[tuple[str, str], ...]  # names and values of nodes' options, sorted


def split_node_options(given: Mapping[str, str]) -> tuple[dict[str, str], NodeSettings]:
    """Split options into those of format ``dafka`` and those of the reader, which are checked."""
    own = [row.name for row in nodes.ReaderOptions.table() if row.name not in SHARED_NAMES]
    known = {_folded(name): name for name in (*SHARED_NAMES, *own)}
    others: dict[str, str] = {}
    settings: dict[str, str] = {}
    for name, value in given.items():
        if not name.lower().startswith(NODE_PREFIX):
            others[name] = value
            continue
        node_name = known.get(_folded(name[len(NODE_PREFIX) :]))
        if node_name is None:
            raise ConfigError(name, value, unknown(name, [NODE_PREFIX + each for each in own]))
        if node_name in SHARED_NAMES:
            raise ConfigError(name, value, f"is option {camel(node_name)!r} here")
        if node_name in settings:
            raise ConfigError(name, value, "is given in two spellings; leave one of them out")
        settings[node_name] = value
    try:
        # With a tower, because a reader without one reads DAFKA_TOWER.
        nodes.ReaderOptions.build({"tower": "localhost", **settings})
    except ConfigError as error:
        raise ConfigError(NODE_PREFIX + error.option, error.value, error.why) from None
    return others, tuple(sorted(settings.items()))


def _folded(name: str) -> str:
    return name.lower().replace("_", "")


class MeshAddress(NamedTuple):
    """The towers and the own address to join with, or the ``stores`` to use without a mesh."""

    tower: str
    host: str = nodes.AUTO_HOST
    port: str = "0"
    stores: tuple[str, ...] = ()
    node: NodeSettings = ()

    @property
    def name(self) -> str:
        """The key under which its known stores are remembered."""
        return ",".join(self.stores) or self.tower

    @property
    def keys(self) -> KeyFiles:
        """The files of the key with which this process and the stores authenticate."""
        return keys_in(dict(self.node))

    @property
    def owner(self) -> Permissions:
        """The owner of the nodes and partitions, by the key; anybody without a key."""
        return own_permissions(nodes.ReaderOptions.build({"tower": "localhost", **dict(self.node)}))


def camel(name: str) -> str:
    """Return a field's name as Spark's users write it: ``fetchTimeoutMs``."""
    first, *others = name.split("_")
    return first + "".join(map(str.title, others))


# -- types of options, and those that source and sink share ----------------------------------------


def _word(default: str, choices: Sequence[str], meaning: str) -> str:
    """Declare an option for one of several words, in any case."""
    parse = partial(values.parse_word, {each.lower(): each for each in choices})
    return option(default, meaning, choices=choices, parse=parse)


_name = partial(option, "", kind="name")
_pattern = partial(option, "", kind="regex", parse=values.parse_pattern)
_condition = partial(option, None, kind="condition", parse=Where.parse)
_directory = partial(option, "", kind="directory", parse=values.parse_directory)
_schema = partial(option, "", kind="DDL, JSON or file", parse=values.parse_value_schema)
_stores = partial(option, None, kind="int or all", parse=parse_min_stores)
_count = partial(option, None, kind="int", parse=parse_int, minimum=1)
_records = partial(_count, unit="records")
_size = partial(option, None, kind="int, size or unlimited", parse=values.parse_size, minimum=1)
_timeout = partial(option, minimum=1, unit="ms")
_duration = partial(option, kind="time", parse=values.parse_duration_ms, unit="ms")
_time = partial(option, None, kind="ms or time", parse=values.parse_timestamp)
_times = partial(option, None, kind="JSON", parse=values.parse_offsets_by_timestamp)
_offsets = partial(option, None, kind="word, time or JSON", parse=values.parse_offset_range_limit)


@dataclasses.dataclass(frozen=True)
class SparkOptions(Options):
    """Options that source and sink share: the cluster and the format of values."""

    RENAME: ClassVar[Callable[[str], str]] = staticmethod(camel)
    ALLOWED: ClassVar[frozenset[str]] = frozenset()
    """Options that Spark 4.3 adds itself, in lower case."""
    USE: ClassVar[str] = ""
    NAMES_TOPIC: ClassVar[str] = ""
    NEEDS_SCHEMA: ClassVar[bool] = True

    value_format: str = _word(
        BYTES,
        FORMATS,
        "type of column `value` (docs/spark.md#typed-values)",
    )
    value_schema: str = _schema(
        "columns of values, as `id BIGINT, tags ARRAY<INT>`; for `avro` a schema in JSON or "
        "FILE.avsc; for `protobuf` a descriptor set in base64 or FILE.desc. The driver reads the "
        "file"
    )
    message_name: str = _name(
        "for `protobuf`: the message of the descriptor set, `package.Message`, or `Message` if "
        "that is unique"
    )
    tower: str = option(
        DEFAULT_TOWER,
        "towers, separated by commas; without it DAFKA_TOWER of the driver's environment",
        kind=nodes.TOWERS,
        parse=values.parse_tower,
    )
    host: str = option(
        nodes.AUTO_HOST,
        "address at which stores reach the driver and the executors; `auto`: that from which "
        "each process reaches the towers",
        parse=nodes.parse_host,
    )
    port: str = option(
        "0",
        "port of each Python process for stores; 0 lets the system choose",
        kind=nodes.PORTS,
        parse=nodes.parse_ports,
    )
    stores: tuple[str, ...] = option(
        (),
        "the only stores to use, by Arrow Flight and without towers, separated by commas. "
        "Nothing connects to Spark then",
        kind="grpc://HOST:PORT",
        parse=parse_locations,
    )
    envelope: str = _word(ENVELOPE_AUTO, ENVELOPE, ENVELOPE_MEANING)
    node: NodeSettings = ()  # options of nodes, from those with prefix ``dafka.``

    @property
    def opens_envelopes(self) -> bool:
        """True if envelopes hold keys, headers and null values."""
        return self.envelope == ENVELOPE_AUTO

    @property
    def mesh_address(self) -> MeshAddress:
        """The address of the mesh, or the stores to use without one."""
        return MeshAddress(self.tower, self.host, self.port, self.stores, self.node)

    @property
    def keys(self) -> KeyFiles:
        """The files of the key with which this process and the stores authenticate."""
        return self.mesh_address.keys

    def codec(self) -> Codec | None:
        """Return the codec of values; None for bytes, or if the rows bring the schema."""
        if self.value_format in TYPED and not self.value_schema:
            return None
        try:
            return codecs.codec_of(self.value_format, self.value_schema, self.message_name)
        except ImportError as error:
            raise self.error("value_format", str(error)) from None
        except ValueError as error:
            raise self.error("value_schema", str(error)) from None

    @property
    def value_type(self) -> types.DataType:
        """The type of column ``value``."""
        codec = self.codec()
        return types.BinaryType() if codec is None else codec.kind

    def check_values(self) -> None:
        """Raise ``ConfigError`` if these options contradict each other."""
        is_typed, is_protobuf = self.value_format in TYPED, self.value_format == PROTOBUF
        if self.value_schema and not is_typed:
            why = f"is for valueFormat = {' or '.join(TYPED)}, not {self.value_format}"
            raise self.error("value_schema", why)
        if is_typed and not self.value_schema and self.NEEDS_SCHEMA:
            raise self.error("value_format", "needs a schema: name it with option valueSchema")
        if self.message_name and not is_protobuf:
            raise self.error("message_name", f"is for valueFormat = {PROTOBUF}")
        if is_protobuf and self.value_schema and not self.message_name:
            why = f"is required with valueFormat = {PROTOBUF}: name the message of values"
            raise self.error("message_name", why)
        self.codec()

    def error(self, field: str, why: str) -> ConfigError:
        """Return an error that names an option and shows its value."""
        return ConfigError(camel(field), values.as_written(getattr(self, field)), why)

    @classmethod
    def of(cls, given: Mapping[str, str]) -> Self:
        """Parse the options that Spark passes; their names match in any case."""
        names = {row.name.lower(): row.name for row in cls.table()}
        given, node = split_node_options(translate_kafka_options(given, names))
        known: dict[str, object] = {}
        for name, value in given.items():
            lower = name.lower()
            if lower in names:
                known[names[lower]] = value
            elif lower not in cls.ALLOWED:
                raise ConfigError(name, value, cls._unknown(lower, list(names.values())))
        # The driver reads its environment here: executors have another.
        if "tower" not in known:
            known["tower"] = nodes.towers_of_environment()
        if not any(name in KeyFiles._fields for name, _ in node):
            node = tuple(sorted({**dict(node), **nodes.keys_of_environment()}.items()))
        options = dataclasses.replace(cls.build(known), node=node)
        for name, value in node if options.stores else ():
            if name not in KeyFiles._fields:
                why = "has no effect with option stores, which joins no mesh; leave one of them out"
                raise ConfigError(NODE_PREFIX + name, value, why)
        return options

    @classmethod
    def of_table(cls, kept: Mapping[str, str], given: Mapping[str, str]) -> Self:
        """Parse the options of a query of a SQL table, which keeps ``kept`` for both sides."""
        own = {row.name.lower() for row in cls.table()}
        other = {row.name.lower() for side in sides() for row in side.table()} - own
        kept = {name: value for name, value in kept.items() if name.lower() not in other}
        return cls.of({**kept, **given})

    @classmethod
    def _unknown(cls, name: str, known: list[str]) -> str:
        for other in sides():
            if name in {row.name.lower() for row in other.table()}:
                return f"is an option of {other.USE}; {cls.USE} takes {', '.join(sorted(known))}"
        if name in ("delivery", "commit"):
            return "each batch is written exactly once, in one step: leave the option out"
        if name == "path":
            return f"format 'dafka' has no path; name the topic with option {cls.NAMES_TOPIC!r}"
        return unknown(name, known)


def sides() -> list[type[SparkOptions]]:
    """Return the options of the source and of the sink."""
    return [SourceOptions, SinkOptions]


def creates_table(given: Mapping[str, str]) -> bool:
    """Return whether ``CREATE TABLE`` passes these options: Spark adds the provider then."""
    return "provider" in given


def user_options(given: Mapping[str, str]) -> dict[str, str]:
    """Return the options that a user gave, without the table properties of ``CREATE TABLE``.

    Option ``a`` of a table is both ``a`` and ``option.a`` among these.
    """
    if not creates_table(given):
        return dict(given)
    prefix = "option."
    return {name.removeprefix(prefix): given[name] for name in given if name.startswith(prefix)}


class Bound(NamedTuple):
    """The start or the end of a query, and the option that sets it.

    ``default`` is the position of partitions that ``limit`` does not name.  With ``is_strict``,
    a partition without a record at or after a time fails the query.
    """

    option: str
    limit: OffsetRangeLimit
    default: Position
    is_strict: bool = False

    @property
    def everywhere(self) -> Position | None:
        """The position of all partitions, if they share one."""
        named = self.limit.topics or self.limit.partitions
        return None if named else self.limit.everywhere or self.default


# -- options of the source -------------------------------------------------------------------------

FAIL_UNMATCHED: Final = "error"
AUTO: Final = "auto"
LOCAL: Final = "local"
FLIGHT: Final = "flight"
MESH: Final = "mesh"
FETCH: Final = (AUTO, LOCAL, FLIGHT, MESH)

FAILFAST: Final = "FAILFAST"
PERMISSIVE: Final = "PERMISSIVE"
DROPMALFORMED: Final = "DROPMALFORMED"
MODES: Final = (FAILFAST, PERMISSIVE, DROPMALFORMED)

DEFAULT_BYTES: Final = 4 << 30
"""The default of maxBytesPerTrigger.  A topic's whole past in one batch takes hours without a
checkpoint, and shuffles that fill disks.  A laptop reads this size in a minute, and a hundred cores
in a few seconds; the 0.1 to 0.5 s that a batch costs Spark are little beside it."""

RECORDS_PER_TASK: Final = 2_500_000
"""The default of maxRecordsPerPartition: half a second of work or more, beside which the 70 ms that
a task costs Spark are little (measured: 10 million records take a third longer in 20 tasks than in
4), and small enough to keep all cores busy.  A topic may have one partition only."""

COUNT_BITS: Final = 14
"""The low bits of a stored transaction version: the number of partitions that it was written to."""

MAX_TXN_VERSION: Final = (1 << 63 - COUNT_BITS) - 1

_NO_TABLE_OPTIONS: Final = (
    "none is given (Spark does not pass a table's OPTIONS to Python sources when CREATE TABLE "
    "lists columns: leave the columns out)"
)


@dataclasses.dataclass(frozen=True)
class SourceOptions(SparkOptions):
    """Options of batch and streaming queries that read."""

    USE = "reading"
    NAMES_TOPIC = "subscribe"
    STARTING: ClassVar = ("starting_timestamp", "starting_offsets_by_timestamp", "starting_offsets")
    ENDING: ClassVar = ("ending_timestamp", "ending_offsets_by_timestamp", "ending_offsets")
    """Fields in the order of their precedence, which is Kafka's."""

    # Topics and records
    subscribe: tuple[str, ...] = option(
        (), "topics to read, separated by commas", kind="list", parse=values.parse_names
    )
    subscribe_pattern: str = _pattern("topics to read: a regular expression for the whole name")
    assign: frozenset[TopicPartition] = option(
        frozenset(),
        'partitions to read: `{"topic": ["partition", ...]}`',
        kind="JSON",
        parse=values.parse_assign,
    )
    metadata: str = _word(
        "",
        KINDS,
        "for batches: read a table about these instead of records (docs/spark.md)",
    )
    where: Where | None = _condition(
        "read only records that match, as `key = 'a' AND offset >= 5` (docs/spark.md). Limits of "
        "batches also count the others"
    )
    archive: str = _directory(
        "directory of an archive (docs/retention.md), at the same path on driver and executors: "
        "read records from it that no store has any more"
    )
    include_headers: bool = option(False, "add column `headers`")

    # Start and end
    starting_timestamp: OffsetRangeLimit | None = _time(
        "where a new query starts: at the first record of each partition at or after this time, "
        "in milliseconds since 1970 or as `2026-01-01T00:00:00Z`. Takes precedence over the next "
        "ones",
    )
    starting_offsets_by_timestamp: OffsetRangeLimit | None = _times(
        'where a new query starts, by partition: `{"topic": {"partition": ms}}`. Others start at '
        "their first record. Takes precedence over startingOffsets",
    )
    starting_offsets_by_timestamp_strategy: str = _word(
        LATEST,
        (FAIL_UNMATCHED, LATEST),
        "for a partition without a record at or after the starting time: `latest` starts at its "
        "end, `error` fails the query",
    )
    starting_offsets: OffsetRangeLimit | None = _offsets(
        "where a new query starts: `earliest` (default of batches), `latest` (of streams, for "
        'these only), `{"topic": {"partition": offset}}` with -2 for earliest and -1 for latest, '
        "`latest-100`, `earliest+100`, `-10m`, `2026-01-01T00:00:00Z`, or JSON with these "
        "(docs/spark.md)",
    )
    ending_timestamp: OffsetRangeLimit | None = _time(
        "for batches: end before the first record of each partition at or after this time, or at "
        "the partition's end. Takes precedence over the next ones",
    )
    ending_offsets_by_timestamp: OffsetRangeLimit | None = _times(
        'for batches: where to end, by partition: `{"topic": {"partition": ms}}`. Others are '
        "read to their end. Takes precedence over endingOffsets",
    )
    ending_offsets: OffsetRangeLimit | None = _offsets(
        "for batches: where to end (exclusive): `latest` (default), JSON with offsets or -1, or "
        "any form of startingOffsets",
    )

    # Batches and tasks
    max_offsets_per_trigger: int | None = _records(
        "for streams: maximum number of records in a micro-batch, shared in proportion to "
        "waiting records"
    )
    max_bytes_per_trigger: int | None = _size(
        "for streams: approximate maximum size of a micro-batch, as `512m` or `unlimited`. "
        f"Default: {DEFAULT_BYTES} (4g), or no limit with maxOffsetsPerTrigger",
        unit="bytes",
    )
    min_offsets_per_trigger: int | None = _records(
        "for streams: wait for this number of records, or for maxTriggerDelay since the last "
        "micro-batch. `availableNow` ignores it"
    )
    max_trigger_delay: int = _duration(
        900_000,
        "for streams: the longest wait for minOffsetsPerTrigger, as `500ms`, `30s`, `15m`, `2h`, "
        "or a number of milliseconds",
    )
    min_partitions: int | None = _count(
        "approximate minimum number of tasks: large partitions are split, and small ones share "
        "tasks while this number remains (default 16)",
        unit="tasks",
    )
    max_records_per_partition: int | None = _records(
        f"maximum number of records of a task. Default: {RECORDS_PER_TASK}, or no limit with "
        "minPartitions"
    )

    # Fetching
    fetch: str = _word(
        AUTO,
        FETCH,
        "how executors get records: `local`, the file of a store on their machine; `flight`, "
        "stores by Arrow Flight; `mesh`, any node that has them; `auto`, the first of these that "
        "works",
    )
    fetch_timeout_ms: int = _timeout(60_000, "the longest wait for a store without progress")
    # A store's block is a batch as it is, neither cut nor copied.  Measured with 100-byte values:
    # 10,000 rows a batch gave 3 million rows/s, 50,000 gave 4 to 6.
    max_records_per_batch: int = option(
        MAX_BATCH_RECORDS, "rows in an Arrow batch", minimum=1, maximum=1_000_000, unit="records"
    )
    max_bytes_per_batch: int = option(
        MAX_BATCH_BYTES,
        "values in an Arrow batch; a larger record has its own",
        minimum=1,
        maximum=1 << 30,
        unit="bytes",
    )

    # Values
    mode: str = _word(
        FAILFAST,
        MODES,
        "for values that do not match valueFormat and its schema: `FAILFAST` fails the query, "
        "`PERMISSIVE` returns null and adds columns `_error` (the reason) and `_corrupt_record` "
        "(the value), `DROPMALFORMED` skips the record",
    )

    # Loss
    fail_on_data_loss: bool = option(
        True,
        "fail if records are lost, after a wait of fetchTimeoutMs; otherwise log a warning and "
        "continue (docs/guarantees.md)",
    )
    fail_on_missing_topic: bool = option(
        True,
        "fail if no store has a named topic or partition: batches, streams that end by "
        "themselves, and option assign. Others, and all with false, log a warning and wait for it",
    )
    min_stores: int | None = _stores(
        "fail unless this number of stores, or `all` known ones, answer when a batch is planned "
        "or a stream starts. Without it a warning names those that do not"
    )

    # Progress reports
    query_name: str = _name(
        "for streams: the name under which the query reports its progress to `dafka lag`. "
        "Without it nothing is reported"
    )
    progress_topic: str = option(
        QUERIES_TOPIC,
        f"topic of progress reports; begins with `{INTERNAL}`, so that no pattern matches it",
        kind="topic",
        parse=values.parse_internal_topic,
    )

    def __post_init__(self) -> None:
        """Check the combinations of options."""
        if self.metadata:
            self._check_metadata()
        self._check_topics()
        self.check_values()
        if self.value_format == BYTES and self.mode != FAILFAST:
            raise self.error("mode", "needs valueFormat: any bytes are valid")
        if self.include_headers and not self.opens_envelopes:
            why = "leaves records as they are, without headers; leave out includeHeaders"
            raise self.error("envelope", why)
        if self.stores and self.fetch == MESH:
            raise self.error("fetch", "reads from the mesh; leave it out, or option stores")
        least, most = self.min_offsets_per_trigger, self.max_offsets_per_trigger
        if least is not None and most is not None and least > most:
            why = f"must not be above maxOffsetsPerTrigger, which is {most}"
            raise self.error("min_offsets_per_trigger", why)
        self._check_limits()

    def _check_topics(self) -> None:
        names = ("subscribe", "subscribe_pattern", "assign")
        chosen = [name for name in names if getattr(self, name)]
        if len(chosen) > 1 or not (chosen or self.metadata):
            why = "name what to read with exactly one of subscribe, subscribePattern and assign, "
            why += f"not with {' and '.join(map(camel, chosen))}" if chosen else _NO_TABLE_OPTIONS
            raise self.error(chosen[1] if chosen else "subscribe", why)

    def _check_metadata(self) -> None:
        allowed = {"metadata", "subscribe", "subscribe_pattern", "assign", "fetch", "node"}
        allowed |= {"fetch_timeout_ms", "fail_on_missing_topic", "min_stores", "progress_topic"}
        allowed |= {"tower", "host", "port", "stores", "envelope"}
        for name, value in vars(self).items():
            if name not in allowed and value != getattr(type(self), name):
                raise self.error(name, "is about records; leave it out, or option metadata")

    def _check_limits(self) -> None:
        reads = self.selection
        for name in (*self.STARTING, *self.ENDING):
            limit = getattr(self, name) or OffsetRangeLimit()
            unread = [str(tp) for tp in limit.partitions if not reads.has(tp)]
            unread += [f"topic {escape(t)!r}" for t in limit.topics if not reads.has_topic(t)]
            if unread:
                why = f"names {unread[0]}, which the query does not read; compare it with "
                raise self.error(name, why + "subscribe, subscribePattern or assign")

    def for_batch(self) -> Self:
        """Return these options if a batch query takes them; raise ``ConfigError`` otherwise."""
        start, end = self.starting(AT_EARLIEST), self.ending()
        if start.everywhere == AT_LATEST:
            why = "a batch that starts at the latest offset reads nothing"
            raise ConfigError(start.option, start.limit.text, why)
        if AT_EARLIEST in end.limit.all:
            why = "a batch that ends at the earliest offset (-2) reads nothing"
            raise ConfigError(end.option, end.limit.text, why)
        triggers = [name for name in vars(self) if "trigger" in name]
        unused = dict.fromkeys(triggers, "a batch has no trigger")
        self._warn_of_unused({**unused, "query_name": "a batch reports no progress"})
        return self

    def for_stream(self) -> Self:
        """Return these options if a stream takes them; raise ``ConfigError`` otherwise."""
        for name in ("metadata", *self.ENDING):
            if getattr(self, name):
                raise self.error(name, "is for batch queries only")
        unused = {"max_trigger_delay": "no batch waits without minOffsetsPerTrigger"}
        self._warn_of_unused(unused if self.min_offsets_per_trigger is None else {})
        return self

    def _warn_of_unused(self, unused: dict[str, str]) -> None:
        """Log options without effect; as with Kafka's, batches and streams may share options."""
        if self.starting_timestamp is None and self.starting_offsets_by_timestamp is None:
            why = "it is for startingTimestamp and startingOffsetsByTimestamp"
            unused["starting_offsets_by_timestamp_strategy"] = why
        if not (self.query_name or self.metadata):
            unused["progress_topic"] = "only a query with option queryName reports progress"
        for name, why in unused.items():
            if (value := getattr(self, name)) != getattr(type(self), name):
                _log.warning("option %s = %s is ignored: %s", camel(name), value, why)

    @property
    def selection(self) -> values.TopicSelection:
        """The partitions to read."""
        pattern = self.subscribe_pattern
        if self.metadata and not (self.subscribe or self.assign):
            pattern = pattern or values.EVERY_TOPIC
        return values.TopicSelection(frozenset(self.subscribe), pattern, self.assign)

    def starting(self, default: Position) -> Bound:
        """Return where the query starts, by default at ``default``.

        Partitions that an option does not name start at their first record.
        """
        name, limit = self._first_given(self.STARTING)
        if limit is None:
            return Bound(camel(name), OffsetRangeLimit(text=default.base), default)
        fails = self.starting_offsets_by_timestamp_strategy == FAIL_UNMATCHED
        return Bound(camel(name), limit, AT_EARLIEST, fails and name != "starting_offsets")

    def ending(self) -> Bound:
        """Return where a batch ends."""
        name, limit = self._first_given(self.ENDING)
        return Bound(camel(name), limit or OffsetRangeLimit(text=AT_LATEST.base), AT_LATEST)

    def _first_given(self, names: Sequence[str]) -> tuple[str, OffsetRangeLimit | None]:
        given = ((name, getattr(self, name)) for name in names)
        return next((each for each in given if each[1]), (names[-1], None))

    @property
    def max_trigger_bytes(self) -> int:
        """The maximum size of a micro-batch."""
        if self.max_bytes_per_trigger is not None:
            return self.max_bytes_per_trigger
        return DEFAULT_BYTES if self.max_offsets_per_trigger is None else values.UNLIMITED_BYTES

    @property
    def is_limited_by_default(self) -> bool:
        """True if no option limits a micro-batch."""
        return self.max_bytes_per_trigger is None and self.max_offsets_per_trigger is None

    @property
    def fetch_timeout_s(self) -> float:
        """``fetchTimeoutMs`` in seconds."""
        return self.fetch_timeout_ms / 1000


# -- options of the sink ---------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class SinkOptions(SparkOptions):
    """Options of batch and streaming queries that write."""

    USE = "writing"
    NAMES_TOPIC = "topic"
    NEEDS_SCHEMA = False  # the rows have one
    ALLOWED = frozenset({"checkpointlocation", "queryname"})
    topic: str = option(
        "", "topic of every row; without it column `topic` names each row's", parse=parse_topic
    )
    acks: int | None = _stores(
        "stores that must have the rows on disk before a write succeeds; `all`, the default: "
        "every reachable store with Arrow Flight, at least one",
        unit="stores",
    )
    audit: bool = option(
        False,
        "for streams: record the offsets and digests of each micro-batch in topic "
        "`__dafka.audit`, for `dafka checkpoint verify` (docs/delivery.md)",
    )
    writer_id: str = _name(
        "for batch writes: a name whose writes continue the same partitions, one for each topic "
        "and task; without it each write creates its own. Concurrent jobs need different names"
    )
    txn_app_id: str = _name(
        "for batch writes, with `txnVersion`: an application that writes each version to a topic "
        "once; also names its partitions, as `writerId`"
    )
    txn_version: int | None = _count(
        "for batch writes, with `txnAppId`: a number that grows with each write. A write with "
        "the last number is compared with the committed rows, a lower one is refused",
        minimum=0,
        maximum=MAX_TXN_VERSION,
    )
    allow_control_characters: bool = option(
        False,
        "allow topics with control characters or bytes that are not UTF-8",
    )
    delivery_timeout_ms: int = _timeout(
        120_000, "the longest wait for stores, and for the last acknowledgement of a task"
    )

    def __post_init__(self) -> None:
        """Check the combinations of options."""
        if why := self.topic_error(self.topic):
            raise ConfigError("topic", escape(self.topic), why)
        self.check_values()
        self._check_transaction()

    def _check_transaction(self) -> None:
        name, version = self.txn_app_id, self.txn_version
        if version is None:
            if name:
                raise ConfigError("txnAppId", name, "needs option 'txnVersion', too")
        elif not name:
            raise ConfigError("txnVersion", version, "needs option 'txnAppId', too")
        elif self.writer_id:
            why = "names the application already; leave out writerId"
            raise ConfigError("txnAppId", name, why)

    def topic_error(self, topic: str) -> str:
        """Return why rows cannot be written to a topic, or an empty text."""
        allowed = self.allow_control_characters or is_plain(topic)
        return "" if allowed else NOT_PLAIN.format("allowControlCharacters")

    @classmethod
    def of_table(cls, kept: Mapping[str, str], given: Mapping[str, str]) -> Self:
        """See ``SparkOptions``; a table that reads one topic also writes to it."""
        topics = values.parse_names(kept["subscribe"]) if "subscribe" in kept else ()
        topic = {"topic": escape(topics[0])} if len(topics) == 1 else {}
        return super().of_table({**topic, **kept}, given)

    @property
    def acks_needed(self) -> int:
        """``acks``; by default all stores, as rows at one store alone are lost with it."""
        return EVERY_STORE if self.acks is None else self.acks

    @property
    def delivery_timeout_s(self) -> float:
        """``deliveryTimeoutMs`` in seconds."""
        return self.delivery_timeout_ms / 1000


# -- Kafka's options that format ``dafka`` does not have -------------------------------------------

# A job written for Kafka changes the format's name and the server's option and keeps the others:
# one with an equivalent becomes that option, one that tunes Kafka's clients is ignored, and any
# other is refused with a remedy.


class Decision(StrEnum):
    """The decision about an option."""

    MAPPED = "becomes"
    IGNORED = "ignored"
    REFUSED = "refused"


class Treatment(NamedTuple):
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


def _row(decision: Decision, why: str, *names: str, to: str = "") -> Treatment:
    return Treatment(decision, why, names, to)


_mapped = partial(_row, Decision.MAPPED)
_ignored = partial(_row, Decision.IGNORED)
_refused = partial(_row, Decision.REFUSED)

_TUNING: Final = (
    "kafka.auto.include.jmx.reporter", "kafka.batch.size", "kafka.buffer.memory",
    "kafka.check.crcs", "kafka.client.dns.lookup", "kafka.client.id", "kafka.client.rack",
    "kafka.compression.*", "kafka.config.providers*", "kafka.connections.max.idle.ms",
    "kafka.default.api.timeout.ms", "kafka.enable.metrics.push", "kafka.exclude.internal.topics",
    "kafka.fetch.*", "kafka.heartbeat.interval.ms", "kafka.linger.ms", "kafka.max.block.ms",
    "kafka.max.in.flight.requests.per.connection", "kafka.max.partition.fetch.bytes",
    "kafka.max.poll.interval.ms", "kafka.max.poll.records", "kafka.max.request.size",
    "kafka.metadata.*", "kafka.metric.reporters", "kafka.metrics.*",
    "kafka.partition.assignment.strategy", "kafka.receive.buffer.bytes",
    "kafka.reconnect.backoff.*", "kafka.request.timeout.ms", "kafka.retries",
    "kafka.retry.backoff.*", "kafka.send.buffer.bytes", "kafka.session.timeout.ms",
    "kafka.socket.connection.setup.*",
)  # fmt: skip

KAFKA_OPTIONS: Final[tuple[Treatment, ...]] = (
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
        "kafka.group.protocol",
        "kafka.group.remote.assignor",
        "kafka.auto.commit.interval.ms",
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
                raise ConfigError(name, HIDDEN, _why_unknown(name))
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


def kafka_option(name: str) -> Treatment | None:
    """Return the row of one of Kafka's options; None for any other option."""
    return next((row for row in KAFKA_OPTIONS if row.has(name)), None)


def _why_unknown(name: str) -> str:
    near = nearest_name(name, [each for row in KAFKA_OPTIONS for each in row.names])
    remedy = f"did you mean {near!r}?" if near else "docs/from_kafka.md lists the known ones"
    return f"is not a known option of Kafka; {remedy}"
